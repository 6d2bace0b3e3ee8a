"""The content of a report before anything is drawn: figures, and tables as text cells with their marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, Work
from fedcore.config.field_names import number_ranges
from fedcore.methods import registry
from fedcore.results.comparison import Comparison, config_differences, partial_fields
from fedcore.results.metrics import BREAKDOWNS, METRICS, Metric
from fedcore.results.progress import budget_text
from fedcore.results.rows import ComparisonRow, setting_paragraph
from fedcore.results.run_files import environment_texts
from fedcore.results.statistics import group_by
from fedcore.results.summary import DifferenceCell, PrintedValue, Summary, SummaryRow, SummaryTable
from fedcore.share import views
from fedcore.share.checked import CheckedComparison, ComparisonChoices, available_metrics
from fedcore.share.recipe import Recipe, recipe_of
from fedcore.share.views import Figure, ViewSource

PARTS = ("summary", *views.NAMES, "breakdowns", "configs", "environment", "runs", "reproduction", "citation")
"""The parts of a report that may be left out, in order; setting, finding and notices never may."""

DIGITS = 2
"""Decimals of the accuracies, as in the LaTeX table."""
HYPER = "method.config."
NONE = "–"  # noqa: RUF001 - a dash, not a minus sign


@dataclass(frozen=True)
class Wording:
    """The decisions of a report's author beside the comparison.

    Attributes:
        title: default: the names of the experiments.
        notes: text below the title; an empty line begins a paragraph.
        parts: those of ``PARTS`` that the report has; None: all.
    """

    title: str = ""
    notes: str = ""
    parts: tuple[str, ...] | None = None

    def has(self, part: str) -> bool:
        return self.parts is None or part in self.parts


@dataclass(frozen=True)
class Section:
    """One setting (data, partition, backbone): its paragraph and table, and the figures of every view."""

    table: SummaryTable
    figures: tuple[Figure, ...]
    paragraph: str


@dataclass(frozen=True)
class Report:
    """Everything that a report shows; ``environments`` are the recorded conditions of each run."""

    summary: Summary
    choice: ComparisonChoices
    wording: Wording
    sections: tuple[Section, ...]
    environments: Mapping[int, Mapping[str, Any]]
    recipe: Recipe

    @property
    def comparison(self) -> Comparison:
        return self.summary.comparison

    @property
    def name(self) -> str:
        return self.wording.title or ", ".join(e.name for e in self.comparison.experiments)


def read_report(checked: CheckedComparison, wording: Wording | None = None) -> Work[Report]:
    """Read the figures of a comparison."""
    wording = wording or Wording()
    for part in wording.parts or ():
        if part not in PARTS:
            raise FedLensError(f"a report has no part '{part}'; choose from {', '.join(PARTS)}", "parts")
    store, compared, choice = checked.store, checked.comparison, checked.choice
    compared.check_rows()
    available = available_metrics(compared)
    if choice.metric is not None and choice.metric not in available:
        raise FedLensError(
            f"no row has the metric '{choice.metric}'; there are: {', '.join(available)}", "metric"
        )
    source = ViewSource(store, compared, checked.summary.metric, choice.baseline)
    sections: list[Section] = []
    chosen = [view for name, view in views.views().items() if wording.has(name)]
    for table in checked.summary.tables:
        figures: list[Figure] = []
        for view in chosen:
            done = len(sections) * len(chosen) + chosen.index(view)
            yield Progress("reading the results", done, len(chosen) * len(checked.summary.tables))
            figures += view.figures(source, table.setting)
        rows = compared.rows_in(table.setting)
        paragraph = f"{setting_paragraph(store, rows)} {checked.printed.presets_text(rows)}".rstrip()
        sections.append(Section(table, tuple(figures), paragraph))
    environments = {run.id: store.runs.environment(run.id) for run in compared.runs}
    recipe = recipe_of(checked, wording.title)
    return Report(checked.summary, choice, wording, tuple(sections), environments, recipe)


@dataclass(frozen=True)
class TextCell:
    """One cell of a table.

    Attributes:
        value: the number behind the text, unrounded, for readers that are programs.
        help: shown while the pointer is on the cell.
        mark: how the text is set: ``best``, ``second``, or as usual.
    """

    text: str
    value: float | None = None
    help: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of a report; a column has a title, and is marked if it holds numbers."""

    title: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[TextCell]]
    notes: Sequence[str] = ()


def summary_table(summary: Summary, table: SummaryTable) -> TextTable:
    """Return mean and spread of every row and metric, and the test against the baseline."""
    columns = [("Method", False)]
    for m in table.metrics:
        columns.append((f"{METRICS[m].heading}, {METRICS[m].unit}", True))
        columns += [(f"{METRICS[m].heading} printed, %", True)] if m in table.printed_metrics else []
    if table.baseline is not None:
        heading = METRICS[summary.metric].heading
        columns += [(f"{heading}: difference, points", True), ("p (Holm)", True)]
    columns += [("Seeds (n)", True), ("Rounds", True)]
    tuned = any(row.row.config.method.tuned for row in table.rows)
    columns += [("Tuning", False)] if tuned else []
    rows = []
    for row in table.rows:
        cells = [_name(row.row)]
        for m in table.metrics:
            cells.append(_mean(row, m, summary.digits))
            cells += [_printed(row.printed[m])] if m in table.printed_metrics else []
        if table.baseline is not None:
            cells += _difference(row.differences[summary.metric], summary.digits)
        cells += [TextCell(row.seeds), TextCell(row.rounds)]
        cells += [TextCell(budget_text(row.row.config) or NONE)] if tuned else []
        rows.append(cells)
    notes = [
        *summary.notes,
        *(f"{METRICS[m].heading}: {METRICS[m].help}." for m in table.metrics),
        *table.notes,
    ]
    return TextTable(f"Summary of {table.title}", columns, rows, notes)


def _name(row: ComparisonRow) -> TextCell:
    return TextCell(f"{row.label} {row.mark}".rstrip(), help=row.remark)


def _mean(row: SummaryRow, metric: Metric, digits: int) -> TextCell:
    if metric not in row.row.stats:
        return TextCell(NONE)
    stat, by_seed = row.row.stats[metric], row.row.by_seed[metric]
    seeds = "; ".join(f"seed {seed}: {value:.{digits}f}" for seed, value in by_seed.items())
    return TextCell(stat.text(digits), stat.mean, seeds, row.marks[metric])


def _printed(values: Sequence[PrintedValue]) -> TextCell:
    texts = dict.fromkeys(f"{v.text(DIGITS)} {v.comparability.mark}".rstrip() for v in values)
    reasons = dict.fromkeys(f"{v.source}, {v.method}: {v.comparability.text}" for v in values)
    return TextCell(" / ".join(texts) or "not printed", None, "; ".join(reasons))


def _difference(cell: DifferenceCell, digits: int) -> list[TextCell]:
    text, star = cell.text(digits), " *" if cell.significant else ""
    return [
        TextCell(NONE if text is None else text + star, cell.points),
        TextCell(
            NONE if cell.p_text is None else cell.p_text,
            cell.test.adjusted if cell.test is not None else None,
            cell.p_help,
        ),
    ]


def breakdown_tables(table: SummaryTable) -> list[TextTable]:
    """Return the accuracies by domain, client and held-out domain, a column per name."""
    tables = []
    for part, title in BREAKDOWNS.items():
        stats = [(r.row, r.row.breakdowns.get(part, {})) for r in table.rows]
        names = list(dict.fromkeys(name for _, by_name in stats for name in by_name))
        if names:
            columns = [("Method", False), *((name, True) for name in names)]
            rows = []
            for row, by_name in stats:
                means = [by_name.get(name) for name in names]
                cells = [TextCell(NONE) if s is None else TextCell(s.text(DIGITS), s.mean) for s in means]
                rows.append([_name(row), *cells])
            tables.append(TextTable(f"{title}, %", columns, rows))
    return tables


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
            [
                TextCell(", ".join(dict.fromkeys(by_key[k] for k in keys))),
                TextCell("; ".join(f"{f.removeprefix(HYPER)} = {text}" for f, text in fields.items())),
            ]
            for keys, fields in partial.items()
        ]
        tables.append(
            TextTable("Config fields that only some methods have", _texts("Method", "Fields"), rows)
        )
    return tables


def environment_table(report: Report) -> TextTable:
    """Return the recorded conditions; where runs differ, each value names its runs."""
    values: dict[str, dict[str, list[int]]] = {}
    for run in report.comparison.runs:
        for title, text in environment_texts(report.environments[run.id]).items():
            values.setdefault(title, {}).setdefault(text, []).append(run.id)
    described = {run.id for run in report.comparison.runs if report.environments[run.id]}
    rows = [
        [TextCell(title), TextCell(text), TextCell("all" if set(ids) == described else number_ranges(ids))]
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
        reported = "left out" if result is None else result.rounds_text
        texts = (run.id, run.experiment_id, label, run.seed, run.held_out or NONE, run.state, reported)
        personal = None if result is None else result.values["personal"]
        accuracy = TextCell(NONE) if personal is None else TextCell(f"{personal:.{DIGITS}f}", personal)
        rows.append([*(TextCell(str(text)) for text in texts), accuracy])
    columns = [
        ("Run", True),
        ("Experiment", True),
        ("Method", False),
        ("Seed", True),
        ("Held out", False),
        ("State", False),
        ("Reported round", False),
        ("Personal accuracy, %", True),
    ]
    return TextTable("All runs", columns, rows)


def notices(report: Report) -> list[str]:
    """Return the notes for a reader: on the comparison, then on single runs."""
    said = [(n.message, run.id) for run in report.comparison.runs for n in run.notices]
    said += [
        (f"{run.state}: {run.status_text}", run.id)
        for run in report.comparison.runs
        if run.state in ("failed", "stopped", "interrupted") and run.status_text
    ]
    by_text = group_by(said, lambda pair: pair[0])
    return [
        *report.comparison.notes,
        *(
            f"Run{'s' * (len(runs) > 1)} {number_ranges([run for _, run in runs])}: {text}"
            for text, runs in by_text.items()
        ),
    ]


def sources(report: Report) -> list[tuple[str, str]]:
    """Return title and paper of each method that has a row."""
    found = map(registry.find, dict.fromkeys(g.method for g in report.comparison.rows))
    return [(m.about.title, m.about.source) for m in found if m is not None and m.about.source]


def _texts(*titles: str) -> list[tuple[str, bool]]:
    return [(title, False) for title in titles]
