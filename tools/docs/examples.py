"""The files of examples/ that docs/tutorial.md and docs/own-method.md show in full."""

from __future__ import annotations

from tools.docs.blocks import FOLDER, fill

TUTORIAL = FOLDER / "tutorial.md"
OWN_METHOD = FOLDER / "own-method.md"
EXAMPLES = FOLDER.parent / "examples"


def render(text: str) -> str:
    """Return the page with every example as it is on disk."""
    return fill(text, {"example": _code})


def _code(name: str) -> str:
    return f"```python\n{(EXAMPLES / f'{name}.py').read_text(encoding='utf-8')}```\n"
