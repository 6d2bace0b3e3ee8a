"""A family of faults of one kind, and the outcomes of its attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tools.faults.lab import Lab
from tools.faults.verdict import DEFECTS, Outcome, Verdict

if TYPE_CHECKING:
    import numpy as np


def nothing() -> str | None:
    """A family that can be tried on every machine needs nothing."""
    return None


@dataclass(frozen=True)
class Family:
    """Faults of one kind.

    Attributes:
        attempts: how many by default.
        attempt: makes one fault in an empty folder and judges it. A ``FedLensError`` that leaves it counts as
            refused, any other exception as a raw error.
        needs: returns why the family cannot be tried on this machine; None if it can.
    """

    name: str
    about: str
    attempts: int
    attempt: Callable[[Lab, Path, np.random.Generator], Verdict]
    needs: Callable[[], str | None] = nothing


@dataclass
class Tally:
    """The outcomes of a family so far."""

    family: Family
    counts: Counter[Outcome] = field(default_factory=Counter)
    seconds: float = 0.0
    skipped: str | None = None

    @property
    def defects(self) -> int:
        """Silent differences, wrong states and raw errors together."""
        return sum(self.counts[outcome] for outcome in DEFECTS)

    def row(self) -> list[str]:
        """Return the cells of its row in the table."""
        if self.skipped:
            return [self.family.about, f"not tried: {self.skipped}", *[""] * (len(Outcome) + 1)]
        counts = [f"{self.counts[outcome]:,}" for outcome in Outcome]
        return [self.family.about, f"{self.counts.total():,}", *counts, f"{self.seconds:,.0f} s"]


def table(tallies: list[Tally]) -> str:
    """Return the table of all families, in Markdown."""
    header = ["fault", "attempts", *(str(outcome) for outcome in Outcome), "time"]
    rows = [header, ["---"] * len(header), *(tally.row() for tally in tallies)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
