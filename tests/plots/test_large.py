"""Many classes and clients: nothing scrolls sideways, and gaps between cells make no pattern."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.plots.heatmaps import MAX_WITH_GAPS, heatmap_grid, narrow_spread
from fedcore.plots.partition import partition_picture
from fedcore.plots.theme import Theme
from fedcore.results.panels.panel import Panel


@pytest.mark.parametrize("classes", [10, 40, 41, 200, 1000])
def test_the_columns_of_a_partition_shrink_to_the_room_there_is(classes: int) -> None:
    names = [f"class {i}" for i in range(classes)]
    drawn = partition_picture(np.ones((3, classes), int), ["a", "b", "c"], names, Theme(False)).html
    assert "minmax(0,1fr)" in drawn, "a least width of 2 pixels made 200 classes wider than the page"
    assert ("column-gap:0px" in drawn) == (classes > 40)


def panel(size: int) -> Panel:
    names = tuple(f"client {i}" for i in range(size))
    square = (size, size)
    return Panel(
        "Many", "fedot", names, names, np.full(square, 50.0), np.ones(square, int), np.full(square, 2)
    )


@pytest.mark.parametrize("size", [6, MAX_WITH_GAPS, MAX_WITH_GAPS + 1, 100])
def test_small_cells_touch(size: int) -> None:
    (trace, *_) = heatmap_grid([panel(size)], Theme(False), 1).figure.data
    assert (trace.xgap, trace.ygap) == ((1, 1) if size <= MAX_WITH_GAPS else (0, 0))


def test_fitted_colours_are_offered_where_0_to_100_hides_the_differences() -> None:
    values = np.linspace(10, 50, 36).reshape(6, 6)
    assert narrow_spread([replace(panel(6), values=values)]) == "10 to 50 %"
    assert narrow_spread([replace(panel(6), values=values), replace(panel(6), values=values + 20)]) is None
    assert narrow_spread([replace(panel(6), values=np.full((6, 6), np.nan))]) is None
