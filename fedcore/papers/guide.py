"""The pages of docs/methods/, as the dashboard shows them beside a method's form."""

from __future__ import annotations

import re
from functools import cache

from fedcore.paths import PROJECT

PAGES = PROJECT / "docs" / "methods"
_HEAD = re.compile(r"\A# [^\n]+\n+Name: `[\w-]+`\.\n")
_GENERATED = re.compile(r"<!-- (?:idea|fields): .*?<!-- end -->\n*", re.DOTALL)
"""Blocks that repeat the form beside the text."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@cache
def text(method: str) -> str:
    """Return the equations and readings of a method as Markdown; empty if it has no installed page."""
    try:
        page = (PAGES / f"{method}.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    head = _HEAD.match(page)
    return _LINK.sub(r"\1", _GENERATED.sub("", page[head.end() :])).strip() if head else ""
