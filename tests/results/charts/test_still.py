"""A still picture shows what the figure of the screen shows: values, colours and tips."""

import re

import numpy as np
import plotly.graph_objects as go
import pytest

from fedcore.results.charts.heatmaps import difference_grid, heatmap_grid
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.still import still
from fedcore.results.charts.theme import STYLES, Theme
from fedcore.results.charts.traces import SYMBOLS
from fedcore.results.charts.vector import Box, Disc, Image, Path, Text, inline_svg, pdf_file
from fedcore.results.curves import Series
from fedcore.results.panels import Panel
from fedcore.share.views import ChartFigure
from tests.support.cells import panels, sentence


def a_panel(size: int) -> Panel:
    names = tuple(f"client {i}" for i in range(size))
    values = np.linspace(0, 100, size * size).reshape(size, size)
    counts = np.round(values).astype(int), np.full((size, size), 100)
    return Panel("FedOT", "fedot", names, names, values, *counts)


def test_a_cell_has_its_place_colour_and_tip() -> None:
    boxes = [
        s
        for s in still(heatmap_grid([a_panel(3)], Theme()).figure, 662).shapes
        if isinstance(s, Box) and s.tip
    ]
    assert [b.tip for b in boxes[:2]] == [
        "client 0 on client 0\n0.0 % (0 of 100)",
        "client 0 on client 1\n12.5 % (12 of 100)",
    ]
    assert (boxes[0].fill, boxes[-1].fill) == ("#00224e", "#fee838"), "the ends of Cividis"
    places = np.array([(b.x, b.y) for b in boxes]).reshape(3, 3, 2)
    assert (np.diff(places[:, :, 0], axis=1) > 0).all() and (np.diff(places[:, :, 1], axis=0) > 0).all()


def test_tips_are_the_sentences_of_the_screen() -> None:
    for panel in panels():
        draw = difference_grid if panel.title == "gap" else heatmap_grid
        boxes = [s for s in still(draw([panel], Theme()).figure, 662).shapes if isinstance(s, Box) and s.tip]
        assert [b.tip for b in boxes] == [sentence(panel, *ij) for ij in np.argwhere(~np.isnan(panel.values))]


def test_a_large_matrix_is_one_image_of_the_same_colours() -> None:
    shapes = still(heatmap_grid([a_panel(50)], Theme()).figure, 662).shapes
    (image, bar) = (s for s in shapes if isinstance(s, Image))
    assert image.table == 0 and bar.table is None
    assert image.rgb is not None and image.rgb.shape == (50, 50, 3)
    assert image.rgb[0, 0].tolist() == [0, 0x22, 0x4E] and image.rgb[-1, -1].tolist() == [0xFE, 0xE8, 0x38]


def test_lines_go_through_their_values_and_name_them() -> None:
    series = Series("FedOT", "fedot", [0.0, 1.0, 2.0], [10.0, 50.0, 90.0], [1.0, 2.0, 3.0], 3)
    picture = still(line_chart([series], Theme(), "Round", "Accuracy").figure, 662)
    line = next(s for s in picture.shapes if isinstance(s, Path) and s.stroke == "#0072B2")
    (x, y) = np.array(line.points).T
    assert (
        x[2] - x[1] == pytest.approx(x[1] - x[0])
        and y[2] - y[1] == pytest.approx(y[1] - y[0])
        and y[1] < y[0]
    )
    marks = [s for s in picture.shapes if isinstance(s, Disc) and s.tip]
    assert marks[1].tip == "FedOT (n = 3), Round 1\n50.00 ± 2.0 %"
    assert any(isinstance(s, Text) and s.text == "40 %" for s in picture.shapes)


def test_text_of_users_is_text_in_svg_and_pdf() -> None:
    series = Series("$x_{<script>", "fedot", [0.0], [10.0], [None], 1)
    picture = still(line_chart([series, series], Theme(), "Round", "Accuracy").figure, 662)
    assert "<script" not in inline_svg(picture, '"><script>')
    assert pdf_file(picture) == pdf_file(picture)


def test_every_marker_of_a_method_can_be_drawn() -> None:
    for look in STYLES:
        assert re.sub("-open$", "", look.marker) in {*SYMBOLS, "circle"}


def test_a_trace_of_another_kind_is_refused_with_the_kinds_that_can_be_drawn() -> None:
    said = "shares has a trace of type pie.*scatter, heatmap, parcoords.*fedcore/results/charts/traces.py"
    with pytest.raises(ValueError, match=said):
        still(go.Figure(go.Pie(values=[1, 2])), 662, name="shares")


def test_a_view_that_returns_a_plotly_figure_is_told_to_return_a_chart() -> None:
    figure = ChartFigure("bars", "Bars", lambda theme, width: go.Figure(), list)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"'bars' drew a Figure, not a Chart; .*Chart\(figure, alt\)"):
        figure.chart(Theme(), 662)
