"""The chart of a leaderboard: the ranks that each row may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from fedcore.plots.chart import Chart, short_name
from fedcore.plots.theme import Theme, hover
from fedcore.results.leaderboard import Board

ROW_PIXELS, MARGIN_PIXELS = 28, 70
NAME_LETTERS = 30


def rank_chart(board: Board, theme: Theme) -> Chart:
    """Draw a bar per ranked row from its best to its worst rank, the highest mean on top."""
    rows = list(board.ranked)
    figure = go.Figure()
    names = [f"{short_name(g.label, NAME_LETTERS)} " for g in rows]
    figure.add_trace(
        go.Bar(
            y=list(range(len(rows))),
            base=[board.ranks[g.key].best - 0.35 for g in rows],
            x=[board.ranks[g.key].worst - board.ranks[g.key].best + 0.7 for g in rows],
            orientation="h",
            marker={"color": [theme.colour(g.method) for g in rows]},
            width=0.5,
            customdata=[
                f"{short_name(g.label, 60)}: rank {board.ranks[g.key].text}, "
                f"{g.stats[board.metric].text(2)} %, n = {g.stats[board.metric].n}"
                for g in rows
            ],
            hovertemplate=hover("%{customdata}"),
        )
    )
    figure.update_layout(
        **theme.layout,
        height=MARGIN_PIXELS + ROW_PIXELS * len(rows),
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        showlegend=False,
        xaxis={**theme.axis, "title": {"text": "Rank (1 is best)"}, "range": [0.5, len(rows) + 0.5],
               "dtick": max(1, len(rows) // 12)},
        yaxis={**theme.axis, "autorange": "reversed", "tickmode": "array",
               "tickvals": list(range(len(rows))), "ticktext": names},
    )  # fmt: skip
    return Chart(figure, board.finding)


def rank_table(board: Board) -> Mapping[str, Sequence[object]]:
    """Return the leaderboard as a table, including the rows without a rank."""
    return {
        "method": [g.label for g in board.rows],
        "rank": [board.rank_text(g) for g in board.rows],
        "mean, %": [round(g.stats[board.metric].mean, 2) for g in board.rows],
        "n": [g.stats[board.metric].n for g in board.rows],
    }
