"""Pages of docs/ with blocks that the code writes, between ``<!-- kind: name -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs"


def fill(page: str, writers: Mapping[str, Callable[[str], str | None]]) -> str:
    """Return the page with every block of these kinds rewritten.

    Args:
        writers: kind -> function from the block's name (empty if it has none) to its text; None leaves the
            block as it is.
    """
    kinds = "|".join(map(re.escape, writers))
    block = re.compile(rf"(<!-- ({kinds})(?:: ([\w-]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)

    def written(m: re.Match[str]) -> str:
        text = writers[m[2]](m[3] or "")
        return m[0] if text is None else m[1] + text + m[5]

    return block.sub(written, page)


def rewrite(page: Path, render: Callable[[str], str]) -> None:
    """Rewrite a page, and print its name if its text has changed."""
    before = page.read_text(encoding="utf-8")
    after = render(before)
    if after != before:
        page.write_text(after, encoding="utf-8")
        print(f"written: {page}")
