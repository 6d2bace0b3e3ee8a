"""The tables of a report as text cells, with the marks and tests that the page Compare shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.config.field_names import number_ranges
from fedcore.methods import registry
from fedcore.progress import counted
from fedcore.reports.content import Report, Section
from fedcore.results.comparison import (
    ComparisonRow,
    config_differences,
    difference,
    partial_fields,
    ranks,
    reason_not_comparable,
    significance,
)
from fedcore.results.metrics import (
    BREAKDOWNS,
    METRIC_HEADINGS,
    METRIC_HELP,
    RULES,
    Breakdown,
    Metric,
    value_per_seed,
)
from fedcore.results.printed import MARKS
from fedcore.results.run_files import environment_texts
from fedcore.results.statistics import TESTS, PairedTest, Stat, group_by, signed

DIGITS = 2
"""Decimals of the accuracies, as in the LaTeX table."""
NONE = "–"  # noqa: RUF001 - a dash, not a minus sign


@dataclass(frozen=True)
class TextCell:
    """One cell of a table.

    Attributes:
        value: the number behind the text, unrounded, for readers that are programs.
        help: what a pointer on the cell shows.
        mark: how the text is set: ``best``, ``second``, or as usual.
    """

    text: str
    value: float | None = None
    help: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of a report.

    Attributes:
        columns: title of each, and whether it holds numbers.
    """

    title: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[TextCell]]
    notes: Sequence[str] = ()


def summary_table(report: Report, section: Section) -> TextTable:
    """Return mean and spread of every row and metric, and the test against the baseline."""
    groups, baseline, metric = section.rows, section.baseline, report.metric
    printed = report.printed.metrics(groups)
    columns = [("Method", False)]
    for m in section.metrics:
        columns.append((f"{METRIC_HEADINGS[m]}, %", True))
        columns += [(f"{METRIC_HEADINGS[m]} printed, %", True)] if m in printed else []
    if baseline is not None:
        columns += [(f"{METRIC_HEADINGS[metric]}: difference, points", True), ("p (Holm)", True)]
    columns += [("Seeds (n)", True), ("Rounds", True)]
    marks = {m: ranks(groups, m, DIGITS) for m in section.metrics}
    tested = {} if baseline is None else significance(groups, baseline, metric, report.choice.test)
    rows = []
    for group in groups:
        cells = [_name(group)]
        for m in section.metrics:
            cells.append(_accuracy(group, m, marks[m]))
            cells += [_printed(report, group, m)] if m in printed else []
        if baseline is not None:
            cells += _against(group, baseline, metric, tested.get(group.key))
        counts = sorted({group.stats[m].n for m in section.metrics if m in group.stats}, reverse=True)
        cells += [TextCell("/".join(map(str, counts)) or "0"), TextCell(_rounds(group))]
        rows.append(cells)
    return TextTable(f"Summary of {section.title}", columns, rows, _summary_notes(report, section))


def _name(group: ComparisonRow) -> TextCell:
    return TextCell(f"{group.label} {group.mark}".rstrip(), help=group.remark)


def _accuracy(group: ComparisonRow, metric: Metric, marks: tuple[set[str], set[str]]) -> TextCell:
    stat = group.stats.get(metric)
    if stat is None:
        return TextCell(NONE)
    seeds = value_per_seed(group.runs, metric).items()
    return TextCell(
        stat.text(DIGITS),
        stat.mean,
        "; ".join(f"seed {seed}: {value:.{DIGITS}f}" for seed, value in seeds),
        "best" if group.key in marks[0] else "second" if group.key in marks[1] else "",
    )


def _printed(report: Report, group: ComparisonRow, metric: Metric) -> TextCell:
    values = report.printed.of(group, metric)
    texts = dict.fromkeys(f"{v.text(DIGITS)} {v.comparability.mark}".rstrip() for v in values)
    reasons = dict.fromkeys(f"{v.source}, {v.method}: {v.comparability.text}" for v in values)
    return TextCell(" / ".join(texts) or "not printed", None, "; ".join(reasons))


def _against(
    group: ComparisonRow, baseline: ComparisonRow, metric: Metric, test: PairedTest | None
) -> list[TextCell]:
    if group.key == baseline.key:
        return [TextCell("baseline"), TextCell("")]
    why = reason_not_comparable(group, baseline)
    if why:
        return [TextCell(NONE), TextCell("not comparable", help=why)]
    gap = difference(group, baseline, metric)
    if gap is None or test is None:
        return [TextCell(NONE), TextCell(NONE)]
    tested = f"{TESTS[test.test]} over {counted(test.n, 'seed')}"
    tested += "" if test.p is None else f"; uncorrected p {test.p:.3g}"
    text = test.text.removeprefix("p = ").removeprefix("p ")
    return [
        TextCell(signed(gap, DIGITS) + " *" * test.significant, gap),
        TextCell(text, test.adjusted, tested),
    ]


def _rounds(group: ComparisonRow) -> str:
    done, asked = {v.run.rounds_done for v in group.runs}, group.config.rounds
    return str(asked) if done == {asked} else f"{min(done)} of {asked}"


def _summary_notes(report: Report, section: Section) -> list[str]:
    several = any(len(g.seeds) > 1 for g in section.rows)
    spread = (
        "mean ± sample standard deviation over seeds" if several else "one seed, so no standard deviation"
    )
    notes = [f"Test accuracy, {spread}; reported round: {RULES[report.comparison.rule]}."]
    notes.append("Bold: best; underlined: second best. Hover over a cell for its seeds and reasons.")
    notes += [f"{METRIC_HEADINGS[m]}: {METRIC_HELP[m]}." for m in section.metrics]
    if section.baseline is not None:
        notes.append(
            f"* significant at 5 %: {TESTS[report.choice.test]}, two-sided, over the seeds that both rows "
            "have; p is Holm-corrected for all tested rows of the table."
        )
    elif report.choice.baseline is not None:
        notes.append(f"The baseline {report.choice.baseline} has no run in this setting.")
    printed = report.printed.of_rows(section.rows)
    if printed.values:
        notes.append(f"Printed: {'; '.join(printed.sources)}.")
        marks = {v.comparability.mark for v in printed.all}
        if MARKS["with a caveat"] in marks:
            notes.append(
                f"{MARKS['with a caveat']} with a caveat: the paper can be read in more than one way."
            )
        if MARKS["not comparable"] in marks:
            notes.append(f"{MARKS['not comparable']} not comparable: ours measures something else.")
    against = [f"{v.source}, {v.method}: {v.comparability.text}" for v in printed.all if v.comparability.mark]
    return notes + list(dict.fromkeys(against))


def breakdown_tables(section: Section) -> list[TextTable]:
    """Return the accuracies by domain, client and held-out domain, a column per name."""
    tables = []
    for part in BREAKDOWNS:
        stats = {g.key: g.breakdowns.get(part, {}) for g in section.rows}
        names = list(dict.fromkeys(name for by_name in stats.values() for name in by_name))
        if names:
            tables.append(_breakdown_table(section, part, names))
    return tables


def _breakdown_table(section: Section, part: Breakdown, names: Sequence[str]) -> TextTable:
    rows = [
        [_name(g), *(_stat(g.breakdowns.get(part, {}).get(name)) for name in names)] for g in section.rows
    ]
    return TextTable(f"{BREAKDOWNS[part]}, %", [("Method", False), *((name, True) for name in names)], rows)


def _stat(stat: Stat | None) -> TextCell:
    return TextCell(NONE) if stat is None else TextCell(stat.text(DIGITS), stat.mean)


def config_tables(report: Report) -> list[TextTable]:
    """Return the fields that differ between rows, those that only some have, and those that all share."""
    groups = report.comparison.rows
    several = len(report.comparison.settings) > 1
    titles = report.comparison.settings
    names = [f"{g.label} ({titles[g.setting]})" if several else g.label for g in groups]
    differing = config_differences(groups)
    tables = []
    if differing:
        rows = [[TextCell(f), *(TextCell(text or NONE) for text in row)] for f, row in differing.items()]
        tables.append(TextTable("Config fields that differ", _texts("Field", *names), rows))
    partial = partial_fields(groups)
    if partial:
        by_key = {g.key: name for g, name in zip(groups, names, strict=True)}
        rows = [
            [TextCell(", ".join(dict.fromkeys(by_key[k] for k in keys))), TextCell(f), TextCell(text)]
            for keys, fields in partial.items()
            for f, text in fields.items()
        ]
        tables.append(
            TextTable("Config fields that only some methods have", _texts("Method", "Field", "Value"), rows)
        )
    return tables


def environment_table(report: Report) -> TextTable:
    """Return the recorded conditions; where runs differ, each value names its runs."""
    values: dict[str, dict[str, list[int]]] = {}
    for run in report.comparison.runs:
        for title, text in environment_texts(report.environments[run.id]).items():
            values.setdefault(title, {}).setdefault(text, []).append(run.id)
    known = {run.id for run in report.comparison.runs if report.environments[run.id]}
    rows = [
        [TextCell(title), TextCell(text), TextCell("all" if set(ids) == known else number_ranges(ids))]
        for title, by_text in values.items()
        for text, ids in by_text.items()
    ]
    return TextTable("Environment of the runs", _texts("Condition", "Value", "Runs"), rows)


def runs_table(report: Report) -> TextTable:
    """Return all runs of the experiments, and whether their numbers are in the tables."""
    labels = {v.run.id: (g.label, v) for g in report.comparison.rows for v in g.runs}
    rows = []
    for run in report.comparison.runs:
        label, result = labels.get(run.id, (run.label, None))
        personal = None if result is None else result.values["personal"]
        rows.append(
            [
                TextCell(str(run.id)),
                TextCell(str(run.experiment_id)),
                TextCell(label),
                TextCell(str(run.seed)),
                TextCell(run.held_out or NONE),
                TextCell(run.state),
                TextCell("left out" if result is None else result.rounds_text),
                TextCell(NONE) if personal is None else TextCell(f"{personal:.{DIGITS}f}", personal),
            ]
        )
    columns = [
        ("Run", True), ("Experiment", True), ("Method", False), ("Seed", True), ("Held out", False),
        ("State", False), ("Reported round", False), ("Personal accuracy, %", True),
    ]  # fmt: skip
    return TextTable("All runs", columns, rows)


def notices(report: Report) -> list[str]:
    """Return what a reader must know: of the comparison, then of single runs."""
    said = [(str(n["message"]), run.id) for run in report.comparison.runs for n in run.notices]
    said += [
        (f"{run.state}: {run.status_text}", run.id)
        for run in report.comparison.runs
        if run.state in ("failed", "stopped", "interrupted") and run.status_text
    ]
    by_text = group_by(said, lambda pair: pair[0])
    return [
        *report.comparison.notes,
        *(
            f"Run{'s' * (len(same) > 1)} {number_ranges([run for _, run in same])}: {text}"
            for text, same in by_text.items()
        ),
    ]


def sources(report: Report) -> list[tuple[str, str]]:
    """Return title and paper of each method that has a row."""
    known = registry.load_all()
    names = dict.fromkeys(g.method for g in report.comparison.rows)
    return [
        (known[n].about.title, known[n].about.source) for n in names if n in known and known[n].about.source
    ]


def _texts(*titles: str) -> list[tuple[str, bool]]:
    return [(title, False) for title in titles]
