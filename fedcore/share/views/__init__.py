"""The charts of a comparison: a file for each, and its name in ``NAMES``, for Compare and the report.

A view has figures, each with its numbers, and a tab on Compare.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from fedcore.results.charts import heatmaps
from fedcore.results.charts.heatmaps import PanelKind, Place
from fedcore.results.charts.theme import Chart, Theme
from fedcore.results.comparison import Comparison
from fedcore.results.metrics import Metric
from fedcore.results.panels import Panel
from fedcore.results.rows import ComparisonRow
from fedcore.store import Store

NAMES = ("matrices", "curves", "cost", "sweep")
"""Files of this folder, in the order of the tabs on Compare and of the figures in a report."""
NARROW = 500
"""Width in pixels below which a chart is drawn for a telephone."""
NumberColumns = Mapping[str, Sequence[object]]
"""The numbers of a chart as a table: heading -> values."""


@dataclass(frozen=True)
class ViewSource:
    """A comparison, the metric of its costs and sweeps, and the label of the baseline of differences."""

    store: Store
    comparison: Comparison
    metric: Metric
    baseline: str | None = None

    def baseline_in(self, setting: str) -> ComparisonRow | None:
        """Return the baseline's row in a setting; None if it has none there."""
        rows = self.comparison.rows_in(setting)
        return next((row for row in rows if row.label == self.baseline), None)


@dataclass(frozen=True)
class ChartFigure:
    """A figure of any kind, from a function that draws it and one that returns its numbers."""

    name: str
    title: str
    draw: Callable[[Theme, int], Chart]
    numbers: Callable[[], Sequence[tuple[str, NumberColumns]]]
    narrow: bool = False

    def chart(self, theme: Theme, width: int) -> Chart:
        chart = self.draw(theme, width)
        if not isinstance(chart, Chart):  # a plotly figure, say, which has no text alternative
            raise TypeError(
                f"the figure {self.name!r} drew a {type(chart).__name__}, not a Chart; let its function "
                "return Chart(figure, alt) of fedcore.results.charts.theme"
            )
        return chart


@dataclass(frozen=True)
class Heatmaps:
    """Matrices that are drawn side by side on one colour scale.

    Attributes:
        fitted: whether the colours of accuracies span the values instead of 0 to 100 %.
        columns: panels beside each other; 0: as many as are usual.
        marked: a cell of the differences that has a frame.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    kind: PanelKind = "accuracy"
    fitted: bool = False
    columns: int = 0
    marked: Place | None = None

    def chart(self, theme: Theme, width: int) -> Chart:
        square = len(self.panels) == 4 and width <= heatmaps.PAPER[1]  # two by two instead of three and one
        columns = self.columns or (1 if len(self.panels) == 1 else 2 if square else 3)
        if self.kind == "difference":
            return heatmaps.difference_grid(self.panels, theme, columns, width, self.title, self.marked)
        return heatmaps.heatmap_grid(self.panels, theme, columns, self.fitted, width=width)

    @property
    def narrow(self) -> bool:
        return len(self.panels) == 1 and len(self.panels[0].columns) <= 10

    def numbers(self) -> Sequence[tuple[str, NumberColumns]]:
        return [(panel.title, heatmaps.panel_table(panel)) for panel in self.panels]


Figure = ChartFigure | Heatmaps
"""A chart and the numbers behind it; ``name`` is that of its files.

The page draws it with plotly. Reports and the folder for a paper have it as a still picture (``still``).
"""


@dataclass(frozen=True)
class View:
    """A way to look at a comparison.

    Attributes:
        title: of the tab on Compare.
        figures: returns the figures of one setting as a report has them; none if it has nothing to show.
        absent: a sentence on why a setting may have no figure.
    """

    title: str
    figures: Callable[[ViewSource, str], Sequence[Figure]]
    absent: str


@cache
def views() -> dict[str, View]:
    """Return the views by name."""
    return {name: import_module(f"{__name__}.{name}").VIEW for name in NAMES}
