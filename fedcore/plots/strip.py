"""Values of several sources as marks on one axis, a row per source, and a colour and marker per group."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from fedcore.plots.chart import Chart, escape, rounds_as_python, short_name
from fedcore.plots.theme import STYLES, Theme, apply_layout, hover

ROW_HEIGHT, OTHER_HEIGHT, NAME_LETTERS = 26, 130, 24
"""Pixels of a row, and of the axis and legend; letters of a source's name."""


class SourceValue(NamedTuple):
    """A value of a source; ``text`` is its hover text."""

    source: str
    group: str
    value: float
    text: str


def strip(points: Sequence[SourceValue], unit: str, theme: Theme, alt: str) -> Chart:
    """Return the chart of some values, with sources in the order in which they come."""
    figure = go.Figure()
    sources = list(dict.fromkeys(point.source for point in points))
    place = {source: i for i, source in enumerate(sources)}
    groups = list(dict.fromkeys(point.group for point in points))
    for i, group in enumerate(groups):
        mine = [point for point in points if point.group == group]
        look = STYLES[i % len(STYLES)]
        figure.add_scatter(
            x=rounds_as_python([point.value for point in mine], 2),
            y=[place[point.source] for point in mine],
            mode="markers",
            marker={"size": 9, "symbol": look.marker, "color": look.dark if theme.dark else look.light},
            name=escape(group),
            text=[escape(point.text) for point in mine],
            hovertemplate=hover("%{x:.2f}<br>%{text}"),
        )
    legend_rows = -(-len(groups) // 3)
    height = OTHER_HEIGHT + ROW_HEIGHT * (len(sources) + legend_rows)
    apply_layout(
        figure, theme, height, legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}
    )
    figure.update_xaxes(title=unit)
    figure.update_yaxes(
        tickvals=list(place.values()),
        ticktext=[short_name(source, NAME_LETTERS) for source in sources],
        range=[len(sources) - 0.4, -0.6],
    )
    return Chart(figure, alt)
