"""Values that papers print for the rows of a comparison; ``fedcore.papers`` reads and matches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedcore.results.comparison import Comparison, Group
from fedcore.results.metrics import RULES, Metric, Rule

Row = tuple[str, str]
"""A row of a comparison: its setting and its key."""


@dataclass(frozen=True)
class PrintedValue:
    """One accuracy that a paper prints, in per cent.

    Attributes:
        std: None if the paper prints none.
        method: the method's name in the paper.
        paper: the paper's title, e.g. ``FedOT``.
        rule: how the paper selects the round that it reports.
    """

    value: float
    std: float | None
    method: str
    paper: str
    table: str
    rule: Rule

    @property
    def source(self) -> str:
        """The paper and its table, ``FedOT, Table 1``."""
        return f"{self.paper}, Table {self.table}"

    def text(self, digits: int = 2) -> str:
        """Return the value, with its spread where the paper prints one."""
        return f"{self.value:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@dataclass(frozen=True)
class PrintedValues:
    """The values that papers print for the rows of one comparison.

    Attributes:
        values: row -> metric -> printed values, in the order in which the experiments name them.
        missing: printed methods without a row in the comparison -> the reason, in the papers' order.
    """

    values: dict[Row, dict[Metric, tuple[PrintedValue, ...]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def of(self, group: Group, metric: Metric) -> tuple[PrintedValue, ...]:
        """Return the values printed for one cell of a table; empty if there are none."""
        return self.values.get((group.setting, group.key), {}).get(metric, ())

    def metrics(self, groups: Iterable[Group]) -> set[Metric]:
        """Return the metrics for which a value is printed for at least one of these rows."""
        return {m for g in groups for m in self.values.get((g.setting, g.key), {})}

    def of_rows(self, groups: Iterable[Group]) -> PrintedValues:
        """Return the lookup restricted to some rows."""
        rows = {(g.setting, g.key) for g in groups}
        kept = {row: by_metric for row, by_metric in self.values.items() if row in rows}
        return PrintedValues(kept, self.missing)

    @property
    def sources(self) -> list[str]:
        """A text per paper, ``FedOT, Tables 1, 3 (best on validation)``: with the round that it reports."""
        tables: dict[tuple[str, Rule], set[str]] = {}
        for value in (v for row in self.values.values() for values in row.values() for v in values):
            tables.setdefault((value.paper, value.rule), set()).add(value.table)
        return [
            f"{paper}, Table{'s' * (len(names) > 1)} {', '.join(sorted(names))} ({RULES[rule]})"
            for (paper, rule), names in tables.items()
        ]


PrintedLookup = Callable[[Comparison], PrintedValues]


def nothing_printed(comparison: Comparison) -> PrintedValues:
    """Return the lookup for exports without the papers' columns."""
    return PrintedValues()
