"""A chart (a plotly figure with a text alternative), and names shortened to fit into one."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Any
from unicodedata import east_asian_width

import numpy as np
import plotly.graph_objects as go

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


def shorten(title: str, room: float, end: int = 16) -> str:
    """Shorten a title to the width of ``room`` letters, keeping its last ``end``, which name the round."""
    if letters(title) <= room:
        return title
    return f"{cut(title[:-end], room - letters(title[-end:]) - 1)}…{title[-end:]}"


def ticks(names: Sequence[str], room: int) -> tuple[list[int], list[str]]:
    """Return positions and texts of axis labels: every name, or every n-th if they would not fit."""
    step = max(1, ceil(len(names) / room))
    return list(range(0, len(names), step)), [short_name(n) for n in names[::step]]


def annotation(text: str, x: float, y: float, axes: str = "paper", **more: Any) -> dict[str, Any]:
    """Return a text at shares of the chart's size, or at a place on the axes of a number such as ``2``."""
    refs = ("paper", "paper") if axes == "paper" else (f"x{axes}", f"y{axes}")
    return {"text": text, "x": x, "y": y, "xref": refs[0], "yref": refs[1], "showarrow": False, **more}


def legend_key(name: str, marker: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace without points, which explains a mark in the legend."""
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "mode": "markers",
        "name": name,
        "marker": dict(marker),
        "hoverinfo": "skip",
        "showlegend": True,
    }


def cell_texts(x: np.ndarray, y: np.ndarray, texts: Sequence[str], colours: np.ndarray) -> dict[str, Any]:
    """Return the trace that writes texts into the cells of a heatmap. Shape: x, y, colours (cells,)."""
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "text": texts,
        "mode": "text",
        "textfont": {"size": 11, "color": colours.tolist()},
        "hoverinfo": "skip",
        "showlegend": False,
    }
