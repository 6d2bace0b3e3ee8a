"""The axes of a still picture: their ends, ticks and texts as plotly chooses them, and the room they take."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor, inf, isfinite, log10, radians, sin
from typing import Any

import numpy as np

from fedcore.plots.chart import letters

LETTER = 0.6
"""Width of an average letter in units of the size of its text."""
TICK, TITLE, GAP = 11.0, 12.0, 5.0  # pixels: text of ticks and titles, space between parts


@dataclass
class Axis:
    """One axis of a panel, which places values between two pixels.

    Attributes:
        ends: its values at the first and last pixel, logarithms on a logarithmic axis.
        pixels: left and right, or bottom and top.
        names: values of an axis of names, in order.
    """

    layout: Mapping[str, Any]
    log: bool = False
    ends: tuple[float, float] = (0.0, 1.0)
    pixels: tuple[float, float] = (0.0, 1.0)
    ticks: list[tuple[float, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return plain((self.layout.get("title") or {}).get("text") or "")

    @property
    def domain(self) -> tuple[float, float]:
        low, high = self.layout.get("domain", (0.0, 1.0))
        return float(low), float(high)

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


def text_width(text: str) -> float:
    """Estimate the width of a tick's text in pixels."""
    return LETTER * TICK * letters(text)


def axes_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> dict[str, Axis]:
    """Return the axes of some traces, by the names that plotly gives them: ``x``, ``y``, ``x2``."""
    names = dict.fromkeys(t.get(f"{side}axis") or side for t in traces for side in "xy")
    axes = {}
    for name in names or "xy":
        axis = Axis(layout.get(f"{name[0]}axis{name[1:]}", {}))
        values = [
            v for t in traces if (t.get(f"{name[0]}axis") or name[0]) == name for v in _values(t, name[0])
        ]
        _scale(axis, values, any(t["type"] == "bar" and t["along"] == name[0] for t in traces))
        axes[name] = axis
    return axes


def _values(trace: Mapping[str, Any], side: str) -> list[Any]:
    values = list(trace.get(side, ()))
    if trace["type"] == "bar" and side != trace["along"]:
        named = any(isinstance(v, str) for v in values)
        return values if named else [v + s * trace["unit"] / 2 for v in values for s in (-1, 1)]
    if trace["type"] == "bar":
        values = [b + v for b, v in zip(trace["base"], trace["length"], strict=True)]
    spread = (trace.get(f"error_{side}") or {}).get("array")
    if spread is not None:
        values += [v + s * e for v, e in zip(values, spread, strict=True) for s in (-1, 1)]
    return values + (list(trace["base"]) if trace["type"] == "bar" else [])


def _scale(axis: Axis, values: Sequence[Any], from_zero: bool = False) -> None:
    """Give an axis its ends and ticks, as plotly chooses them; bars leave no space below zero."""
    given = axis.layout
    axis.log = given.get("type") == "log"
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
        low -= 0 if from_zero and low == 0 else space
        high += 0 if from_zero and high == 0 else space
    axis.ends = low, high
    suffix = plain(given.get("ticksuffix") or "")
    if given.get("tickvals") is not None:
        axis.ticks = [
            (axis.number(v), plain(str(t))) for v, t in zip(given["tickvals"], given["ticktext"], strict=True)
        ]
    elif axis.names:
        axis.ticks = [(float(i), plain(name)) for i, name in enumerate(axis.names)]
    else:
        axis.ticks = [(n, f"{t}{suffix}") for n, t in round_ticks(low, high, axis.log, given.get("dtick"))]


def round_ticks(low: float, high: float, log: bool, step: float | None) -> list[tuple[float, str]]:
    """Return places and texts of round numbers between two ends."""
    if log:
        digits = (1, 2, 5) if high - low < 3 else (1,)
        numbers = [d * 10.0**e for e in range(floor(low), ceil(high) + 1) for d in digits]
        return [(log10(v), f"{v:g}") for v in numbers if low <= log10(v) <= high]
    if step is None:
        unit = 10.0 ** floor(log10((high - low) / 7))
        step = unit * next(m for m in (1, 2, 5, 10) if (high - low) / (unit * m) <= 7)
    count = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    return [(i * step, f"{round(i * step, 12):,.6g}") for i in count]


def room_of_names(axis: Axis) -> float:
    """Return the pixels beside an axis that its ticks need."""
    return max((text_width(text) for _, text in axis.ticks), default=0.0) + GAP + 2


def thinned_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return every tick, or every n-th of a matrix with more columns than there is room for."""
    places = sorted(axis.place(n) for n, _ in axis.ticks)
    apart = min((b - a for a, b in pairwise(places)), default=inf)
    return axis.ticks[:: max(1, ceil((TICK + 4) / apart))] if "domain" in axis.layout else axis.ticks


def text_angle(axis: Axis) -> float:
    """Return the angle of the texts below an axis: as given, or slanted where they would overlap."""
    given = float(axis.layout.get("tickangle") or 0)
    places = sorted(axis.place(n) for n, _ in axis.ticks)
    apart = min((b - a for a, b in pairwise(places)), default=inf)
    widest = max((text_width(text) for _, text in axis.ticks), default=0.0)
    return given if given or widest + GAP < apart else -35.0


def room_below(axis: Axis) -> float:
    """Return the pixels below an axis that its ticks and its title need."""
    widest = max((text_width(text) for _, text in axis.ticks), default=0.0)
    slanted = widest * sin(radians(abs(text_angle(axis))))
    return GAP + TICK + 3 + slanted + (TITLE + 6 if axis.title else 0) + GAP
