"""The colour scale of differences, in CIELAB and as colour-blind readers see it."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.plots import heatmaps
from fedcore.plots.theme import Theme
from fedcore.reports import figures
from fedcore.reports.content import Heatmaps
from fedcore.results.panels.panel import Panel

POINTS = np.arange(-76.0, 77.0)
# Viénot, Brettel and Mollon (1999), "Digital video colourmaps for checking the legibility of displays by
# dichromats", equations 5 and 6: what a reader without red or without green cones sees, in linear RGB.
DICHROMATS = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


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
    xyz = light @ np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ).T / [0.9505, 1.0, 1.089]  # fmt: skip
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1
    )  # fmt: skip


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


def test_the_pdf_has_the_colours_of_the_screen() -> None:
    scale = figures._scale(Heatmaps("gap", "Gap", (differences(),), "difference"))
    assert (scale["vmin"], scale["vmax"]) == (-76, 76)
    printed = scale["cmap"]((POINTS + 76) / 152)[:, :3]
    assert np.abs(printed - drawn(Theme())).max() < 0.02, "of 256 steps"
