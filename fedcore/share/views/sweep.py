"""Accuracy over the fields that take several values: all methods over one, each of them, all combinations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.results import sweeps
from fedcore.results.charts.sweep import parallel_chart, sweep_line_chart
from fedcore.results.comparison import Comparison
from fedcore.results.metrics import METRICS, Metric
from fedcore.results.sweeps import SweepFamily, SweepLine
from fedcore.share.views import ChartFigure, Figure, View, ViewSource

MAX_LINES = 12


def families_of(comparison: Comparison, metric: Metric) -> list[SweepFamily]:
    """Return the families of a comparison by the fields that its experiments sweep."""
    swept = [e.config.sweep for e in comparison.experiments if e.config.sweep]
    return sweeps.sweep_families(comparison, metric, swept)


def parallel_figure(families: Sequence[SweepFamily], metric: Metric) -> ChartFigure:
    """Return all combinations in parallel coordinates; the table has a row per combination."""
    facts = METRICS[metric]
    points = [(family, row) for family in families for row in family.rows]
    columns: dict[str, list[object]] = {"method": [family.title for family, _ in points]}
    for field in dict.fromkeys(field for family in families for field in family.fields):
        columns[field_title(field)] = [
            value_text(field, row.values[field]) if field in row.values else "" for _, row in points
        ]
    columns[facts.title] = [row.stat.text(2) for _, row in points]
    columns["n"] = [row.stat.n for _, row in points]
    title = f"{facts.title} of all combinations"
    return ChartFigure(
        "sweep",
        title,
        lambda theme, width: parallel_chart(families, theme, facts.title, facts.unit),
        lambda: [(title, columns)],
    )


def joint_figure(families: Sequence[SweepFamily], field: str, metric: Metric) -> ChartFigure:
    """Return accuracy over one field, a line per method; a title on shots states their scope."""
    lines = [line for family in families for line in sweeps.sweep_lines(family, field)]
    scope = sweeps.shots_scope(families) if field == "data.shots" else ""
    title = f"All methods over {field_phrase(field)}" + (f" of {scope}" if scope else "")
    return _lines_figure(f"sweep-all-{field}", title, lines, field, metric)


def line_figure(family: SweepFamily, field: str, metric: Metric) -> ChartFigure:
    """Return accuracy over one field, a line per value of the others, ``MAX_LINES`` at most."""
    lines = sweeps.sweep_lines(family, field)[:MAX_LINES]
    title = f"{family.title} over {field_phrase(field)}"
    return _lines_figure(f"sweep-{family.title}-{field}", title, lines, field, metric)


def _lines_figure(
    name: str, title: str, lines: Sequence[SweepLine], field: str, metric: Metric
) -> ChartFigure:
    cells = [
        (line.label, value_text(field, x), stat)
        for line in lines
        for x, stat in zip(line.x, line.stats, strict=True)
    ]
    facts = METRICS[metric]
    columns: Mapping[str, Sequence[object]] = {
        "line": [label for label, _, _ in cells],
        field_title(field): [text for _, text, _ in cells],
        "mean": [round(stat.mean, 2) for _, _, stat in cells],
        "std": [None if stat.std is None else round(stat.std, 2) for _, _, stat in cells],
        "n": [stat.n for _, _, stat in cells],
    }
    return ChartFigure(
        name,
        title,
        lambda theme, width: sweep_line_chart(lines, theme, field, facts.title, facts.unit),
        lambda: [(title, columns)],
    )


def figures(source: ViewSource, setting: str) -> list[Figure]:
    """Return all methods over one field, each other over the first of its fields, and all combinations.

    Each value of a swept field such as shots is a setting, and a figure over several settings is drawn with
    the first of them. Without a sweep, rows of different settings do not form a family.
    """
    comparison, metric = source.comparison, source.metric
    order = list(comparison.settings)
    if not any(e.config.sweep for e in comparison.experiments):
        comparison = replace(
            comparison, rows=comparison.rows_in(setting), settings={setting: comparison.settings[setting]}
        )
    families = [
        family
        for family in families_of(comparison, metric)
        if min(order.index(row.group.setting) for row in family.rows) == order.index(setting)
    ]
    if not families:
        return []
    joint, alone = sweeps.joint_families(families)
    return [
        *(joint_figure(together, field, metric) for field, together in joint.items()),
        *(line_figure(family, family.fields[0], metric) for family in alone),
        parallel_figure(families, metric),
    ]


VIEW = View(
    "Sweep",
    figures,
    "No field takes several values in these runs. Sweeps (page New) and variants of one method appear here.",
)
