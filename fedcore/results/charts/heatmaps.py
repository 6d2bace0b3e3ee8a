"""Heatmaps side by side under one colour axis."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from fedcore.base.presentation import MatrixChart
from fedcore.results.charts.theme import (
    ACCURACY_SCALE,
    ALL_LABELS,
    DARK_TEXT_FROM,
    LABEL_LETTERS,
    LEGEND_BELOW,
    RECORDED_SCALE,
    WIDE_PIXELS,
    Chart,
    Theme,
    annotation,
    cell_texts,
    colours_at,
    escape,
    hover,
    legend_key,
    rounds_as_python,
    shorten,
    silent_trace,
    ticks,
)
from fedcore.results.panels import Panel
from fedcore.results.statistics import rounded

NARROW_SPREAD = 50.0
"""Spread of the values in points up to which a scale from 0 to 100 % hides their differences."""
MAX_WITH_GAPS = 40
"""Number of rows or columns above which cells touch; between small cells, gaps would form a pattern."""
HELD_OUT = "held out"  # rows of FedOT's ACC matrix
LETTER, SMALL, BESIDE = 7.4, 5.6, 120  # pixels: a letter of a title, of a name; colour bar and axes' titles
COLOUR_BAR, COLOUR_BAR_GAP = 99, 0.03  # pixels; share of the panels' width, for windows wider than expected
OVERHANG = 80  # pixels by which the title of a single panel may exceed its width
CELL, PAPER_CELL = 30, 18  # pixels, height of a row
PAPER = 500, 700  # pixels: wider than a telephone, and up to a page of paper, which has rows of PAPER_CELL
FRAME, FRAMED_FROM = 2, 10  # pixels: the frame of the diagonal, and the smallest cell that has one
MANY_ROWS = 40
TEXT_COLUMNS = 12  # number of columns up to which values are printed in the cells, if they fit
TEXT_WIDTH = {"accuracy": 20, "difference": 20, "recorded": 26}  # pixels
BAR, NOTE_HEIGHT = 4, 26  # pixels: the bar of a panel's progress; it and its text
PanelKind = Literal["accuracy", "difference", "recorded"]
Place = tuple[int, int, int]
"""A cell: the positions of its panel in the chart, and of its row and column there."""
Extent = tuple[tuple[float, float], tuple[float, float]]
"""Left and right, bottom and top of a panel, as shares of the chart."""


@dataclass(frozen=True)
class PanelNote:
    """One line between the title of a panel and its heatmap: a text, and a bar of the progress.

    Attributes:
        share: length of the bar, 0 to 1.
        colour: of the bar.
    """

    text: str
    share: float
    colour: str


def heatmap_grid(
    panels: Sequence[Panel],
    theme: Theme,
    columns: int = 3,
    fitted: bool = False,
    width: int = WIDE_PIXELS,
    notes: Sequence[PanelNote] = (),
) -> Chart:
    """Draw one heatmap per panel under one colour axis, grey where there is no data.

    Matrices that a method records have another colour scale, so that they are not taken for accuracies.

    Args:
        columns: number of panels per row.
        fitted: whether the colours span the values instead of 0 to 100 %.
        width: approximate width of the chart in pixels; text that does not fit is shortened or left out.
        notes: one per panel; default: none has one.
    """
    matrix = next((p.matrix for p in panels if p.matrix is not None), None)
    if matrix is not None:
        low, high = matrix.color_range
        axis = _coloraxis(RECORDED_SCALE, low, high, matrix.unit, theme)
        figure = _grid(panels, theme, columns, axis, "recorded", width, notes)
        return Chart(figure, _matrix_alt(panels, matrix))
    low, high = (0.0, 100.0)
    if fitted:
        measured = _measured_values(panels)
        if measured.size:
            low, high = float(np.floor(measured.min())), float(np.ceil(measured.max()))
            high = max(high, low + 1)
    axis = _coloraxis(ACCURACY_SCALE, low, high, "Accuracy in %", theme)
    return Chart(_grid(panels, theme, columns, axis, "accuracy", width, notes), _accuracy_alt(panels))


def narrow_spread(panels: Sequence[Panel]) -> str | None:
    """Return the range of the accuracies in words if fitted colours would show more; None otherwise."""
    measured = _measured_values(panels)
    if any(p.matrix is not None for p in panels) or not measured.size or np.ptp(measured) > NARROW_SPREAD:
        return None
    return f"{np.floor(measured.min()):.0f} to {np.ceil(measured.max()):.0f} %"


def difference_grid(
    panels: Sequence[Panel],
    theme: Theme,
    columns: int = 3,
    width: int = WIDE_PIXELS,
    what: str = "Difference from the baseline",
    marked: Place | None = None,
) -> Chart:
    """Draw differences in points, in colours that diverge around 0, and a frame around a marked cell.

    The text alternative calls them ``what``.
    """
    # the largest difference, at least 1, at which the colour scale ends on both sides
    reach = max(1.0, float(np.ceil(np.abs(_measured_values(panels)).max(initial=0.0))))
    axis = _coloraxis(theme.diverging, -reach, reach, "Points", theme) | {"cmid": 0}
    means = [(p.title, np.nanmean(p.values)) for p in panels if not np.isnan(p.values).all()]
    parts = [f"{title}: {mean:+.1f} points on average" for title, mean in means]
    figure = _grid(panels, theme, columns, axis, "difference", width)
    if marked is not None:
        panel, row, column = marked
        nth = str(panel + 1) if panel else ""
        corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        figure.add_shape(xref=f"x{nth}", yref=f"y{nth}", **corners, line={"color": theme.ink, "width": 4})
    return Chart(figure, f"{what}. " + "; ".join(parts) + ".")


def _measured_values(panels: Sequence[Panel]) -> np.ndarray:
    return np.concatenate([p.values[~np.isnan(p.values)] for p in panels] or [np.zeros(0)])


class _Places:
    """The places of panels in rows of ``columns``, in pixels and in shares of the chart.

    Attributes:
        columns: panels beside each other, as many as there are at most.
        height: of the chart in pixels; first_row: of its upper panels, beside which the colour bar is.
        margin: around the panels, in pixels.
        title_letters: letters of a title for which there is room.
    """

    def __init__(self, panels: Sequence[Panel], columns: int, pixels: int, notes: bool) -> None:
        self.columns = max(1, min(columns, len(panels)))
        rows = max(1, ceil(len(panels) / self.columns))
        tallest = max((len(p.rows) for p in panels), default=1)
        row = PAPER_CELL if PAPER[0] < pixels <= PAPER[1] else CELL
        self._row = row if tallest <= MANY_ROWS else max(4, 1200 // tallest)
        full = max(7 * row, tallest * self._row)
        of_row = [panels[i * self.columns : (i + 1) * self.columns] for i in range(rows)]
        # the name of a shared row has two lines; a row of panels is as tall as its tallest one
        self._full, self._shared = full, 2 * self._row
        bodies = [self._shared if some and all(p.shared for p in some) else full for some in of_row]
        below = _longest(n for p in panels for n in p.columns)  # they are slanted
        above = NOTE_HEIGHT if notes else 0
        self._gap = (max(74, 34 + 4 * below) if below else 60) + above
        self.first_row = bodies[0] if bodies else full
        self._inner = sum(bodies) + (rows - 1) * self._gap
        self._above = [sum(bodies[:i]) + i * self._gap for i in range(rows)]  # pixels above a row of panels
        name = _longest(n for p in panels for n in p.rows)
        inside = pixels - BESIDE - SMALL * name
        right = 8
        if any(p.values.size for p in panels):
            # where the colour bar takes more, plotly finds that out by drawing everything twice
            right = ceil(COLOUR_BAR + COLOUR_BAR_GAP * inside)
        # chart.js gives the names of rows their room on the left
        self.margin = {"l": 8, "r": right, "t": 54 + above, "b": 88, "pad": 0}
        self.height = int(self._inner + self.margin["t"] + self.margin["b"])
        usual = min(
            0.12, (0.34 if self.columns < 5 else 0.22) / self.columns, 0.03 + name * 0.0065
        )  # between two panels
        self._aside = max(usual, min(0.2, (LETTER * name + 14) / max(1, inside)))  # a page of paper is narrow
        self._width = (1 - self._aside * (self.columns - 1)) / self.columns
        self._pixels = self._width * inside  # of a panel
        self.title_letters = (inside + OVERHANG) / LETTER
        if self.columns > 1:
            self.title_letters = (self._width + self._aside) * inside / LETTER - 3

    def ends(self, i: int, panel: Panel) -> Extent:
        """Return the place of panel ``i``."""
        row, column = divmod(i, self.columns)
        left, top = column * (self._width + self._aside), 1 - self._above[row] / self._inner
        return (left, min(1.0, left + self._width)), (max(0.0, top - self._height(panel) / self._inner), top)

    def cell(self, panel: Panel) -> tuple[float, float]:
        """Return the approximate width and height of a cell in pixels."""
        return self._pixels / max(1, len(panel.columns)), self._height(panel) / max(1, len(panel.rows))

    def _height(self, panel: Panel) -> float:
        return self._shared if panel.shared else self._full


def _longest(names: Iterable[str]) -> int:
    """Return the letters of the longest name, as it is written on an axis."""
    return max((min(len(name), LABEL_LETTERS) for name in names), default=0)


def _grid(
    panels: Sequence[Panel],
    theme: Theme,
    columns: int,
    coloraxis: dict[str, Any],
    kind: PanelKind,
    pixels: int,
    notes: Sequence[PanelNote] = (),
) -> go.Figure:
    """Draw panels in rows of ``columns``.

    Traces are plain dicts, since plotly validates each object that it creates: seconds for many panels.
    """
    places = _Places(panels, columns, pixels, bool(notes))
    data: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    framed = False
    for i, panel in enumerate(panels):
        ends, nth, note = places.ends(i, panel), str(i + 1) if i else "", notes[i] if notes else None
        outer = i % places.columns == 0, i + places.columns >= len(panels)
        axes |= _panel_axes(panel, theme, nth, ends, *outer)
        annotations += _panel_texts(panel, note, theme, nth, ends, places.title_letters)
        shapes += _note_bar(note, theme, ends) if note else []
        inks = _inks(panel, theme, kind, coloraxis["cmin"], coloraxis["cmax"])
        texts: list[dict[str, Any]] = []
        size = places.cell(panel)
        fit = len(panel.columns) <= TEXT_COLUMNS and size[0] >= TEXT_WIDTH[kind]
        if panel.values.size and fit and len(panel.rows) <= MANY_ROWS:
            y, x = np.nonzero(~np.isnan(panel.values))
            form = {"accuracy": ".0f", "difference": "+.0f", "recorded": ".2f"}[kind]
            texts = [cell_texts(x, y, [f"{v:{form}}" for v in panel.values[y, x]], inks[y, x])]
        # one model of all clients has no other cells than those
        frames = [] if panel.shared or min(size) < FRAMED_FROM else _frames(panel, inks, size)
        framed = framed or bool(frames)
        of_panel = {"xaxis": f"x{nth}", "yaxis": f"y{nth}"}
        data += [trace | of_panel for trace in (_heatmap(panel, kind), *texts, *frames)]
    bar = coloraxis["colorbar"] | {"lenmode": "pixels", "len": places.first_row, "y": 1, "yanchor": "top"}
    if framed:
        frame = {"symbol": "square-open", "size": 13, "color": theme.ink, "line": {"width": FRAME}}
        meaning = "global model (G)" if panels[0].row_title == HELD_OUT else "own test images"
        data.append(legend_key(meaning, frame))
    if any(np.isnan(p.values).any() for p in panels):
        gap_mark = {"symbol": "square", "size": 13, "color": theme.no_data}
        data.append(legend_key("did not take part, or not measured", gap_mark))
    layout = {
        **theme.layout,
        **axes,
        "annotations": annotations,
        "shapes": shapes,
        "coloraxis": coloraxis | {"colorbar": bar},
        "height": places.height,
        "legend": {**LEGEND_BELOW, "x": 0},
        "margin": places.margin,
        "plot_bgcolor": theme.no_data,
        "font": {"color": theme.ink, "size": 12},
        "hoverlabel": {**theme.layout["hoverlabel"], "align": "left"},
        "uirevision": "grid",
    }
    return go.Figure({"data": data, "layout": layout})


def _heatmap(panel: Panel, kind: PanelKind) -> dict[str, Any]:
    """Return the trace of a panel, with hover texts of a cell's place, value and counts.

    One text per cell would be made, copied and sent one by one. The counts are one array of integers, and the
    names are those of the axes (``_axis_names``).
    """
    words = "%{y} on %{x}"
    if panel.matrix is not None:
        words = f"%{{y}} {panel.matrix.verb} %{{x}}"
    elif panel.row_title == "client":
        words = "%{y}, round %{x}"
    elif panel.row_title == HELD_OUT:
        words = "%{y} held out, %{customdata[2]} on %{x}"
    value = {"accuracy": "%{z:.1f} %", "difference": "%{z:+.1f} points", "recorded": "%{z:.3f}"}[kind]
    words += f"<br><b>{value}</b>"
    counts: dict[str, Any] = {}
    if panel.total.any():
        numbers = [panel.correct, panel.total]
        if panel.row_title == HELD_OUT:
            is_global = [[row == column for column in panel.columns] for row in panel.rows]
            numbers.append(np.where(is_global, "global model (G)", "client models (P)").astype(object))
        counts, words = (
            {"customdata": np.stack(numbers, axis=-1)},
            f"{words} (%{{customdata[0]}} of %{{customdata[1]}})",
        )
    gap = 1 if max(len(panel.rows), len(panel.columns)) <= MAX_WITH_GAPS else 0
    return {
        "type": "heatmap",
        "z": rounds_as_python(panel.values, 3 if kind == "recorded" else 1),
        "x": np.arange(len(panel.columns)),
        "y": np.arange(len(panel.rows)),
        **counts,
        "hovertemplate": hover(words),
        "coloraxis": "coloraxis",
        "xgap": gap,
        "ygap": gap,
        "hoverongaps": False,
    }


def _inks(panel: Panel, theme: Theme, kind: PanelKind, low: float, high: float) -> np.ndarray:
    """Return the colour in which each cell is written and framed: dark on light cells, light on dark ones.

    Shape: (rows, columns), texts.
    """
    share = (panel.values - low) / max(high - low, 1e-9)
    if kind == "difference":  # whichever has the higher contrast (WCAG 2)
        rgb = colours_at(theme.diverging, share)
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
        return np.where((luminance + 0.05) ** 2 > 0.05 * 1.05, "#000000", "#ffffff")
    return np.where(100 * share >= DARK_TEXT_FROM[kind], "#000000", "#ffffff")


def _frames(panel: Panel, inks: np.ndarray, size: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the frames of the diagonal cells, one trace per colour; ``size`` is that of a cell in pixels."""
    inset_x, inset_y = (0.5 - (FRAME / 2 + 0.5) / pixels for pixels in size)
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1), (np.nan, np.nan)])
    lines: dict[str, list[np.ndarray]] = {}
    for i, j in panel.own_cells:
        lines.setdefault(str(inks[i, j]), []).append(np.array((j, i)) + corners * (inset_x, inset_y))
    return [
        silent_trace(x, y, "lines", line={"width": FRAME, "color": ink})
        for ink, frames in lines.items()
        for x, y in [np.concatenate(frames).T]
    ]


def _panel_axes(
    panel: Panel, theme: Theme, nth: str, ends: Extent, first: bool, last: bool
) -> dict[str, Any]:
    """Return the axes of a panel; the first one of a row and the last one of a column have titles."""
    names_x, names_y = _axis_names(panel.columns, 14), _axis_names(panel.rows, MANY_ROWS)
    if panel.shared:
        names_y["ticktext"] = ["all clients<br>share it"]
    shared = {"showgrid": False, "zeroline": False, "tickfont": {"size": 11, "color": theme.ink}, "ticks": ""}
    shared |= {**ALL_LABELS, "tickmode": "array"}
    small = {"font": {"size": 11, "color": theme.faint}, "standoff": 4}
    longest = max((len(n) for n in panel.columns), default=0)
    across = {
        **shared,
        "anchor": f"y{nth}",
        "domain": ends[0],
        **names_x,
        "title": {"text": panel.column_title if last else "", **small},
        "range": [-0.5, max(0.5, len(panel.columns) - 0.5)],
        "tickangle": 0 if longest <= 4 else -35,
    }
    down = {
        **shared,
        "anchor": f"x{nth}",
        "domain": ends[1],
        **names_y,
        "title": {"text": panel.row_title if first else "", **small},
        "range": [max(0.5, len(panel.rows) - 0.5), -0.5],
    }
    return {f"xaxis{nth}": across, f"yaxis{nth}": down}


def _axis_names(names: Sequence[str], room: int) -> dict[str, Any]:
    """Return the labels of an axis, shortened if need be, and the whole names for hover texts.

    Plotly names a place by the label on it, or else by the alias of its number; so that hover texts always
    have the whole name, labels lie beside their places: four times plotly's tolerance, which grows as a
    reader zooms out, and less than a pixel.
    """
    places, texts = ticks(names, room)
    return {
        "tickvals": np.array(places) + 4e-4 * len(names),
        "ticktext": texts,
        "labelalias": {str(i): escape(name) for i, name in enumerate(names)},
        "hoverformat": "d",
    }


def _note_bar(note: PanelNote, theme: Theme, ends: Extent) -> list[dict[str, Any]]:
    """Return the bar of a panel's progress, which lies on its heatmap: a track, and the share done."""
    (left, right), (_, top) = ends
    return [
        {
            "type": "rect",
            "xref": "paper",
            "yref": "paper",
            "x0": left,
            "x1": left + share * (right - left),
            "ysizemode": "pixel",
            "yanchor": top,
            "y0": 3,
            "y1": 3 + BAR,
            "fillcolor": colour,
            "line": {"width": 0},
        }
        for share, colour in ((1.0, theme.no_data), (note.share, note.colour))
        if share > 0
    ]


def _panel_texts(
    panel: Panel, note: PanelNote | None, theme: Theme, nth: str, ends: Extent, letters: float
) -> list[dict[str, Any]]:
    """Return the annotations of a panel: its title, its note below that, and the text in an empty one.

    Args:
        letters: letters of a title for which there is room.
    """
    x, y = sum(ends[0]) / 2, ends[1][1]
    above = {"xanchor": "center", "yanchor": "bottom"}
    font = {"size": 14, "color": theme.ink}
    title = f"<b>{escape(shorten(panel.title, letters))}</b>"
    texts = [annotation(title, x, y, font=font, yshift=4 + (NOTE_HEIGHT if note else 0), **above)]
    if not panel.values.size:
        domain = {"xref": f"x{nth} domain", "yref": f"y{nth} domain"}
        texts.append(annotation(panel.empty_text, 0.5, 0.5, font=font, **domain))
    if note is not None:
        small = {"size": 12, "color": theme.faint}
        text = escape(shorten(note.text, letters * LETTER / SMALL))
        texts.append(annotation(text, x, y, font=small, yshift=2 * BAR, **above))
    return texts


def _coloraxis(scale: object, low: float, high: float, title: str, theme: Theme) -> dict[str, Any]:
    bar = {
        "title": {"text": title, "side": "right", "font": {"size": 12, "color": theme.faint}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickfont": {"color": theme.faint},
    }
    return {"colorscale": scale, "cmin": low, "cmax": high, "colorbar": bar}


def _accuracy_alt(panels: Sequence[Panel]) -> str:
    parts = []
    for p in panels:
        mean = p.own_mean
        if p.row_title == HELD_OUT and mean is not None:
            beside = [v for i, j in enumerate(p.own_columns) for c, v in enumerate(p.values[i]) if c != j]
            parts.append(f"{p.title}, G {mean:.1f} %, P {np.nanmean(beside):.1f} %")
            continue
        measured = p.values[~np.isnan(p.values)]
        if mean is not None:
            parts.append(f"{p.title}, own accuracy {mean:.1f} %")
        elif measured.size:  # a matrix without a diagonal, such as methods by domain
            parts.append(f"{p.title}, from {measured.min():.1f} to {measured.max():.1f} %")
        else:
            parts.append(f"{p.title}, no data yet")
    return "Accuracy heatmaps. " + "; ".join(parts) + "." if parts else "No heatmaps yet."


def _matrix_alt(panels: Sequence[Panel], matrix: MatrixChart) -> str:
    parts = []
    for p in panels:
        if not p.values.size:
            parts.append(f"{p.title}, {p.empty_text}")
            continue
        on_diagonal = [p.values[i, j] for i, j in enumerate(p.own_columns) if not np.isnan(p.values[i, j])]
        alone = f"{p.title}, a client's own {matrix.unit.lower()}"
        if np.any(on_diagonal):
            parts.append(f"{alone} {np.mean(on_diagonal):.2f} on average")
        else:  # nothing that a client is to itself
            low, high = np.nanmin(p.values), np.nanmax(p.values)
            parts.append(f"{p.title}, {matrix.unit.lower()} between clients {low:.2f} to {high:.2f}")
    return f"{matrix.title}. {'; '.join(parts)}."


def panel_table(panel: Panel) -> Mapping[str, list[object]]:
    """Return a panel as a table: a column per test set, values rounded as in the heatmap."""
    digits = 1 if panel.matrix is None else 3
    table: dict[str, list[object]] = {panel.row_title: list(panel.rows)}
    for name, column in zip(panel.columns, panel.values.T.tolist(), strict=True):
        table[name] = [rounded(v, digits) for v in column]
    return table
