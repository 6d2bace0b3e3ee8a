"""Accuracy, loss and recorded values by round, time or traffic: a line per row, the mean over its seeds."""

from collections.abc import Mapping
from typing import cast

from fedcore.base.presentation import DiagnosticChart
from fedcore.results import curves
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.curves import AXES, CurveAxis, CurveValue, Series
from fedcore.results.metrics import BY_ROUND, METRICS, Metric
from fedcore.share.views import ChartFigure, Figure, View, ViewSource

LOSS = "loss"


def recorded_values(source: ViewSource) -> dict[str, DiagnosticChart]:
    """Return the charts of the values that methods recorded, by key."""
    runs = [row.runs[0].run for row in source.comparison.rows]
    charts = curves.recorded_charts(source.store, runs)
    return {chart.key: chart for chart in charts if chart.key not in METRICS}


def lines_of(
    source: ViewSource,
    setting: str,
    value: str,
    axis: CurveAxis = "round",
    recorded: Mapping[str, DiagnosticChart] | None = None,
) -> list[Series]:
    """Return the lines of a metric, of ``LOSS`` or of a recorded value."""
    store, comparison = source.store, source.comparison
    if recorded and value in recorded:
        return curves.mean_diagnostics(store, comparison, setting, recorded[value], axis)
    return curves.mean_lines(store, comparison, setting, cast(CurveValue, value), axis)


def figures(source: ViewSource, setting: str) -> list[Figure]:
    """Return the accuracy by round, a figure per metric."""
    rows = source.comparison.rows_in(setting)
    return [_by_round(source, setting, m) for m in BY_ROUND if any(m in row.stats for row in rows)]


def _by_round(source: ViewSource, setting: str, metric: Metric) -> ChartFigure:
    title = f"{METRICS[metric].title} by round"
    lines = lines_of(source, setting, metric)
    return ChartFigure(
        f"curves-{metric}",
        title,
        lambda theme, width: line_chart(lines, theme, AXES["round"], "Accuracy", height=420),
        lambda: [(title, series_table(lines, AXES["round"], "%"))],
        narrow=True,
    )


VIEW = View("Curves", figures, "No row has recorded an accuracy by round.")
