"""The methods' sections of docs/methods.md, as the dashboard shows them beside a method's form."""

from __future__ import annotations

import re
from functools import cache

from fedcore.paths import PROJECT

PAGE = PROJECT / "docs" / "methods.md"
_SECTION = re.compile(r"^## [^\n]+\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"^Name: `([\w-]+)`\.\n", re.MULTILINE)
_GENERATED = re.compile(r"<!-- (?:idea|fields): .*?<!-- end -->\n*", re.DOTALL)
"""Blocks that repeat the form beside the section."""
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@cache
def sections() -> dict[str, str]:
    """Return the methods' guide as Markdown by method; empty if the page is not installed."""
    try:
        page = PAGE.read_text(encoding="utf-8")
    except OSError:
        return {}
    texts = {}
    for section in _SECTION.findall(page):
        name = _NAME.search(section)
        if name:
            text = _COMMENT.sub("", _GENERATED.sub("", section.replace(name[0], "")))
            texts[name[1]] = _LINK.sub(r"\1", text).strip()
    return texts
