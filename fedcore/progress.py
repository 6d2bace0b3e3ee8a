"""How far slow work is. A function that works for long yields ``Progress`` and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Progress:
    """One report of slow work, e.g. ``encoding 300/1800``.

    Attributes:
        message: what is being done.
        done: how much of it is done, in the work's own units.
        total: how much there is in all; 0 where that is not known.
    """

    message: str
    done: int
    total: int


Work = Generator[Progress, None, _Result]
"""Slow work in progress: ``result = yield from work`` passes its progress on and takes its result."""
