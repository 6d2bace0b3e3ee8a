"""Whether a run measures what a paper prints, as ``fedcore/assets/published/comparability.csv`` has it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache

from pydantic import TypeAdapter

from fedcore.papers.published import FOLDER, PublishedValue
from fedcore.results.metrics import RunResult
from fedcore.results.printed import Comparability, State

FILE = FOLDER / "comparability.csv"
MATCHED = ("paper", "table", "dataset", "setting", "method", "target", "metric")
"""Columns that say which values a reason is about: empty for all, else names that may contain ``*``."""
_STATE: TypeAdapter[State] = TypeAdapter(State)


@dataclass(frozen=True)
class Reason:
    """A line of the file: a reason not to take a run for a repetition of some published values.

    Attributes:
        patterns: column of ``MATCHED`` -> the names that it lists.
        test_images: domain -> images in the paper's test set. A run with these counts is free of the reason.
        unmeasured: the state while no run has told its counts; None for that of ``state``.
    """

    patterns: Mapping[str, tuple[str, ...]]
    test_images: Mapping[str, int]
    state: State
    unmeasured: State | None
    text: str

    def is_about(self, value: PublishedValue) -> bool:
        """Return whether the reason is about this value."""
        return all(
            any(_matches(getattr(value, column), name) for name in names)
            for column, names in self.patterns.items()
        )

    def state_of(self, test_images: Mapping[str, int] | None) -> State:
        """Return the state of a run that was tested on so many images by domain; None: there is no run."""
        if not self.test_images:
            return self.state
        if test_images is None:
            return self.unmeasured or self.state
        equal = all(test_images.get(domain) == count for domain, count in self.test_images.items())
        return "comparable" if equal else self.state


def _matches(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]"))


@cache
def reasons() -> tuple[Reason, ...]:
    """Return the lines of the file, in its order."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Reason(
                patterns={c: tuple(row[c].split("|")) for c in MATCHED if row[c]},
                test_images={k: int(n) for k, n in (part.split("=") for part in row["test_images"].split())},
                state=_STATE.validate_python(row["state"]),
                unmeasured=_STATE.validate_python(row["unmeasured"]) if row["unmeasured"] else None,
                text=row["reason"],
            )
            for row in csv.DictReader(file)
        )


@cache
def _reasons_for(value: PublishedValue) -> tuple[Reason, ...]:
    return tuple(reason for reason in reasons() if reason.is_about(value))


def comparability(value: PublishedValue, test_images: Mapping[str, int] | None = None) -> Comparability:
    """Return whether ours may stand beside a published value, and every reason against it.

    Args:
        test_images: domain -> test images of the run; None while there is no run, and the file alone decides.
    """
    return _comparability(value, None if test_images is None else tuple(test_images.items()))


@lru_cache(maxsize=8192)
def _comparability(value: PublishedValue, test_images: tuple[tuple[str, int], ...] | None) -> Comparability:
    images = None if test_images is None else dict(test_images)
    result = Comparability()
    for reason in _reasons_for(value):
        result = result.with_reason(reason.state_of(images), reason.text)
    return result


def comparability_of_runs(
    value: PublishedValue, runs: Iterable[RunResult], caveats: Iterable[str]
) -> Comparability:
    """Return whether recorded runs measure a published value.

    Args:
        caveats: how the runs depart from their config; empty texts do not count.
    """
    result = Comparability()
    for images in dict.fromkeys(tuple(run.test_images.items()) for run in runs):
        result = result.joined(comparability(value, dict(images)))
    for caveat in filter(None, caveats):
        result = result.with_reason("with a caveat", caveat)
    return result
