"""Accuracy, loss and recorded values by round, time or traffic: a line per row, the mean over its seeds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from fedcore.base.presentation import DiagnosticChart
from fedcore.results import curves
from fedcore.results.charts.lines import line_chart, series_table
from fedcore.results.charts.theme import Chart, Theme
from fedcore.results.curves import AXES, Band, CurveAxis, CurveValue, Series
from fedcore.results.metrics import BY_ROUND, METRICS
from fedcore.share.views import Figure, NumberColumns, View, ViewSource

LOSS = "loss"


@dataclass(frozen=True)
class Curves:
    """Lines over one axis.

    Attributes:
        best: number of lines to show, those with the best last values; None: all of them.
        logarithmic: axes with a logarithmic scale.
        band: meaning of the bands around the lines.
        highlighted: label of the line that stands out.
    """

    name: str
    title: str
    series: tuple[Series, ...]
    x_title: str = AXES["round"]
    y_title: str = "Accuracy"
    per_cent: bool = True
    height: int = 420
    best: int | None = None
    logarithmic: Collection[Literal["x", "y"]] = ()
    lower_is_better: bool = False
    band: Band = "std"
    highlighted: str | None = None

    def chart(self, theme: Theme, width: int) -> Chart:
        return line_chart(
            self.series,
            theme,
            self.x_title,
            self.y_title,
            per_cent=self.per_cent,
            height=self.height,
            best=self.best,
            logarithmic=self.logarithmic,
            lower_is_better=self.lower_is_better,
            highlighted=self.highlighted,
        )

    def numbers(self) -> Sequence[tuple[str, NumberColumns]]:
        unit = "%" if self.per_cent else ""
        return [(self.title, series_table(self.series, self.x_title, unit, self.band))]


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
    return [
        Curves(f"curves-{m}", f"{METRICS[m].title} by round", tuple(lines_of(source, setting, m)))
        for m in BY_ROUND
        if any(m in row.stats for row in rows)
    ]


VIEW = View("Curves", figures, "No row has recorded an accuracy by round.")
