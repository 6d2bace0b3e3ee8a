"""The error that users see: what is wrong, where, and what to do, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged value raises."""


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
    """Turn whatever a damaged value raises into one line that names what could not be read.

    Raises:
        FedLensError: for any of ``DAMAGE``; one that was raised inside passes unchanged.
    """
    try:
        yield
    except FedLensError:
        raise
    except DAMAGE as error:
        raise FedLensError(
            f"{what} cannot be read ({first_line(error)}); `fedlens doctor` says what is damaged"
        ) from error
