"""The light and the dark theme: colours, markers and dashes, equal for a method on every page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

LIGHT_COLOURS = {"fedot": "#0072B2", "sdfed": "#D55E00", "fedalign": "#009E73", "feddeap": "#CC79A7"}
DARK_COLOURS = {"fedot": "#56B4E9", "sdfed": "#E69F00", "fedalign": "#009E73", "feddeap": "#CC79A7"}
BASELINES = {"zero-shot": ("#6B7280", "#9CA3AF", "dot"), "promptfl": ("#4B5563", "#C4CAD3", "dash")}
DASHES = {"fedot": "solid", "sdfed": "dashdot", "fedalign": "longdash", "feddeap": "longdashdot"}
MARKERS = {
    "fedot": "circle",
    "sdfed": "square",
    "fedalign": "diamond",
    "feddeap": "triangle-up",
    "zero-shot": "x-thin-open",
    "promptfl": "cross",
}
OTHERS = (("#882255", "#E58FB5"), ("#332288", "#A79CF0"), ("#117733", "#7FCB94"), ("#8A6D00", "#DDCC77"))
OTHER_MARKERS = ("star", "pentagon", "hexagon", "triangle-down")
OTHER_DASHES = ("solid", "dash", "dashdot", "longdash")
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
TRANSPARENT = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Theme:
    """The light or the dark theme, with the colours of everything that is drawn."""

    dark: bool = False

    def colour(self, method: str) -> str:
        """Return the colour of a method."""
        if method in BASELINES:
            return BASELINES[method][int(self.dark)]
        named = DARK_COLOURS if self.dark else LIGHT_COLOURS
        return named.get(method) or OTHERS[_slot(method)][int(self.dark)]

    @property
    def ink(self) -> str:
        """Colour of text."""
        return "#e8edf2" if self.dark else "#1c2733"

    @property
    def faint(self) -> str:
        """Colour of axis lines and secondary text."""
        return "#9fb0c0" if self.dark else "#55626f"

    @property
    def grid(self) -> str:
        """Colour of grid lines."""
        return "#2a3541" if self.dark else "#e3e7ec"

    @property
    def no_data(self) -> str:
        """Colour of a cell without data."""
        return "#3a434d" if self.dark else "#d4d7db"

    @property
    def paper(self) -> str:
        """Colour of the page."""
        return "#10161d" if self.dark else "#ffffff"

    @property
    def layout(self) -> dict[str, Any]:
        """The part of a plotly layout that all charts share: transparent, text and buttons in our colours."""
        return {
            "paper_bgcolor": TRANSPARENT,
            "plot_bgcolor": TRANSPARENT,
            "font": {"color": self.ink},
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
            "automargin": True,
        }


def dash(method: str) -> str:
    """Return the line style of a method; baselines are dotted or dashed."""
    if method in BASELINES:
        return BASELINES[method][2]
    return DASHES.get(method) or OTHER_DASHES[_slot(method)]


def marker(method: str) -> str:
    """Return the marker of a method."""
    return MARKERS.get(method) or OTHER_MARKERS[_slot(method)]


def _slot(method: str) -> int:
    """Return the index into the spare colours, from the name alone, so that it is the same on every page."""
    return hashlib.sha256(method.encode()).digest()[0] % len(OTHERS)


def rgba(colour: str, opacity: float) -> str:
    """Return the colour ``#rrggbb`` with an opacity, as plotly and CSS write it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def apply_theme(figure: go.Figure, theme: Theme) -> None:
    """Colour axes like text unless they have a colour: Streamlit's grey is too pale for small letters."""
    layout = figure.layout.to_plotly_json()
    missing: dict[str, dict[str, object]] = {}
    for name in layout.keys() | {"xaxis", "yaxis"}:
        if not name.startswith(("xaxis", "yaxis")):
            continue
        axis = layout.get(name, {})
        if "color" not in axis.get("tickfont", {}):
            missing.setdefault(name, {})["tickfont"] = {"color": theme.ink}
        if "color" not in axis.get("title", {}).get("font", {}):
            missing.setdefault(name, {})["title"] = {"font": {"color": theme.ink}}
    if missing:
        figure.update_layout(missing)
