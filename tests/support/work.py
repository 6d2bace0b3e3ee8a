"""Slow work run to its end by a test."""

from collections.abc import Generator
from typing import TypeVar

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def collect(work: Generator[_Step, None, _Result]) -> tuple[list[_Step], _Result]:
    """Return everything that the work yielded, and its result."""
    steps = []
    while True:
        try:
            steps.append(next(work))
        except StopIteration as end:
            return steps, end.value
