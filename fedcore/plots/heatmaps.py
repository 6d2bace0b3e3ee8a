"""Heatmaps side by side under one colour axis: accuracies, differences to a baseline, recorded matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, isnan
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from fedcore.methods.presentation import MatrixChart
from fedcore.plots.chart import LABEL_LETTERS, WIDE_PIXELS, Chart, cell_texts, escape, shorten, ticks
from fedcore.plots.theme import Theme
from fedcore.results.panels.panel import Panel

NARROW_SPREAD = 50.0
"""Points between the lowest and the highest value up to which a scale from 0 to 100 % hides differences."""
MAX_WITH_GAPS = 40
"""Rows or columns above which cells touch: between small ones the gaps would make a pattern of their own."""
HELD_OUT = "held out"  # rows of FedOT's ACC matrix
LETTER, SMALL, BESIDE = 7.4, 5.6, 120  # pixels: a letter of a title, of a name; colour bar and axes' titles
OVERHANG = 80  # pixels that the title of a single panel may be wider than it
CELL = 30  # pixels, height of a row
MANY_ROWS = 40
TEXT_COLUMNS = 12  # values are printed in the cells up to this many columns, where a cell has room for them
TEXT_WIDTH = {"accuracy": 20, "difference": 20, "recorded": 26}  # pixels
DARK_TEXT_FROM = {"accuracy": 48.0, "recorded": 66.0}  # where Cividis and Magma are lighter than middle grey
Kind = Literal["accuracy", "difference", "recorded"]
_MATRIX_COLOURS = [
    "#010006", "#180f3d", "#440f76", "#721f81", "#9e2f7f",
    "#cd4071", "#f1605d", "#fd9668", "#feca8d", "#fcfdbf",
]  # fmt: skip
"""Magma with another first colour: Streamlit replaces #000001 to #000010 by colours of its theme."""


def heatmap_grid(
    panels: Sequence[Panel],
    theme: Theme,
    columns: int = 3,
    fitted: bool = False,
    title: str = "Accuracy in %",
    width: int = WIDE_PIXELS,
) -> Chart:
    """Draw one heatmap per panel under one colour axis, grey where there is no data.

    Values that a method recorded are no accuracies and have colours of their own.

    Args:
        columns: number of panels beside each other.
        fitted: whether the colours span the values instead of 0 to 100 %.
        width: of the chart in pixels, about; text that does not fit is cut or left out.
    """
    matrix = next((p.matrix for p in panels if p.matrix is not None), None)
    if matrix is not None:
        low, high = matrix.color_range
        axis = {
            "colorscale": _MATRIX_COLOURS,
            "cmin": low,
            "cmax": high,
            "colorbar": _colorbar(matrix.unit, theme),
        }
        return Chart(_grid(panels, theme, columns, axis, "recorded", width), _matrix_alt(panels, matrix))
    low, high = (0.0, 100.0)
    if fitted:
        known = _known_values(panels)
        if known.size:
            low, high = float(np.floor(known.min())), float(np.ceil(known.max()))
            high = max(high, low + 1)
    axis = {"colorscale": "Cividis", "cmin": low, "cmax": high, "colorbar": _colorbar(title, theme)}
    return Chart(_grid(panels, theme, columns, axis, "accuracy", width), _accuracy_alt(panels))


def narrow_spread(panels: Sequence[Panel]) -> str | None:
    """Return the range of the accuracies in words if colours fitted to it would tell more; None if not."""
    known = _known_values(panels)
    if any(p.matrix is not None for p in panels) or not known.size or np.ptp(known) > NARROW_SPREAD:
        return None
    return f"{np.floor(known.min()):.0f} to {np.ceil(known.max()):.0f} %"


def difference_grid(
    panels: Sequence[Panel],
    theme: Theme,
    columns: int = 3,
    width: int = WIDE_PIXELS,
    what: str = "Difference from the baseline",
) -> Chart:
    """Draw differences, ``what`` says of what, in points, in colours that diverge around 0."""
    known = _known_values(panels)
    reach = max(1.0, float(np.ceil(np.abs(known).max()))) if known.size else 1.0
    axis = {
        "colorscale": _diverging(theme),
        "cmin": -reach,
        "cmax": reach,
        "cmid": 0,
        "colorbar": _colorbar("Points", theme),
    }
    parts = [
        f"{p.title}: {np.nanmean(p.values):+.1f} points on average"
        for p in panels
        if not np.isnan(p.values).all()
    ]
    figure = _grid(panels, theme, columns, axis, "difference", width)
    return Chart(figure, f"{what}. " + "; ".join(parts) + ".")


def _known_values(panels: Sequence[Panel]) -> np.ndarray:
    return np.concatenate([p.values[~np.isnan(p.values)] for p in panels] or [np.zeros(0)])


def _grid(
    panels: Sequence[Panel], theme: Theme, columns: int, coloraxis: dict[str, Any], kind: Kind, pixels: int
) -> go.Figure:
    """Draw panels in rows of ``columns``; they are plain dicts, so that plotly checks each only once."""
    columns = max(1, min(columns, len(panels)))
    rows = max(1, ceil(len(panels) / columns))
    tallest = max((len(p.rows) for p in panels), default=1)
    cell = CELL if tallest <= MANY_ROWS else max(4, 1200 // tallest)
    body = max(7 * CELL, cell * tallest)
    below = max(
        (min(len(n), LABEL_LETTERS) for p in panels for n in p.columns), default=0
    )  # letters, slanted
    gap = max(92, 52 + 4 * below) if below else 60
    inner = rows * body + (rows - 1) * gap
    gaps = any(np.isnan(p.values).any() for p in panels)
    margin = {"l": 8, "r": 8, "t": 54, "b": 88 if gaps else 64, "pad": 0}
    name = max((min(len(n), LABEL_LETTERS) for p in panels for n in p.rows), default=0)
    aside = min(0.12, 0.34 / columns, 0.03 + name * 0.0065)  # between two panels, in shares of the width
    width = (1 - aside * (columns - 1)) / columns
    inside = pixels - BESIDE - SMALL * name
    title_room = ((width + aside) * inside / LETTER - 3) if columns > 1 else (inside + OVERHANG) / LETTER
    data: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for i, panel in enumerate(panels):
        row, column = divmod(i, columns)
        left, top = column * (width + aside), 1 - row * (body + gap) / inner
        ends = (left, min(1.0, left + width)), (max(0.0, top - body / inner), top)
        nth = str(i + 1) if i else ""
        axes |= _panel_axes(panel, theme, nth, ends, first=not column)
        annotations += _panel_texts(replace(panel, title=shorten(panel.title, title_room)), theme, nth, ends)
        fit = len(panel.columns) <= min(TEXT_COLUMNS, width * inside / TEXT_WIDTH[kind])
        traces = [_heatmap(panel, kind)]
        if panel.values.size and fit and len(panel.rows) <= MANY_ROWS:
            traces.append(_cell_texts(panel, theme, kind, coloraxis["cmin"], coloraxis["cmax"]))
        data += [{**trace, "xaxis": f"x{nth}", "yaxis": f"y{nth}"} for trace in traces]
    layout = {
        **theme.layout,
        **axes,
        "annotations": annotations,
        "coloraxis": coloraxis,
        "height": int(inner + margin["t"] + margin["b"]),
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "margin": margin,
        "plot_bgcolor": theme.no_data,
        "font": {"color": theme.ink, "size": 12},
        "hoverlabel": {"align": "left"},
        "uirevision": "grid",
    }
    return go.Figure({"data": [*data, *([_gap_in_legend(theme)] if gaps else [])], "layout": layout})


def _gap_in_legend(theme: Theme) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "mode": "markers",
        "marker": {"symbol": "square", "size": 13, "color": theme.no_data},
        "name": "took no part, or not measured",
        "showlegend": True,
        "hoverinfo": "skip",
    }


def _cell_in_words(panel: Panel, row: str, column: str) -> str:
    """Return the row and column of a cell, whose names are escaped, in words."""
    if panel.matrix is not None:
        return f"{row} {panel.matrix.verb} {column}"
    if panel.row_title == "client":
        return f"{row}, round {column}"
    if panel.row_title == HELD_OUT:
        model = "global model (G)" if row == column else "own models (P)"
        return f"{row} held out, {model} on {column}"
    return f"{row} on {column}"


def _hover_texts(panel: Panel, kind: Kind) -> np.ndarray:
    """Return what is said of each cell: its place, value and counts, in one text, as plotly copies each.

    Shape: (rows, columns), objects: what stands in lists is checked one by one as well.
    """
    value = {"accuracy": "{:.1f} %", "difference": "{:+.1f} points", "recorded": "{:.3f}"}[kind].format
    counts = [
        [f" ({correct} of {total})" if total else "" for correct, total in zip(*row, strict=True)]
        for row in zip(panel.correct.tolist(), panel.total.tolist(), strict=True)
    ]
    rows, columns = (list(map(escape, names)) for names in (panel.rows, panel.columns))
    texts = [
        [
            f"{_cell_in_words(panel, row, column)}<br><b>{value(v)}</b>{count}"
            for column, v, count in zip(columns, *own, strict=True)
        ]
        for row, *own in zip(rows, panel.values.tolist(), counts, strict=True)
    ]
    return np.array(texts, dtype=object)


def _heatmap(panel: Panel, kind: Kind) -> dict[str, Any]:
    gap = 1 if max(len(panel.rows), len(panel.columns)) <= MAX_WITH_GAPS else 0
    return {
        "type": "heatmap",
        "z": np.round(panel.values, 4),
        "x": list(range(len(panel.columns))),
        "y": list(range(len(panel.rows))),
        "customdata": _hover_texts(panel, kind),
        "hovertemplate": "%{customdata}<extra></extra>",
        "coloraxis": "coloraxis",
        "xgap": gap,
        "ygap": gap,
        "hoverongaps": False,
    }


def _cell_texts(panel: Panel, theme: Theme, kind: Kind, low: float, high: float) -> dict[str, Any]:
    """Return texts of the values, dark on light cells and light on dark ones."""
    y, x = np.nonzero(~np.isnan(panel.values))
    values = panel.values[y, x]
    if kind == "difference":
        colours = _text_colours(_diverging(theme), 0.5 + values / (2 * high))
    else:
        share = 100 * (values - low) / max(high - low, 1e-9)
        colours = np.where(share >= DARK_TEXT_FROM[kind], "#000000", "#ffffff")
    form = {"accuracy": ".0f", "difference": "+.0f", "recorded": ".2f"}[kind]
    texts = [
        f"<b>{v:{form}}</b>" if panel.row_title == HELD_OUT and panel.own_columns[i] == j else f"{v:{form}}"
        for i, j, v in zip(y, x, values, strict=True)
    ]
    return cell_texts(x, y, texts, colours)


def _diverging(theme: Theme) -> list[tuple[float, str]]:
    """Return a colour scale with orange below 0, blue above it and the colour of the page between."""
    middle = theme.paper if theme.dark else "#f5f5f5"
    return [(0.0, "#B35806"), (0.25, "#E08214"), (0.5, middle), (0.75, "#5E9CC9"), (1.0, "#1F5FA8")]


def _text_colours(scale: Sequence[tuple[float, str]], share: np.ndarray) -> np.ndarray:
    """Return black or white, whichever contrasts more (WCAG) with a scale's colours.

    Shape: share (cells,).
    """
    rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for _, colour in scale]) / 255
    at = [position for position, _ in scale]
    mixed = np.stack([np.interp(share, at, rgb[:, channel]) for channel in range(3)], axis=-1)
    linear = np.where(mixed <= 0.04045, mixed / 12.92, ((mixed + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.where((luminance + 0.05) ** 2 > 0.05 * 1.05, "#000000", "#ffffff")


Extent = tuple[tuple[float, float], tuple[float, float]]
"""Left and right, bottom and top of a panel, in shares of the chart."""


def _panel_axes(panel: Panel, theme: Theme, nth: str, ends: Extent, first: bool) -> dict[str, Any]:
    """Return the two axes of a panel; only the first panel in a row has a title beside its rows."""
    names_x, names_y = ticks(panel.columns, 14), ticks(panel.rows, MANY_ROWS)
    shared = {"showgrid": False, "zeroline": False, "tickfont": {"size": 11, "color": theme.ink}, "ticks": ""}
    shared |= {"automargin": True, "tickmode": "array"}
    small = {"font": {"size": 11, "color": theme.faint}, "standoff": 4}
    longest = max((len(n) for n in panel.columns), default=0)
    across = {
        **shared,
        "anchor": f"y{nth}",
        "domain": ends[0],
        "tickvals": names_x[0],
        "ticktext": names_x[1],
        "title": {"text": panel.column_title, **small},
        "range": [-0.5, max(0.5, len(panel.columns) - 0.5)],
        "tickangle": 0 if longest <= 4 else -35,
    }
    down = {
        **shared,
        "anchor": f"x{nth}",
        "domain": ends[1],
        "tickvals": names_y[0],
        "ticktext": names_y[1],
        "title": {"text": panel.row_title if first else "", **small},
        "range": [max(0.5, len(panel.rows) - 0.5), -0.5],
    }
    return {f"xaxis{nth}": across, f"yaxis{nth}": down}


def _panel_texts(panel: Panel, theme: Theme, nth: str, ends: Extent) -> list[dict[str, Any]]:
    """Return the annotations of a panel: the title above it, and the text in an empty one."""
    shared = {"showarrow": False, "font": {"size": 14, "color": theme.ink}}
    (left, right), (_, top) = ends
    title = {
        **shared,
        "text": f"<b>{escape(panel.title)}</b>",
        "x": (left + right) / 2,
        "y": top,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "center",
        "yanchor": "bottom",
        "yshift": 4,
    }
    middle = {"x": 0.5, "y": 0.5, "xref": f"x{nth} domain", "yref": f"y{nth} domain"}
    return [title] if panel.values.size else [title, {**shared, **middle, "text": panel.empty_text}]


def _colorbar(title: str, theme: Theme) -> dict[str, object]:
    return {
        "title": {"text": title, "side": "right", "font": {"size": 12, "color": theme.faint}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickfont": {"color": theme.faint},
    }


def _accuracy_alt(panels: Sequence[Panel]) -> str:
    parts = []
    for p in panels:
        mean = p.own_mean
        if p.row_title == HELD_OUT and mean is not None:
            beside = [v for i, j in enumerate(p.own_columns) for c, v in enumerate(p.values[i]) if c != j]
            parts.append(f"{p.title}, G {mean:.1f} %, P {np.nanmean(beside):.1f} %")
            continue
        known = p.values[~np.isnan(p.values)]
        if mean is not None:
            parts.append(f"{p.title}, own accuracy {mean:.1f} %")
        elif known.size:  # rows that have no column of their own, as methods by domain
            parts.append(f"{p.title}, from {known.min():.1f} to {known.max():.1f} %")
        else:
            parts.append(f"{p.title}, no data yet")
    return "Accuracy heatmaps. " + "; ".join(parts) + "." if parts else "No heatmaps yet."


def _matrix_alt(panels: Sequence[Panel], matrix: MatrixChart) -> str:
    parts = []
    for p in panels:
        if not p.values.size:
            parts.append(f"{p.title}, {p.empty_text}")
            continue
        own = [p.values[i, j] for i, j in enumerate(p.own_columns) if not np.isnan(p.values[i, j])]
        alone = f"{p.title}, a client {matrix.verb} itself: on average"
        parts.append(f"{alone} {np.mean(own):.2f}" if own else p.title)
    return f"{matrix.title}. {'; '.join(parts)}."


def panel_table(panel: Panel) -> Mapping[str, list[object]]:
    """Return a panel as a table: a column per test set, values rounded as in the heatmap."""
    digits = 1 if panel.matrix is None else 3
    table: dict[str, list[object]] = {panel.row_title: list(panel.rows)}
    for name, column in zip(panel.columns, panel.values.T.tolist(), strict=True):
        table[name] = [None if isnan(v) else round(v, digits) for v in column]
    return table
