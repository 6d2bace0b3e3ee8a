"""The summary of a comparison: rows, cells, marks, tests and notes, decided once for all that show it.

The page Compare, the report, LaTeX, CSV and JSON all draw this value. They choose colours, digits and markup;
which mean is bold, which rows are compared, and why a cell is empty is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedcore.base.progress import counted
from fedcore.results.comparison import Comparison, RowKey, reason_not_comparable, significance
from fedcore.results.metrics import METRICS, RULES, Metric, Rule
from fedcore.results.rows import CAVEAT_MARK, NOT_COMPARABLE_MARK, ComparisonRow
from fedcore.results.statistics import MIN_PAIRS, TESTS, PairedTest, Test, group_by, signed

RankMark = Literal["", "best", "second"]
"""Of a mean: ``best`` is set in bold, ``second`` is underlined."""
MARKS_NOTE = "Bold: best; underlined: second best. Only means over three or more seeds are marked."
"""The legend of the marks, for page, report and LaTeX."""
MEAN_AND_SPREAD = "mean ± sample standard deviation over seeds"


@dataclass(frozen=True)
class DifferenceCell:
    """A row's difference from the baseline in one metric, and its test.

    Attributes:
        points: mean of the differences over the seeds that both rows have; None for the baseline itself, and
            if no difference is taken.
        p_text: the adjusted p, or the reason why no test was made; None for a cell without a value.
        p_help: the test behind the p, or the reason against comparing.
    """

    is_baseline: bool = False
    points: float | None = None
    test: PairedTest | None = None
    p_text: str | None = None
    p_help: str = ""

    @property
    def significant(self) -> bool:
        return self.test is not None and self.test.significant

    def text(self, digits: int) -> str | None:
        """Return ``baseline`` or the signed difference, without star; None for a cell without a value."""
        if self.is_baseline:
            return "baseline"
        return None if self.points is None or self.test is None else signed(self.points, digits)


@dataclass(frozen=True)
class SummaryRow:
    """A row of a summary.

    Attributes:
        marks: of the row's means; tables have columns for some metrics only.
        differences: from the baseline, by tested metric; empty if the table has no baseline.
        seeds: the number of seeds in each mean: one number, or one per column if they differ.
        rounds: the rounds done, ``20`` or ``7 of 20``.
        remarks: notes for the reader on the row, and why it is not compared with the baseline.
    """

    row: ComparisonRow
    marks: Mapping[Metric, RankMark]
    printed: Mapping[Metric, tuple[PrintedValue, ...]]
    differences: Mapping[Metric, DifferenceCell]
    seeds: str
    rounds: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class SummaryTable:
    """The summary of one setting.

    Attributes:
        metrics: those with a column; ``printed_metrics`` have a second one for the papers' values.
        notes: on the baseline and on printed values, for below the table.
    """

    setting: str
    title: str
    rows: tuple[SummaryRow, ...]
    metrics: tuple[Metric, ...]
    printed_metrics: frozenset[Metric]
    printed: PrintedValues
    baseline: ComparisonRow | None
    notes: tuple[str, ...]

    @property
    def spread(self) -> str:
        """The numbers beside the means in words."""
        stats = [r.row.stats[m] for r in self.rows for m in self.metrics if m in r.row.stats]
        several = any(stat.std is not None for stat in stats)
        return MEAN_AND_SPREAD if several else "one seed"


@dataclass(frozen=True)
class Summary:
    """The summary of a comparison, a table per setting.

    Attributes:
        metric: of the column with differences.
        digits: decimals of accuracies and differences; means that are printed alike share a mark.
        notes: on the reported round, the marks and the test, for all tables.
    """

    comparison: Comparison
    tables: tuple[SummaryTable, ...]
    metric: Metric
    test: Test
    digits: int
    printed: PrintedValues
    notes: tuple[str, ...]


def summarise(
    comparison: Comparison,
    baseline: str | None = None,
    test: Test = "t",
    printed: PrintedValues | None = None,
    *,
    metric: Metric = "personal",
    tested: Iterable[Metric] = METRICS,
    digits: int = 2,
) -> Summary:
    """Decide everything that the tables of a comparison show.

    Args:
        baseline: label of the row from which differences are taken.
        metric: of the column with differences.
        tested: metrics with tested differences; a page that shows one column saves the other tests.
    """
    printed = printed or PrintedValues()
    tables = tuple(
        _table(comparison, setting, baseline, test, printed, list(tested), digits, metric)
        for setting in comparison.settings
    )
    several = any(len(row.seeds) > 1 for row in comparison.rows)
    spread = MEAN_AND_SPREAD if several else "one seed, so no standard deviation"
    notes = [f"Test accuracy, {spread}; reported round: {RULES[comparison.rule]}.", MARKS_NOTE]
    if baseline is not None:
        notes.append(
            "Differences are means over the seeds that both rows have. * significant at 5 %: "
            f"{TESTS[test]}, two-sided, over these seeds; p is Holm-corrected for all tested rows of the "
            "table."
        )
    return Summary(comparison, tables, metric, test, digits, printed, tuple(notes))


def _table(
    comparison: Comparison,
    setting: str,
    label: str | None,
    test: Test,
    printed: PrintedValues,
    tested: Sequence[Metric],
    digits: int,
    metric: Metric,
) -> SummaryTable:
    rows = comparison.rows_in(setting)
    baseline = next((row for row in rows if row.label == label), None)
    metrics = shown_metrics(rows, metric)
    marks = {m: best_and_second(rows, m, digits) for m in METRICS}
    tests = {m: significance(rows, baseline, m, test) for m in tested} if baseline is not None else {}
    made = []
    for row in rows:
        reason = "" if baseline is None else reason_not_comparable(row, baseline)
        remarks = [row.remark] if row.remark else []
        if baseline is not None and reason and not row.other_tests:
            remarks.insert(0, f"not compared with {baseline.label}: {reason}")
        differences = {}
        if baseline is not None:
            differences = {m: _difference(row, baseline, tests[m].get(row.key), reason) for m in tested}
        counts = [row.stats[m].n if m in row.stats else 0 for m in metrics]
        several = set(filter(None, counts))
        done = {result.run.rounds_done for part in row.parts for result in part.runs}
        asked = {part.config.rounds for part in row.parts}
        rounds = " to ".join(map(str, dict.fromkeys((min(asked), max(asked)))))
        made.append(
            SummaryRow(
                row,
                {m: marks[m].get(row.key, "") for m in row.stats},
                {m: printed.of(row, m) for m in METRICS},
                differences,
                "/".join(map(str, counts if len(several) > 1 else several)) or "0",
                rounds if done == asked else f"{min(done)} of {rounds}",
                tuple(remarks),
            )
        )
    of_rows = printed.of_rows(rows)
    notes = [f"The baseline {label} has no run in this setting."] if label and baseline is None else []
    return SummaryTable(
        setting,
        comparison.settings[setting],
        tuple(made),
        metrics,
        frozenset(printed.metrics(rows)),
        of_rows,
        baseline,
        (*notes, *of_rows.notes, *of_rows.reasons),
    )


def _difference(
    row: ComparisonRow, baseline: ComparisonRow, test: PairedTest | None, reason: str
) -> DifferenceCell:
    if row.key == baseline.key:
        return DifferenceCell(is_baseline=True, p_text="")
    if reason:
        return DifferenceCell(p_text="not comparable", p_help=reason)
    if test is None:
        return DifferenceCell()
    tested = f"{TESTS[test.test]} over {counted(test.n, 'seed')}"
    tested += "" if test.p is None else f"; uncorrected p {test.p:.3g}"
    p_text = test.text.removeprefix("p = ").removeprefix("p ")
    return DifferenceCell(False, test.difference, test, p_text, tested)


def offered_metrics(rows: Sequence[ComparisonRow]) -> tuple[Metric, ...]:
    """Return the metrics that some rows can be compared by.

    If domains were held out, the mean personal accuracy equals P and is not offered.
    """
    available = tuple(m for m in METRICS if any(m in row.stats for row in rows))
    return tuple(m for m in available if m != "personal" or "personalisation" not in available)


def shown_metrics(rows: Sequence[ComparisonRow], chosen: Metric | None = None) -> tuple[Metric, ...]:
    """Return the metrics that a table of some rows has columns for, the chosen one in any case."""
    return tuple(m for m in offered_metrics(rows) if not METRICS[m].on_request or m == chosen)


def best_and_second(rows: Sequence[ComparisonRow], metric: Metric, digits: int = 1) -> dict[str, RankMark]:
    """Return the marks of the best and second best rows of a setting, by key; a single row is not marked.

    Only rows with three or more seeds take part, as on the leaderboard: with fewer, "best" would claim more
    than the seeds can show. Rows that were evaluated on other test sets than most never take part.

    Args:
        digits: decimals of the table; values that are printed alike are equal.
    """
    stats = {row.key: row.stats[metric] for row in rows if metric in row.stats and not row.other_tests}
    means = {key: round(stat.mean, digits) for key, stat in stats.items() if stat.n >= MIN_PAIRS}
    if len(means) < 2:
        return {}
    marks: tuple[RankMark, RankMark] = ("best", "second")
    levels = dict(zip(sorted(set(means.values()), reverse=True), marks, strict=False))
    return {key: levels[mean] for key, mean in means.items() if mean in levels}


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
        said = []
        for names, following in group_by(groups, self.presets_of).items():
            who = "all rows" if len(following) == len(groups) else ", ".join(g.label for g in following)
            said += [f"Preset {' and '.join(names)}: {who}."] if names else []
        return " ".join(said)

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
