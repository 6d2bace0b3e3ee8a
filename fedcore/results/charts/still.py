"""A chart as a still picture: the plotly figure of the screen laid out as shapes, for reports and papers.

It knows the parts of plotly that the charts of a report use, and refuses traces that are not of ``KINDS``.
Colours, names, values, dashes and markers are those of the figure, so that screen and paper cannot differ.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedcore.results.charts.theme import TOOLBAR
from fedcore.results.charts.traces import (
    GAP,
    KINDS,
    PAPER,
    TICK,
    TITLE,
    Axis,
    axes_of,
    drawn_line,
    heatmap_shapes,
    marker,
    plain,
    round_ticks,
    scale_colours,
    scatter_shapes,
    text_width,
)
from fedcore.results.charts.vector import Anchor, Box, Image, Path, Picture, Point, Shape, Text

BAR = 12.0  # pixels, width of the colour bar
LEGEND_ROW, LEGEND_KEY = 18.0, 34.0  # pixels
HALO = 9.0  # pixels of paper behind the labels of parallel coordinates
MAX_ASPECT = 0.6  # height of a line chart in units of its width
MAX_HEIGHT = 900.0  # pixels of a row of matrices, which fits onto a page of A4
MAX_TIPS = 1500  # points of a chart that have a tip; in longer lines, only every n-th


def still(figure: go.Figure, width: float, name: str = "a figure", aspect: float = MAX_ASPECT) -> Picture:
    """Lay out a figure of the light theme, which prints, for a width in pixels; an error names it."""
    layout = figure.layout.to_plotly_json()
    traces = [t.to_plotly_json() for t in figure.data if t.visible in (None, True)]
    unknown = {t["type"] for t in traces} - set(KINDS)
    if unknown:
        raise ValueError(
            f"{name} has a trace of type {', '.join(sorted(unknown))}, which a report cannot draw; "
            f"draw it with {', '.join(KINDS)}, "
            "or add the type to fedcore/results/charts/traces.py (KINDS says how)"
        )
    if any(t["type"] == "parcoords" for t in traces):
        return _parallel(traces[0], width)
    axes = axes_of(traces, layout)
    bar = layout.get("coloraxis") if any(t["type"] == "heatmap" for t in traces) else None
    # for each trace the number of its entry in the legend, which traces of one group share
    named = [t["type"] != "heatmap" and (t.get("legendgroup") or t.get("name")) for t in traces]
    groups = list(dict.fromkeys(group for group in named if group is not False))
    lines = [groups.index(group) if group else None for group in named]
    legend = _legend_rows(traces, lines, layout, width)
    (left, right), (bottom, top), below = _place_axes(axes, layout, width, bar, len(legend), aspect)
    shapes: list[Shape] = []
    for place, axis in axes.items():
        if place.startswith("x"):
            shapes += _frame(axis, axes[f"y{place[1:]}"], layout)
    points = sum(len(t.get("x", ())) for t in traces if t["type"] == "scatter" and t.get("hovertemplate"))
    tip_step = max(1, ceil(points / MAX_TIPS))
    for number, trace in enumerate(traces):
        x, y = axes[trace.get("xaxis") or "x"], axes[trace.get("yaxis") or "y"]
        if trace["type"] == "heatmap":
            table = sum(t["type"] == "heatmap" for t in traces[:number])
            shapes += heatmap_shapes(trace, x, y, layout, table)
        else:
            shapes += scatter_shapes(trace, x, y, lines[number], tip_step)
    shapes += [_annotation(a, axes, (left, right), (bottom, top)) for a in layout.get("annotations", ())]
    if bar:
        shapes += _colour_bar(bar, right + 14, top, bottom)
    end = bottom + below
    shapes += _legend(legend, left if len(legend) == 1 else 8.0, end)
    return Picture(width, end + LEGEND_ROW * len(legend) + 4, shapes)


def _place_axes(
    axes: Mapping[str, Axis],
    layout: Mapping[str, Any],
    width: float,
    bar: Mapping[str, Any] | None,
    rows: int,
    aspect: float,
) -> tuple[Point, Point, float]:
    """Give all axes their pixels; ``rows`` are those of the legend.

    Returns: left and right, bottom and top of all panels together, and the space that their ticks need below.
    """
    across = [a for name, a in axes.items() if name.startswith("x")]
    down = [a for name, a in axes.items() if name.startswith("y")]
    left = max(
        a.room_beside + (20 if a.title else 0)
        for name, a in axes.items()
        if name[0] == "y" and not axes[f"x{name[1:]}"].domain[0]
    )
    right = width - (_bar_width(bar) if bar else 14.0)
    for axis in across:
        axis.fit(left, right)
        axis.thin_out()
    below = max(a.room_below for a in across)
    top = max(14.0, layout["margin"]["t"] - TOOLBAR + 4)
    under = max(layout["margin"]["b"], below + LEGEND_ROW * rows)
    height = layout["height"] - TOOLBAR - top - under
    if bar is None:
        height = min(max(160.0, height), aspect * width)
    elif len({a.domain for a in down}) == 1:
        height = min(height, MAX_HEIGHT - top - below - LEGEND_ROW * rows)
    for axis in down:
        axis.fit(top + height, top)
    return (left, right), (top + height, top), below


def _frame(x: Axis, y: Axis, layout: Mapping[str, Any]) -> list[Shape]:
    """Return background, grid lines, ticks and titles of a panel."""
    (left, right), (bottom, top) = x.pixels, y.pixels
    shapes: list[Shape] = []
    background = layout.get("plot_bgcolor", "")
    if background.startswith("#"):
        shapes.append(Box(left, top, right - left, bottom - top, background))
    lines: list[Point] = []
    for axis, ends in ((x, (bottom, top)), (y, (left, right))):
        if axis.layout.get("showgrid") is not False:
            for number, _ in axis.ticks:
                at = axis.place(number)
                lines += [(at, ends[0]), (at, ends[1])] if axis is x else [(ends[0], at), (ends[1], at)]
                lines.append((float("nan"), float("nan")))
    if lines:
        shapes.append(Path(lines, PAPER.grid, width=1))
    angle = x.angle
    anchor: Anchor = "end" if angle else "middle"
    for number, text in x.ticks:
        place = x.place(number) + (3 if angle else 0)
        shapes.append(Text(place, bottom + GAP + TICK / 2, text, PAPER.ink, TICK, anchor, angle))
    for number, text in y.ticks:
        shapes.append(Text(left - GAP, y.place(number), text, PAPER.ink, anchor="end"))
    if x.title:
        below = bottom + x.room_below - GAP - TITLE / 2
        shapes.append(Text((left + right) / 2, below, x.title, PAPER.faint, TITLE, "middle"))
    if y.title:
        beside = left - y.room_beside - 9
        shapes.append(Text(beside, (top + bottom) / 2, y.title, PAPER.faint, TITLE, "middle", -90))
    return shapes


def _annotation(given: Mapping[str, Any], axes: Mapping[str, Axis], across: Point, upright: Point) -> Text:
    """Return a text of the layout: the title of a panel, or what an empty one says."""

    def place(side: str, whole: Point) -> float:
        reference = given[f"{side}ref"]
        low, high = whole if reference == "paper" else axes[reference.removesuffix(" domain")].pixels
        return float(low + given[side] * (high - low))

    font = given.get("font") or {}
    size = float(font.get("size") or TITLE)
    y = place("y", upright) - given.get("yshift", 0)
    y -= size / 2 + 1 if given.get("yanchor") == "bottom" else 0
    colour = font.get("color") or PAPER.ink
    bold = "<b>" in given["text"]
    return Text(place("x", across), y, plain(given["text"]), colour, size, "middle", bold=bold)


def _bar_title(bar: Mapping[str, Any]) -> str:
    return plain(((bar.get("colorbar") or {}).get("title") or {}).get("text") or "")


def _bar_width(bar: Mapping[str, Any]) -> float:
    widest = max(text_width(text) for _, text in round_ticks(bar["cmin"], bar["cmax"]))
    return 14 + BAR + GAP + widest + GAP + (TITLE + 6 if _bar_title(bar) else 0)


def _colour_bar(bar: Mapping[str, Any], left: float, top: float, bottom: float) -> list[Shape]:
    share = np.linspace(1, 0, 64)[:, None]
    rgb = scale_colours(bar["colorscale"], share)
    shapes: list[Shape] = [Image(left, top, BAR, bottom - top, rgb)]
    low, high = bar["cmin"], bar["cmax"]
    for value, text in round_ticks(low, high):
        y = bottom - (value - low) / (high - low) * (bottom - top)
        shapes.append(Text(left + BAR + GAP, y, text, PAPER.faint))
    if title := _bar_title(bar):
        x = left + _bar_width(bar) - 14 - TITLE / 2 - GAP
        shapes.append(Text(x, (top + bottom) / 2, title, PAPER.faint, TITLE, "middle", 90))
    return shapes


LegendEntry = tuple[str, Mapping[str, Any], int | None]
"""A text of the legend, the trace that it stands for, and its number."""


def _entry_width(entry: LegendEntry) -> float:
    return LEGEND_KEY + text_width(entry[0]) + 16


def _legend_rows(
    traces: Sequence[Mapping[str, Any]], lines: Sequence[int | None], layout: Mapping[str, Any], width: float
) -> list[list[LegendEntry]]:
    """Return the rows of a legend in columns of equal width, as many as fit; none if it is not wanted."""
    named = [
        (plain(t["name"]), t, line)
        for t, line in zip(traces, lines, strict=True)
        if t["type"] != "heatmap" and t.get("showlegend") is not False and t.get("name")
    ]
    wanted = layout.get("showlegend")
    if wanted is None:
        wanted = len(named) > 1 or any(t.get("showlegend") for _, t, _ in named)
    if not named or not wanted:
        return []
    columns = max(1, min(len(named), int((width - 16) // max(map(_entry_width, named)))))
    return [named[i : i + columns] for i in range(0, len(named), columns)]


def _legend(rows: Sequence[Sequence[LegendEntry]], left: float, top: float) -> list[Shape]:
    shapes: list[Shape] = []
    column = max((_entry_width(entry) for row in rows for entry in row), default=0.0)
    for i, row in enumerate(rows):
        for j, (text, look, line) in enumerate(row):
            x, y = left + j * column, top + (i + 0.5) * LEGEND_ROW
            mode = look.get("mode", "lines")
            if "lines" in mode:
                shapes.append(drawn_line([(x, y), (x + 26, y)], look["line"], line))
            if "markers" in mode:
                shapes.append(marker(look["marker"], x + 13, y, line))
            shapes.append(Text(x + LEGEND_KEY, y, text, PAPER.ink, line=line))
    return shapes


def _parallel(trace: Mapping[str, Any], width: float) -> Picture:
    """Lay out parallel coordinates: an axis per dimension, a line per row in the colour of its last value."""
    pen, dimensions = trace["line"], trace["dimensions"]
    bar = {**pen, "colorbar": pen.get("colorbar")}
    left, right, top, height = 60.0, width - _bar_width(bar) - 50, 40.0, 260.0
    axes = []
    for i, dimension in enumerate(dimensions):
        values = [float(v) for v in dimension["values"]]
        low, high = dimension.get("range") or (min(values), max(values))
        space = 0.0 if dimension.get("range") else 0.02 * (high - low) or 0.5
        axis = Axis({}, ends=(low - space, high + space), pixels=(top + height, top))
        if dimension.get("tickvals") is not None:
            texts = map(plain, dimension["ticktext"])
            axis.ticks = list(zip(map(float, dimension["tickvals"]), texts, strict=True))
        else:
            axis.ticks = round_ticks(*axis.ends)
        axes.append((left + i * (right - left) / max(1, len(dimensions) - 1), axis, values, dimension))
    share = (np.asarray(pen["color"], dtype=float) - pen["cmin"]) / (pen["cmax"] - pen["cmin"])
    colours = scale_colours(pen["colorscale"], np.clip(share, 0, 1))
    shapes: list[Shape] = []
    for row, colour in enumerate(colours):
        points = [(x, axis.place(values[row])) for x, axis, values, _ in axes]
        on_axes = ((plain(d["label"]), values[row], dict(axis.ticks)) for _, axis, values, d in axes)
        tip = "\n".join(f"{label}: {texts.get(value, f'{value:.2f}')}" for label, value, texts in on_axes)
        shapes.append(Path(points, "#{:02x}{:02x}{:02x}".format(*colour), width=1.5, tip=tip))
    for x, axis, _, dimension in axes:
        shapes += [
            Path([(x, top), (x, top + height)], PAPER.faint),
            Text(x, top - 18, plain(dimension["label"]), PAPER.ink, TITLE, "middle"),
        ]
        for number, text in axis.ticks:
            y, room = axis.place(number), text_width(text) + 2
            shapes += [
                Box(x - GAP - room, y - HALO / 2 - 1, room, HALO + 2, PAPER.paper),
                Text(x - GAP, y, text, PAPER.ink, anchor="end"),
            ]
    shapes += _colour_bar(bar, right + 40, top, top + height)
    return Picture(width, top + height + 16, shapes)
