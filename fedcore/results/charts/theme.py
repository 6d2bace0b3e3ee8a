"""What all charts share: the figure with its text alternative, colours, axes, hover texts and short names."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil
from typing import Any, Generic, NamedTuple, TypeVar
from unicodedata import east_asian_width

import numpy as np
import plotly.graph_objects as go

from fedcore.base.presentation import built_in

_Value = TypeVar("_Value")
ColourScale = tuple[tuple[float, str], ...]
"""Positions from 0 to 1 with their colours."""


class MethodStyle(NamedTuple):
    """The look of a method on every page: colours on the light and the dark page, line and marker."""

    light: str
    dark: str
    dash: str
    marker: str


STYLES = (
    MethodStyle("#0072B2", "#56B4E9", "solid", "circle"),
    MethodStyle("#D55E00", "#E69F00", "dashdot", "square"),
    MethodStyle("#009E73", "#009E73", "longdash", "diamond"),
    MethodStyle("#CC79A7", "#CC79A7", "longdashdot", "triangle-up"),
    MethodStyle("#6B7280", "#9CA3AF", "dot", "x-thin-open"),
    MethodStyle("#111827", "#F3F4F6", "dash", "cross"),
    MethodStyle("#882255", "#E58FB5", "solid", "star"),
    MethodStyle("#332288", "#A79CF0", "dash", "pentagon"),
    MethodStyle("#117733", "#7FCB94", "dashdot", "hexagon"),
    MethodStyle("#8A6D00", "#DDCC77", "longdash", "triangle-down"),
    MethodStyle("#00707A", "#5FD0D8", "longdashdot", "triangle-left"),
    MethodStyle("#9B2D1F", "#FF9E8A", "dot", "triangle-right"),
    MethodStyle("#6B3FA0", "#CFA0EE", "solid", "hourglass"),
    MethodStyle("#5B5B00", "#C6C65A", "dash", "bowtie"),
    MethodStyle("#882255", "#E58FB5", "dashdot", "star-square"),
    MethodStyle("#332288", "#A79CF0", "longdash", "star-diamond"),
    MethodStyle("#117733", "#7FCB94", "longdashdot", "diamond-tall"),
    MethodStyle("#8A6D00", "#DDCC77", "dot", "diamond-wide"),
    MethodStyle("#00707A", "#5FD0D8", "solid", "hexagram"),
    MethodStyle("#9B2D1F", "#FF9E8A", "dash", "circle-cross"),
    MethodStyle("#6B3FA0", "#CFA0EE", "dashdot", "square-cross"),
    MethodStyle("#5B5B00", "#C6C65A", "longdash", "x"),
    MethodStyle("#00707A", "#5FD0D8", "dashdot", "circle-open"),
    MethodStyle("#5B5B00", "#C6C65A", "solid", "star-open"),
    MethodStyle("#9B2D1F", "#FF9E8A", "longdash", "pentagon-open"),
    MethodStyle("#6B3FA0", "#CFA0EE", "dot", "diamond-open"),
    MethodStyle("#882255", "#E58FB5", "longdash", "square-open"),
    MethodStyle("#332288", "#A79CF0", "dashdot", "triangle-up-open"),
    MethodStyle("#117733", "#7FCB94", "dot", "triangle-down-open"),
    MethodStyle("#8A6D00", "#DDCC77", "longdashdot", "cross-open"),
    MethodStyle("#5B5B00", "#C6C65A", "dashdot", "star-diamond-open"),
    MethodStyle("#117733", "#7FCB94", "dash", "hexagon-open"),
    MethodStyle("#8A6D00", "#DDCC77", "solid", "triangle-left-open"),
    MethodStyle("#9B2D1F", "#FF9E8A", "solid", "triangle-right-open"),
    MethodStyle("#332288", "#A79CF0", "dot", "hexagram-open"),
    MethodStyle("#117733", "#7FCB94", "solid", "bowtie-open"),
    MethodStyle("#882255", "#E58FB5", "dash", "hexagon2-open"),
    MethodStyle("#00707A", "#5FD0D8", "dash", "diamond-tall-open"),
    MethodStyle("#6B3FA0", "#CFA0EE", "longdash", "hourglass-open"),
    MethodStyle("#9B2D1F", "#FF9E8A", "dashdot", "diamond-wide-open"),
    MethodStyle("#332288", "#A79CF0", "solid", "star-square-open"),
    MethodStyle("#00707A", "#5FD0D8", "dot", "x-open"),
)
"""The looks of our methods, in the order of ``assets/methods.toml``; the last ones are for new methods.

The first six differ by every property. Others that no paper compares may share a colour, but no marker.
"""
OTHER_STYLES = STYLES[6:21]
"""Styles of all other methods: always the same ones, so that a new method of ours changes none of theirs."""
STATUS = {
    "queued": ("○", "#6B7280", "#A9B3BF"),
    "running": ("▶", "#00649C", "#56B4E9"),
    "stopping": ("◼", "#8A5A00", "#E6B450"),
    "done": ("✓", "#1B7A3D", "#63C587"),
    "failed": ("✕", "#B3261E", "#FF8A80"),
    "stopped": ("◼", "#6B5B2A", "#D3C28A"),
    "interrupted": ("!", "#9A3F00", "#FFB27A"),
}
"""State of a run -> symbol, colour on light, colour on dark (contrast at least 4.5:1 on the page)."""
CLASSES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B",
    "#56B4E9", "#7F3C8D", "#8C564B", "#666666", "#8B0000",
)  # fmt: skip
CLASSES_DARK = (
    "#4FA3DD", "#E8894A", "#2FBF95", "#E2A6C8", "#D9B84A",
    "#A8DBF7", "#C08AD0", "#C79A8E", "#B0B0B0", "#F07070",
)  # fmt: skip
"""Colours of classes in a scatter plot."""
ACCURACY_SCALE = "Cividis"
RECORDED_SCALE = [
    "#000004", "#180f3d", "#440f76", "#721f81", "#9e2f7f",
    "#cd4071", "#f1605d", "#fd9668", "#feca8d", "#fcfdbf",
]  # fmt: skip
"""Magma."""
DARK_TEXT_FROM = {"accuracy": 48.0, "recorded": 66.0}
"""Per cent of a scale from which Cividis and Magma are lighter than middle grey."""
LINES_SCALE: ColourScale = ((0.0, "#00224e"), (0.33, "#434e6c"), (0.67, "#7d7c78"), (1.0, "#bcaf6f"))
LINES_SCALE_DARK: ColourScale = ((0.0, "#7d7c78"), (0.5, "#bcaf6f"), (1.0, "#fee838"))
"""The parts of Cividis in which thin lines are visible, on the light and on the dark page."""
TRANSPARENT = "rgba(0,0,0,0)"
ALL_LABELS = {"automargin": True, "ticklabeloverflow": "allow"}
"""Properties of an axis that has room for its labels.

To find labels outside of the chart, which it would hide, plotly measures all labels once for each of them:
27,000 times for two heatmaps with 108 labels. With room for all, there are none.
"""
TOOLBAR = 32
"""Pixels at the top of a chart that are reserved for plotly's buttons."""
MARGIN = {"l": 8, "r": 8, "t": TOOLBAR, "b": 8}
LEGEND_BELOW = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}


class _ByTheme(Generic[_Value]):
    """An attribute of ``Theme`` with a value on the light and one on the dark page."""

    def __init__(self, light: _Value, dark: _Value) -> None:
        self._light, self._dark = light, dark

    def __get__(self, theme: Theme, owner: type[Theme]) -> _Value:
        return self._dark if theme.dark else self._light


@dataclass(frozen=True)
class Theme:
    """The light or the dark theme, with the colours of charts and tables.

    Attributes:
        own: colours that the reader gave to methods, in place of those of ``STYLES``.
    """

    dark: bool = False
    own: tuple[tuple[str, str], ...] = ()

    ink = _ByTheme("#1c2733", "#e8edf2")  # text
    faint = _ByTheme("#55626f", "#9fb0c0")  # axis lines and secondary text
    grid = _ByTheme("#e3e7ec", "#2a3541")  # grid lines
    no_data = _ByTheme("#d4d7db", "#3a434d")  # a cell without data
    paper = _ByTheme("#ffffff", "#10161d")  # the page
    gain = _ByTheme("#1F5FA8", "#7DB5E8")  # an arrow that stands for a gain
    loss = _ByTheme("#B3261E", "#FF8A80")
    classes = _ByTheme(CLASSES, CLASSES_DARK)  # repeated after the last one
    lines_scale = _ByTheme(LINES_SCALE, LINES_SCALE_DARK)  # colour scale of thin lines

    def colour(self, method: str) -> str:
        usual = style(method).dark if self.dark else style(method).light
        return dict(self.own).get(method, usual)

    @property
    def diverging(self) -> ColourScale:
        """Colour scale of differences, orange below 0 and blue above, on screen, in reports and in PDF.

        With the distance from 0, colours become darker on the light page and brighter on the dark one,
        equally on both sides: lightness shows the size of a difference, and hue its sign. Orange and blue
        can be told apart with all common kinds of colour blindness.
        """
        below, above = (
            (("#FFC98A", "#9E5A10"), ("#2E6DB0", "#A4D3F8"))
            if self.dark
            else (("#A04E05", "#E39A45"), ("#7FAFD8", "#1F5FA8"))
        )
        middle = self.paper if self.dark else "#f5f5f5"
        return tuple(zip((0.0, 0.25, 0.5, 0.75, 1.0), (*below, middle, *above), strict=True))

    @property
    def layout(self) -> dict[str, Any]:
        """The part of a plotly layout that all charts share."""
        return {
            "paper_bgcolor": TRANSPARENT,
            "plot_bgcolor": TRANSPARENT,
            "font": {"color": self.ink},
            "hoverlabel": {"bgcolor": self.paper, "bordercolor": self.faint, "font": {"color": self.ink}},
            "modebar": {"bgcolor": TRANSPARENT, "color": self.faint, "activecolor": self.ink},
        }

    @property
    def axis(self) -> dict[str, Any]:
        """The part of a plotly axis that all charts with grid lines share."""
        return {
            "gridcolor": self.grid,
            "zeroline": False,
            "linecolor": self.grid,
            "color": self.ink,
            **ALL_LABELS,
        }


@cache
def style(method: str) -> MethodStyle:
    """Return the style of a method; one that is not ours gets a style that depends only on its name."""
    spare = OTHER_STYLES[hashlib.sha256(method.encode()).digest()[0] % len(OTHER_STYLES)]
    return dict(zip(built_in(), STYLES, strict=False)).get(method, spare)


def rgba(colour: str, opacity: float) -> str:
    """Return the colour ``#rrggbb`` with an opacity, as plotly and CSS write it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def colours_at(scale: ColourScale, share: np.ndarray) -> np.ndarray:
    """Return the colours of a scale at positions from 0 to 1, interpolated as by plotly and matplotlib.

    Shape: share (...); returns (..., 3), sRGB from 0 to 1.
    """
    rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for _, colour in scale]) / 255
    at = [position for position, _ in scale]
    return np.stack([np.interp(share, at, rgb[:, channel]) for channel in range(3)], axis=-1)


@cache
def palette(scale: str, count: int) -> np.ndarray:
    """Return evenly spaced colours of one of plotly's scales. Shape: (count, 3), 0 to 255."""
    from plotly.colors import sample_colorscale, unlabel_rgb

    return np.array(list(map(unlabel_rgb, sample_colorscale(scale, np.linspace(0, 1, count).tolist()))))


def hover(text: str) -> str:
    """Return a hover text as a template, without the second box in which plotly names the trace."""
    return f"{text}<extra></extra>"


def apply_layout(figure: go.Figure, theme: Theme, height: int, **layout: Any) -> None:
    """Apply the theme, a height in pixels, and further layout properties to a figure."""
    figure.update_layout({**theme.layout, "height": height, "margin": {**MARGIN, "pad": 0}, **layout})
    figure.update_xaxes(**theme.axis)
    figure.update_yaxes(**theme.axis)


WIDE_PIXELS, NARROW_PIXELS = 1240, 350
"""Approximate width of a chart across the page, on a desktop and on a telephone."""
LABEL_LETTERS = 16
"""Letters of a name on an axis; the hover text has the whole name."""


@dataclass(frozen=True)
class Chart:
    """A plotly figure, and in ``alt`` its text alternative for screen readers."""

    figure: go.Figure
    alt: str


def rounds_as_python(values: np.ndarray | Sequence[float], digits: int) -> np.ndarray:
    """Return numbers that JavaScript rounds to some digits as Python does: a tie to the even digit.

    JavaScript rounds 12.25 to 12.3 and Python to 12.2. With d digits, v is a tie if v * 2^(d + 1) is odd, and
    the digit before it is even if that is 1 modulo 4, since 5^d is. The nearest smaller number has no tie.

    Shape: any -> the same.
    """
    given = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(given) * 2 ** (digits + 1) % 4 == 1, np.nextafter(given, 0), given)


def escape(text: str) -> str:
    """Escape text, because plotly renders some HTML."""
    return html.escape(text, quote=False)


def short_name(name: str, room: int = LABEL_LETTERS) -> str:
    """Shorten a name to the width of ``room`` average letters, and escape it."""
    return escape(name if letters(name) <= room else cut(name, room - 1) + "…")


def cut(text: str, room: float) -> str:
    """Return the beginning of a text that fits into the width of ``room`` average letters."""
    return text[: sum(end <= room for end in accumulate(map(letters, text)))]


def letters(text: str) -> float:
    """Estimate the width of a text in average letters; Chinese characters, emoji and a W are wider."""
    return sum(
        2 if east_asian_width(c) in "WF" else 1.7 if c in "MW@" else 1.2 if c.isupper() else 1 for c in text
    )


def shorten(title: str, room: float) -> str:
    """Shorten a title to the width of ``room`` letters, keeping its end, which names the round."""
    if letters(title) <= room:
        return title
    name, end = title[:-16], title[-16:]
    return f"{cut(name, room - letters(end) - 1)}…{end}"


def ticks(names: Sequence[str], room: int) -> tuple[list[int], list[str]]:
    """Return positions and texts of axis labels: every name, or every n-th if they would not fit."""
    step = max(1, ceil(len(names) / room))
    return list(range(0, len(names), step)), [short_name(n) for n in names[::step]]


def annotation(text: str, x: float, y: float, axes: str = "paper", **more: Any) -> dict[str, Any]:
    """Return a text at shares of the chart's size, or at a place on the axes of a number such as ``2``."""
    refs = ("paper", "paper") if axes == "paper" else (f"x{axes}", f"y{axes}")
    return {"text": text, "x": x, "y": y, "xref": refs[0], "yref": refs[1], "showarrow": False, **more}


def silent_trace(x: Any, y: Any, mode: str, **more: Any) -> dict[str, Any]:
    """Return a scatter trace without hover texts and without an entry in the legend."""
    bare = {"type": "scatter", "x": x, "y": y, "mode": mode, "hoverinfo": "skip", "showlegend": False}
    return {**bare, **more}


def legend_key(name: str, marker: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace without points, which explains a mark in the legend."""
    return silent_trace([None], [None], "markers", name=name, marker=dict(marker), showlegend=True)


def cell_texts(x: np.ndarray, y: np.ndarray, texts: Sequence[str], colours: np.ndarray) -> dict[str, Any]:
    """Return the trace that writes texts into the cells of a heatmap. Shape: x, y, colours (cells,)."""
    return silent_trace(x, y, "text", text=texts, textfont={"size": 11, "color": colours.tolist()})
