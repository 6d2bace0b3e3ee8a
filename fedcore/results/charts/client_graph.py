"""The client graph: an arrow to each client from the client whose model gains most on its test samples."""

from collections.abc import Sequence
from math import ceil
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedcore.results.charts.theme import (
    MARGIN,
    TOOLBAR,
    Chart,
    Theme,
    annotation,
    escape,
    hover,
    short_name,
    silent_trace,
)
from fedcore.results.panels import COMMON, LEAST_GAIN, Edge, Panel, is_common, main_edges, transfer_finding

NO_ARROW = f"every gain or loss is below {LEAST_GAIN:g} point, or equal for several clients"
PANEL_HEIGHT, TITLE_SPACE = 330, 28  # pixels
REACH = 1.55  # range of the axes around a circle of clients with radius 1, with room for their names
ARROW_GAP, BESIDE = 0.16, 0.06
"""Distance from a client to the end of an arrow, and of an arrow from the line between its clients."""
THINNEST, THICKEST = 1.0, 5.0  # pixels of an arrow
MAX_CLIENTS, MAX_ARROWS = 24, 12
"""Number of clients above which only those with an arrow are drawn; number of arrows that stay legible."""
LABEL_AT = 0.62
"""Position of an arrow's number along its length; not the middle, where many arrows cross."""
NUMBER_SIZE = np.array([0.4, 0.16])  # of the axes
ABOUT = (
    "An arrow to a client comes from the other client whose model gains most on its test samples, compared "
    "with the client's own model in the first evaluated round. A red arrow comes from the client whose model "
    f"loses most. Numbers are gains or losses in points; ties and changes below {LEAST_GAIN:g} point have no "
    f"arrow. Only the {MAX_ARROWS} largest are drawn, and of more than {MAX_CLIENTS} clients only those with "
    "an arrow."
)


def client_graphs(panels: Sequence[Panel], theme: Theme, columns: int = 3) -> Chart:
    """Draw a graph per panel of gains, as described in ``ABOUT``.

    The width of an arrow shows its gain or loss, on one scale for all panels.
    """
    columns = max(1, min(columns, len(panels)))
    rows = max(1, ceil(len(panels) / columns))
    shown = [sorted(main_edges(p), key=lambda e: -abs(e.gain))[:MAX_ARROWS] for p in panels]
    most = max((abs(e.gain) for edges in shown for e in edges), default=0.0) or 1.0
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    texts: list[dict[str, Any]] = []
    height = rows * (PANEL_HEIGHT + TITLE_SPACE)
    for i, (panel, edges) in enumerate(zip(panels, shown, strict=True)):
        row, column = divmod(i, columns)
        nth = str(i + 1) if i else ""
        top = 1 - row * (PANEL_HEIGHT + TITLE_SPACE) / height - TITLE_SPACE / height
        hidden = {"visible": False, "range": [-REACH, REACH], "fixedrange": True}
        layout[f"xaxis{nth}"] = {
            **hidden,
            "domain": [column / columns, (column + 1) / columns],
            "anchor": f"y{nth}",
        }
        layout[f"yaxis{nth}"] = {
            **hidden,
            "domain": [max(0.0, top - PANEL_HEIGHT / height), top],
            "anchor": f"x{nth}",
            "scaleanchor": f"x{nth}",
        }
        place = {"xanchor": "center", "yanchor": "bottom"}
        font = {"size": 14, "color": theme.ink}
        title = f"<b>{escape(panel.title)}</b>"
        texts.append(annotation(title, (column + 0.5) / columns, top, font=font, **place))
        names = panel.columns
        if len(names) > MAX_CLIENTS:
            ends = {name for edge in edges for name in (edge.giver, edge.taker)}
            names = tuple(name for name in names if name in ends)
        if not edges:
            reason = COMMON if is_common(panel) else NO_ARROW
            lines = wrap(reason if panel.values.size else panel.empty_text, 36)
            texts.append(annotation("<br>".join(lines), 0, 0, nth, font={"color": theme.ink}))
            continue
        angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / max(1, len(names))  # the first at the top
        places = {n: np.array([np.cos(a), np.sin(a)]) for n, a in zip(names, angles, strict=True)}
        for edge in edges:
            *drawn, mark = _arrow(edge, places, most, nth, theme)
            texts += drawn
            data.append(mark)
        data.append(_clients(places, nth, theme))
    layout |= theme.layout | {
        "annotations": texts,
        "height": height + TOOLBAR,
        "margin": {**MARGIN, "b": 0},
        "showlegend": False,
        "hovermode": "closest",
        "uirevision": "helps",
    }
    return Chart(go.Figure({"data": data, "layout": layout}), " ".join(map(transfer_finding, panels)))


def _clients(places: dict[str, np.ndarray], nth: str, theme: Theme) -> dict[str, Any]:
    """Return the trace of the clients with their names, outside the circle."""
    points = np.array(list(places.values()))
    x, y = points.T
    sides = np.where(points[:, 0] > 0.3, "right", np.where(points[:, 0] < -0.3, "left", "center"))
    heights = np.where(points[:, 1] > 0.3, "top", np.where(points[:, 1] < -0.3, "bottom", "middle"))
    return silent_trace(
        x,
        y,
        "markers+text",
        xaxis=f"x{nth}",
        yaxis=f"y{nth}",
        cliponaxis=False,
        marker={"size": 12, "color": theme.paper, "line": {"width": 2, "color": theme.ink}},
        text=[short_name(n) for n in places],
        textfont={"size": 11, "color": theme.ink},
        textposition=[f"{h} {s}" for h, s in zip(heights, sides, strict=True)],
    )


def _arrow(
    edge: Edge, places: dict[str, np.ndarray], most: float, nth: str, theme: Theme
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the arrow of an edge, its number, and the invisible mark below it that has the hover text."""
    begin, end = places[edge.giver], places[edge.taker]
    along = (end - begin) / np.linalg.norm(end - begin)
    aside = BESIDE * np.array([-along[1], along[0]])  # apart from the arrow in the other direction
    begin, end = begin + ARROW_GAP * along + aside, end - ARROW_GAP * along + aside
    outwards = aside / BESIDE  # the number stands on the outer side, half its size away from the arrow
    at = begin + LABEL_AT * (end - begin) + outwards * (np.abs(outwards) @ NUMBER_SIZE) / 2
    colour = theme.gain if edge.gain >= 0 else theme.loss
    width = THINNEST + (THICKEST - THINNEST) * abs(edge.gain) / most
    look = {"arrowhead": 2, "arrowsize": 1, "arrowcolor": colour, "opacity": 0.85, "arrowwidth": width}
    from_ = {"ax": begin[0], "ay": begin[1], "axref": f"x{nth}", "ayref": f"y{nth}"}
    arrow = annotation("", end[0], end[1], nth, **look | from_ | {"showarrow": True})
    font = {"size": 11, "color": colour}
    number = annotation(f"{edge.gain:+.1f}", at[0], at[1], nth, font=font, bgcolor=theme.paper, borderpad=1)
    mark = {
        "type": "scatter",
        "x": [at[0]],
        "y": [at[1]],
        "xaxis": f"x{nth}",
        "yaxis": f"y{nth}",
        "mode": "markers",
        "marker": {"size": 18, "opacity": 0, "color": colour},
        "hovertemplate": hover(
            f"{escape(edge.giver)}'s model on {escape(edge.taker)}<br><b>{edge.gain:+.1f} points</b>"
        ),
    }
    return arrow, number, mark
