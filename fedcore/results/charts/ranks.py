"""Charts of marks with intervals: a leaderboard, values of several sources, and the specification curve."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from fedcore.results.charts.theme import (
    LEGEND_BELOW,
    STYLES,
    TOOLBAR,
    Chart,
    Theme,
    annotation,
    apply_layout,
    escape,
    hover,
    rounds_as_python,
    short_name,
)
from fedcore.results.leaderboard import Board
from fedcore.results.metrics import METRICS, Metric
from fedcore.results.rows import ComparisonRow
from fedcore.results.specification import Specification
from fedcore.results.statistics import MIN_PAIRS, mean_interval, rounded, signed

ROW_PIXELS, MARGIN_PIXELS, RANK_PIXELS = 40, 70, 100
NAME_LETTERS = 30
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
        text, font = rank if ranked else NOT_RANKED, {"color": theme.ink if ranked else theme.faint}
        ranks.append(annotation(text, 1, y, yref="y", xanchor="left", xshift=8, font=font))
    title = f"{quantity}, {unit}: mean and 95 % interval over seeds"
    layout = _rows_layout(theme, [row.label for row in rows], title) | {
        "annotations": ranks,
        "height": TOOLBAR + MARGIN_PIXELS + ROW_PIXELS * len(rows),
        "margin": {"l": 8, "r": 8 + RANK_PIXELS, "t": TOOLBAR + 8, "b": 8},
    }
    return Chart(go.Figure({"data": data, "layout": layout}), board.finding)


def rank_table(board: Board) -> Mapping[str, Sequence[object]]:
    """Return the leaderboard as a table, including the rows without a rank."""
    return {
        "method": [g.label for g in board.rows],
        "rank": [board.rank_text(g) for g in board.rows],
        f"mean, {METRICS[board.metric].unit}": [round(g.stats[board.metric].mean, 2) for g in board.rows],
        "± 95 %": [rounded(_half_width(board, g), 2) for g in board.rows],
        "n": [g.stats[board.metric].n for g in board.rows],
    }


def _half_width(board: Board, row: ComparisonRow) -> float | None:
    """Return half of a ranked row's interval; with fewer seeds it would be too wide to say anything."""
    return mean_interval(row.stats[board.metric]) if row.key in board.ranks else None


BAR_PIXELS = 26


def bar_chart(rows: Sequence[ComparisonRow], metric: Metric, theme: Theme) -> Chart:
    """Draw the mean of each row that has a metric as a bar, with its 95 % interval over seeds."""
    rows = [row for row in rows if metric in row.stats]
    facts, stats = METRICS[metric], [row.stats[metric] for row in rows]
    half = [mean_interval(stat) if stat.n >= MIN_PAIRS else None for stat in stats]
    names = [row.drawn_label for row in rows]
    intervals = ", with 95 % interval" if any(half) else ""
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [stat.mean for stat in stats],
        "y": list(range(len(rows))),
        "marker": {"color": [theme.colour(row.method) for row in rows]},
        "error_x": {
            "array": [width or 0.0 for width in half],
            "visible": any(half),
            "color": theme.ink,
            "thickness": 1.5,
        },
        "customdata": [
            f"{short_name(name, 60)}: {stat.text(2)} {facts.unit}, n = {stat.n}"
            for name, stat in zip(names, stats, strict=True)
        ],
        "hovertemplate": hover("%{customdata}"),
    }
    means = [f"{stat.mean:.1f}" for stat in stats]
    layout = _rows_layout(theme, names, f"{facts.title}, {facts.unit}{intervals}", means) | {
        "height": TOOLBAR + MARGIN_PIXELS + BAR_PIXELS * len(rows),
        "margin": {"l": 8, "r": 16, "t": TOOLBAR, "b": 8},
    }
    said = ", ".join(f"{name} {mean}" for name, mean in zip(names, means, strict=True))
    return Chart(go.Figure({"data": [trace], "layout": layout}), f"{facts.title}: {said}.")


def _rows_layout(theme: Theme, names: Sequence[str], title: str, means: Sequence[str] = ()) -> dict[str, Any]:
    """Return the layout of a chart with a row for each name, and its mean behind it if given."""
    texts = [f"{short_name(name, NAME_LETTERS)} " for name in names]
    if means:
        texts = [f"{text}<b>{mean}</b> " for text, mean in zip(texts, means, strict=True)]
    rows = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": texts}
    return {
        **theme.layout,
        "showlegend": False,
        "xaxis": {**theme.axis, "title": {"text": title}},
        "yaxis": {**theme.axis, "range": [len(names) - 0.5, -0.7], **rows},
    }


ROW_HEIGHT, OTHER_HEIGHT, SOURCE_LETTERS = 26, 130, 24
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
    apply_layout(figure, theme, height, legend=LEGEND_BELOW)
    figure.update_xaxes(title=unit)
    figure.update_yaxes(
        tickvals=list(place.values()),
        ticktext=[short_name(source, SOURCE_LETTERS) for source in sources],
        range=[len(sources) - 0.4, -0.6],
    )
    return Chart(figure, alt)


CURVE_PIXELS, CHOICE_PIXELS, GAP_PIXELS, BOTTOM_PIXELS = 240, 17, 26, 64
CHOICE_LETTERS, NARROW_LETTERS = 34, 16
DEFAULT_READING = "FedLens's reading"
ChoiceLabels = Sequence[tuple[str, Sequence[str]]]
"""The name of each choice, with the labels of its alternatives."""


def specification_chart(
    found: Sequence[Specification],
    choices: ChoiceLabels,
    quantity: str,
    method: str,
    theme: Theme,
    narrow: bool,
) -> Chart:
    """Draw the sorted curve with its intervals, and the matrix of alternatives below it.

    Args:
        found: in the order of ``specification.curve``.
        quantity: what is drawn, such as ``FedOT minus PromptFL``.
        method: whose colour the curve has.
    """
    figure, colour = go.Figure(), theme.colour(method)
    for is_default, symbol, size, name in (
        (False, "circle", 6, "other readings"),
        (True, "diamond", 11, DEFAULT_READING),
    ):
        shown = [(x, spec) for x, spec in enumerate(found) if is_default is not any(spec.reading)]
        figure.add_scatter(
            x=[x for x, _ in shown],
            y=[spec.stat.mean for _, spec in shown],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": size, "color": theme.ink if is_default else colour},
            error_y={"array": [spec.half or 0.0 for _, spec in shown], "color": colour, "thickness": 1},
            text=[escape(_reading_text(spec, choices)) for _, spec in shown],
            hovertemplate=hover("%{text}"),
        )
    # a row for each choice's name, in bold and without marks, and one for each of its alternatives
    rows = [
        (name, i, k) for i, (of, labels) in enumerate(choices) for k, name in enumerate((of, *labels), -1)
    ]
    marks = [(x, y) for y, (_, i, k) in enumerate(rows) for x, s in enumerate(found) if s.reading[i] == k]
    figure.add_scatter(
        x=[x for x, _ in marks],
        y=[y for _, y in marks],
        xaxis="x2",
        yaxis="y2",
        mode="markers",
        marker={"symbol": "square", "size": 4, "color": theme.ink},
        showlegend=False,
        hoverinfo="skip",
    )
    room = NARROW_LETTERS if narrow else CHOICE_LETTERS
    names = [(short_name(name, room), k < 0) for name, _, k in rows]
    _place_choices(
        figure, theme, len(found), [f"<b>{name}</b> " if bold else f"{name} " for name, bold in names]
    )
    means = [spec.stat.mean for spec in found]
    default = next((f", {signed(s.stat.mean)} in that of FedLens" for s in found if not any(s.reading)), "")
    above = f", above 0 in {sum(mean > 0 for mean in means)}" if " minus " in quantity else ""
    span = f"{signed(means[0])} to {signed(means[-1])} in {len(found)} readings"
    return Chart(figure, f"{quantity}: {span}{above}{default}.")


def _reading_text(spec: Specification, choices: ChoiceLabels) -> str:
    taken = [f"{name}: {labels[k]}" for (name, labels), k in zip(choices, spec.reading, strict=True) if k]
    half = "" if spec.half is None else f" ± {spec.half:.1f} (95 %)"
    return f"{spec.stat.mean:.1f}{half}; {'; '.join(taken) or DEFAULT_READING}"


def _place_choices(figure: go.Figure, theme: Theme, readings: int, names: Sequence[str]) -> None:
    """Place the curve above the matrix, which has a column per reading and a row per name."""
    matrix = CHOICE_PIXELS * len(names)
    inner = CURVE_PIXELS + GAP_PIXELS + matrix
    apply_layout(figure, theme, TOOLBAR + inner + BOTTOM_PIXELS, legend=LEGEND_BELOW)
    bare = {**theme.axis, "showgrid": False}
    across = {**bare, "range": [-0.9, readings - 0.1], "tickvals": [], "ticktext": []}
    rows = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": list(names)}
    curve = {"domain": [1 - CURVE_PIXELS / inner, 1], "title": "points"}
    figure.update_layout(
        xaxis=across,
        xaxis2={**across, "anchor": "y2", "matches": "x"},
        yaxis={**curve, "zeroline": True, "zerolinecolor": theme.faint},
        yaxis2={**bare, **rows, "domain": [0, matrix / inner], "range": [len(names) - 0.4, -0.6]},
    )


def curve_table(found: Sequence[Specification], choices: ChoiceLabels) -> Mapping[str, Sequence[object]]:
    """Return the numbers of a curve, a row per reading."""
    columns: dict[str, Sequence[object]] = {
        "mean": [round(spec.stat.mean, 2) for spec in found],
        "± 95 %": [rounded(spec.half, 2) for spec in found],
        "n": [spec.stat.n for spec in found],
    }
    return columns | {
        name: [labels[spec.reading[i]] for spec in found] for i, (name, labels) in enumerate(choices)
    }
