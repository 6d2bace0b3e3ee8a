"""Plotly figures of curves, costs and partitions; ``heatmaps`` draws the matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from fedcore.report.charts import Chart, plain, ticks
from fedcore.report.curves import Cost, Series
from fedcore.report.palette import Look, dash, mark, see_through

MANY_ROWS = 40


def curves(
    series: Sequence[Series],
    look: Look,
    x_title: str,
    y_title: str,
    *,
    per_cent: bool = True,
    height: int = 380,
    name: str = "",
) -> Chart:
    """Lines with a band of one standard deviation where there are several seeds."""
    figure = go.Figure()
    seen: dict[str, int] = {}
    for s in series:
        nth = seen.setdefault(s.method, 0)
        seen[s.method] += 1
        _add_line(figure, s, look, nth)
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 30 if name else 12, "b": 8},
        title={"text": plain(name), "font": {"size": 14, "color": look.ink}} if name else None,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": look.ink},
        hovermode="x unified",
        legend={"orientation": "h", "yanchor": "top", "y": -0.26, "x": 0},
        uirevision="curves",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": look.faint, "activecolor": look.ink},
    )
    if not any(s.x for s in series):
        figure.add_annotation(text="no round yet", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
        figure.update_xaxes(showticklabels=False, showgrid=False)
        figure.update_yaxes(showticklabels=False, showgrid=False)
    axis = {"gridcolor": look.grid, "zeroline": False, "linecolor": look.grid, "color": look.ink}
    figure.update_xaxes(title=x_title, rangemode="tozero", **axis)
    figure.update_yaxes(title=y_title, ticksuffix=" %" if per_cent else "", **axis)
    return Chart(figure, _curves_finding(series, y_title, " %" if per_cent else ""))


def _add_line(figure: go.Figure, s: Series, look: Look, nth: int) -> None:
    colour = look.colour(s.method)
    marks = [mark(s.method), "circle-open", "square-open", "diamond-open"]
    dashes = [dash(s.method), "dash", "dot", "dashdot"]
    known = [d for d in s.std if d is not None]
    if known:
        high = [y + (d or 0) for y, d in zip(s.y, s.std, strict=True)]
        low = [y - (d or 0) for y, d in zip(s.y, s.std, strict=True)]
        figure.add_trace(
            go.Scatter(
                x=[*s.x, *s.x[::-1]],
                y=[*high, *low[::-1]],
                fill="toself",
                fillcolor=see_through(colour, 0.16),
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=s.label,
            )
        )
    text = f"{plain(s.label)}" + (f" (n = {s.n})" if s.n > 1 else "")
    figure.add_trace(
        go.Scatter(
            x=s.x,
            y=s.y,
            name=text,
            legendgroup=s.label,
            mode="lines+markers" if len(s.x) <= 60 else "lines",
            line={"color": colour, "width": 2, "dash": dashes[nth % 4]},
            marker={
                "symbol": marks[nth % 4],
                "size": 7,
                "color": colour,
                "line": {"width": 1.5, "color": colour},
            },
            customdata=[f" ± {d:.1f}" if d is not None else "" for d in s.std],
            hovertemplate="%{y:.2f}%{customdata}",
        )
    )


def _curves_finding(series: Sequence[Series], y_title: str, unit: str) -> str:
    ends = [(s.y[-1], s.label) for s in series if s.y]
    if not ends:
        return f"{y_title}: no data yet."
    order = sorted(ends, reverse=True)
    return f"{y_title} at the end: " + "; ".join(f"{label} {y:.1f}{unit}" for y, label in order) + "."


def cost_chart(costs: Sequence[Cost], look: Look, against: str, accuracy_title: str) -> Chart:
    """Accuracy against traffic (``megabytes``) or time (``seconds``), a mark per row of the table."""
    x_title = (
        "Traffic of all clients, up and down (MB)"
        if against == "megabytes"
        else "Training and aggregation (s)"
    )
    figure = go.Figure()
    parts = []
    for c in costs:
        x = c.megabytes if against == "megabytes" else c.seconds
        if c.accuracy is None or x is None:
            continue
        parts.append(f"{c.label} {c.accuracy:.1f} % at {x:.1f}")
        colour = look.colour(c.method)
        figure.add_trace(
            go.Scatter(
                x=[x],
                y=[c.accuracy],
                name=plain(c.label),
                mode="markers+text",
                text=[plain(c.label)],
                textposition="top center",
                textfont={"color": look.ink},
                marker={
                    "symbol": mark(c.method),
                    "size": 13,
                    "color": colour,
                    "line": {"width": 2, "color": colour},
                },
                hovertemplate="%{fullData.name}<br>%{y:.1f} % at %{x:.2f}<extra></extra>",
            )
        )
    axis = {"gridcolor": look.grid, "zeroline": False, "linecolor": look.grid, "color": look.ink}
    figure.update_layout(
        height=400,
        showlegend=False,
        margin={"l": 8, "r": 8, "t": 12, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": look.ink},
    )
    figure.update_xaxes(title=x_title, rangemode="tozero", **axis)
    figure.update_yaxes(title=accuracy_title, ticksuffix=" %", **axis)
    return Chart(figure, f"{accuracy_title} against {x_title}: " + "; ".join(parts) + ".")


def partition_chart(counts: np.ndarray, clients: Sequence[str], classes: Sequence[str], look: Look) -> Chart:
    """Who holds what: a bubble per client and class whose area is the number of training samples."""
    largest = max(1, int(counts.max())) if counts.size else 1
    y, x = np.nonzero(counts)
    values = counts[y, x]
    room = max(5.0, min(22.0, 620 / max(1, len(classes)), 26.0))
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=y,
            mode="markers",
            marker={
                "size": np.sqrt(values / largest) * room,
                "color": look.colour("fedot"),
                "opacity": 0.85,
                "line": {"width": 0},
            },
            customdata=np.column_stack(
                [[plain(clients[i]) for i in y], [plain(classes[j]) for j in x], values.astype(str)]
            )
            if len(values)
            else None,
            hovertemplate="%{customdata[0]}, class %{customdata[1]}<br><b>%{customdata[2]}</b> "
            "training samples<extra></extra>",
        )
    )
    names_x, names_y = ticks(classes, 20), ticks(clients, MANY_ROWS)
    axis = {
        "showgrid": True,
        "gridcolor": look.grid,
        "zeroline": False,
        "tickmode": "array",
        "color": look.ink,
    }
    figure.update_xaxes(
        tickvals=names_x[0], ticktext=names_x[1], title="class", range=[-0.6, len(classes) - 0.4], **axis
    )
    figure.update_yaxes(
        tickvals=names_y[0], ticktext=names_y[1], title="client", range=[len(clients) - 0.4, -0.6], **axis
    )
    rows = max(4, min(len(clients), MANY_ROWS))
    figure.update_layout(
        height=110 + 26 * rows,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": look.ink},
    )
    sums = counts.sum(1)
    alt = (
        f"{len(clients)} clients, {len(classes)} classes; a client holds {_range(sums)} training samples "
        f"of {_range((counts > 0).sum(1))} classes."
    )
    return Chart(figure, alt)


def _range(numbers: np.ndarray) -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"


def series_table(series: Sequence[Series], x_title: str) -> Mapping[str, list[object]]:
    """Lines as a table: a row per point and line."""
    rows = [(s.label, x, y, d) for s in series for x, y, d in zip(s.x, s.y, s.std, strict=True)]
    return {
        "line": [r[0] for r in rows],
        x_title: [round(r[1], 3) for r in rows],
        "mean": [round(r[2], 2) for r in rows],
        "std": [None if r[3] is None else round(r[3], 2) for r in rows],
    }
