"""The matrices and curves of a report as PDF and SVG at the column width of a paper, drawn by matplotlib.

The colours, dashes and markers are those of the screen. Text stays text: PDF embeds TrueType fonts, as
conferences ask for, and SVG can be edited.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.plots.heatmaps import difference_reach, frame_meaning
from fedcore.plots.theme import Theme, readable_ink, style
from fedcore.reports.views.curves import Curves
from fedcore.reports.views.matrices import SIDE_BY_SIDE, Heatmaps
from fedcore.reports.views.view import Figure as ReportFigure
from fedcore.results.curves import Series
from fedcore.results.panels.panel import Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.33, 6.9
"""Width in inches of one column and of both; LaTeX includes the figures without scaling."""
FORMATS = ("pdf", "svg")
MAX_TEXT_ROWS, MAX_TEXT_COLUMNS = 16, 10
"""Rows and columns of a matrix up to which values are written into the cells."""
MAX_TICKS = 20
NAME_LETTERS, TITLE_LETTERS = 24, 36
SMALL, MEDIUM = 6, 7
"""Sizes of text in points."""
_DRAWING = threading.Lock()  # matplotlib's settings are shared by all threads
_SETTINGS: Any = {
    "font.size": MEDIUM, "axes.titlesize": MEDIUM, "axes.labelsize": MEDIUM, "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL, "legend.fontsize": SMALL, "axes.linewidth": 0.5, "xtick.major.width": 0.5,
    "ytick.major.width": 0.5, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedlens",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.family": "DejaVu Sans", "path.sketch": None, "savefig.bbox": None,
}  # fmt: skip
_DASHES: dict[str, Any] = {
    "solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 3, 1.5, 3)),
}  # fmt: skip
_MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v",
    "triangle-left": "<", "triangle-right": ">", "cross": "P", "x": "X", "x-thin-open": "x", "star": "*",
    "pentagon": "p", "hexagon": "h", "hexagram": (6, 1, 0), "diamond-tall": "d", "diamond-wide": "d",
    "bowtie": (4, 1, 0),
    "hourglass": (4, 1, 45), "star-square": (8, 1, 0), "star-diamond": (4, 1, 0), "circle-cross": "8",
    "square-cross": "s",
}  # fmt: skip


def figure_files(shown: ReportFigure) -> dict[str, bytes]:
    """Return one figure in every format by suffix; equal content gives equal bytes.

    A figure of another kind than matrices or lines is drawn by plotly only, so it has no files.
    """
    import matplotlib as mpl

    if not isinstance(shown, Curves | Heatmaps):
        return {}
    with _DRAWING, mpl.rc_context(_SETTINGS):
        figure = _lines(shown) if isinstance(shown, Curves) else _heatmaps(shown)
        figure.draw_without_rendering()  # lays it out once, for all formats
        figure.set_layout_engine("none")
        return {suffix: _saved(figure, suffix) for suffix in FORMATS}


def _saved(figure: Figure, suffix: str) -> bytes:
    buffer = io.BytesIO()
    dates = {"CreationDate": None} if suffix == "pdf" else {"Date": None}
    figure.savefig(buffer, format=suffix, metadata={**dates, "Creator": "FedLens"})
    return buffer.getvalue()


def _heatmaps(shown: Heatmaps) -> Figure:
    """Draw matrices side by side under one colour scale, which is that of the screen."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels = shown.panels
    columns = min(SIDE_BY_SIDE, len(panels))
    rows = ceil(len(panels) / columns)
    width = COLUMN if len(panels) == 1 and len(panels[0].columns) <= MAX_TEXT_COLUMNS else PAGE
    tallest, names = max(len(p.rows) for p in panels), max(len(n) for p in panels for n in p.columns)
    body = min(0.2 * tallest, 3.0) + 0.06 * min(names, NAME_LETTERS) + 0.5
    figure = Figure(figsize=(width, max(1.5, rows * body)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    scale = _scale(shown)
    for i, ax in enumerate(axes.flat):
        if i < len(panels):
            image = _panel(ax, panels[i], scale, shown.kind)
            ax.set_ylabel("" if i % columns else panels[i].row_title)
        else:
            ax.set_axis_off()
    matrix = panels[0].matrix
    unit = matrix.unit if matrix is not None else "Value"
    label = {"accuracy": "Accuracy in %", "difference": "Points", "recorded": unit}[shown.kind]
    figure.colorbar(image, ax=axes, label=label, fraction=0.04, pad=0.02)
    if any(_is_small(p) and p.own_cells for p in panels):
        framed = Patch(facecolor="none", edgecolor=Theme().ink, label=frame_meaning(panels[0]))
        figure.legend(handles=[framed], loc="outside lower left", frameon=False)
    return figure


def _scale(shown: Heatmaps) -> dict[str, Any]:
    """Return colours and range: of accuracies 0 to 100 %, of differences even to both sides of 0."""
    if shown.kind == "recorded" and shown.panels[0].matrix is not None:
        low, high = shown.panels[0].matrix.color_range
        return {"cmap": "magma", "vmin": low, "vmax": high}
    if shown.kind == "difference":
        from matplotlib.colors import LinearSegmentedColormap

        reach = difference_reach(shown.panels)
        colours = LinearSegmentedColormap.from_list("differences", Theme().diverging)
        return {"cmap": colours, "vmin": -reach, "vmax": reach}
    return {"cmap": "cividis", "vmin": 0.0, "vmax": 100.0}


def _panel(ax: Axes, panel: Panel, scale: Mapping[str, Any], kind: str) -> Any:
    from matplotlib.patches import Rectangle

    image = ax.imshow(panel.values, aspect="auto", interpolation="nearest", **scale)
    ax.set_facecolor(Theme().no_data)
    ax.set_title(_short(panel.title, TITLE_LETTERS), fontweight="bold")
    ax.set_xlabel(panel.column_title)
    turned = max((len(n) for n in panel.columns), default=0) > 4
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    ax.set_xticks(*_ticks(panel.columns), **slanted)
    ax.set_yticks(*_ticks(panel.rows))
    ax.tick_params(length=0)
    if _is_small(panel):
        form = {"accuracy": ".0f", "difference": "+.0f", "recorded": ".2f"}[kind]
        for (i, j), value in np.ndenumerate(panel.values):
            if not np.isnan(value):
                written = ax.text(j, i, f"{value:{form}}", ha="center", va="center", size=SMALL - 1)
                written.set_color(_ink(image, value))
                written.set_in_layout(False)  # it lies within the axes: the layout need not measure it
        for i, j in panel.own_cells:
            colour = _ink(image, panel.values[i, j])
            ax.add_patch(Rectangle((j - 0.45, i - 0.45), 0.9, 0.9, fill=False, linewidth=0.8, color=colour))
    return image


def _is_small(panel: Panel) -> bool:
    """Return whether there is room in the cells for their values and frames."""
    return len(panel.rows) <= MAX_TEXT_ROWS and len(panel.columns) <= MAX_TEXT_COLUMNS


def _ink(image: Any, value: float) -> str:
    return str(readable_ink(np.array(image.cmap(image.norm(value))[:3])))


def _ticks(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return positions and texts of an axis: every name, or every n-th where more would not fit."""
    step = max(1, ceil(len(names) / MAX_TICKS))
    return list(range(0, len(names), step)), [_short(n) for n in names[::step]]


def _short(name: str, room: int = NAME_LETTERS) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _lines(shown: Curves) -> Figure:
    """Draw a line per row, with a band of one standard deviation where there are several seeds."""
    from matplotlib.figure import Figure

    below = ceil(len(shown.series) / 2)
    figure = Figure(figsize=(COLUMN, 2.1 + 0.14 * below), layout="constrained")
    ax = figure.subplots()
    seen: dict[str, int] = {}
    for series in shown.series:
        variant = seen.setdefault(series.method, 0)
        seen[series.method] += 1
        _line(ax, series, variant)
    ax.set_xlabel(shown.x_title)
    ax.set_ylabel("Accuracy in %")
    ax.grid(linewidth=0.3, color=Theme().grid)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, handlelength=3)
    return figure


def _line(ax: Axes, series: Series, variant: int) -> None:
    look, dashes = style(series.method), list(_DASHES.values())
    dash = _DASHES[look.dash] if not variant else dashes[variant % len(dashes)]
    label = _short(series.label) + (f" (n = {series.n})" if series.n > 1 else "")
    ax.plot(
        series.x, series.y, color=look.light, linestyle=dash, linewidth=1, label=label.lstrip("_") or "row",
        marker=_MARKERS.get(look.marker, "o"), markersize=3, markevery=max(1, len(series.x) // 8),
        markerfacecolor="none" if variant else look.light,
    )  # fmt: skip
    if any(d is not None for d in series.std):
        spread = np.array([d or 0.0 for d in series.std])
        mean = np.array(series.y)
        ax.fill_between(series.x, mean - spread, mean + spread, color=look.light, alpha=0.16, linewidth=0)
