"""Text in CSV files that a spreadsheet must not run as a formula."""

import re

_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Full-width forms too, which some spreadsheets read as the plain ones."""
_MAYBE = frozenset((*_FORMULA, " "))
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")


def guarded(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers are not changed."""
    if not isinstance(value, str) or value[:1] not in _MAYBE:
        return value  # at once, as a long export asks of millions of values
    if value.lstrip(" ").startswith(_FORMULA) and not _NUMBER.match(value):
        return "'" + value
    return value


def unguarded(text: str) -> str:
    """Return the text that ``guarded`` wrote."""
    return text[1:] if text[:1] == "'" and guarded(text[1:]) == text else text
