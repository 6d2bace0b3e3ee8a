"""Matrices of all rows on one colour scale, and their differences from the baseline."""

import numpy as np

from fedcore.results.charts.heatmaps import PanelKind
from fedcore.results.matrices import (
    Panels,
    difference_panel,
    matrix_views,
    over_common_seeds,
    paired_panels,
    shown_panels,
)
from fedcore.share.views import Figure, Heatmaps, View, ViewSource


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
