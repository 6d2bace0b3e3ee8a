"""The specification curve as a chart: a quantity under each reading, and below it what each reading takes."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from fedcore.results.charts.chart import Chart, escape, short_name
from fedcore.results.charts.theme import TOOLBAR, Theme, apply_layout, hover
from fedcore.results.specification import Specification
from fedcore.results.statistics import signed

CURVE_PIXELS, ROW_PIXELS, GAP_PIXELS, BOTTOM_PIXELS = 240, 17, 26, 64
NAME_LETTERS, NARROW_LETTERS = 34, 16
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
    texts = []
    for spec in found:
        taken = [f"{name}: {labels[k]}" for (name, labels), k in zip(choices, spec.reading, strict=True) if k]
        half = "" if spec.half is None else f" ± {spec.half:.1f} (95 %)"
        texts.append(f"{spec.stat.mean:.1f}{half}; {'; '.join(taken) or DEFAULT_READING}")
    for is_default, symbol, size, name in (
        (False, "circle", 6, "other readings"),
        (True, "diamond", 11, DEFAULT_READING),
    ):
        places = [x for x, spec in enumerate(found) if is_default is not any(spec.reading)]
        figure.add_scatter(
            x=places,
            y=[found[x].stat.mean for x in places],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": size, "color": theme.ink if is_default else colour},
            error_y={"array": [found[x].half or 0.0 for x in places], "color": colour, "thickness": 1},
            text=[escape(texts[x]) for x in places],
            hovertemplate=hover("%{text}"),
        )
    rows: list[tuple[str, tuple[int, int] | None]] = []
    for i, (name, labels) in enumerate(choices):
        rows += [(name, None), *((label, (i, k)) for k, label in enumerate(labels))]
    marks = [
        (x, y)
        for y, (_, place) in enumerate(rows)
        for x, spec in enumerate(found)
        if place is not None and spec.reading[place[0]] == place[1]
    ]
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
    matrix = ROW_PIXELS * len(rows)
    inner = CURVE_PIXELS + GAP_PIXELS + matrix
    room = NARROW_LETTERS if narrow else NAME_LETTERS
    apply_layout(
        figure,
        theme,
        TOOLBAR + inner + BOTTOM_PIXELS,
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
    )
    ends = [-0.9, len(found) - 0.1]
    across = {**theme.axis, "range": ends, "showgrid": False, "tickvals": [], "ticktext": []}
    figure.update_layout(
        xaxis=across,
        xaxis2={**across, "anchor": "y2", "matches": "x"},
        yaxis={
            "domain": [1 - CURVE_PIXELS / inner, 1],
            "title": "points",
            "zeroline": True,
            "zerolinecolor": theme.faint,
        },
        yaxis2={
            **theme.axis,
            "domain": [0, matrix / inner],
            "range": [len(rows) - 0.4, -0.6],
            "showgrid": False,
            "tickmode": "array",
            "tickvals": list(range(len(rows))),
            "ticktext": [
                f"{'' if place else '<b>'}{short_name(name, room)}{'' if place else '</b>'} "
                for name, place in rows
            ],
        },
    )
    return Chart(figure, curve_text(found, quantity))


def curve_text(found: Sequence[Specification], quantity: str) -> str:
    """Return the finding of a curve in a sentence."""
    means = [spec.stat.mean for spec in found]
    default = next((f", {signed(s.stat.mean)} in that of FedLens" for s in found if not any(s.reading)), "")
    above = f", above 0 in {sum(mean > 0 for mean in means)}" if " minus " in quantity else ""
    return f"{quantity}: {signed(means[0])} to {signed(means[-1])} in {len(found)} readings{above}{default}."


def curve_table(found: Sequence[Specification], choices: ChoiceLabels) -> Mapping[str, Sequence[object]]:
    """Return the numbers of a curve, a row per reading."""
    columns: dict[str, Sequence[object]] = {
        "mean": [round(spec.stat.mean, 2) for spec in found],
        "± 95 %": [None if spec.half is None else round(spec.half, 2) for spec in found],
        "n": [spec.stat.n for spec in found],
    }
    return columns | {
        name: [labels[spec.reading[i]] for spec in found] for i, (name, labels) in enumerate(choices)
    }
