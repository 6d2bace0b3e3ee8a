"""Charts of marks: a leaderboard with intervals and ranks, and values of several sources on one axis."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from fedcore.results.charts.chart import Chart, escape, rounds_as_python, short_name
from fedcore.results.charts.theme import STYLES, TOOLBAR, Theme, apply_layout, hover
from fedcore.results.leaderboard import Board
from fedcore.results.metrics import METRICS
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import mean_interval

ROW_PIXELS, MARGIN_PIXELS = 40, 70
NAME_LETTERS = 30
RANK_PIXELS = 100
NOT_RANKED = "not ranked yet"


def rank_chart(board: Board, theme: Theme) -> Chart:
    """Draw each row's mean with its 95 % interval, ranked rows first; rows without a rank are hollow."""
    rows = [row for row in board.rows if not row.other_tests]
    stats = [row.stats[board.metric] for row in rows]
    half = [_half_width(board, row) for row in rows]
    data: list[dict[str, Any]] = []  # plain dicts, which plotly validates only once
    ranks: list[dict[str, Any]] = []
    unit = METRICS[board.metric].unit
    quantity = "Accuracy" if unit == "%" else METRICS[board.metric].title
    for y, (row, stat, width) in enumerate(zip(rows, stats, half, strict=True)):
        ranked, colour = row.key in board.ranks, theme.colour(row.method)
        rank = f"rank {board.ranks[row.key].text}" if ranked else board.rank_text(row)
        interval = "" if width is None else f", 95 % interval ± {width:.2f}"
        data.append(
            {
                "type": "scatter",
                "x": [stat.mean],
                "y": [y],
                "mode": "markers+text",
                "cliponaxis": False,
                "marker": {"color": colour, "size": 11, "symbol": "circle" if ranked else "circle-open"},
                "error_x": {
                    "array": [width or 0.0],
                    "visible": width is not None,
                    "color": colour,
                    "thickness": 2,
                    "width": 6,
                },
                "text": [f"{stat.mean:.1f}"],
                "textposition": "top center",
                "textfont": {"size": 11},
                "customdata": [
                    f"{short_name(row.label, 60)}: {rank}, {stat.text(2)} {unit}, n = {stat.n}{interval}"
                ],
                "hovertemplate": hover("%{customdata}"),
            }
        )
        ranks.append(
            {
                "x": 1,
                "xref": "paper",
                "xanchor": "left",
                "xshift": 8,
                "y": y,
                "showarrow": False,
                "text": rank if ranked else NOT_RANKED,
                "font": {"color": theme.ink if ranked else theme.faint},
            }
        )
    layout = {
        **theme.layout,
        "annotations": ranks,
        "height": TOOLBAR + MARGIN_PIXELS + ROW_PIXELS * len(rows),
        "margin": {"l": 8, "r": 8 + RANK_PIXELS, "t": TOOLBAR + 8, "b": 8},
        "showlegend": False,
        "xaxis": {**theme.axis, "title": {"text": f"{quantity}, {unit}: mean and 95 % interval over seeds"}},
        "yaxis": {
            **theme.axis,
            "range": [len(rows) - 0.5, -0.7],
            "tickmode": "array",
            "tickvals": list(range(len(rows))),
            "ticktext": [f"{short_name(row.label, NAME_LETTERS)} " for row in rows],
        },
    }
    return Chart(go.Figure({"data": data, "layout": layout}), board.finding)


def rank_table(board: Board) -> Mapping[str, Sequence[object]]:
    """Return the leaderboard as a table, including the rows without a rank."""
    return {
        "method": [g.label for g in board.rows],
        "rank": [board.rank_text(g) for g in board.rows],
        f"mean, {METRICS[board.metric].unit}": [round(g.stats[board.metric].mean, 2) for g in board.rows],
        "± 95 %": [None if (h := _half_width(board, g)) is None else round(h, 2) for g in board.rows],
        "n": [g.stats[board.metric].n for g in board.rows],
    }


def _half_width(board: Board, row: ComparisonRow) -> float | None:
    """Return half of a ranked row's interval; with fewer seeds it would be too wide to say anything."""
    return mean_interval(row.stats[board.metric]) if row.key in board.ranks else None


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
