"""Charts of a sweep: accuracy over one field, over two, or over all of them; and of a search over one."""

from collections.abc import Iterable, Sequence
from itertools import cycle
from math import ceil, floor
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from fedcore.base.progress import counted
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.results.charts.theme import (
    ACCURACY_SCALE,
    Chart,
    Theme,
    apply_layout,
    escape,
    hover,
    rounds_as_python,
    short_name,
    style,
)
from fedcore.results.sweeps import FieldValue, SweepFamily, SweepGrid, SweepLine, sorted_values

NO_FIELD = "n/a"
"""Label for methods that do not have the field."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down")
"""Markers of the lines; as 7 and 6 have no common divisor, marker and dash repeat only after 42 lines."""


def sweep_line_chart(
    lines: Sequence[SweepLine], theme: Theme, field: str, metric_title: str, unit: str
) -> Chart:
    """Draw accuracy over one swept field, with the spread over seeds as error bars."""
    figure = go.Figure()
    values = sorted_values(v for line in lines for v in line.x)
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    numeric = len(numbers) == len(values)
    for line, (colour, dash, marker) in zip(lines, _line_styles(lines, theme), strict=True):
        figure.add_trace(
            go.Scatter(
                x=list(line.x) if numeric else [value_text(field, v) for v in line.x],
                y=[s.mean for s in line.stats],
                error_y={"array": [s.std or 0.0 for s in line.stats], "color": colour, "thickness": 1.5},
                name=escape(line.label),
                mode="lines+markers",
                line={"color": colour, "width": 2, "dash": dash},
                marker={"symbol": marker, "size": 8, "color": colour},
                customdata=[f"{s.text(2)} (n = {s.n})" for s in line.stats],
                hovertemplate=f"%{{x}}: %{{customdata}} {unit}",
            )
        )
    apply_layout(figure, theme, 440, legend={"orientation": "h", "yanchor": "top", "y": -0.26, "x": 0})
    x_axis: dict[str, object] = {"type": "category"}
    if numeric:
        wide = min(numbers, default=0) > 0 and max(numbers) / min(numbers) > 30
        ticks = {"tickvals": numbers, "ticktext": [value_text(field, v) for v in numbers]}
        x_axis = {"tickmode": "array", **ticks, "type": "log" if wide else "linear"}
    figure.update_xaxes(title=escape(field_title(field)), **x_axis)
    figure.update_yaxes(title=f"{metric_title} ({unit})")
    highest = [(line, max(range(len(line.x)), key=lambda i: line.stats[i].mean)) for line in lines]
    tops = [
        f"{line.label} {line.stats[i].text()} {unit} at {value_text(field, line.x[i])}" for line, i in highest
    ]
    return Chart(figure, f"{metric_title} over {field_phrase(field)}; highest means: {'; '.join(tops)}.")


def client_chart(points: Sequence[tuple[str, FieldValue, float]], theme: Theme, field: str) -> Chart:
    """Draw a box of accuracies for each client and value of a field, of as many clients as have colours."""
    figure = go.Figure()
    medians = []
    for client, colour in zip(dict.fromkeys(client for client, *_ in points), theme.classes, strict=False):
        own = [(value_text(field, value), accuracy) for of, value, accuracy in points if of == client]
        x, y = zip(*own, strict=True)
        figure.add_box(x=x, y=rounds_as_python(y, 2), name=escape(client), marker={"color": colour})
        medians.append(f"{client} {np.median(y):.1f} %")
    apply_layout(figure, theme, 440, boxmode="group", legend={"orientation": "h", "y": -0.26, "x": 0})
    figure.update_xaxes(title=escape(field_title(field)), type="category")
    figure.update_yaxes(title="Accuracy (%)")
    return Chart(figure, f"Accuracy of clients over {field_phrase(field)}; medians: {'; '.join(medians)}.")


def _line_styles(lines: Sequence[SweepLine], theme: Theme) -> list[tuple[str, str, str]]:
    """Return colour, dash and marker of each line: its method's if no other has that, else distinct ones."""
    if len({line.method for line in lines}) == len(lines):
        return [(theme.colour(m), style(m).dash, style(m).marker) for m in (line.method for line in lines)]
    scale = [list(stop) for stop in theme.lines_scale]
    colours = sample_colorscale(scale, [i / (len(lines) - 1) for i in range(len(lines))])
    return list(zip(colours, cycle(DASHES), cycle(MARKERS)))


def colour_range(families: Iterable[SweepFamily]) -> tuple[int, int]:
    """Return the accuracies of the first and the last colour, the same for all charts of a sweep."""
    means = [row.stat.mean for family in families for row in family.rows]
    low, high = floor(min(means, default=0)), ceil(max(means, default=100))
    return low, max(high, low + 1)


def sweep_heatmap(
    grid: SweepGrid, theme: Theme, metric_title: str, colours: tuple[int, int], unit: str = "%"
) -> Chart:
    """Draw accuracy over two swept fields, with the value in every cell; colours as of ``colour_range``."""
    z = np.array([[np.nan if s is None else s.mean for s in row] for row in grid.stats])
    texts = [["" if s is None else s.text() for s in row] for row in grid.stats]
    measured = [
        ["not run" if s is None else f"{s.text(2)} {unit} (n = {s.n})" for s in row] for row in grid.stats
    ]
    row, column = field_phrase(grid.row_field), field_phrase(grid.column_field)
    row_names = [value_text(grid.row_field, v) for v in grid.rows]
    column_names = [value_text(grid.column_field, v) for v in grid.columns]
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=column_names,
            y=row_names,
            text=texts,
            texttemplate="%{text}",
            customdata=measured,
            hovertemplate=hover(f"{escape(row)} %{{y}}, {escape(column)} %{{x}}<br><b>%{{customdata}}</b>"),
            colorscale=ACCURACY_SCALE,
            zmin=colours[0],
            zmax=colours[1],
            xgap=2,
            ygap=2,
            hoverongaps=False,
            colorbar={"title": {"text": unit}, "thickness": 14, "tickfont": {"color": theme.ink}},
        )
    )
    apply_layout(figure, theme, max(260, 120 + 56 * len(grid.rows)), plot_bgcolor=theme.no_data)
    right, bottom = len(grid.columns) - 0.5, len(grid.rows) - 0.5  # a margin would look like "not run"
    shared = {"type": "category", "showgrid": False}
    figure.update_xaxes(title=escape(field_title(grid.column_field)), range=[-0.5, right], **shared)
    figure.update_yaxes(title=escape(field_title(grid.row_field)), range=[bottom, -0.5], **shared)
    cells = [
        (s.mean, f"{s.text()} {unit} at {row} {r}, {column} {c}")
        for r, stats in zip(row_names, grid.stats, strict=True)
        for c, s in zip(column_names, stats, strict=True)
        if s is not None
    ]
    gaps = z.size - len(cells)
    missing = f" {gaps} combination{'s were' if gaps > 1 else ' was'} not run." if gaps else ""
    range_ = f"highest mean {max(cells)[1]}, lowest {min(cells)[1]}." if cells else "no runs yet."
    return Chart(figure, f"{metric_title} over {row} and {column}: {range_}{missing}")


def parallel_chart(families: Sequence[SweepFamily], theme: Theme, metric_title: str, unit: str) -> Chart:
    """Draw parallel coordinates: each row of a sweep is a line through its field values to its accuracy."""
    rows = [(family, row) for family in families for row in family.rows]
    fields = list(dict.fromkeys(field for f in families for field in f.fields))
    dimensions = []
    if len(families) > 1:
        dimensions.append(_text_dimension("Method", [f.title for f, _ in rows]))
    for field in fields:
        names = [value_text(field, r.values[field]) if field in r.values else NO_FIELD for _, r in rows]
        values = sorted_values(r.values[field] for _, r in rows if field in r.values)
        order = [NO_FIELD, *(value_text(field, v) for v in values)]
        dimensions.append(_text_dimension(field_title(field), names, order))
    means = [r.stat.mean for _, r in rows]
    low, high = colour_range(families)
    dimensions.append({"label": metric_title, "values": means, "tickformat": ".1f"})
    figure = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            line={
                "color": means,
                "colorscale": theme.lines_scale,
                "cmin": low,
                "cmax": high,
                "showscale": True,
                "colorbar": {"title": {"text": unit}},
            },
            labelfont={"color": theme.ink},
            tickfont={"color": theme.ink},
            rangefont={"color": theme.faint},
            unselected={"line": {"color": theme.faint, "opacity": 0.15}},
        )
    )
    apply_layout(figure, theme, 420, margin={"l": 60, "r": 40, "t": 60, "b": 30})
    return Chart(
        figure,
        f"{metric_title} of {counted(len(rows), 'combination')}, "
        f"from {min(means):.1f} to {max(means):.1f} {unit}.",
    )


def _text_dimension(
    label: str, names: Sequence[str], order: Sequence[str] | None = None
) -> dict[str, object]:
    """Return an axis of evenly spaced texts in the given order (default: the order of ``names``)."""
    present = [n for n in dict.fromkeys(order or names) if n in set(names)]
    position = {n: i for i, n in enumerate(present)}
    return {
        "label": escape(label),
        "values": [position[n] for n in names],
        "tickvals": list(range(len(present))),
        "ticktext": [short_name(n) for n in present],
        "range": [-0.2, max(1, len(present) - 1) + 0.2] if len(present) > 1 else [-1, 1],
    }


SIZE, BEST_SIZE, HEIGHT = 9, 15, 360


class DrawPoint(NamedTuple):
    """A draw as a point: ``accuracy`` in per cent, ``text`` for hovering; ``best`` marks the selected one."""

    label: str
    method: str
    value: float | str
    accuracy: float
    text: str
    best: bool


def search_chart(points: Sequence[DrawPoint], theme: Theme, field: str) -> Chart:
    """Draw the draws of all methods that search a field; numbers over a factor of ten have a log axis."""
    figure = go.Figure()
    numeric = all(isinstance(p.value, int | float) and not isinstance(p.value, bool) for p in points)
    for label in dict.fromkeys(p.label for p in points):
        mine = [p for p in points if p.label == label]
        figure.add_scatter(
            x=[p.value if numeric else value_text(field, p.value) for p in mine],
            y=rounds_as_python([p.accuracy for p in mine], 1),
            mode="markers",
            name=escape(label),
            marker={
                "size": [BEST_SIZE if p.best else SIZE for p in mine],
                "color": theme.colour(mine[0].method),
                "symbol": style(mine[0].method).marker,
                "line": {"color": theme.ink, "width": [2 if p.best else 0 for p in mine]},
            },
            text=[escape(p.text) for p in mine],
            hovertemplate=hover("%{text}<br>%{y:.1f} %"),
        )
    apply_layout(figure, theme, HEIGHT, legend={"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0})
    numbers = [float(p.value) for p in points] if numeric else []
    wide = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) > 10
    kind = "category" if not numeric else "log" if wide else "linear"
    figure.update_xaxes(title=escape(field_title(field)), type=kind)
    figure.update_yaxes(title="Validation accuracy (%)")
    tops = [f"{p.label} {p.accuracy:.1f} % at {value_text(field, p.value)}" for p in points if p.best]
    return Chart(
        figure, f"Validation accuracy of the draws over {field_phrase(field)}; best: {'; '.join(tops)}."
    )


def search_table(points: Sequence[DrawPoint], field: str) -> dict[str, list[object]]:
    """Return the values of ``search_chart`` as a table."""
    return {
        "draw": [p.text for p in points],
        field_phrase(field): [p.value for p in points],
        "validation accuracy, %": [round(p.accuracy, 2) for p in points],
        "best": ["yes" if p.best else "" for p in points],
    }
