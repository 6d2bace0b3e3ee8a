"""The error that users see: what is wrong, where, and what to do, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

DAMAGE = (ValueError, RecursionError)
"""What parsers and our checks raise for broken content.

TypeError, AttributeError and LookupError are left out: they come from faults of our own code, which must
surface with a traceback. Code that reads foreign content parses it into types first.
"""


class FedLensError(ValueError):
    """Bad input or a missing resource.

    Attributes:
        field: dotted name of the offending field (``partition.clients``, ``methods.0.blocks``), or None.
            The browser shows the message beside that field, the command line prints it first.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(" ".join(message.splitlines()))  # paths and values that it quotes may have several
        self.field = field

    def line(self) -> str:
        """Return the message with the field in front, as the command line prints it."""
        return f"{self.field}: {self}" if self.field else str(self)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, number: int = 1) -> str:
    """Return ``did you mean 'x'?`` with the known names that are most like ``name``, else ``otherwise``."""
    lowered = {each.lower(): each for each in known}
    near = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, number, 0.5)]
    return f"did you mean {' or '.join(repr(each) for each in near)}?" if near else otherwise


def first_line(error: BaseException) -> str:
    """Return the type and the first line of a library's error, to be quoted in one of ours."""
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic's: its first line only counts the errors
        first = details()[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    else:
        text = str(error)
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"


@contextmanager
def reading_stored(what: str) -> Iterator[None]:
    """Turn the errors of a damaged value (``DAMAGE``) into one line that names what could not be read."""
    try:
        yield
    except FedLensError:
        raise
    except DAMAGE as error:
        raise FedLensError(
            f"{what} cannot be read ({first_line(error)}); `fedlens doctor` says what is damaged"
        ) from error


def check_types(row: type, values: Mapping[str, Any]) -> None:
    """Refuse stored values that are not of the types which a dataclass declares.

    Raises:
        ValueError: naming the value, for ``reading_stored``.
    """
    for name, types in _types(row).items():
        if not isinstance(values[name], types):
            raise ValueError(f"{name} is {values[name]!r:.60}")


@cache
def _types(row: type) -> dict[str, tuple[type, ...]]:
    found = {}
    for name, hint in get_type_hints(row).items():
        types = [get_origin(t) or t for t in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
        found[name] = (*types, *([int] * (float in types)))
    return found
