"""Lines of a sweep can be told apart, though they belong to one method."""

from typing import TYPE_CHECKING, cast

import pytest

from fedcore.results.charts.sweep import colour_range, parallel_chart, sweep_heatmap, sweep_line_chart
from fedcore.results.charts.theme import Theme, style
from fedcore.results.statistics import Stat
from fedcore.results.sweeps import SweepFamily, SweepGrid, SweepLine, SweepRow

if TYPE_CHECKING:
    from fedcore.results.rows import ComparisonRow

GROUP = cast("ComparisonRow", None)  # no chart reads it


def lines(count: int) -> list[SweepLine]:
    stats = (Stat(50.0, 1.0, 3), Stat(60.0, 1.0, 3))
    return [SweepLine(label=f"rank {i}", method="sdfed", x=(1, 2), stats=stats) for i in range(count)]


@pytest.mark.parametrize("dark", [False, True])
def test_no_two_lines_of_one_method_look_alike(dark: bool) -> None:
    traces = sweep_line_chart(lines(12), Theme(dark), "methods.sdfed.lr", "Accuracy", "%").figure.data
    assert len({trace.line.color for trace in traces}) == 12
    assert len({(trace.line.dash, trace.marker.symbol) for trace in traces}) == 12


def test_a_single_line_looks_like_its_method() -> None:
    (trace,) = sweep_line_chart(lines(1), Theme(False), "methods.sdfed.lr", "Accuracy", "%").figure.data
    assert (trace.line.dash, trace.marker.symbol) == (style("sdfed").dash, style("sdfed").marker)


def test_all_charts_of_a_sweep_share_one_range_of_colours() -> None:
    rows = tuple(
        SweepRow({"rank": r, "alpha": a}, GROUP, Stat(10.0 * r + a, None, 1)) for r in (1, 2) for a in (1, 5)
    )
    family = SweepFamily("SDFed", "sdfed", ("rank", "alpha"), rows)
    grid = SweepGrid("rank", "alpha", (1,), (1, 5), ((rows[0].stat, rows[1].stat),))
    colours = colour_range([family])
    (cells,) = sweep_heatmap(grid, Theme(), "Accuracy", colours, "%").figure.data
    (lines,) = parallel_chart([family], Theme(), "Accuracy", "%").figure.data
    assert (cells.zmin, cells.zmax) == (lines.line.cmin, lines.line.cmax) == (11, 25)
