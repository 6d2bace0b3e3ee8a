"""One row of a comparison: the runs that differ by seed and held-out domain only."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedcore.config import RunConfig
from fedcore.records.codes import NO_VALUE
from fedcore.results.metrics import Breakdown, Metric, RunResult
from fedcore.results.settings import config_for_display, result_caveat
from fedcore.results.statistics import Stat

CAVEAT_MARK = "†"
"""Marks a row with runs that depart from their config, and the note on it."""
NOT_COMPARABLE_MARK = "‡"
"""Marks a row that was evaluated on other test sets than its setting's other rows, and the note on it."""


@dataclass(frozen=True)
class ComparisonRow:
    """Runs that differ by seed and held-out domain only: one row of a table.

    Attributes:
        label: unique within the setting; names what differs where one method appears twice.
        setting: key of the data, partition and backbone that all rows of one table share.
        stats: mean and spread over seeds, per cent.
        other_tests: how its test sets differ from those of the setting's other rows; empty if they agree.
    """

    key: str
    label: str
    method: str
    setting: str
    runs: tuple[RunResult, ...]
    stats: dict[Metric, Stat]
    config: RunConfig
    breakdowns: dict[Breakdown, dict[str, Stat]] = field(default_factory=dict)
    other_tests: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({r.run.seed for r in self.runs}))

    @property
    def trains(self) -> bool:
        """Return whether a run reports another round than 0, which is before training."""
        return any(result.rounds != (0,) for result in self.runs)

    @property
    def trained_by_fedlens(self) -> bool:
        """Return whether FedLens trained the runs; a script may have recorded them, or they were imported."""
        return self.runs[0].run.origin == "engine"

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The config as a flat table, with defaults resolved if FedLens trained the runs."""
        return config_for_display(self.config, self.trained_by_fedlens)

    @cached_property
    def caveat(self) -> str:
        """The runs' departures from their config, and the reason for missing values; empty without either."""
        departs = result_caveat(self.config) if self.trained_by_fedlens else ""
        return "; ".join(filter(None, (departs, self.no_value)))

    @cached_property
    def no_value(self) -> str:
        """Why it has no accuracy on new classes or after adaptation; empty if it has them."""
        notices = (notice.message for r in self.runs for notice in r.run.notices)
        return "; ".join(dict.fromkeys(text for text in notices if text.startswith(NO_VALUE)))

    @property
    def remark(self) -> str:
        """A caveat for the reader, to be given wherever the row is shown; usually empty."""
        tests = f"{self.other_tests}, so it is not compared with the other rows" if self.other_tests else ""
        return "; ".join(filter(None, (tests, self.caveat)))

    @property
    def mark(self) -> str:
        return NOT_COMPARABLE_MARK if self.other_tests else CAVEAT_MARK if self.caveat else ""

    @property
    def drawn_label(self) -> str:
        """The label in charts, which have no room for a remark but show that a row is not compared."""
        return f"{self.label} {NOT_COMPARABLE_MARK}" if self.other_tests else self.label
