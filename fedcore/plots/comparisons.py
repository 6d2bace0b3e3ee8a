"""Charts that compare: accuracy against cost, and the results of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedcore.config.field_names import field_title, field_words, value_text
from fedcore.plots.chart import Chart, escape, short_name
from fedcore.plots.theme import Theme, dash, marker, rgba
from fedcore.results.curves import Cost, CostAxis, pareto_front
from fedcore.results.sweeps import FieldValue, SweepFamily, SweepGrid, SweepLine, sorted_values

NO_FIELD = "n/a"
"""On the axis of a field that a method does not have."""
NAME_LETTERS = 30  # characters of a name beside its mark: "FedOT (blocks 16)" cut would be read as blocks 1
COST_HEIGHT = 440
WIDE_COST_PLOT, NARROW_COST_PLOT, PLOT_HEIGHT = 1200.0, 290.0, 330.0
"""Pixels of the cost chart's plot on a page and on a telephone, about: names are placed for these."""
LETTER_WIDTH, LINE_HEIGHT, MARKER_DISTANCE = 7.0, 17.0, 10.0
"""Pixels of a letter and a line of a mark's name, and how far from the mark's middle it begins."""
LIGHT_LINES = ((0.0, "#00224e"), (0.33, "#434e6c"), (0.67, "#7d7c78"), (1.0, "#bcaf6f"))
DARK_LINES = ((0.0, "#7d7c78"), (0.5, "#bcaf6f"), (1.0, "#fee838"))
"""The part of Cividis whose thin lines can be seen on the page."""
LABEL_POSITIONS = (
    "top center",
    "middle right",
    "bottom center",
    "middle left",
    "top right",
    "top left",
    "bottom right",
    "bottom left",
)
"""Of a name beside its mark, the best first."""
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
COST_TITLES: dict[CostAxis, str] = {
    "megabytes": "Traffic of all clients, up and down (MB)",
    "seconds": "Training and aggregation (s)",
}


def cost_chart(
    costs: Sequence[Cost], theme: Theme, against: CostAxis, accuracy_title: str, width: float = WIDE_COST_PLOT
) -> Chart:
    """Accuracy against traffic or time: a mark per row of the table, a line along the Pareto front.

    A name stands beside its mark where it covers no other; hover says all of them.

    Args:
        width: of the plot in pixels, about.
    """
    x_title = COST_TITLES[against]
    best = pareto_front(costs, against)
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[getattr(c, against) for c in best],
            y=[c.accuracy for c in best],
            mode="lines",
            name="Pareto front",
            line={"shape": "hv", "dash": "dot", "width": 2, "color": theme.faint},
            hoverinfo="skip",
        )
    )
    known = [(getattr(c, against), c.accuracy, c) for c in costs]
    known = [(x, y, c) for x, y, c in known if x is not None and y is not None]
    names = Counter(
        short_name(c.label, NAME_LETTERS) for c in costs
    )  # a sweep's are alike once cut: hover says the whole
    marks = [
        (x, y, name if names[name] == 1 else "", c in best)
        for x, y, c in known
        for name in [short_name(c.label, NAME_LETTERS)]
    ]
    across, down = _axis_range([m[0] for m in marks], least=0.0), _axis_range([m[1] for m in marks])
    places = _label_positions(marks, across, down, width)
    parts = []
    for (x, y, c), (_, _, name, on_front), place in zip(known, marks, places, strict=True):
        parts.append(f"{c.label} {y:.1f} % at {x:.1f}{' (front)' if on_front else ''}")
        colour = theme.colour(c.method)
        name = name if place else ""
        figure.add_trace(
            go.Scatter(
                x=[x],
                y=[y],
                name=escape(c.label),
                mode="markers+text",
                text=[f"<b>{name}</b>" if on_front and name else name],
                textposition=place or "top center",
                textfont={"color": theme.ink},
                cliponaxis=False,
                showlegend=False,
                marker={
                    "symbol": marker(c.method),
                    "size": 15 if on_front else 11,
                    "color": colour if on_front else rgba(colour, 0.5),
                    "line": {"width": 2, "color": theme.ink if on_front else colour},
                },
                hovertemplate="%{fullData.name}<br>%{y:.1f} % at %{x:.2f}"
                + ("<br>on the Pareto front" if on_front else "")
                + "<extra></extra>",
            )
        )
    _apply_layout(figure, theme, COST_HEIGHT)
    figure.update_layout(showlegend=bool(best), legend={"orientation": "h", "y": 1.08, "x": 0})
    figure.update_xaxes(title=x_title, range=across)
    figure.update_yaxes(title=accuracy_title, ticksuffix=" %", range=down)
    return Chart(figure, f"{accuracy_title} against {x_title}: " + "; ".join(parts) + ".")


def _axis_range(values: Sequence[float], least: float | None = None) -> tuple[float, float]:
    """An axis that has room around all marks. least: a value that is on it in any case."""
    known = [*values, *([] if least is None else [least])] or [0.0]
    room = 0.1 * (max(known) - min(known)) or 1.0
    return min(known) - room, max(known) + room


def _label_positions(
    marks: Sequence[tuple[float, float, str, bool]],
    across: tuple[float, float],
    down: tuple[float, float],
    width: float,
) -> list[str | None]:
    """Where each mark's name stands so that it covers no other name and no mark; None: nowhere.

    Args:
        marks: x, y, name, and whether it is placed before the others.
        across, down: the axes. width: of the plot in pixels.
    """
    middles = [
        (
            width * (x - across[0]) / (across[1] - across[0]),
            PLOT_HEIGHT * (down[1] - y) / (down[1] - down[0]),
        )
        for x, y, _, _ in marks
    ]
    taken = [
        (u - MARKER_DISTANCE, v - MARKER_DISTANCE, u + MARKER_DISTANCE, v + MARKER_DISTANCE)
        for u, v in middles
    ]
    found: list[str | None] = [None] * len(marks)
    for i in sorted(range(len(marks)), key=lambda i: not marks[i][3]):
        others = [box for j, box in enumerate(taken) if j != i]
        (u, v), size = middles[i], LETTER_WIDTH * len(marks[i][2])
        for place in LABEL_POSITIONS:
            vertical, side = place.split()
            left = {"left": u - MARKER_DISTANCE - size, "center": u - size / 2, "right": u + MARKER_DISTANCE}[
                side
            ]
            top = {
                "top": v - MARKER_DISTANCE - LINE_HEIGHT,
                "middle": v - LINE_HEIGHT / 2,
                "bottom": v + MARKER_DISTANCE,
            }[vertical]
            box = (left, top, left + size, top + LINE_HEIGHT)
            inside = left >= 0 and box[2] <= width and top >= 0 and box[3] <= PLOT_HEIGHT
            if inside and not any(_overlap(box, other) for other in others):
                found[i] = place
                taken.append(box)
                break
    return found


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def cost_table(costs: Sequence[Cost], best: Sequence[Cost]) -> dict[str, list[object]]:
    """The rows behind ``cost_chart``."""

    def rounded(name: str, digits: int) -> list[float | None]:
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
        "Pareto front": ["yes" if c in best else "" for c in costs],
    }


def sweep_line_chart(lines: Sequence[SweepLine], theme: Theme, field: str, metric_title: str) -> Chart:
    """Accuracy over one swept field, with the spread over seeds as bars."""
    figure = go.Figure()
    values = sorted_values(v for line in lines for v in line.x)
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    dashes = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
    for i, line in enumerate(lines):
        colour = theme.colour(line.method)
        figure.add_trace(
            go.Scatter(
                x=list(line.x) if numeric else [value_text(field, v) for v in line.x],
                y=[s.mean for s in line.stats],
                error_y={"array": [s.std or 0.0 for s in line.stats], "color": colour, "thickness": 1.5},
                name=escape(line.label),
                mode="lines+markers",
                line={"color": colour, "width": 2, "dash": dashes[i % 6] if i else dash(line.method)},
                marker={"symbol": marker(line.method), "size": 8, "color": colour},
                customdata=[f"{s.text(2)} (n = {s.n})" for s in line.stats],
                hovertemplate="%{x}: %{customdata} %",
            )
        )
    _apply_layout(figure, theme, 440)
    figure.update_layout(legend={"orientation": "h", "yanchor": "top", "y": -0.26, "x": 0})
    figure.update_xaxes(title=escape(field_title(field)), **_field_axis(field, values, numeric))
    figure.update_yaxes(title=f"{metric_title} (%)")
    ends = [(line, line.stats.index(max(line.stats, key=lambda s: s.mean))) for line in lines]
    best = [f"{line.label} {line.stats[i].text()} % at {value_text(field, line.x[i])}" for line, i in ends]
    return Chart(figure, f"{metric_title} over {field_words(field)}; best: " + "; ".join(best) + ".")


def _field_axis(field: str, values: Sequence[FieldValue], numeric: bool) -> dict[str, object]:
    """A tick at every value; logarithmic where the values span more than an order and a half."""
    if not numeric:
        return {"type": "category"}
    ticks = {
        "tickmode": "array",
        "tickvals": list(values),
        "ticktext": [value_text(field, v) for v in values],
    }
    positive = all(v > 0 for v in values)  # type: ignore[operator]
    wide = positive and max(values) / min(values) > 30  # type: ignore[type-var, operator]
    return {**ticks, "type": "log" if wide else "linear"}


def sweep_heatmap(found: SweepGrid, theme: Theme, metric_title: str) -> Chart:
    """Accuracy over two swept fields, the value in every cell."""
    z = np.array([[np.nan if s is None else s.mean for s in row] for row in found.stats])
    texts = [["" if s is None else s.text() for s in row] for row in found.stats]
    hover = [["not run" if s is None else f"{s.text(2)} % (n = {s.n})" for s in row] for row in found.stats]
    row, column = field_words(found.row_field), field_words(found.column_field)
    downs = [value_text(found.row_field, v) for v in found.rows]
    acrosses = [value_text(found.column_field, v) for v in found.columns]
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=acrosses,
            y=downs,
            text=texts,
            texttemplate="%{text}",
            customdata=hover,
            hovertemplate=f"{escape(row)} %{{y}}, {escape(column)} %{{x}}<br>"
            "<b>%{customdata}</b><extra></extra>",
            colorscale="Cividis",
            colorbar={"title": {"text": "%"}, "thickness": 14, "tickfont": {"color": theme.ink}},
            xgap=2,
            ygap=2,
            hoverongaps=False,
        )
    )
    _apply_layout(figure, theme, max(260, 120 + 56 * len(found.rows)))
    figure.update_layout(plot_bgcolor=theme.no_data)
    across, down = len(found.columns) - 0.5, len(found.rows) - 0.5  # no margin in the colour of "not run"
    figure.update_xaxes(
        title=escape(field_title(found.column_field)), type="category", showgrid=False, range=[-0.5, across]
    )
    figure.update_yaxes(
        title=escape(field_title(found.row_field)), type="category", showgrid=False, range=[down, -0.5]
    )
    known = [
        (s.mean, f"{s.text()} % at {row} {r}, {column} {c}")
        for r, stats in zip(downs, found.stats, strict=True)
        for c, s in zip(acrosses, stats, strict=True)
        if s is not None
    ]
    gaps = z.size - len(known)
    missing = f" {gaps} combination{'s were' if gaps > 1 else ' was'} not run." if gaps else ""
    best = f"best {max(known)[1]}, worst {min(known)[1]}." if known else "nothing to show."
    return Chart(figure, f"{metric_title} over {row} and {column}: {best}{missing}")


def parallel_chart(families: Sequence[SweepFamily], theme: Theme, metric_title: str) -> Chart:
    """Every row of a sweep as a line through its values to its accuracy."""
    points = [(f, p) for f in families for p in f.points]
    fields = list(dict.fromkeys(field for f in families for field in f.fields))
    dimensions = []
    if len(families) > 1:
        dimensions.append(_dimension("Method", [f.title for f, _ in points]))
    for field in fields:
        names = [value_text(field, p.values[field]) if field in p.values else NO_FIELD for _, p in points]
        order = [
            NO_FIELD,
            *(
                value_text(field, v)
                for v in sorted_values(p.values[field] for _, p in points if field in p.values)
            ),
        ]
        dimensions.append(_dimension(field_title(field), names, order))
    means = [p.stat.mean for _, p in points]
    dimensions.append({"label": metric_title, "values": means, "tickformat": ".1f"})
    figure = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            line={
                "color": means,
                "colorscale": DARK_LINES if theme.dark else LIGHT_LINES,
                "showscale": True,
                "colorbar": {"title": {"text": "%"}},
            },
            labelfont={"color": theme.ink},
            tickfont={"color": theme.ink},
            rangefont={"color": theme.faint},
            unselected={"line": {"color": theme.faint, "opacity": 0.15}},
        )
    )
    _apply_layout(figure, theme, 420)
    figure.update_layout(margin={"l": 60, "r": 40, "t": 60, "b": 30})
    family, best = max(points, key=lambda pair: pair[1].stat.mean)
    at = ", ".join(f"{field_words(f)} {value_text(f, v)}" for f, v in best.values.items())
    alt = f"{metric_title} of {len(points)} combinations; best: {family.title} with {at}, "
    return Chart(figure, f"{alt}{best.stat.text()} %.")


def _dimension(label: str, names: Sequence[str], order: Sequence[str] | None = None) -> dict[str, object]:
    """An axis of words, evenly spaced."""
    there = [n for n in dict.fromkeys(order or names) if n in set(names)]
    place = {n: i for i, n in enumerate(there)}
    return {
        "label": escape(label),
        "values": [place[n] for n in names],
        "tickvals": list(range(len(there))),
        "ticktext": [short_name(n) for n in there],
        "range": [-0.2, max(1, len(there) - 1) + 0.2] if len(there) > 1 else [-1, 1],
    }


def _apply_layout(figure: go.Figure, theme: Theme, height: int) -> None:
    """What all charts of these pages look like."""
    axis = {"gridcolor": theme.grid, "zeroline": False, "linecolor": theme.grid, "color": theme.ink}
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 24, "b": 8, "pad": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": theme.ink},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": theme.faint, "activecolor": theme.ink},
    )
    figure.update_xaxes(automargin=True, **axis)
    figure.update_yaxes(automargin=True, **axis)
