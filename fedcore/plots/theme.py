"""What all figures share: a figure with its finding in words, and names shown as text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from unicodedata import east_asian_width

import plotly.graph_objects as go

from fedcore.plots.palette import Look

WIDE, NARROW = 1240, 350  # pixels, about: a figure across the page on a screen and on a telephone
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


def short(name: str, room: int = LABEL) -> str:
    """A name cut to the width of an axis label, or to ``room`` letters of usual width."""
    return plain(name if _width(name) <= room else cut(name, room - 1) + "…")


def cut(text: str, room: float) -> str:
    """As much of the beginning of a text as fits in the room of so many letters."""
    return text[: sum(end <= room for end in accumulate(map(_width, text)))]


def _width(text: str) -> float:
    """About how wide a text is, in letters: Chinese ones, emoji and a W take more room than most."""
    return sum(
        2 if east_asian_width(c) in "WF" else 1.7 if c in "MW@" else 1.2 if c.isupper() else 1 for c in text
    )


def shorten(title: str, room: float, end: int = 16) -> str:
    """A title cut to the room of so many letters; its last ``end`` stay, since they tell the round."""
    if _width(title) <= room:
        return title
    return f"{cut(title[:-end], room - _width(title[-end:]) - 1)}…{title[-end:]}"


def ticks(names: Sequence[str], room: int) -> tuple[list[int], list[str]]:
    """Every name, or every n-th where they would not fit."""
    step = max(1, ceil(len(names) / room))
    return list(range(0, len(names), step)), [short(n) for n in names[::step]]
