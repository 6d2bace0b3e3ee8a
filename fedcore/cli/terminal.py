"""Names come from files of others: what they hold beside text must not reach the terminal as a command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

_COMMANDS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
"""Control characters of ASCII (ESC, BEL) and of C1 without tab and line end, and overrides of direction."""


def printable(text: str) -> str:
    r"""Return a text with its control characters written out, ESC as ``\x1b``."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Printable:
    """A text stream through which no control character passes.

    Attributes:
        rich_proxied_file: where rich draws its bars, which are control sequences. The names in them are made
            printable by ``fedcore.cli.progress``.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def printable_output() -> Iterator[None]:
    """Let nothing but text be printed meanwhile: by commands, logging, warnings and tracebacks alike."""
    out, err = (cast("TextIO", _Printable(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


def write_data(text: str) -> None:
    """Print an export: printable in a terminal, exactly as it would be in a file elsewhere."""
    raw = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    (sys.stdout if sys.stdout.isatty() else raw).write(text)
