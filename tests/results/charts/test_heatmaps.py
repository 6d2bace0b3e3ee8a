"""Heatmaps: frames of own accuracies, gaps between cells, and the colour scale of differences."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedcore.results.charts import heatmaps
from fedcore.results.charts.heatmaps import MAX_WITH_GAPS, heatmap_grid, narrow_spread
from fedcore.results.charts.theme import Theme
from fedcore.results.charts.vector import Image
from fedcore.results.panels import Panel
from fedcore.share.folder import figure_files
from fedcore.share.page import picture
from fedcore.share.views import Heatmaps

POINTS = np.arange(-76.0, 77.0)
# Viénot, Brettel and Mollon (1999), "Digital video colourmaps for checking the legibility of displays by
# dichromats", equations 5 and 6: what a reader without red or without green cones sees, in linear RGB.
DICHROMATS = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


def accuracies(clients: int) -> Panel:
    """A panel with a global model, whose clients are the worse on their own samples the later they come."""
    names = tuple(f"c{i}" for i in range(clients))
    values = np.full((clients + 1, clients), 50.0)
    values[np.arange(1, clients + 1), np.arange(clients)] = np.linspace(100, 0, clients)
    counts = np.ones(values.shape, int)
    return Panel(
        "FedOT: round 2/2",
        "fedot",
        ("global", *names),
        names,
        values,
        counts,
        counts,
        (-1, *range(clients)),
    )


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


@pytest.mark.parametrize(
    ("clients", "width", "drawn"), [(40, 1200, True), (40, 390, False), (150, 1200, False)]
)
def test_frames_are_drawn_while_cells_have_room(clients: int, width: int, drawn: bool) -> None:
    assert bool(frames(accuracies(clients), width)) == drawn


def test_clients_by_rounds_have_no_frame() -> None:
    panel = replace(accuracies(3), row_title="client", column_title="round", own_columns=(2,) * 4)
    assert not frames(panel) and not legend(panel)


def test_the_figure_of_a_paper_has_the_frames_with_their_meaning() -> None:
    panels = accuracies(3), replace(accuracies(3), own_columns=())
    framed, plain = (figure_files(Heatmaps("models", "Models", (p,)))["svg"].decode() for p in panels)
    assert "own test images" in framed and "own test images" not in plain
    outlines = re.findall(r'<path d="([^"]*)"', framed)
    assert sum(d.count("M") for d in outlines) == 4, "three frames, and one in the key"
    assert "<path" not in plain


def panel(size: int) -> Panel:
    names = tuple(f"client {i}" for i in range(size))
    square = (size, size)
    return Panel(
        "Many", "fedot", names, names, np.full(square, 50.0), np.ones(square, int), np.full(square, 2)
    )


@pytest.mark.parametrize("size", [MAX_WITH_GAPS, MAX_WITH_GAPS + 1])
def test_small_cells_touch(size: int) -> None:
    (trace, *_) = heatmap_grid([panel(size)], Theme(False), 1).figure.data
    assert (trace.xgap, trace.ygap) == ((1, 1) if size <= MAX_WITH_GAPS else (0, 0))


def test_fitted_colours_are_offered_where_0_to_100_hides_the_differences() -> None:
    values = np.linspace(10, 50, 36).reshape(6, 6)
    assert narrow_spread([replace(panel(6), values=values)]) == "10 to 50 %"
    assert narrow_spread([replace(panel(6), values=values), replace(panel(6), values=values + 20)]) is None
    assert narrow_spread([replace(panel(6), values=np.full((6, 6), np.nan))]) is None


def differences() -> Panel:
    none = np.zeros((1, len(POINTS)), dtype=int)
    return Panel("a", "fedot", ("all",), tuple(map(str, POINTS)), POINTS[None], none, none)


def drawn(theme: Theme) -> np.ndarray:
    """The colours on the screen of -76 to 76 points, mixed as plotly mixes them. Shape: (points, 3)."""
    axis = heatmaps.difference_grid([differences()], theme).figure.layout.coloraxis
    share = (POINTS - axis.cmin) / (axis.cmax - axis.cmin)
    rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for _, colour in axis.colorscale]) / 255
    places = [place for place, _ in axis.colorscale]
    return np.stack([np.interp(share, places, rgb[:, channel]) for channel in range(3)], axis=-1)


def linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def cielab(light: np.ndarray) -> np.ndarray:
    """Return L*, a* and b* of linear sRGB under D65 (CIE 15; IEC 61966-2-1). Shape: (points, 3)."""
    xyz = (
        light
        @ np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).T
        / [0.9505, 1.0, 1.089]
    )
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1)


@pytest.mark.parametrize("dark", [False, True])
def test_a_larger_difference_is_farther_from_the_page_in_lightness(dark: bool) -> None:
    lightness = cielab(linear(drawn(Theme(dark))))[:, 0]
    away = lightness if dark else -lightness
    assert (np.diff(away[POINTS >= 0]) > 0).all(), "gains"
    assert (np.diff(away[POINTS <= 0]) < 0).all(), "losses: -42 was brighter than -76 on the dark page"
    assert np.abs(lightness - lightness[::-1]).max() < 3, "a loss is as strong as a gain of its size"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", DICHROMATS)
def test_losses_and_gains_differ_for_colour_blind_readers(kind: str, dark: bool) -> None:
    seen = cielab(np.clip(linear(drawn(Theme(dark))) @ np.array(DICHROMATS[kind]).T, 0, 1))
    apart = np.linalg.norm(seen - seen[::-1], axis=1)
    assert apart[np.abs(POINTS) >= 10].min() > 10, "a tenth of the scale and more"
    assert apart[np.abs(POINTS) >= 30].min() > 40


def test_paper_has_the_colours_of_the_screen() -> None:
    shapes = picture(Heatmaps("gap", "Gap", (differences(),), "difference"))[0].shapes
    (cells,) = (s for s in shapes if isinstance(s, Image) and s.table == 0)
    assert cells.rgb is not None
    assert np.abs(cells.rgb[0] / 255 - drawn(Theme())).max() < 0.003, "of 256 steps"
