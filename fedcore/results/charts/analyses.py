"""Charts of the analyses of a run: confusion matrix, classes, t-SNE, Grad-CAM, accuracy over a field."""

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from fedcore.base.presentation import FieldChart
from fedcore.base.progress import counted, listed
from fedcore.results.analyses import Confusion, FieldRow, percent
from fedcore.results.charts.theme import (
    ACCURACY_SCALE,
    DARK_TEXT_FROM,
    MARGIN,
    TOOLBAR,
    Chart,
    Theme,
    apply_layout,
    cell_texts,
    escape,
    hover,
    legend_key,
    palette,
    rounds_as_python,
    short_name,
    ticks,
)

_MARKS = ("circle", "square", "diamond", "triangle-up", "pentagon", "hexagon")
_NUMBERS_UP_TO, _FEW_CLASSES = 20, 12
_POINTS = {"image": (0, "circle", 6), "centroid": (2, "x", 12), "class feature": (1, "star", 15)}
"""Kind of a point in a t-SNE plot, the lowest first -> its code, marker and size."""
_BARE = {"showgrid": False, "showline": False}
_COLOUR_BAR_ABOVE = {"orientation": "h", "yanchor": "bottom", "y": 1}
_SHARE = "%%{customdata[0]}<br><b>%%{%s:.1f} %%</b> (%%{customdata[1]} of %%{customdata[2]})"


def confusion_chart(matrix: Confusion, theme: Theme, narrow: bool = False) -> Chart:
    """Draw the confusion matrix; its rows are true classes and add up to 100 % (``narrow``: on a phone)."""
    n = len(matrix.classes)
    shares = percent(matrix.counts, matrix.counts.sum(1, keepdims=True))
    names = [[f"{escape(t)} predicted as {escape(p)}" for p in matrix.classes] for t in matrix.classes]
    place = _COLOUR_BAR_ABOVE if narrow else {}
    custom = np.dstack(
        [np.array(names, dtype=object), matrix.counts, np.broadcast_to(matrix.counts.sum(1)[:, None], (n, n))]
    )
    figure = go.Figure(
        go.Heatmap(
            z=rounds_as_python(shares, 1),
            colorscale=ACCURACY_SCALE,
            zmin=0,
            zmax=100,
            xgap=1,
            ygap=1,
            customdata=custom,
            hovertemplate=hover(_SHARE % "z"),
            hoverongaps=False,
            colorbar={"title": {"text": "% of the true class", "side": "top"}, "thickness": 12} | place,
        )
    )
    if n <= _NUMBERS_UP_TO:
        y, x = np.nonzero(matrix.counts)
        colours = np.where(shares[y, x] >= DARK_TEXT_FROM["accuracy"], "#000000", "#ffffff")
        figure.add_trace(cell_texts(x, y, matrix.counts[y, x].astype(str).tolist(), colours))
    vals, texts = ticks(matrix.classes, 40)
    # names turn as plotly decides, so that it has to find the room for them as well
    axis = {**_BARE, "tickvals": vals, "ticktext": texts, "automargin": None}
    apply_layout(figure, theme, TOOLBAR + max(340, min(900, 120 + 26 * n)), margin=MARGIN)
    figure.update_xaxes(title="predicted", tickangle=-45 if narrow else None, **axis)
    figure.update_yaxes(title="true", autorange="reversed", **axis)
    if matrix.accuracy is None:
        return Chart(figure, "Confusion matrix: no predictions.")
    worst = matrix.worst
    mistake = f" The most frequent error is {worst[0]} predicted as {worst[1]} ({worst[2]})." if worst else ""
    total = counted(int(matrix.counts.sum()), "prediction")
    alt = f"Confusion matrix of {total}, {matrix.accuracy:.1f} % correct.{mistake}"
    return Chart(figure, alt)


def class_chart(matrix: Confusion, theme: Theme, method: str) -> Chart:
    """Draw the accuracy on each class, lowest first."""
    order = [i for i in np.argsort(matrix.recall, kind="stable") if not np.isnan(matrix.recall[i])]
    totals = matrix.counts.sum(1)
    figure = go.Figure(
        go.Bar(
            x=rounds_as_python(matrix.recall[order], 1),
            y=[str(i) for i in order],
            orientation="h",
            marker={"color": theme.colour(method)},
            customdata=[[escape(matrix.classes[i]), int(matrix.counts[i, i]), int(totals[i])] for i in order],
            hovertemplate=hover(_SHARE % "x"),
        )
    )
    height = TOOLBAR + max(220, min(1200, 70 + 22 * len(order)))
    apply_layout(figure, theme, height, margin=MARGIN | {"r": 28})
    figure.update_xaxes(range=[0, 100], dtick=20, ticksuffix=" %", **_BARE)
    figure.update_yaxes(
        **_BARE,
        type="category",
        autorange="reversed",
        tickvals=[str(i) for i in order],
        ticktext=[short_name(matrix.classes[i]) for i in order],
    )
    ends = [f"{matrix.classes[i]} {matrix.recall[i]:.1f} %" for i in (order[:1] + order[-1:])]
    return Chart(figure, "Accuracy by class, from " + " to ".join(ends) + "." if order else "No classes.")


def space_chart(arrays: Mapping[str, np.ndarray], classes: Sequence[str], theme: Theme) -> Chart:
    """Draw a t-SNE plot of images (dots), class features (stars) and centroids of classes (crosses)."""
    figure = go.Figure()
    xy, kind, label, predicted = (arrays[n] for n in ("xy", "kind", "label", "predicted"))
    for c, name in enumerate(classes):
        colour = theme.classes[c % len(theme.classes)]
        for what, (k, symbol, size) in _POINTS.items():
            at = (kind == k) & (label == c)
            if not at.any():
                continue
            hover_texts = [
                f"predicted {escape(classes[g])}" if g >= 0 else what for g in predicted[at].tolist()
            ]
            figure.add_trace(
                go.Scatter(
                    x=xy[at, 0],
                    y=xy[at, 1],
                    mode="markers",
                    name=short_name(name),
                    legendgroup=str(c),
                    showlegend=k == 0,
                    customdata=hover_texts,
                    hovertemplate=hover(f"{what}: {escape(name)}<br>%{{customdata}}"),
                    marker={
                        "symbol": symbol if k else _MARKS[c // len(theme.classes) % len(_MARKS)],
                        "size": size,
                        "color": colour,
                        "opacity": 1 if k else 0.75 if theme.dark else 0.55,
                        "line": {"width": 0 if k == 0 else 1.5, "color": theme.ink},
                    },
                )
            )
    numbers = {what: int((kind == k).sum()) for what, (k, *_) in _POINTS.items()}
    for what, (_, symbol, _) in _POINTS.items():
        if numbers[what]:
            figure.add_trace(legend_key(what, {"symbol": symbol, "size": 10, "color": theme.faint}))
    few = len(classes) <= _FEW_CLASSES  # a short legend fits below the plot, a long one needs its side
    legend = {"orientation": "h", "yanchor": "top", "y": 0} if few else {"y": 0.94}
    apply_layout(figure, theme, 560, legend={"itemsizing": "constant", **legend}, margin=MARGIN)
    figure.update_xaxes(**_BARE, showticklabels=False)
    figure.update_yaxes(**_BARE, showticklabels=False, scaleanchor="x")
    images = kind == 0
    right = 100 * float(np.mean(label[images] == predicted[images])) if images.any() else 0.0
    by_code = sorted(_POINTS, key=_POINTS.__getitem__)
    shown = [counted(numbers[what], what) for what in by_code if numbers[what]]
    said = f"; {right:.1f} % of these images are predicted correctly" if (predicted >= 0).any() else ""
    return Chart(figure, f"t-SNE of {listed(shown)}{said}.")


def overlays(arrays: Mapping[str, np.ndarray], side: int = 160) -> dict[str, list[bytes]]:
    """Return PNG pictures by name: the images as the model sees them (``image``), and each Grad-CAM map."""
    pixels = arrays["pixels"].astype(np.float64)
    pictures = {"image": [_png(p, side) for p in pixels]}
    for name in (n for n in arrays if n.startswith("map/")):
        heat = arrays[name].astype(np.float64)
        shade = palette("Inferno", 256)[np.clip(np.round(heat * 255), 0, 255).astype(int)]
        weight = 0.25 + 0.45 * heat[..., None]
        grey = pixels.mean(-1, keepdims=True)
        pictures[name.removeprefix("map/")] = [_png(p, side) for p in (1 - weight) * grey + weight * shade]
    return pictures


def _png(pixels: np.ndarray, side: int) -> bytes:
    buffer = BytesIO()
    picture = Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))
    picture.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def field_chart(rows: Sequence[FieldRow], chart: FieldChart, theme: Theme, method: str) -> Chart:
    """Draw a method's personal accuracy and a recorded value over a field of its config."""
    colour, name, axis = theme.colour(method), chart.title.lower(), f"{chart.over} {chart.symbol}"
    x = [str(f.setting) for f in rows]
    figure = go.Figure()
    figure.add_trace(
        go.Bar(
            x=x,
            y=[f.recorded for f in rows],
            name=name,
            yaxis="y2",
            marker={"color": theme.no_data, "line": {"color": theme.faint, "width": 1}},
            hovertemplate=hover(f"%{{y:,}} {name}"),
        )
    )
    figure.add_trace(
        go.Scatter(
            x=x,
            y=rounds_as_python([f.accuracy.mean for f in rows], 2),
            name="personal accuracy",
            mode="lines+markers",
            error_y={"type": "data", "array": [f.accuracy.std or 0 for f in rows], "color": colour},
            line={"color": colour, "width": 2},
            marker={"size": 9, "color": colour},
            customdata=[f.accuracy.n for f in rows],
            hovertemplate=hover("%{y:.2f} % (n = %{customdata})"),
        )
    )
    apply_layout(figure, theme, 380, legend={"orientation": "h", "y": -0.25}, margin=MARGIN)
    figure.update_xaxes(title=axis, type="category", **_BARE)
    figure.update_yaxes(title="Personal accuracy", ticksuffix=" %", showline=False)
    figure.update_layout(
        yaxis={"overlaying": "y2", "tickmode": "auto"},
        yaxis2={
            "title": chart.title,
            "side": "right",
            "color": theme.faint,
            "showgrid": False,
            "tickformat": ",",
            "rangemode": "tozero",
        },
    )
    summary = "; ".join(
        f"{chart.symbol} = {f.setting}: {f.accuracy.text()} % with {f.recorded:,}" for f in rows
    )
    return Chart(figure, f"Personal accuracy and {name} by {axis}: {summary}.")
