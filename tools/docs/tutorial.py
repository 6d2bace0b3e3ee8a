"""The files of examples/ that docs/tutorial.md shows in full."""

from __future__ import annotations

from tools.docs.blocks import FOLDER, fill

PAGE = FOLDER / "tutorial.md"
EXAMPLES = FOLDER.parent / "examples"


def render(text: str) -> str:
    """Return the page with every example as it is on disk."""
    return fill(text, {"example": _code})


def _code(name: str) -> str:
    return f"```python\n{(EXAMPLES / f'{name}.py').read_text(encoding='utf-8')}```\n"
