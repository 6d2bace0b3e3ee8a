"""What all figures share."""

import itertools

import numpy as np
import pytest
from plotly.colors import sequential

from fedcore.base.presentation import built_in
from fedcore.methods import MatrixChart
from fedcore.results.charts import heatmaps
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.theme import TOOLBAR, Theme, short_name
from fedcore.results.curves import Series
from fedcore.results.panels import Panel


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "…"),
        ("数" * 8, "数" * 8),
        ("数" * 9, "数" * 7 + "…"),
        ("a" + "数" * 8, "a" + "数" * 7 + "…"),
        ("W" * 20, "W" * 8 + "…"),
        ("<b>", "&lt;b&gt;"),
        ("", ""),
    ],
)
def test_names_on_axes_are_cut_to_one_width(name: str, label: str) -> None:
    assert short_name(name) == label


def test_weights_lie_between_0_and_1_in_magma() -> None:
    none = np.zeros((1, 1))
    matrix = MatrixChart("attention", "Attention")
    panel = Panel("Attention", "fedalign", ("a",), ("a",), none, none, none, matrix=matrix)
    axis = heatmaps.heatmap_grid([panel], Theme(), 1).figure.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (0, 1)
    assert [colour for _, colour in axis.colorscale] == sequential.Magma


def lightness(colour: str) -> float:
    """The L* of a colour: equal steps look equally far apart."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 116 * float(np.dot(linear, [0.2126, 0.7152, 0.0722])) ** (1 / 3) - 16


def chroma(colour: str) -> int:
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return max(channels) - min(channels)


@pytest.mark.parametrize("dark", [False, True])
def test_no_two_main_methods_are_greys_that_look_alike(dark: bool) -> None:
    colours = [Theme(dark).colour(method) for method in list(built_in())[:6]]
    greys = [colour for colour in colours if chroma(colour) < 40]
    assert len(set(colours)) == len(colours)
    assert all(abs(lightness(a) - lightness(b)) > 25 for a, b in itertools.combinations(greys, 2))


def a_line(label: str, last: float) -> Series:
    return Series(label, "fedot", (0.0, 1.0), (10.0, last), (None, None), 1)


def test_of_many_lines_the_best_are_shown_and_the_others_wait_in_the_legend() -> None:
    lines = [a_line(f"line {i}", float(value)) for i, value in enumerate([5, 90, 20, 80, 70, 1])]
    chart = line_chart(lines, Theme(), "Round", "Accuracy", best=3)
    shown = [t.name for t in chart.figure.data if t.visible != "legendonly"]
    assert shown == ["line 1", "line 3", "line 4"]
    assert len(chart.figure.data) == 6
    assert "line 1 90.0 %; line 3 80.0 %; line 4 70.0 %." in chart.alt and "line 0" not in chart.alt
    worst = lines[0].label
    stands_out = line_chart(lines, Theme(), "Round", "Accuracy", best=3, highlighted=worst).figure.data
    assert {trace.name: trace.opacity for trace in stands_out}[worst] is None
    assert all(trace.opacity == 0.2 for trace in stands_out if trace.name != worst)
    assert next(trace for trace in stands_out if trace.name == worst).visible is None, (
        "though not among the best"
    )
    losses = line_chart(lines, Theme(), "Round", "Loss", best=3, lower_is_better=True).figure.data
    assert [t.name for t in losses if t.visible != "legendonly"] == ["line 0", "line 2", "line 5"]


@pytest.mark.parametrize(("count", "mode"), [(12, "x unified"), (13, "closest")])
def test_a_hover_text_lists_a_dozen_lines_at_most(count: int, mode: str) -> None:
    lines = [a_line(f"line {i}", float(i)) for i in range(count)]
    assert line_chart(lines, Theme(), "Round", "").figure.layout.hovermode == mode


def test_titles_of_line_charts_stand_below_the_toolbar() -> None:
    layout = line_chart(
        [a_line("a", 1.0)], Theme(), "Round", "", name="A long title of a chart"
    ).figure.layout
    assert layout.title.yref == "container" and layout.title.yanchor == "top"
    assert round((1 - layout.title.y) * layout.height) == TOOLBAR
    assert layout.margin.t > TOOLBAR + layout.title.font.size


def test_a_readers_zoom_stays_while_the_axes_are_the_same() -> None:
    def zoom(x_title: str, logarithmic: tuple = (), last: float = 1.0) -> str:
        line = Series("FedOT", "fedot", (0.0, last), (0.0, 1.0), (None, None), 1)
        return line_chart([line], Theme(), x_title, "", logarithmic=logarithmic).figure.layout.uirevision

    assert zoom("Round") == zoom("Round", last=2.0) != zoom("Seconds")
    assert zoom("Round") != zoom("Round", ("y",))
