"""The axes and traces of a still picture as shapes, with the hover texts of plotly."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, cos, floor, inf, isfinite, log10, pi, radians, sin
from typing import Any

import numpy as np

from fedcore.results.charts.theme import Theme, colours_at, letters
from fedcore.results.charts.vector import Anchor, Box, Disc, Image, Path, Point, Shape, Text

KINDS = ("scatter", "heatmap", "parcoords")
"""Types of plotly's traces that can be drawn.

A new one gets a function that returns its shapes, such as ``scatter_shapes``, and a branch in
``still.still``; it also gets one in ``axes_of`` if an axis has to show more than its ``x`` and ``y``.
"""
PAPER = Theme()
"""The light theme, which prints."""
DASHES = {
    "solid": (),
    "dot": (2, 3),
    "dash": (7, 4),
    "longdash": (12, 4),
    "dashdot": (7, 3, 2, 3),
    "longdashdot": (12, 3, 2, 3),
}


def scale_colours(scale: Sequence[Sequence[Any]], share: np.ndarray) -> np.ndarray:
    """Return colours from 0 to 255, grey for NaN. Shape: share (...) -> (..., 3)."""
    rgb = colours_at(tuple((p, c) for p, c in scale), np.nan_to_num(share))
    rgb[np.isnan(share)] = colours_at(((0.0, PAPER.no_data), (1.0, PAPER.no_data)), np.zeros(1))[0]
    return np.round(255 * rgb).astype(np.uint8)


def heatmap_shapes(
    trace: Mapping[str, Any], x: Axis, y: Axis, layout: Mapping[str, Any], table: int
) -> list[Shape]:
    """Return a box per cell with its tip; where cells touch, there are too many, and it is one image."""
    values = np.asarray(trace["z"], dtype=float)
    if not values.size:
        return []
    bar = layout["coloraxis"]
    share = np.clip((values - bar["cmin"]) / (bar["cmax"] - bar["cmin"]), 0, 1)
    colours = scale_colours(bar["colorscale"], share)
    if not trace["xgap"]:
        (left, right), (bottom, top) = x.pixels, y.pixels
        return [Image(left, top, right - left, bottom - top, colours, table)]
    return [
        Box(
            x.place(j - 0.5) + 0.5,
            y.place(i - 0.5) + 0.5,
            x.place(j + 0.5) - x.place(j - 0.5) - 1,
            y.place(i + 0.5) - y.place(i - 0.5) - 1,
            "#{:02x}{:02x}{:02x}".format(*colours[i, j]),
            tip=_tip(trace, (i, j), x, y),
        )
        for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True)
    ]


def _tip(trace: Mapping[str, Any], index: Any, x: Axis, y: Axis) -> str:
    """Return the hover text of a point, from plotly's template."""
    if trace.get("hoverinfo") == "skip" or not trace.get("hovertemplate"):
        return ""
    template = re.sub(r"<extra>.*</extra>", "", trace["hovertemplate"])

    def value(found: re.Match[str]) -> str:
        name, item, form = found.groups()
        if name == "fullData.name":
            return str(trace["name"])
        if trace["type"] == "heatmap" and name in "xy":
            return str((x if name == "x" else y).layout["labelalias"][str(index["yx".index(name)])])
        given = trace[name][index] if trace.get(name) is not None else ""
        given = given if item is None else given[int(item)]
        return f"{given:{form}}" if form else str(given)

    text = re.sub(r"%\{([\w.]+)(?:\[(\d)\])?(?::([^}]*))?\}", value, template)
    if trace["type"] == "scatter" and "fullData.name" not in template:
        at = trace["x"][index]
        shown = at if isinstance(at, str) else f"{at:,.6g}"
        place = "" if "%{x" in template else f", {x.title} {shown}"
        unit = y.layout.get("ticksuffix") or "" if place else ""
        text = f"{trace['name']}{place}\n{text}{unit}"
    return plain(text)


def scatter_shapes(trace: Mapping[str, Any], x: Axis, y: Axis, line: int | None, step: int) -> list[Shape]:
    """Return lines, error bars, markers and texts; of points without a marker every n-th has a tip."""
    points = [(x(u), y(v)) for u, v in zip(trace["x"], trace["y"], strict=True)]
    finite = [i for i, (u, v) in enumerate(points) if isfinite(u) and isfinite(v)]
    if not finite:
        return []
    mode = trace.get("mode", "lines")
    shapes: list[Shape] = []
    if trace.get("fill") == "toself":
        return [Path(points, fill=trace["fillcolor"], closed=True, line=line)]
    if "lines" in mode:
        pen = trace["line"]
        shape = points
        if pen.get("shape") == "hv":
            shape = [p for a, b in pairwise(points) for p in (a, (b[0], a[1]))] + points[-1:]
        shapes.append(drawn_line(shape, pen, line))
    spread = trace.get("error_y") or {}
    if spread.get("array") is not None:
        bars: list[Point] = []
        for i in finite:
            if spread["array"][i]:
                at, (low, high) = points[i][0], (y(trace["y"][i] + s * spread["array"][i]) for s in (-1, 1))
                for ends in ((0, low), (0, high)), ((-3, low), (3, low)), ((-3, high), (3, high)):
                    bars += [*((at + dx, end) for dx, end in ends), _NEXT]
        shapes.append(Path(bars, spread["color"], width=1.5, line=line))
    for i in finite:
        tip = _tip(trace, i, x, y)
        if "markers" in mode:
            shapes.append(marker(trace["marker"], *points[i], line, tip))
        elif tip and i % step == 0:
            shapes.append(Disc(*points[i], radius=4, tip=tip, line=line))
    if "text" in mode:
        shapes += _texts(trace, points, finite)
    return shapes


def drawn_line(points: Sequence[Point], pen: Mapping[str, Any], line: int | None) -> Path:
    """Return a line as plotly describes its pen."""
    width, dashes = pen.get("width", 2), DASHES[pen.get("dash") or "solid"]
    return Path(points, pen["color"], width=width, dashes=dashes, line=line)


def _texts(trace: Mapping[str, Any], points: Sequence[Point], finite: Iterable[int]) -> list[Shape]:
    font = trace.get("textfont") or {}
    vertical, _, side = (trace.get("textposition") or "middle center").partition(" ")
    size, distance = font.get("size") or TITLE, (trace.get("marker") or {}).get("size", 0) / 2 + 3
    anchors: dict[str, Anchor] = {"left": "end", "center": "middle", "right": "start"}
    dx = {"left": -distance, "center": 0, "right": distance}[side]
    dy = {"top": -distance - size / 2, "middle": 0, "bottom": distance + size / 2}[vertical]
    colours = font.get("color")
    shapes: list[Shape] = []
    for i in finite:
        text = str(trace["text"][i])
        if text:
            colour = colours if isinstance(colours, str) else font["color"][i]
            x, y = points[i][0] + dx, points[i][1] + dy
            shapes.append(Text(x, y, plain(text), colour, size, anchors[side], bold="<b>" in text))
    return shapes


def _star(
    count: int, turn: float = 0.0, inner: float = 1.0, wide: float = 1.0, tall: float = 1.0
) -> list[Point]:
    """Return a polygon in a circle of radius 1, or a star whose inner corners are nearer to the middle."""
    corners = 2 * count if inner != 1 else count
    radii = [inner if inner != 1 and i % 2 else 1.0 for i in range(corners)]
    angles = [radians(turn) - pi / 2 + 2 * pi * i / corners for i in range(corners)]
    return [(wide * r * cos(a), tall * r * sin(a)) for r, a in zip(radii, angles, strict=True)]


_CROSS = [(-1, -0.4), (-0.4, -0.4), (-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4),
          (0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4)]  # fmt: skip
_NEXT = (float("nan"), float("nan"))
SYMBOLS: dict[str, list[Point]] = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "diamond": _star(4, wide=1.25, tall=1.25),
    "diamond-tall": _star(4, wide=0.8, tall=1.4),
    "diamond-wide": _star(4, wide=1.4, tall=0.8),
    "triangle-up": _star(3, wide=1.15, tall=1.15),
    "triangle-down": _star(3, 180, wide=1.15, tall=1.15),
    "triangle-left": _star(3, 270, wide=1.15, tall=1.15),
    "triangle-right": _star(3, 90, wide=1.15, tall=1.15),
    "cross": _CROSS,
    "x": [((u - v) * 0.71, (u + v) * 0.71) for u, v in _CROSS],
    "x-thin": [(-1, -1), (1, 1), _NEXT, (-1, 1), (1, -1)],
    "star": _star(5, inner=0.4, wide=1.35, tall=1.35),
    "pentagon": _star(5, wide=1.1, tall=1.1),
    "hexagon": _star(6, wide=1.1, tall=1.1),
    "hexagon2": _star(6, 30, wide=1.1, tall=1.1),
    "hexagram": _star(6, inner=0.58, wide=1.35, tall=1.35),
    "star-square": _star(4, 45, inner=0.5, wide=1.4, tall=1.4),
    "star-diamond": _star(4, inner=0.5, wide=1.4, tall=1.4),
    "bowtie": [(-1, -0.9), (1, 0.9), (1, -0.9), (-1, 0.9)],
    "hourglass": [(-0.9, -1), (0.9, -1), (-0.9, 1), (0.9, 1)],
    "circle-cross": [*_star(16), _NEXT, (-1, 0), (1, 0), _NEXT, (0, -1), (0, 1)],
    "square-cross": [
        (-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9), _NEXT, (-0.9, 0), (0.9, 0),
        _NEXT, (0, -0.9), (0, 0.9),
    ],
}  # fmt: skip
"""The outlines of plotly's markers in units of their radius; a circle has its own shape."""


def marker(look: Mapping[str, Any], x: float, y: float, line: int | None = None, tip: str = "") -> Shape:
    """Return the shape of a marker as plotly describes it."""
    symbol, radius = look.get("symbol") or "circle", look.get("size", 6) / 2
    name, pen = symbol.removesuffix("-open"), look.get("line") or {}
    is_open = symbol.endswith("-open")
    fill = "none" if is_open else look["color"]
    stroke = look["color"] if is_open else pen.get("color") or "none"
    width = pen.get("width") or 1.0
    if name == "circle":
        return Disc(x, y, radius, fill, stroke, width, tip=tip, line=line)
    outline = [(x + radius * u, y + radius * v) for u, v in SYMBOLS[name]]
    return Path(outline, stroke, fill, width, closed=name != "x-thin", tip=tip, line=line)


LETTER = 0.6
"""Width of an average letter in units of the size of its text."""
TICK, TITLE, GAP = 11.0, 12.0, 5.0  # pixels: text of ticks and titles, space between parts


def text_width(text: str) -> float:
    """Estimate the width of a tick's text in pixels."""
    return LETTER * TICK * letters(text)


@dataclass
class Axis:
    """One axis of a panel, which places values between two pixels.

    Attributes:
        ends: its values at the first and last pixel; their logarithms if ``log``.
        pixels: left and right, or bottom and top.
        names: values of an axis of names, in order.
    """

    layout: Mapping[str, Any]
    ends: tuple[float, float] = (0.0, 1.0)
    pixels: tuple[float, float] = (0.0, 1.0)
    ticks: list[tuple[float, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return plain((self.layout.get("title") or {}).get("text") or "")

    @property
    def log(self) -> bool:
        return self.layout.get("type") == "log"

    @property
    def domain(self) -> tuple[float, float]:
        low, high = self.layout.get("domain", (0.0, 1.0))
        return float(low), float(high)

    def fit(self, first: float, last: float) -> None:
        """Take the place of its domain between two pixels."""
        low, high = self.domain
        self.pixels = first + low * (last - first), first + high * (last - first)

    @property
    def widest(self) -> float:
        """The pixels of its longest text."""
        return max((text_width(text) for _, text in self.ticks), default=0.0)

    @property
    def apart(self) -> float:
        """The pixels from a tick to the next one."""
        places = sorted(self.place(n) for n, _ in self.ticks)
        return min((b - a for a, b in pairwise(places)), default=inf)

    @property
    def room_beside(self) -> float:
        """The pixels beside an upright axis that its ticks need."""
        return self.widest + GAP + 2

    @property
    def angle(self) -> float:
        """The angle of the texts below an axis: as given, or slanted where they would overlap."""
        given = float(self.layout.get("tickangle") or 0)
        return given if given or self.widest + GAP < self.apart else -35.0

    @property
    def room_below(self) -> float:
        """The pixels below an axis that its ticks and its title need."""
        slanted = self.widest * sin(radians(abs(self.angle)))
        return GAP + TICK + 3 + slanted + (TITLE + 6 if self.title else 0) + GAP

    def thin_out(self) -> None:
        """Keep every tick, or every n-th of a matrix with more columns than there is room for."""
        if "domain" in self.layout:
            self.ticks = self.ticks[:: max(1, ceil((TICK + 4) / self.apart))]

    def number(self, value: Any) -> float:
        """Return a value as the axis counts it; NaN where it cannot show it."""
        if self.names:
            return float(self.names.index(str(value))) if str(value) in self.names else float("nan")
        if value is None:
            return float("nan")
        if self.log:
            return log10(value) if value > 0 else float("nan")
        return float(value)

    def place(self, number: float) -> float:
        (low, high), (first, last) = self.ends, self.pixels
        return first + (number - low) / (high - low) * (last - first)

    def __call__(self, value: Any) -> float:
        return self.place(self.number(value))


def plain(text: str) -> str:
    """Return the text behind plotly's mark-up; a line break stays one."""
    return html.unescape(re.sub(r"</?[bi]>", "", text.replace("<br>", "\n")))


def axes_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> dict[str, Axis]:
    """Return the axes of some traces, by the names that plotly gives them: ``x``, ``y``, ``x2``."""
    names = dict.fromkeys(t.get(f"{side}axis") or side for t in traces for side in "xy")
    axes = {}
    for name in names or "xy":
        axis, side = Axis(layout.get(f"{name[0]}axis{name[1:]}", {})), name[0]
        values: list[Any] = []
        for trace in (t for t in traces if (t.get(f"{side}axis") or side) == name):
            values.extend(trace[side])
            spread = (trace.get(f"error_{side}") or {}).get("array")
            if spread is not None:
                values += [v + s * e for v, e in zip(trace[side], spread, strict=True) for s in (-1, 1)]
        _scale(axis, values)
        axes[name] = axis
    return axes


def _scale(axis: Axis, values: Sequence[Any]) -> None:
    """Give an axis its ends and ticks, as plotly chooses them."""
    given = axis.layout
    if any(isinstance(v, str) for v in values):
        axis.names = list(dict.fromkeys(str(v) for v in values))
    numbers = [n for v in values if isfinite(n := axis.number(v))]
    if given.get("range") is not None:
        low, high = (float(end) for end in given["range"])
    elif axis.names:
        low, high = -0.5, len(axis.names) - 0.5
    else:
        included = (given.get("autorangeoptions") or {}).get("include")
        numbers += [] if included is None else [float(v) for v in np.atleast_1d(included)]
        low, high = min(numbers, default=0.0), max(numbers, default=1.0)
        space = 0.05 * (high - low) or 0.5
        low, high = low - space, high + space
    axis.ends = low, high
    suffix = plain(given.get("ticksuffix") or "")
    if given.get("tickvals") is not None:
        axis.ticks = [
            (axis.number(v), plain(str(t))) for v, t in zip(given["tickvals"], given["ticktext"], strict=True)
        ]
    elif axis.names:
        axis.ticks = [(float(i), plain(name)) for i, name in enumerate(axis.names)]
    else:
        assert not axis.log, "a logarithmic axis names its ticks"
        axis.ticks = [(n, f"{t}{suffix}") for n, t in round_ticks(low, high, given.get("dtick"))]


def round_ticks(low: float, high: float, step: float | None = None) -> list[tuple[float, str]]:
    """Return places and texts of round numbers between two ends."""
    if step is None:
        unit = 10.0 ** floor(log10((high - low) / 7))
        step = unit * next(m for m in (1, 2, 5, 10) if (high - low) / (unit * m) <= 7)
    count = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    return [(i * step, f"{round(i * step, 12):,.6g}") for i in count]
