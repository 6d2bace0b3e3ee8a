"""The chart of a search: validation accuracy of each draw over one of its hyper-parameters."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.plots.chart import Chart, escape, rounds_as_python
from fedcore.plots.theme import Theme, apply_layout, hover, style

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
