"""Accuracy matrices side by side under one colour axis, and differences to a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedcore.report.charts import Chart, plain, ticks
from fedcore.report.palette import Look
from fedcore.report.panels import Panel

CELL = 30  # pixels, height of a row
MANY_ROWS = 40
TEXT_COLUMNS = 12  # values are printed in the cells up to this many columns
DARK_TEXT_FROM = 48.0  # Cividis is lighter than middle grey above 48 % of its range


def heatmap_grid(
    panels: Sequence[Panel], look: Look, columns: int = 3, fitted: bool = False, title: str = "Accuracy in %"
) -> Chart:
    """One heatmap per panel under one colour axis; grey where there is no data."""
    low, high = (0.0, 100.0)
    if fitted:
        known = np.concatenate([p.values[~np.isnan(p.values)] for p in panels] or [np.zeros(0)])
        if known.size:
            low, high = float(np.floor(known.min())), float(np.ceil(known.max()))
            high = max(high, low + 1)
    figure = _grid(panels, look, columns, low, high)
    figure.update_layout(
        coloraxis={"colorscale": "Cividis", "cmin": low, "cmax": high, "colorbar": _colorbar(title, look)}
    )
    return Chart(figure, _grid_finding(panels))


def difference_grid(panels: Sequence[Panel], look: Look, columns: int = 3) -> Chart:
    """Differences to a baseline, in points, diverging around 0."""
    known = np.concatenate([p.values[~np.isnan(p.values)] for p in panels] or [np.zeros(0)])
    reach = max(1.0, float(np.ceil(np.abs(known).max()))) if known.size else 1.0
    middle = look.paper if look.dark else "#f5f5f5"
    scale = [[0.0, "#B35806"], [0.25, "#E08214"], [0.5, middle], [0.75, "#5E9CC9"], [1.0, "#1F5FA8"]]
    figure = _grid(panels, look, columns, -reach, reach, signed=True)
    figure.update_layout(
        coloraxis={
            "colorscale": scale,
            "cmin": -reach,
            "cmax": reach,
            "cmid": 0,
            "colorbar": _colorbar("Points", look),
        }
    )
    parts = [
        f"{p.title}: {_points(float(np.nanmean(p.values)))} points on average"
        for p in panels
        if not np.isnan(p.values).all()
    ]
    return Chart(figure, "Difference to the baseline. " + "; ".join(parts) + ".")


def _grid(
    panels: Sequence[Panel], look: Look, columns: int, low: float, high: float, signed: bool = False
) -> go.Figure:
    count = max(1, len(panels))
    columns = max(1, min(columns, count))
    rows = ceil(count / columns)
    tallest = max((len(p.rows) for p in panels), default=1)
    cell = CELL if tallest <= MANY_ROWS else max(4, 1200 // tallest)
    body = max(7 * CELL, cell * tallest)
    gap = 92 if any(len(p.columns) for p in panels) else 60
    height = rows * body + (rows - 1) * gap + 162
    inner = height - 162
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[f"<b>{plain(p.title)}</b>" for p in panels],
        horizontal_spacing=min(0.12, 0.34 / columns),
        vertical_spacing=gap / inner if rows > 1 else 0,
    )
    for i, panel in enumerate(panels):
        row, column = i // columns + 1, i % columns + 1
        figure.add_trace(_heat(panel, signed), row=row, col=column)
        if panel.values.size and len(panel.columns) <= TEXT_COLUMNS and len(panel.rows) <= MANY_ROWS:
            figure.add_trace(_numbers(panel, look, signed, low, high), row=row, col=column)
        _panel_axes(figure, panel, look, row, column)
    figure.update_layout(
        height=int(height),
        margin={"l": 8, "r": 8, "t": 54, "b": 60, "pad": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor=look.no_data,
        font={"color": look.ink, "size": 12},
        hoverlabel={"align": "left"},
        uirevision="grid",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": look.faint, "activecolor": look.ink},
    )
    figure.update_annotations(font={"size": 14, "color": look.ink}, yshift=4)
    return figure


def _heat(panel: Panel, signed: bool) -> go.Heatmap:
    names = [[f"{plain(r)} on {plain(c)}" for c in panel.columns] for r in panel.rows]
    if panel.row_title == "client":
        names = [[f"{plain(r)}, round {plain(c)}" for c in panel.columns] for r in panel.rows]
    counts = np.where(panel.total > 0, panel.correct, 0)
    custom = np.dstack([np.array(names, dtype=object), counts, panel.total]) if panel.values.size else None
    value = "%{z:+.1f} points" if signed else "%{z:.1f} %"
    return go.Heatmap(
        z=np.round(panel.values, 3),
        x=list(range(len(panel.columns))),
        y=list(range(len(panel.rows))),
        customdata=custom,
        hovertemplate="%{customdata[0]}<br><b>"
        + value
        + "</b> (%{customdata[1]} of %{customdata[2]})<extra></extra>",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        hoverongaps=False,
    )


def _numbers(panel: Panel, look: Look, signed: bool, low: float, high: float) -> go.Scatter:
    """The values in the cells, dark on light and light on dark."""
    y, x = np.nonzero(~np.isnan(panel.values))
    values = panel.values[y, x]
    if signed:
        strong = np.abs(values) > 0.6 * high
        colours = np.where(strong, "#ffffff", look.ink)
    else:
        share = 100 * (values - low) / max(high - low, 1e-9)
        colours = np.where(share >= DARK_TEXT_FROM, "#000000", "#ffffff")
    return go.Scatter(
        x=x,
        y=y,
        text=[f"{v:+.0f}" if signed else f"{v:.0f}" for v in values],
        mode="text",
        textfont={"size": 11, "color": colours.tolist()},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=True,
    )


def _panel_axes(figure: go.Figure, panel: Panel, look: Look, row: int, column: int) -> None:
    names_x, names_y = ticks(panel.columns, 14), ticks(panel.rows, MANY_ROWS)
    shared = {"showgrid": False, "zeroline": False, "tickfont": {"size": 11, "color": look.ink}, "ticks": ""}
    figure.update_xaxes(
        tickmode="array",
        tickvals=names_x[0],
        ticktext=names_x[1],
        title={"text": panel.column_title, "font": {"size": 11, "color": look.faint}, "standoff": 4},
        range=[-0.5, max(0.5, len(panel.columns) - 0.5)],
        tickangle=0 if max((len(n) for n in panel.columns), default=0) <= 4 else -35,
        row=row,
        col=column,
        **shared,
    )
    figure.update_yaxes(
        tickmode="array",
        tickvals=names_y[0],
        ticktext=names_y[1],
        range=[max(0.5, len(panel.rows) - 0.5), -0.5],
        row=row,
        col=column,
        **shared,
    )
    if column == 1:
        title = {"text": panel.row_title, "font": {"size": 11, "color": look.faint}, "standoff": 4}
        figure.update_yaxes(title=title, row=row, col=column)
    if not panel.values.size:
        figure.add_annotation(
            text="no round yet",
            showarrow=False,
            x=0.5,
            y=0.5,
            xref="x domain",
            yref="y domain",
            row=row,
            col=column,
        )


def _colorbar(title: str, look: Look) -> dict[str, object]:
    return {
        "title": {"text": title, "side": "right", "font": {"size": 12, "color": look.faint}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickfont": {"color": look.faint},
    }


def _grid_finding(panels: Sequence[Panel]) -> str:
    parts = []
    for p in panels:
        mean = p.own_mean
        parts.append(f"{p.title}, no data yet" if mean is None else f"{p.title}, own accuracy {mean:.1f} %")
    return "Accuracy heatmaps. " + "; ".join(parts) + "." if parts else "No heatmaps yet."


def _points(value: float) -> str:
    return f"{value:+.1f}"


def panel_table(panel: Panel) -> Mapping[str, list[object]]:
    """A panel as a table: one column per test set, numbers as printed; for ``show as table``."""
    table: dict[str, list[object]] = {panel.row_title: list(panel.rows)}
    for j, name in enumerate(panel.columns):
        table[name] = [None if np.isnan(v) else round(float(v), 1) for v in panel.values[:, j]]
    return table
