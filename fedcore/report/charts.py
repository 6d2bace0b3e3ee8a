"""What all figures share: a figure with its finding in words, and names shown as text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from unicodedata import east_asian_width

import plotly.graph_objects as go

from fedcore.report.palette import Look

LABEL = 16  # characters of a name on an axis; hover says the whole


@dataclass(frozen=True)
class Chart:
    """A figure and its finding in words (``alt``)."""

    figure: go.Figure
    alt: str


def in_ink(figure: go.Figure, look: Look) -> None:
    """Axes in the colour of text, where they have none: the theme's grey is too pale for small letters."""

    layout = figure.layout.to_plotly_json()
    missing: dict[str, dict[str, object]] = {}
    for name in layout.keys() | {"xaxis", "yaxis"}:
        if not name.startswith(("xaxis", "yaxis")):
            continue
        axis = layout.get(name, {})
        if "color" not in axis.get("tickfont", {}):
            missing.setdefault(name, {})["tickfont"] = {"color": look.ink}
        if "color" not in axis.get("title", {}).get("font", {}):
            missing.setdefault(name, {})["title"] = {"font": {"color": look.ink}}
    if missing:
        figure.update_layout(missing)


def plain(text: str) -> str:
    """Text as text: plotly reads a little HTML."""
    return html.escape(text, quote=False)


def short(text: str, room: int = LABEL) -> str:
    """A name cut to the width of an axis label, or to ``room``; Chinese letters and the like count as two."""
    ends = list(accumulate(1 + (east_asian_width(letter) in "WF") for letter in text))
    if not ends or ends[-1] <= room:
        return plain(text)
    return plain(text[: sum(end < room for end in ends)] + "…")


def ticks(names: Sequence[str], room: int) -> tuple[list[int], list[str]]:
    """Every name, or every n-th where they would not fit."""
    step = max(1, ceil(len(names) / room))
    return list(range(0, len(names), step)), [short(n) for n in names[::step]]
