"""Text in CSV files that a spreadsheet must not run as a formula."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_FIRST = frozenset((*_FORMULA, " "))
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")


def guarded(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers are not changed."""
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) and not _NUMBER.match(value):
        return "'" + value
    return value


def guarded_row(values: Iterable[object]) -> list[object]:
    """Return each value as ``guarded`` does; of an export's millions, most show by their first letter."""
    return [guarded(v) if isinstance(v, str) and v[:1] in _FIRST else v for v in values]


def unguarded(text: str) -> str:
    """Return the text that ``guarded`` wrote."""
    return text[1:] if text[:1] == "'" and guarded(text[1:]) == text else text
