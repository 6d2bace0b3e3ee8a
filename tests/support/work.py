"""Slow work run to its end by a test."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def collect(work: Generator[_Step, None, _Result]) -> tuple[list[_Step], _Result]:
    """What the work yielded, and what it returned."""
    steps = []
    while True:
        try:
            steps.append(next(work))
        except StopIteration as end:
            return steps, end.value
