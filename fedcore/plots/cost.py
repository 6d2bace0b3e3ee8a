"""The cost chart: accuracy against traffic or time, with the Pareto front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from fedcore.plots.chart import Chart, escape, short_name
from fedcore.plots.theme import Theme, apply_layout, rgba, style
from fedcore.results.curves import Cost, CostAxis, pareto_front

NAME_LETTERS = 30  # letters of a name beside its marker: "FedOT (blocks 16)" cut reads as blocks 1
HEIGHT = 440  # pixels
WIDE_COST_PLOT, NARROW_COST_PLOT, PLOT_HEIGHT = 1200.0, 290.0, 330.0
"""Pixels of the plot on a page and on a telephone, about: names are placed for these."""
LETTER_WIDTH, LINE_HEIGHT, MARKER_DISTANCE = 7.0, 17.0, 10.0
"""Pixels of a letter and a line of a name, and from the middle of a marker to the start of its name."""
LABEL_POSITIONS = (
    "top center", "middle right", "bottom center", "middle left",
    "top right", "top left", "bottom right", "bottom left",
)  # fmt: skip
"""Positions of a name beside its marker, the best first."""
COST_TITLES: dict[CostAxis, str] = {
    "megabytes": "Traffic of all clients, up and down (MB)",
    "seconds": "Training and aggregation (s)",
}
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
Range = tuple[float, float]


class Mark(NamedTuple):
    """A marker of the chart; ``name`` is empty if it equals another one's."""

    x: float
    y: float
    name: str
    on_front: bool
    cost: Cost


def cost_chart(
    costs: Sequence[Cost], theme: Theme, against: CostAxis, accuracy_title: str, width: float = WIDE_COST_PLOT
) -> Chart:
    """Draw accuracy against traffic or time: a marker per row of the table, a line along the Pareto front.

    A name is written beside its marker unless it would cover another; the hover text always has it.

    Args:
        width: of the plot in pixels, about.
    """
    x_title = COST_TITLES[against]
    front = pareto_front(costs, against)
    names = [short_name(c.label, NAME_LETTERS) for c in costs]
    count = Counter(names)  # the names of a sweep are often equal once they are cut
    marks = [
        Mark(x, c.accuracy, name if count[name] == 1 else "", c in front, c)
        for c, name in zip(costs, names, strict=True)
        if (x := getattr(c, against)) is not None and c.accuracy is not None
    ]
    x_range, y_range = _axis_range([m.x for m in marks], least=0.0), _axis_range([m.y for m in marks])
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[getattr(c, against) for c in front],
            y=[c.accuracy for c in front],
            mode="lines",
            name="Pareto front",
            line={"shape": "hv", "dash": "dot", "width": 2, "color": theme.faint},
            hoverinfo="skip",
        )
    )
    for m, position in zip(marks, _label_positions(marks, x_range, y_range, width), strict=True):
        figure.add_trace(_marker(m, position, theme))
    legend = {"orientation": "h", "y": 1.08, "x": 0}
    apply_layout(figure, theme, HEIGHT, showlegend=bool(front), legend=legend)
    figure.update_xaxes(title=x_title, range=x_range)
    figure.update_yaxes(title=accuracy_title, ticksuffix=" %", range=y_range)
    texts = [f"{m.cost.label} {m.y:.1f} % at {m.x:.1f}{' (front)' if m.on_front else ''}" for m in marks]
    return Chart(figure, f"{accuracy_title} against {x_title}: {'; '.join(texts)}.")


def _marker(m: Mark, position: str | None, theme: Theme) -> go.Scatter:
    colour = theme.colour(m.cost.method)
    name = m.name if position else ""
    on_front = "<br>on the Pareto front" if m.on_front else ""
    return go.Scatter(
        x=[m.x],
        y=[m.y],
        name=escape(m.cost.label),
        mode="markers+text",
        text=[f"<b>{name}</b>" if m.on_front and name else name],
        textposition=position or "top center",
        textfont={"color": theme.ink},
        cliponaxis=False,
        showlegend=False,
        marker={
            "symbol": style(m.cost.method).marker,
            "size": 15 if m.on_front else 11,
            "color": colour if m.on_front else rgba(colour, 0.5),
            "line": {"width": 2, "color": theme.ink if m.on_front else colour},
        },
        hovertemplate=f"%{{fullData.name}}<br>%{{y:.1f}} % at %{{x:.2f}}{on_front}<extra></extra>",
    )


def _axis_range(values: Sequence[float], least: float | None = None) -> Range:
    """Return the range of an axis with space around all markers; it always includes the value ``least``."""
    known = [*values, *([] if least is None else [least])] or [0.0]
    space = 0.1 * (max(known) - min(known)) or 1.0
    return min(known) - space, max(known) + space


def _label_positions(marks: Sequence[Mark], x_range: Range, y_range: Range, width: float) -> list[str | None]:
    """Choose a position for each name where it covers no other name and no marker; None: there is none.

    Names on the front are placed first.
    """
    middles = [
        (
            width * (m.x - x_range[0]) / (x_range[1] - x_range[0]),
            PLOT_HEIGHT * (y_range[1] - m.y) / (y_range[1] - y_range[0]),
        )
        for m in marks
    ]
    d = MARKER_DISTANCE
    occupied = [(u - d, v - d, u + d, v + d) for u, v in middles]
    positions: list[str | None] = [None] * len(marks)
    for i in sorted(range(len(marks)), key=lambda i: not marks[i].on_front):
        others = [box for j, box in enumerate(occupied) if j != i]
        for position in LABEL_POSITIONS:
            box = _label_box(position, *middles[i], LETTER_WIDTH * len(marks[i].name))
            inside = box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= PLOT_HEIGHT
            if inside and not any(_overlap(box, other) for other in others):
                positions[i] = position
                occupied.append(box)
                break
    return positions


def _label_box(position: str, u: float, v: float, size: float) -> Box:
    """Return the box of a name of ``size`` pixels at a position beside the marker at (u, v)."""
    vertical, side = position.split()
    d = MARKER_DISTANCE
    left = {"left": u - d - size, "center": u - size / 2, "right": u + d}[side]
    top = {"top": v - d - LINE_HEIGHT, "middle": v - LINE_HEIGHT / 2, "bottom": v + d}[vertical]
    return left, top, left + size, top + LINE_HEIGHT


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def cost_table(costs: Sequence[Cost], front: Sequence[Cost]) -> dict[str, list[object]]:
    """Return the values of ``cost_chart`` as a table: a row per cost."""

    def rounded(name: str, digits: int) -> list[object]:
        values = [getattr(c, name) for c in costs]
        return [None if v is None else round(v, digits) for v in values]

    return {
        "method": [c.label for c in costs],
        "accuracy, %": rounded("accuracy", 2),
        "MB up": rounded("megabytes_up", 3),
        "MB down": rounded("megabytes_down", 3),
        "s training": rounded("seconds_train", 2),
        "s aggregation": rounded("seconds_aggregate", 2),
        "s evaluation": rounded("seconds_evaluate", 2),
        "Pareto front": ["yes" if c in front else "" for c in costs],
    }
