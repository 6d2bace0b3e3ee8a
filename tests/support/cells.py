"""Panels of every kind, and the sentences that their cells say under the pointer."""

from dataclasses import replace

import numpy as np

from fedcore.base.presentation import MatrixChart
from fedcore.results.charts.heatmaps import HELD_OUT
from fedcore.results.panels import Panel

NAMES = ("a", "a client with a name that is cut on the axis", "<b>x</b> & %{y}", "3", "Größe ≤ 2", "a")


def panels() -> list[Panel]:
    """Return panels with a missing cell, and with numbers that Python and JavaScript round differently.

    Accuracies, differences (with the title "gap"), recorded values, clients by rounds, held-out domains.
    """
    values = np.array([[12.25, 12.75, 0.15, 0.45, 99.95, 100], [np.nan, 6.25, 50.05, 0, 33.35, 1 / 3]])
    total = np.where(np.isnan(values), 0, 200_000)
    panel = Panel("FedOT", "fedot", NAMES[1:3], NAMES, values, np.arange(12).reshape(2, 6) * 11_000, total)
    none = np.zeros((2, 6), int)
    matrix = MatrixChart("helps", "Helps", verb="learns from")
    return [
        panel,
        replace(panel, title="gap", values=values - 12.5),
        replace(panel, values=values / 100 + 0.0625, correct=none, total=none, matrix=matrix),
        replace(panel, row_title="client", column_title="round"),
        replace(panel, row_title=HELD_OUT),
    ]


def sentence(panel: Panel, i: int, j: int) -> str:
    """Return the two lines of a cell, formatted by Python."""
    row, column, value = panel.rows[i], panel.columns[j], float(panel.values[i, j])
    counts = f" ({panel.correct[i, j]} of {panel.total[i, j]})" if panel.total[i, j] else ""
    if panel.matrix is not None:
        return f"{row} learns from {column}\n{value:.3f}{counts}"
    if panel.row_title == HELD_OUT:
        model = "global model (G)" if row == column else "client models (P)"
        return f"{row} held out, {model} on {column}\n{value:.1f} %{counts}"
    place = f"{row}, round {column}" if panel.row_title == "client" else f"{row} on {column}"
    return f"{place}\n" + (f"{value:+.1f} points" if panel.title == "gap" else f"{value:.1f} %") + counts
