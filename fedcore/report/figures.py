"""Plotly figures of curves; ``heatmaps`` draws the matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import plotly.graph_objects as go

from fedcore.report.charts import Chart, plain
from fedcore.report.curves import Series
from fedcore.report.palette import Look, dash, mark, see_through

FEW_ROUNDS = 8  # up to here every round has its mark on the axis
NARROW_CHART, LEGEND_KEY, LEGEND_ROW = 400, 55, 20  # pixels: a chart's width, a legend's key, its row
OPEN_MARKS = (
    "circle-open",
    "square-open",
    "diamond-open",
    "triangle-up-open",
    "star-open",
    "hexagon-open",
    "x-open",
)
"""Marks of the further variants of a method; with four dashes 32 lines of one colour stay apart."""
LEGEND_ROOM = 64  # pixels of an axis with its labels and title, below which a legend begins


def curves(
    series: Sequence[Series],
    look: Look,
    x_title: str,
    y_title: str,
    *,
    per_cent: bool = True,
    height: int = 380,
    name: str = "",
) -> Chart:
    """Lines with a band of one standard deviation where there are several seeds."""
    data: list[dict[str, Any]] = []  # plain dicts: plotly then checks each of them once
    seen: dict[str, int] = {}
    for s in series:
        nth = seen.setdefault(s.method, 0)
        seen[s.method] += 1
        data += _line(s, look, nth)
    rows = _legend_rows(series)
    height += LEGEND_ROW * max(0, rows - 2)  # many names make the figure longer, not its plot flatter
    shared = {"gridcolor": look.grid, "zeroline": False, "linecolor": look.grid, "color": look.ink}
    shared["automargin"] = True
    few = x_title == "Round" and max((x for s in series for x in s.x), default=0) <= FEW_ROUNDS
    across = {**shared, "title": {"text": x_title}, "dtick": 1 if few else None}
    # from 0, but with room for a mark there: rangemode "tozero" would cut it in half
    across["autorangeoptions"] = {"include": 0}
    down = {**shared, "title": {"text": y_title}, "ticksuffix": " %" if per_cent else ""}
    layout: dict[str, Any] = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 30 if name else 12, "b": 8},
        "title": _title(name, look) if name else None,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": look.ink},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "yanchor": "top", "y": _below_axis(height, rows), "x": 0},
        "uirevision": "curves",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": look.faint, "activecolor": look.ink},
    }
    if not any(s.x for s in series):
        middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
        layout["annotations"] = [{**middle, "text": "no round yet", "showarrow": False}]
        bare = {"showticklabels": False, "showgrid": False}
        across, down = {**across, **bare}, {**down, **bare}
    figure = go.Figure({"data": data, "layout": {**layout, "xaxis": across, "yaxis": down}})
    return Chart(figure, _curves_finding(series, y_title or name, " %" if per_cent else ""))


def _legend_rows(series: Sequence[Series]) -> int:
    """Rows that a legend takes below a chart of a third of the page: long names stand alone in theirs."""
    longest = max((len(s.label) for s in series), default=0)
    return ceil(max(1, len(series)) / max(1, min(3, NARROW_CHART // (LEGEND_KEY + 7 * longest))))


def _below_axis(height: int, rows: int) -> float:
    """Where a legend begins, in shares of the plot's height, which shrinks with every row of the legend."""
    return -LEGEND_ROOM / max(60, height - 130 - LEGEND_ROW * (rows - 1))


def _title(text: str, look: Look) -> dict[str, object]:
    font = {"size": 14, "color": look.ink}
    return {"text": f"<b>{plain(text)}</b>", "font": font, "x": 0, "xanchor": "left"}


def _line(s: Series, look: Look, nth: int) -> list[dict[str, Any]]:
    """A line, behind it its band where it has one."""
    colour = look.colour(s.method)
    marks = [mark(s.method), *OPEN_MARKS]
    dashes = [dash(s.method), "dash", "dot", "dashdot"]
    text = f"{plain(s.label)}" + (f" (n = {s.n})" if s.n > 1 else "")
    line = {
        "type": "scatter",
        "x": s.x,
        "y": s.y,
        "name": text,
        "legendgroup": s.label,
        "mode": "lines+markers" if len(s.x) <= 60 else "lines",
        "line": {"color": colour, "width": 2, "dash": dashes[(nth + nth // len(marks)) % 4]},
        "marker": {
            "symbol": marks[nth % len(marks)],
            "size": 7,
            "color": colour,
            "line": {"width": 1.5, "color": colour},
        },
        "customdata": _reach(s),
        "hovertemplate": "%{y:.2f}%{customdata}",
    }
    return [*_band(s, colour), line]


def _band(s: Series, colour: str) -> list[dict[str, Any]]:
    """From the smallest to the largest, or one standard deviation to both sides."""
    low, high = list(s.low), list(s.high)
    if any(d is not None for d in s.std):
        high = [y + (d or 0) for y, d in zip(s.y, s.std, strict=True)]
        low = [y - (d or 0) for y, d in zip(s.y, s.std, strict=True)]
    if not low:
        return []
    return [
        {
            "type": "scatter",
            "x": [*s.x, *s.x[::-1]],
            "y": [*high, *low[::-1]],
            "mode": "lines",
            "fill": "toself",
            "fillcolor": see_through(colour, 0.16),
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            "legendgroup": s.label,
        }
    ]


def _reach(s: Series) -> list[str]:
    """What follows a value under the pointer."""
    if s.low:
        return [f" ({low:.2f} to {high:.2f})" for low, high in zip(s.low, s.high, strict=True)]
    return [f" ± {d:.1f}" if d is not None else "" for d in s.std]


def _curves_finding(series: Sequence[Series], y_title: str, unit: str) -> str:
    ends = [(s.y[-1], s.label) for s in series if s.y]
    if not ends:
        return f"{y_title}: no data yet."
    order = sorted(ends, reverse=True)
    return f"{y_title} at the end: " + "; ".join(f"{label} {y:.1f}{unit}" for y, label in order) + "."


def series_table(series: Sequence[Series], x_title: str) -> Mapping[str, list[object]]:
    """Lines as a table: a row per point and line."""
    rows = [(s.label, x, y, d) for s in series for x, y, d in zip(s.x, s.y, s.std, strict=True)]
    return {
        "line": [r[0] for r in rows],
        x_title: [round(r[1], 3) for r in rows],
        "mean": [round(r[2], 2) for r in rows],
        "std": [None if r[3] is None else round(r[3], 2) for r in rows],
    }
