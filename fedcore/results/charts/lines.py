"""Line charts over rounds, seconds or traffic."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from fedcore.results.charts.theme import (
    TOOLBAR,
    Chart,
    Theme,
    annotation,
    escape,
    rgba,
    rounds_as_python,
    silent_trace,
    style,
)
from fedcore.results.curves import Series, show_ranges
from fedcore.results.statistics import group_by

UNIFIED_LINES = 12
"""Number of lines up to which the hover text lists all values; above, it shows the line under the pointer."""
MOST_POINTS = 1_000
"""Points of a line that are sent to the browser; a chart is seldom wider in pixels."""
FEW_ROUNDS = 8  # up to this many rounds, each has its tick on the axis
NARROW_CHART, LEGEND_KEY, LEGEND_ROW = 400, 55, 20  # pixels: a chart's width, a legend's key, its row
TITLE_HEIGHT = 22  # pixels of a title below the toolbar
LEGEND_GAP = 64  # pixels of an axis with its labels and title, below which a legend begins
OPEN_MARKERS = tuple(
    f"{shape}-open" for shape in ("circle", "square", "diamond", "triangle-up", "star", "hexagon", "x")
)
"""Markers of further variants of a method; with four dashes, 32 lines of one colour can be told apart."""
SMALL_VALUE = 1e-3  # smaller numbers are written with a power of ten
FADED = 0.2
"""Opacity of the lines beside a highlighted one."""
CONSTANT_TOLERANCE = 1e-5
"""Relative difference that float32 rounding may cause; a line whose values differ by less is constant."""


def line_chart(
    series: Sequence[Series],
    theme: Theme,
    x_title: str,
    y_title: str,
    *,
    per_cent: bool = True,
    height: int = 380,
    name: str = "",
    best: int | None = None,
    logarithmic: Collection[Literal["x", "y"]] = (),
    lower_is_better: bool = False,
    highlighted: str | None = None,
) -> Chart:
    """Draw a line per series, with the band of its spread over several seeds.

    Args:
        height: in pixels, without the toolbar and the rows of a long legend.
        name: title above the chart.
        best: number of lines to show, those with the best last values; the legend offers the others.
        logarithmic: axes with a logarithmic scale, which cannot show values that are not positive.
        lower_is_better: whether the lowest lines are the best, as for a loss.
        highlighted: label of the line that stands out, which is always shown; the others fade.
    """
    series = thinned(series)
    sign = 1 if lower_is_better else -1
    shown = sorted(series, key=lambda s: sign * s.y[-1] if s.y else inf)[:best]
    shown += [s for s in series if s.label == highlighted and s not in shown]
    with_range, variants = show_ranges(series), Counter[str]()
    data: list[dict[str, Any]] = []  # plain dicts, which plotly validates only once
    small = 0 < max((abs(y) for s in series for y in (*s.y, *s.low, *s.high)), default=0) < SMALL_VALUE
    for s in series:
        look: dict[str, Any] = {} if highlighted in (None, s.label) else {"opacity": FADED}
        look |= {} if s in shown else {"visible": "legendonly"}
        traces = _line(s, theme, variants[s.method], with_range, ".2e" if small else ".2f")
        data += [trace | look for trace in traces]
        variants[s.method] += 1
    legend, height = _legend(series, height)
    height += TOOLBAR
    last = max((x for s in series for x in s.x), default=0)
    few = x_title == "Round" and last <= FEW_ROUNDS
    x_axis = {**theme.axis, "title": {"text": x_title}, "dtick": 1 if few else None}
    # The axis starts at 0, but not with rangemode "tozero", which cuts markers at 0 in half. If round 0 is
    # the only one, plotly would draw the axis from -1 to 1.
    x_axis["autorangeoptions"] = {"include": 0} if last else {"include": 0, "clipmin": -0.1}
    y_axis = {**theme.axis, "title": {"text": y_title}, "ticksuffix": " %" if per_cent else ""}
    if small:
        y_axis["exponentformat"] = "power"  # without this, plotly writes "0.9µ" for a number without a unit
    # Not a fixed range: on Live the chart is updated in place, and plotly would keep the range later on.
    included = _range_of_constant([y for line in data for y in line["y"]], 105 if per_cent else None)
    y_axis["autorangeoptions"] = {"include": included}
    for axis in (x_axis if side == "x" else y_axis for side in logarithmic):
        axis.update(type="log", autorangeoptions=None, dtick=None)
    if "y" in logarithmic:
        # A logarithmic axis cannot show values below 0: bands end at the lowest positive value.
        lowest = min((y for trace in data for y in trace["y"] if y > 0), default=1.0)
        for trace in (trace for trace in data if "fill" in trace):
            trace["y"] = [max(y, lowest) for y in trace["y"]]
    # below plotly's buttons, so that they do not cover it
    place = {"x": 0, "xanchor": "left", "y": 1 - TOOLBAR / height, "yanchor": "top", "yref": "container"}
    title = {"text": f"<b>{escape(name)}</b>", "font": {"size": 14, "color": theme.ink}, **place}
    layout: dict[str, Any] = {
        **theme.layout,
        "height": height,
        "margin": {"l": 8, "r": 8, "t": TOOLBAR + (TITLE_HEIGHT if name else 8), "b": 8},
        "title": title if name else None,
        "hovermode": "x unified" if len(shown) <= UNIFIED_LINES else "closest",
        "legend": legend,
        "showlegend": len(series) > 1 if name else None,  # the title names a single line
        "uirevision": f"{name} {x_title} {y_title} {sorted(logarithmic)}",  # a zoom does not outlive its axes
    }
    if not any(s.x for s in series):
        layout["annotations"] = [annotation("nothing recorded yet", 0.5, 0.5)]
        bare = {"showticklabels": False, "showgrid": False}
        x_axis, y_axis = {**x_axis, **bare}, {**y_axis, **bare}
    figure = go.Figure({"data": data, "layout": {**layout, "xaxis": x_axis, "yaxis": y_axis}})
    return Chart(figure, _last_values(shown, y_title or name, " %" if per_cent else ""))


def thinned(series: Sequence[Series]) -> list[Series]:
    """Return lines of at most ``MOST_POINTS``: the highest and the lowest point of each part, and both ends.

    Smooth lines have most of these at the same places; evenly spaced points take the room that is left.
    Lines whose hover text lists all values keep points at the same places.
    """
    common = len(series) <= UNIFIED_LINES
    long = [s for s in series if len(s.x) > MOST_POINTS]
    thin: dict[int, Series] = {}
    for lines in group_by(long, lambda s: s.x if common else id(s)).values():
        values = [np.asarray(drawn) for s in lines for drawn in (s.y, s.low, s.high, s.smooth) if drawn]
        values += [np.asarray(side) for s in lines if any(s.std) for side in _sides(s)]
        count = len(lines[0].x)
        size = ceil(count / max(1, (MOST_POINTS - 2) // (2 * len(values))))
        places = {0, count - 1}
        for drawn in values:
            parts = np.pad(drawn, (0, -count % size), "edge").reshape(-1, size)
            starts = np.arange(0, count, size)
            places.update((starts + parts.argmin(1)).tolist(), (starts + parts.argmax(1)).tolist())
        others = np.setdiff1d(np.arange(count), list(places))
        places.update(others[np.linspace(0, len(others) - 1, MOST_POINTS - len(places)).astype(int)].tolist())
        for s in lines:
            kept: dict[str, Any] = {}
            for name in ("x", "y", "std", "low", "high", "smooth", "counts"):
                if drawn_there := getattr(s, name):
                    kept[name] = tuple(drawn_there[i] for i in sorted(places))
            thin[id(s)] = replace(s, **kept)
    return [thin.get(id(s), s) for s in series]


def _sides(s: Series) -> tuple[list[float], list[float]]:
    """Return the lower and the upper side of the band of one spread."""
    pairs = [(y, d or 0.0) for y, d in zip(s.y, s.std, strict=True)]
    return [y - d for y, d in pairs], [y + d for y, d in pairs]


def _range_of_constant(values: Sequence[float], most: float | None) -> list[float] | None:
    """Return the range from 0 that the axis of constant lines includes; None if they are not constant.

    By default, plotly would show one unit on both sides of a constant, or magnify rounding errors.
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    size = max(abs(low), abs(high))
    if not values or high - low > CONSTANT_TOLERANCE * size:
        return None
    end = 1.25 * size if most is None else min(1.25 * size, most)
    if not size:
        return [-0.08, 1.0]  # with room for markers at 0
    return [-end, 0.0] if high < 0 else [0.0, end]


def _legend(series: Sequence[Series], height: int) -> tuple[dict[str, Any], int]:
    """Return the legend below a chart, and the chart's height with the rows of a long one.

    The rows are estimated for a chart that takes a third of the page.
    """
    longest = max((len(s.label) for s in series), default=0)
    rows = ceil(max(1, len(series)) / max(1, min(3, NARROW_CHART // (LEGEND_KEY + 7 * longest))))
    height += LEGEND_ROW * max(0, rows - 2)  # a long legend must not make the plot flatter
    # in units of the plot's height, which each row of the legend reduces
    top = -LEGEND_GAP / max(60, height - 130 - LEGEND_ROW * (rows - 1))
    return {"orientation": "h", "yanchor": "top", "y": top, "x": 0}, height


def _line(s: Series, theme: Theme, variant: int, with_range: bool, digits: str) -> list[dict[str, Any]]:
    """Return the traces of one series: its line, and behind it its band if it has one.

    The band is that of one standard deviation on both sides, or else from minimum to maximum.
    """
    colour = theme.colour(s.method)
    # the range or spread of each value follows the value in the hover text
    texts = [f" ± {d:.1f}" if d is not None else "" for d in s.std]
    if s.low:
        texts = [f" ({low:{digits}} to {high:{digits}})" for low, high in zip(s.low, s.high, strict=True)]
    elif s.counts:
        texts = [f"{text} (n = {n} of {s.n})" for text, n in zip(texts, s.counts, strict=True)]
    markers = [style(s.method).marker, *OPEN_MARKERS]
    dashes = [style(s.method).dash, "dash", "dot", "dashdot"]
    line = {
        "type": "scatter",
        "x": s.x,
        "y": rounds_as_python(s.y, 2).tolist(),
        "name": escape(s.label) + (f" (n = {s.n})" if s.n > 1 else ""),
        "legendgroup": s.label,
        "mode": "lines+markers" if len(s.x) <= 60 else "lines",
        "line": {"color": colour, "width": 2, "dash": dashes[(variant + variant // len(markers)) % 4]},
        "marker": {
            "symbol": markers[variant % len(markers)],
            "size": 7,
            "color": colour,
            "line": {"width": 1.5, "color": colour},
        },
        "customdata": texts,
        "hovertemplate": f"%{{y:{digits}}}%{{customdata}}",
    }
    behind = []
    if with_range or not s.low:
        spread = any(d is not None for d in s.std)
        low, high = _sides(s) if spread else (list(s.low), list(s.high))
        band = silent_trace([*s.x, *s.x[::-1]], [*high, *low[::-1]], "lines", legendgroup=s.label)
        band |= {"fill": "toself", "fillcolor": rgba(colour, 0.16), "line": {"width": 0}}
        behind += [band] if low else []
    if s.smooth:
        thin = {"mode": "lines", "line": {"color": colour, "width": 1}, "opacity": 0.35, "showlegend": False}
        behind.append({**line, **thin, "name": f"{escape(s.label)}, raw"})
        hover: dict[str, Any] = {"customdata": None, "hovertemplate": f"%{{y:{digits}}} smoothed"}
        line |= {"y": rounds_as_python(s.smooth, 2).tolist(), "mode": "lines", **hover}
    return [*behind, line]


def _last_values(series: Sequence[Series], y_title: str, unit: str) -> str:
    """Return the alternative text: the last value of every line, largest first."""
    last = [(s.y[-1], s.label) for s in series if s.y]
    if not last:
        return f"{y_title}: no data yet."
    texts = [
        f"{label} {y:.1f}{unit}" if unit or abs(y) >= 1 else f"{label} {y:.3g}"
        for y, label in sorted(last, reverse=True)
    ]
    return f"{y_title} at the end: {'; '.join(texts)}."


def series_table(
    series: Sequence[Series], x_title: str, unit: str = "", spread: str = "std"
) -> Mapping[str, list[object]]:
    """Return the lines as a table with a row per value and line, with the spread and range if known."""
    rows = [(s, i) for s in series for i in range(len(s.x))]
    mean = f"mean, {unit}" if unit else "mean"
    table: dict[str, list[object]] = {
        "line": [s.label for s, _ in rows],
        x_title: [round(s.x[i], 3) for s, i in rows],
        mean: [_rounded(s.y[i]) for s, i in rows],
    }
    if any(d is not None for s in series for d in s.std):
        table[spread] = [_rounded(s.std[i]) for s, i in rows]
    if any(s.counts for s in series):
        table["seeds"] = [s.counts[i] if s.counts else s.n for s, i in rows]
    if any(s.smooth for s in series):
        table["smoothed"] = [_rounded(s.smooth[i]) if s.smooth else None for s, i in rows]
    if any(s.low for s in series):
        table["minimum"] = [_rounded(s.low[i]) if s.low else None for s, i in rows]
        table["maximum"] = [_rounded(s.high[i]) if s.high else None for s, i in rows]
    return table


def _rounded(value: float | None) -> float | None:
    """Round to two decimals, or to three significant digits if the value would otherwise become 0."""
    if value is None:
        return None
    return round(value, 2) if abs(value) >= 0.01 else float(f"{value:.3g}")
