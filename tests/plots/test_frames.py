"""The frames around accuracies of models on test images like their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.plots import heatmaps
from fedcore.plots.theme import Theme
from fedcore.reports.content import Heatmaps
from fedcore.reports.figures import figure_files
from fedcore.results.panels.panel import Panel


def accuracies(clients: int) -> Panel:
    """A panel with a global model, whose clients are the worse on their own samples the later they come."""
    names = tuple(f"c{i}" for i in range(clients))
    values = np.full((clients + 1, clients), 50.0)
    values[np.arange(1, clients + 1), np.arange(clients)] = np.linspace(100, 0, clients)
    counts = np.ones(values.shape, int)
    return Panel(
        "FedOT: round 2/2", "fedot", ("global", *names), names, values, counts, counts,
        (-1, *range(clients)),
    )  # fmt: skip


def frames(panel: Panel, width: int = 1200) -> dict[tuple[int, int], str]:
    """Return the colour of each drawn frame by row and column of its cell."""
    found: dict[tuple[int, int], str] = {}
    for trace in heatmaps.heatmap_grid([panel], Theme(), width=width).figure.data:
        if trace.type == "scatter" and trace.mode == "lines":
            corners = np.reshape([trace.x, trace.y], (2, -1, 6))
            for x, y in np.moveaxis(corners, 1, 0):
                row, column = np.nanmean(y[:4]).round().astype(int), np.nanmean(x[:4]).round().astype(int)
                assert (np.abs(x[:5] - column) < 0.5).all() and (np.abs(y[:5] - row) < 0.5).all()
                found[int(row), int(column)] = trace.line.color
    return found


def legend(panel: Panel) -> list[str]:
    return [t.name for t in heatmaps.heatmap_grid([panel], Theme()).figure.data if t.showlegend]


def test_own_accuracies_are_framed_and_the_frame_is_explained() -> None:
    panel = accuracies(6)
    assert set(frames(panel)) == {(i + 1, i) for i in range(6)}
    assert frames(panel)[1, 0] == "#000000" and frames(panel)[6, 5] == "#ffffff", "seen on yellow and on blue"
    assert legend(panel) == ["own test images"]
    held_out = replace(panel, row_title=heatmaps.HELD_OUT)
    assert legend(held_out) == ["global model (G)"]


def test_a_cell_without_a_value_has_no_frame() -> None:
    panel = accuracies(3)
    panel.values[2, 1] = np.nan
    assert set(frames(panel)) == {(1, 0), (3, 2)}


@pytest.mark.parametrize(
    ("clients", "width", "drawn"), [(40, 1200, True), (40, 390, False), (150, 1200, False)]
)
def test_frames_are_drawn_while_cells_have_room(clients: int, width: int, drawn: bool) -> None:
    assert bool(frames(accuracies(clients), width)) == drawn


def test_clients_by_rounds_have_no_frame() -> None:
    panel = replace(accuracies(3), row_title="client", column_title="round", own_columns=(2,) * 4)
    assert not frames(panel) and not legend(panel)


def test_the_figure_of_a_paper_has_the_frames_with_their_meaning() -> None:
    framed = figure_files(Heatmaps("models", "Models", (accuracies(3),)))["svg"].decode()
    plain = figure_files(Heatmaps("models", "Models", (replace(accuracies(3), own_columns=()),)))[
        "svg"
    ].decode()
    assert "own test images" in framed and "own test images" not in plain
    assert framed.count("<path") == plain.count("<path") + 4, "three frames, and one in the key"
