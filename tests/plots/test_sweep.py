"""Lines of a sweep can be told apart, though they belong to one method."""

from __future__ import annotations

import pytest

from fedcore.plots.sweep import sweep_line_chart
from fedcore.plots.theme import Theme, style
from fedcore.results.statistics import Stat
from fedcore.results.sweeps import SweepLine


def lines(count: int) -> list[SweepLine]:
    stats = (Stat(50.0, 1.0, 3), Stat(60.0, 1.0, 3))
    return [SweepLine(label=f"rank {i}", method="sdfed", x=(1, 2), stats=stats) for i in range(count)]


@pytest.mark.parametrize("dark", [False, True])
def test_no_two_lines_of_one_method_look_alike(dark: bool) -> None:
    traces = sweep_line_chart(lines(12), Theme(dark), "methods.sdfed.lr", "Accuracy").figure.data
    assert len({trace.line.color for trace in traces}) == 12
    assert len({(trace.line.dash, trace.marker.symbol) for trace in traces}) == 12


def test_a_single_line_looks_like_its_method() -> None:
    (trace,) = sweep_line_chart(lines(1), Theme(False), "methods.sdfed.lr", "Accuracy").figure.data
    assert (trace.line.dash, trace.marker.symbol) == (style("sdfed").dash, style("sdfed").marker)
