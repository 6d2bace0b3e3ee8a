"""What papers print for the rows of a comparison; ``fedcore.papers`` reads and matches it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedcore.results.comparison import RowKey
from fedcore.results.metrics import RULES, Metric, Rule
from fedcore.results.rows import CAVEAT_MARK, NOT_COMPARABLE_MARK, ComparisonRow

ComparabilityState = Literal["comparable", "with a caveat", "not comparable"]
STATES: tuple[ComparabilityState, ...] = get_args(ComparabilityState)
MARKS: dict[ComparabilityState, str] = {
    "comparable": "",
    "with a caveat": CAVEAT_MARK,
    "not comparable": NOT_COMPARABLE_MARK,
}
"""Marks of values beside a paper's."""


@dataclass(frozen=True)
class Comparability:
    """The reasons against comparing our value with a paper's, each with its state."""

    reasons: tuple[tuple[ComparabilityState, str], ...] = ()

    @property
    def state(self) -> ComparabilityState:
        return max((state for state, _ in self.reasons), key=STATES.index, default="comparable")

    @property
    def mark(self) -> str:
        return MARKS[self.state]

    @property
    def text(self) -> str:
        """The state and the reasons in one line."""
        return ": ".join(filter(None, (self.state, "; ".join(text for _, text in self.reasons))))

    def with_reason(self, state: ComparabilityState, text: str) -> Comparability:
        """Return the same with one more reason; unchanged if its state is "comparable"."""
        return self if state == "comparable" else self.joined(Comparability(((state, text),)))

    def joined(self, other: Comparability) -> Comparability:
        return Comparability(tuple(dict.fromkeys((*self.reasons, *other.reasons))))


@dataclass(frozen=True)
class PrintedValue:
    """One accuracy that a paper prints, in per cent.

    Attributes:
        std: None if the paper prints none.
        method: the method's name in the paper.
        paper: the paper's title, e.g. ``FedOT``.
        rule: how the paper selects the round that it reports.
        comparability: whether the row's runs measure the same.
    """

    value: float
    std: float | None
    method: str
    paper: str
    table: str
    rule: Rule
    comparability: Comparability = Comparability()

    @property
    def source(self) -> str:
        """The paper and its table, ``FedOT, Table 1``."""
        return f"{self.paper}, Table {self.table}"

    def text(self, digits: int = 2) -> str:
        return f"{self.value:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@dataclass(frozen=True)
class PrintedValues:
    """The values that papers print for the rows of one comparison, and the presets that the rows follow.

    Attributes:
        values: row -> metric -> printed values, in the order in which the experiments name them.
        missing: printed methods without a row in the comparison -> the reason, in the papers' order.
        presets: row -> names of presets, for rows that follow one.
    """

    values: dict[RowKey, dict[Metric, tuple[PrintedValue, ...]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    presets: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)

    def of(self, group: ComparisonRow, metric: Metric) -> tuple[PrintedValue, ...]:
        return self.values.get((group.setting, group.key), {}).get(metric, ())

    def metrics(self, groups: Iterable[ComparisonRow]) -> set[Metric]:
        return {m for g in groups for m in self.values.get((g.setting, g.key), {})}

    def of_rows(self, groups: Iterable[ComparisonRow]) -> PrintedValues:
        rows = {(g.setting, g.key) for g in groups}
        values = {row: by_metric for row, by_metric in self.values.items() if row in rows}
        return PrintedValues(values, self.missing, self.presets)

    def presets_of(self, group: ComparisonRow) -> tuple[str, ...]:
        return self.presets.get((group.setting, group.key), ())

    def presets_text(self, groups: Sequence[ComparisonRow]) -> str:
        """Return which rows follow which preset, in sentences; empty if none does."""
        labels: dict[tuple[str, ...], list[str]] = {}
        for group in groups:
            labels.setdefault(self.presets_of(group), []).append(group.label)
        return " ".join(
            f"Preset {' and '.join(names)}: "
            f"{'all rows' if len(following) == len(groups) else ', '.join(following)}."
            for names, following in labels.items()
            if names
        )

    @property
    def all(self) -> list[PrintedValue]:
        return [v for by_metric in self.values.values() for values in by_metric.values() for v in values]

    @property
    def sources(self) -> list[str]:
        """A text per paper, ``FedOT, Tables 1, 3 (best on validation)``: with the round that it reports."""
        tables: dict[tuple[str, Rule], set[str]] = {}
        for value in self.all:
            tables.setdefault((value.paper, value.rule), set()).add(value.table)
        return [
            f"{paper}, Table{'s' * (len(names) > 1)} {', '.join(sorted(names))} ({RULES[rule]})"
            for (paper, rule), names in tables.items()
        ]

    @property
    def notes(self) -> list[str]:
        """The papers behind the values, and the meaning of the marks that occur; empty without values."""
        if not self.values:
            return []
        marks = {value.comparability.mark for value in self.all}
        notes = [f"Printed: {'; '.join(self.sources)}."]
        if CAVEAT_MARK in marks:
            notes.append(f"{CAVEAT_MARK} with a caveat: the paper can be read in more than one way.")
        if NOT_COMPARABLE_MARK in marks:
            notes.append(f"{NOT_COMPARABLE_MARK} not comparable: ours measures something else.")
        return notes

    @property
    def reasons(self) -> list[str]:
        """Each reason against comparing once, with the method that it is about."""
        marked = [value for value in self.all if value.comparability.mark]
        return list(dict.fromkeys(f"{v.source}, {v.method}: {v.comparability.text}" for v in marked))
