"""Matrices of all rows on one colour scale, and their differences from the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.results.charts import heatmaps
from fedcore.results.charts.heatmaps import PanelKind, Place
from fedcore.results.charts.theme import Chart, Theme
from fedcore.results.matrices import (
    Panels,
    difference_panel,
    matrix_views,
    over_common_seeds,
    paired_panels,
    shown_panels,
)
from fedcore.results.panels import Panel
from fedcore.share.views import Figure, NumberColumns, View, ViewSource

SIDE_BY_SIDE = 3
"""Panels beside each other."""


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
        columns = self.columns or (1 if len(self.panels) == 1 else 2 if square else SIDE_BY_SIDE)
        if self.kind == "difference":
            return heatmaps.difference_grid(self.panels, theme, columns, width, self.title, self.marked)
        return heatmaps.heatmap_grid(self.panels, theme, columns, self.fitted, width=width)

    def numbers(self) -> Sequence[tuple[str, NumberColumns]]:
        return [(panel.title, heatmaps.panel_table(panel)) for panel in self.panels]


def figures(source: ViewSource, setting: str) -> list[Figure]:
    """Return every matrix that the setting has, each followed by its differences from the baseline."""
    rows, baseline = source.comparison.rows_in(setting), source.baseline_in(setting)
    found: list[Figure] = []
    models: Panels = {}
    for name, matrix in matrix_views(result.run for row in rows for result in row.runs).items():
        panels = shown_panels(matrix, source.store, source.comparison, setting)
        if name == "models":
            models = panels
        if not panels or (name == "domains" and _repeats(panels, models)):
            continue
        kind: PanelKind = "recorded" if matrix.recorded else "accuracy"
        found.append(Heatmaps(name, matrix.title, tuple(panels.values()), kind))
        if baseline is None or matrix.differences != "everywhere":
            continue
        pairs = paired_panels(matrix, source.store, source.comparison, panels, baseline)
        if gaps := tuple(difference_panel(*pair) for pair in pairs.values()):
            seeds = over_common_seeds((row for row in rows if row.key in pairs), baseline)
            title = f"{matrix.title}, difference from {baseline.label}{seeds}"
            found.append(Heatmaps(f"{name}-difference", title, gaps, "difference"))
    return found


def _repeats(domains: Panels, models: Panels) -> bool:
    """Return whether matrices of domains have the cells of those of models, as each domain is one client."""
    return all(
        key in models and not np.nan_to_num(difference_panel(models[key], panel, panel).values, nan=1.0).any()
        for key, panel in domains.items()
    )


VIEW = View("Heatmaps", figures, "None of these runs has recorded a matrix.")
