"""The cost chart: accuracy against traffic or time, with the Pareto front."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from math import ceil, floor, log10
from typing import Literal, NamedTuple

import plotly.graph_objects as go

from fedcore.results.charts.theme import (
    Chart,
    Theme,
    apply_layout,
    escape,
    hover,
    rgba,
    rounds_as_python,
    short_name,
    style,
)
from fedcore.results.costs import Cost, CostAxis

NAME_LETTERS = 30  # letters of a name beside its marker; shorter, "FedOT (blocks 16)" would read as blocks 1
HEIGHT = 440  # pixels
WIDE_COST_PLOTS, NARROW_COST_PLOTS, PLOT_HEIGHT = (520.0, 800.0, 1200.0), (250.0, 290.0, 520.0), 320.0
"""Widths of the plot in pixels, on a page and on a telephone, at which names must not overlap."""
WIDE_SPREAD = 10.0
"""Ratio of the largest to the smallest cost above which the automatic axis is logarithmic."""
ZERO_GAP = 0.35
"""Minimum distance, in decades, from the smallest cost to the place of 0 on a logarithmic axis."""
LETTER_WIDTH, LINE_HEIGHT, MARKER_DISTANCE = 7.0, 17.0, 10.0
"""Pixels of a letter and a line of a name, and from the middle of a marker to the start of its name."""
SPACE = 0.12
"""Space around all markers as a share of their extent: below the lowest one there is room for its name."""
LABEL_POSITIONS = (
    "top center", "middle right", "bottom center", "middle left",
    "top right", "top left", "bottom right", "bottom left",
)  # fmt: skip
"""Positions of a name beside its marker, the best first."""
COST_TITLES: dict[CostAxis, str] = {
    "megabytes": "Traffic of all clients, up and down (MB)",
    "seconds": "Training and aggregation (s)",
}
Scale = Literal["automatic", "linear", "log"]
SCALES: dict[Scale, str] = {"automatic": "Automatic", "linear": "Linear", "log": "Logarithmic"}
LabelBox = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
Range = tuple[float, float]
Label = tuple[str, str]
"""The text beside a marker, and its position."""
NO_LABEL: Label = ("", "top center")


class Mark(NamedTuple):
    """A marker at ``x`` on the axis and ``y`` per cent, with the texts for its label, the best first."""

    x: float
    y: float
    texts: tuple[str, ...]
    on_front: bool
    cost: Cost


class CostScale(NamedTuple):
    """A linear or logarithmic axis of costs, which draws a cost of 0 at the place of ``zero``."""

    log: bool
    zero: float

    def place(self, cost: float) -> float:
        """Return the place of a cost, as plotly's ranges count it: its logarithm on a logarithmic axis."""
        return log10(self.drawn(cost)) if self.log else cost

    def drawn(self, cost: float) -> float:
        """Return the cost to draw; a logarithmic axis cannot draw 0."""
        return self.zero if self.log and cost <= 0 else cost


def cost_scale(costs: Sequence[float], scale: Scale) -> CostScale:
    """Return the axis for some costs; the automatic one is logarithmic if they span a factor of ten."""
    positive = [c for c in costs if c > 0]
    spread = max(positive) / min(positive) if positive else 1.0
    if not positive or scale == "linear" or (scale == "automatic" and spread < WIDE_SPREAD):
        return CostScale(False, 0.0)
    return CostScale(True, min(positive) / 10 ** max(ZERO_GAP, 0.15 * log10(spread)))


def cost_chart(
    costs: Sequence[Cost],
    front: Sequence[Cost],
    theme: Theme,
    against: CostAxis,
    accuracy_title: str,
    unit: str,
    widths: Sequence[float] = WIDE_COST_PLOTS,
    scale: Scale = "automatic",
) -> Chart:
    """Draw accuracy against traffic or time: a marker per row of the table, a line along the Pareto front.

    A name is written beside its marker unless it would cover another. Then the row's number in the table is
    written, if that has room; the hover text always has the name.
    """
    x_title = COST_TITLES[against]
    names = [short_name(c.label, NAME_LETTERS) for c in costs]
    count = Counter(names)  # the names of a sweep are often equal once they are cut
    values = [x for c in costs if (x := getattr(c, against)) is not None and c.accuracy is not None]
    axis = cost_scale(values, scale)
    marks = [
        Mark(axis.place(x), c.accuracy, (name, str(i)) if count[name] == 1 else (str(i),), c in front, c)
        for i, (c, name) in enumerate(zip(costs, names, strict=True), 1)
        if (x := getattr(c, against)) is not None and c.accuracy is not None
    ]
    x_range = _axis_range([m.x for m in marks], least=None if axis.log else 0.0)
    y_range = _axis_range([m.y for m in marks])
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[axis.drawn(getattr(c, against)) for c in front],
            y=[c.accuracy for c in front],
            mode="lines",
            name="Pareto front",
            hoverinfo="skip",
            line={"shape": "hv", "dash": "dot", "width": 2, "color": theme.faint},
        )
    )
    for m, label in zip(marks, _labels(marks, x_range, y_range, widths), strict=True):
        figure.add_trace(_marker(m, getattr(m.cost, against), axis, label, theme, unit))
    legend = {"orientation": "h", "y": 1.08, "x": 0}
    apply_layout(figure, theme, HEIGHT, showlegend=bool(front), legend=legend)
    figure.update_xaxes(title=x_title, range=x_range, **_ticks(axis, x_range, any(x <= 0 for x in values)))
    figure.update_yaxes(title=accuracy_title, ticksuffix=f" {unit}", range=y_range)
    texts = [
        f"{m.cost.label} {m.y:.1f} {unit} at {getattr(m.cost, against):.2f}{' (front)' if m.on_front else ''}"
        for m in marks
    ]
    against_what = x_title[0].lower() + x_title[1:]
    return Chart(figure, f"{accuracy_title} against {against_what}: {'; '.join(texts)}.")


def _ticks(axis: CostScale, reach: Range, with_zero: bool) -> dict[str, object]:
    """Return the type and ticks of the axis: 1, 2 and 5 of each decade, and 0 at its place."""
    if not axis.log:
        return {"type": "linear"}
    decades = range(floor(reach[0]), ceil(reach[1]) + 1)
    digits = (1, 2, 5) if reach[1] - reach[0] < 4 else (1,)
    values = [d * 10.0**e for e in decades for d in digits]
    values = [
        v for v in values if reach[0] <= log10(v) <= reach[1] and (not with_zero or v > 1.3 * axis.zero)
    ]
    zero = [(axis.zero, "0")] if with_zero else []
    places, texts = zip(*zero, *((v, f"{v:,.10g}") for v in values), strict=True)
    return {"type": "log", "tickmode": "array", "tickvals": places, "ticktext": texts}


def _marker(m: Mark, cost: float, axis: CostScale, label: Label, theme: Theme, unit: str) -> go.Scatter:
    colour = theme.colour(m.cost.method)
    text, position = label
    on_front = "<br>on the Pareto front" if m.on_front else ""
    return go.Scatter(
        x=[axis.drawn(cost)],
        y=rounds_as_python([m.y], 1).tolist(),
        customdata=rounds_as_python([cost], 2).tolist(),
        name=escape(m.cost.label),
        mode="markers+text",
        text=[f"<b>{text}</b>" if m.on_front and text else text],
        textposition=position,
        textfont={"color": theme.ink},
        cliponaxis=False,
        showlegend=False,
        marker={
            "symbol": style(m.cost.method).marker,
            "size": 15 if m.on_front else 11,
            "color": colour if m.on_front else rgba(colour, 0.5),
            "line": {"width": 2, "color": theme.ink if m.on_front else colour},
        },
        hovertemplate=hover(f"%{{fullData.name}}<br>%{{y:.1f}} {unit} at %{{customdata:.2f}}{on_front}"),
    )


def _axis_range(values: Sequence[float], least: float | None = None) -> Range:
    """Return the range of an axis with space around all markers; it always includes the value ``least``."""
    included = [*values, *([] if least is None else [least])] or [0.0]
    space = SPACE * (max(included) - min(included)) or 1.0
    return min(included) - space, max(included) + space


def _labels(marks: Sequence[Mark], x_range: Range, y_range: Range, widths: Sequence[float]) -> list[Label]:
    """Choose a text and a position for each mark that cover no other text, no marker and not the front.

    Names on the front are placed first. A position must be free at all widths of the plot, since the chart is
    not laid out again when the window changes.
    """
    d, (left, right), (low, high) = MARKER_DISTANCE, x_range, y_range
    middles = [  # in pixels from the plot's upper left corner
        [(width * (m.x - left) / (right - left), PLOT_HEIGHT * (high - m.y) / (high - low)) for m in marks]
        for width in widths
    ]
    fronts = [_front_boxes([at for m, at in zip(marks, each, strict=True) if m.on_front]) for each in middles]
    occupied = [[(u - d, v - d, u + d, v + d) for u, v in each] for each in middles]
    labels = [NO_LABEL] * len(marks)
    for i in sorted(range(len(marks)), key=lambda i: not marks[i].on_front):
        for text, position in product(marks[i].texts, LABEL_POSITIONS):
            boxes = [_label_box(position, *each[i], LETTER_WIDTH * len(text)) for each in middles]
            free = (
                box[0] >= 0
                and box[2] <= width
                and box[1] >= 0
                and box[3] <= PLOT_HEIGHT
                and not any(_overlap(box, other) for j, other in enumerate(taken) if j != i)
                and not any(_overlap(box, line) for line in front)
                for box, width, taken, front in zip(boxes, widths, occupied, fronts, strict=True)
            )
            if all(free):
                labels[i] = text, position
                for taken, box in zip(occupied, boxes, strict=True):
                    taken.append(box)
                break
    return labels


def _front_boxes(places: Sequence[tuple[float, float]]) -> list[LabelBox]:
    """Return the steps of the Pareto front, given the pixels of its markers, as boxes two pixels wide."""
    boxes = []
    for (left, low), (right, high) in pairwise(sorted(places, key=lambda at: (at[0], -at[1]))):
        boxes += [(left, low - 1, right, low + 1), (right - 1, high, right + 1, low)]
    return boxes


def _label_box(position: str, u: float, v: float, size: float) -> LabelBox:
    """Return the box of a name of ``size`` pixels at a position beside the marker at (u, v)."""
    vertical, side = position.split()
    d = MARKER_DISTANCE
    left = {"left": u - d - size, "center": u - size / 2, "right": u + d}[side]
    top = {"top": v - d - LINE_HEIGHT, "middle": v - LINE_HEIGHT / 2, "bottom": v + d}[vertical]
    return left, top, left + size, top + LINE_HEIGHT


def _overlap(a: LabelBox, b: LabelBox) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def cost_table(costs: Sequence[Cost], front: Sequence[Cost], unit: str) -> dict[str, list[object]]:
    """Return the values of ``cost_chart`` as a table: a row per cost."""

    def rounded(name: str, digits: int) -> list[object]:
        values = [getattr(c, name) for c in costs]
        return [None if v is None else round(v, digits) for v in values]

    with_search = {
        "MB with its search": rounded("megabytes_with_search", 3),
        "s with its search": rounded("seconds_with_search", 2),
    }
    return {
        "no.": list(range(1, len(costs) + 1)),
        "method": [c.label for c in costs],
        f"accuracy, {unit}": rounded("accuracy", 2),
        "MB up": rounded("megabytes_up", 3),
        "MB down": rounded("megabytes_down", 3),
        "s training": rounded("seconds_train", 2),
        "s aggregation": rounded("seconds_aggregate", 2),
        "s evaluation": rounded("seconds_evaluate", 2),
        **(with_search if any(c.tuned is not None for c in costs) else {}),
        "Pareto front": ["yes" if c in front else "" for c in costs],
    }
