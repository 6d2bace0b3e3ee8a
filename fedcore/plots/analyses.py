"""Charts of the analyses of a run: confusion matrix, classes, t-SNE, Grad-CAM, degrees of freedom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from PIL import Image
from plotly.colors import sample_colorscale, unlabel_rgb

from fedcore.plots.chart import Chart, escape, short_name, ticks
from fedcore.plots.heatmaps import DARK_TEXT_FROM
from fedcore.plots.theme import Theme
from fedcore.results.comparison import Comparison
from fedcore.results.statistics import Stat, spread

GLOBAL = 0
_CLASS_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#B8860B",
    "#56B4E9",
    "#7F3C8D",
    "#8C564B",
    "#666666",
    "#8B0000",
)
_CLASS_COLOURS_DARK = (
    "#4FA3DD",
    "#E8894A",
    "#2FBF95",
    "#E2A6C8",
    "#D9B84A",
    "#A8DBF7",
    "#C08AD0",
    "#C79A8E",
    "#B0B0B0",
    "#F07070",
)
_MARKS = ("circle", "square", "diamond", "triangle-up", "pentagon", "hexagon")
_NUMBERS_UP_TO, _FEW_CLASSES = 20, 12
_ABOVE = {"orientation": "h", "yanchor": "bottom", "y": 1}  # a colour bar on a telephone
_HOVER = "%%{customdata[0]}<br><b>%%{%s:.1f} %%</b> (%%{customdata[1]} of %%{customdata[2]})<extra></extra>"


@dataclass(frozen=True)
class Confusion:
    """Predictions of some models on some test sets, counted.

    Shape: counts (classes, classes), true class by predicted class.
    """

    classes: tuple[str, ...]
    counts: np.ndarray

    @property
    def accuracy(self) -> float | None:
        """Share of right predictions, per cent; None without predictions."""
        total = int(self.counts.sum())
        return 100 * float(np.trace(self.counts)) / total if total else None

    @property
    def recall(self) -> np.ndarray:
        """Accuracy on each true class, per cent, NaN for absent classes. Shape: (classes,)."""
        return _share(np.diag(self.counts), self.counts.sum(1))

    @property
    def precision(self) -> np.ndarray:
        """Share of right ones among a class's predictions, per cent, NaN where none. Shape: (classes,)."""
        return _share(np.diag(self.counts), self.counts.sum(0))

    @property
    def worst(self) -> tuple[str, str, int] | None:
        """The most frequent mistake: true class, predicted class, how often; None without mistakes."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        if not wrong.any():
            return None
        i, j = np.unravel_index(int(wrong.argmax()), wrong.shape)
        return self.classes[i], self.classes[j], int(wrong[i, j])

    def matrix_table(self) -> dict[str, list[object]]:
        """A row per true class, a column per predicted one: counts."""
        columns = {name: self.counts[:, i].tolist() for i, name in enumerate(self.classes)}
        return {"true class ↓ predicted →": list(self.classes), **columns}

    def table(self) -> dict[str, list[object]]:
        """A row per class."""
        return {
            "class": list(self.classes),
            "test samples": self.counts.sum(1).tolist(),
            "right": np.diag(self.counts).tolist(),
            "accuracy, %": [_rounded(v) for v in self.recall],
            "precision, %": [_rounded(v) for v in self.precision],
        }


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, 100.0 * part / np.maximum(whole, 1), np.nan)


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 1)


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays that a task has written."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def confusion(arrays: Mapping[str, np.ndarray], classes: Sequence[str], model: int | None) -> Confusion:
    """Counts of one model by entity code, or (None) of all clients' models on their own test samples."""
    chosen = arrays["model"] != GLOBAL if model is None else arrays["model"] == model
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts, (arrays["label"][chosen], arrays["predicted"][chosen]), 1)
    return Confusion(tuple(classes), counts)


def confusion_chart(found: Confusion, theme: Theme, narrow: bool = False) -> Chart:
    """Rows are true classes and add up to 100 %; the diagonal is right. narrow: for a telephone."""
    n = len(found.classes)
    shares = _share(found.counts, found.counts.sum(1, keepdims=True))
    names = [[f"{escape(t)} taken for {escape(p)}" for p in found.classes] for t in found.classes]
    place = _ABOVE if narrow else {}
    custom = np.dstack(
        [np.array(names, dtype=object), found.counts, np.broadcast_to(found.counts.sum(1)[:, None], (n, n))]
    )
    figure = go.Figure(
        go.Heatmap(
            z=np.round(shares, 2),
            colorscale="Cividis",
            zmin=0,
            zmax=100,
            xgap=1,
            ygap=1,
            customdata=custom,
            hovertemplate=_HOVER % "z",
            hoverongaps=False,
            colorbar={"title": {"text": "% of the true class", "side": "top"}, "thickness": 12} | place,
        )
    )
    if n <= _NUMBERS_UP_TO:
        figure.add_trace(_counts_in_cells(found.counts, shares))
    vals, texts = ticks(found.classes, 40)
    axis = {"tickvals": vals, "ticktext": texts, "color": theme.ink, "showgrid": False, "zeroline": False}
    figure.update_xaxes(title="predicted", tickangle=-45 if narrow else None, **axis)
    figure.update_yaxes(title="true", autorange="reversed", **axis)
    figure.update_layout(height=max(340, min(900, 120 + 26 * n)), **_layout(theme))
    if found.accuracy is None:
        return Chart(figure, "Confusion matrix: no predictions.")
    worst = found.worst
    mistake = (
        f" The most frequent mistake: {worst[0]} taken for {worst[1]}, {worst[2]} times." if worst else ""
    )
    return Chart(
        figure,
        f"Confusion matrix of {int(found.counts.sum())} predictions, {found.accuracy:.1f} % right.{mistake}",
    )


def _counts_in_cells(counts: np.ndarray, shares: np.ndarray) -> go.Scatter:
    """The counts that are not 0, dark on light and light on dark."""
    y, x = np.nonzero(counts)
    dark = shares[y, x] >= DARK_TEXT_FROM["accuracy"]
    return go.Scatter(
        x=x,
        y=y,
        text=counts[y, x].astype(str),
        mode="text",
        textfont={"size": 11, "color": np.where(dark, "#000000", "#ffffff").tolist()},
        hoverinfo="skip",
        showlegend=False,
    )


def class_chart(found: Confusion, theme: Theme, method: str) -> Chart:
    """Accuracy on each class, lowest first."""
    order = [i for i in np.argsort(found.recall, kind="stable") if not np.isnan(found.recall[i])]
    totals = found.counts.sum(1)
    figure = go.Figure(
        go.Bar(
            x=[found.recall[i] for i in order],
            y=[str(i) for i in order],
            orientation="h",
            marker={"color": theme.colour(method)},
            customdata=[[escape(found.classes[i]), int(found.counts[i, i]), int(totals[i])] for i in order],
            hovertemplate=_HOVER % "x",
        )
    )
    # half of "100 %" stands beyond the end of the axis, where plotly hides it unless told
    figure.update_xaxes(
        range=[0, 100],
        dtick=20,
        ticksuffix=" %",
        ticklabeloverflow="allow",
        color=theme.ink,
        gridcolor=theme.grid,
    )
    figure.update_yaxes(
        type="category",
        autorange="reversed",
        tickvals=[str(i) for i in order],
        ticktext=[short_name(found.classes[i]) for i in order],
        color=theme.ink,
    )
    figure.update_layout(height=max(220, min(1200, 70 + 22 * len(order))), **_layout(theme))
    figure.update_layout(margin_r=28)
    ends = [f"{found.classes[i]} {found.recall[i]:.1f} %" for i in (order[:1] + order[-1:])]
    return Chart(figure, "Accuracy by class, from " + " to ".join(ends) + "." if order else "No classes.")


def space_chart(arrays: Mapping[str, np.ndarray], classes: Sequence[str], theme: Theme) -> Chart:
    """Dots are images, stars the classes' own features, crosses the centroids of a class's images."""
    figure = go.Figure()
    xy, kind, label, guess = (arrays[n] for n in ("xy", "kind", "label", "predicted"))
    for c, name in enumerate(classes):
        colours = _CLASS_COLOURS_DARK if theme.dark else _CLASS_COLOURS
        colour = colours[c % len(colours)]
        for k, size, what in ((0, 6, "image"), (2, 12, "centroid"), (1, 15, "class feature")):
            at = (kind == k) & (label == c)
            if not at.any():
                continue
            symbol = {0: _MARKS[c // len(_CLASS_COLOURS) % len(_MARKS)], 1: "star", 2: "x"}[k]
            said = [f"predicted {escape(classes[g])}" if g >= 0 else what for g in guess[at].tolist()]
            figure.add_trace(
                go.Scatter(
                    x=xy[at, 0],
                    y=xy[at, 1],
                    mode="markers",
                    name=short_name(name),
                    legendgroup=str(c),
                    showlegend=k == 0,
                    marker={
                        "symbol": symbol,
                        "size": size,
                        "color": colour,
                        "opacity": 1 if k else 0.75 if theme.dark else 0.55,
                        "line": {"width": 0 if k == 0 else 1.5, "color": theme.ink},
                    },
                    customdata=said,
                    hovertemplate=f"{what}: {escape(name)}<br>%{{customdata}}<extra></extra>",
                )
            )
    hidden = {"showticklabels": False, "showgrid": False, "zeroline": False, "title": None}
    figure.update_xaxes(**hidden)
    figure.update_yaxes(**hidden, scaleanchor="x")
    few = len(classes) <= _FEW_CLASSES  # their names fit below, where they take no room from the picture
    legend = {"orientation": "h", "yanchor": "top", "y": 0} if few else {"y": 0.94}
    figure.update_layout(height=560, legend={"itemsizing": "constant", **legend}, **_layout(theme))
    images = kind == 0
    right = 100 * float(np.mean(label[images] == guess[images])) if images.any() else 0.0
    return Chart(
        figure,
        f"t-SNE of {int(images.sum())} images, {int((kind == 1).sum())} class features and "
        f"{int((kind == 2).sum())} centroids; {right:.1f} % of these images are predicted right.",
    )


def space_table(arrays: Mapping[str, np.ndarray], classes: Sequence[str]) -> dict[str, list[object]]:
    """A row per point."""
    kinds = ("image", "class feature", "centroid")
    return {
        "point": [kinds[k] for k in arrays["kind"]],
        "class": [classes[c] for c in arrays["label"]],
        "predicted": [classes[g] if g >= 0 else None for g in arrays["predicted"]],
        "x": np.round(arrays["xy"][:, 0], 2).tolist(),
        "y": np.round(arrays["xy"][:, 1], 2).tolist(),
    }


def overlays(arrays: Mapping[str, np.ndarray], side: int = 160) -> dict[str, list[bytes]]:
    """PNG pictures: the images as the model saw them (``image``), and over them each score's evidence."""
    palette = np.array(
        [unlabel_rgb(c) for c in sample_colorscale("Inferno", np.linspace(0, 1, 256).tolist())]
    )
    pixels = arrays["pixels"].astype(np.float64)
    found = {"image": [_png(p, side) for p in pixels]}
    for name in (n for n in arrays if n.startswith("map/")):
        heat = arrays[name].astype(np.float64)
        shade = palette[np.clip(np.round(heat * 255), 0, 255).astype(int)]
        weight = 0.25 + 0.45 * heat[..., None]
        grey = pixels.mean(-1, keepdims=True)
        found[name.removeprefix("map/")] = [_png(p, side) for p in (1 - weight) * grey + weight * shade]
    return found


def _png(pixels: np.ndarray, side: int) -> bytes:
    buffer = BytesIO()
    picture = Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))
    picture.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


@dataclass(frozen=True)
class Freedom:
    """FedOT with one number of blocks: what its transforms may do, and what comes of it (per cent)."""

    label: str
    blocks: int
    degrees: float
    accuracy: Stat


def freedom_by_blocks(comparison: Comparison, degrees: Mapping[int, float]) -> list[Freedom]:
    """FedOT's rows by number of blocks, those with orthogonal transforms only.

    Args:
        degrees: run id -> degrees of freedom that it recorded.
    """
    found = []
    for group in comparison.groups:
        config = group.config.method.config
        known = [degrees[v.run.id] for v in group.runs if v.run.id in degrees]
        if group.method != "fedot" or config.get("local_transform", "cayley") != "cayley" or not known:
            continue
        stat = spread(v.values.get("personal") for v in group.runs)
        if stat is not None:
            found.append(Freedom(group.label, int(config.get("blocks", 1)), known[0], stat))
    return sorted(found, key=lambda f: f.blocks)


def freedom_chart(rows: Sequence[Freedom], theme: Theme) -> Chart:
    """Personal accuracy and degrees of freedom by number of blocks (FedOT, Figure 2)."""
    colour = theme.colour("fedot")
    x = [f.blocks for f in rows]
    figure = go.Figure()
    figure.add_trace(
        go.Bar(x=[str(b) for b in x], y=[f.degrees for f in rows], name="degrees of freedom", yaxis="y2",
               marker={"color": theme.no_data, "line": {"color": theme.faint, "width": 1}},
               hovertemplate="%{y:,.0f} degrees of freedom<extra></extra>")
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=[str(b) for b in x],
            y=[f.accuracy.mean for f in rows],
            error_y={"type": "data", "array": [f.accuracy.std or 0 for f in rows], "color": colour},
            name="personal accuracy",
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 9, "color": colour},
            customdata=[f.accuracy.n for f in rows],
            hovertemplate="%{y:.2f} % (n = %{customdata})<extra></extra>",
        )
    )
    figure.update_xaxes(title="blocks r", type="category", color=theme.ink)
    figure.update_layout(
        height=380,
        yaxis={
            "title": "Personal accuracy",
            "ticksuffix": " %",
            "color": theme.ink,
            "gridcolor": theme.grid,
            "overlaying": "y2",
            "tickmode": "auto",
        },
        yaxis2={
            "title": "Degrees of freedom",
            "side": "right",
            "color": theme.faint,
            "showgrid": False,
            "tickformat": ",",
            "rangemode": "tozero",
        },
        legend={"orientation": "h", "y": -0.25},
        **_layout(theme),
    )
    said = "; ".join(f"r = {f.blocks}: {f.accuracy.text()} % with {f.degrees:,.0f}" for f in rows)
    return Chart(figure, f"Personal accuracy against degrees of freedom by number of blocks. {said}.")


def freedom_table(rows: Sequence[Freedom]) -> dict[str, list[object]]:
    """A row per number of blocks."""
    return {
        "blocks r": [f.blocks for f in rows],
        "degrees of freedom": [int(f.degrees) for f in rows],
        "personal accuracy, %": [round(f.accuracy.mean, 2) for f in rows],
        "std": [None if f.accuracy.std is None else round(f.accuracy.std, 2) for f in rows],
        "n": [f.accuracy.n for f in rows],
        "change against the first, points": [round(f.accuracy.mean - rows[0].accuracy.mean, 2) for f in rows],
    }


def _layout(theme: Theme) -> dict[str, object]:
    return {
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": theme.ink},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.faint, "activecolor": theme.ink},
    }
