"""The figures of a report as still pictures: inline in its page, and as PDF and SVG for a paper."""

from __future__ import annotations

from fedcore.plots.shapes import PIXELS_PER_INCH, Picture, pdf_file, svg_file
from fedcore.plots.still import still
from fedcore.plots.theme import Theme
from fedcore.reports.views.curves import Curves
from fedcore.reports.views.matrices import Heatmaps
from fedcore.reports.views.view import Figure

COLUMN, PAGE = 3.33 * PIXELS_PER_INCH, 6.9 * PIXELS_PER_INCH
"""Width of one column of a paper and of both, which is about that of a page of A4."""


def picture(figure: Figure, width: float = PAGE) -> tuple[Picture, str]:
    """Return a figure in the light theme, which prints, and its text alternative."""
    theme = Theme()
    chart = figure.chart(theme, round(width))
    return still(chart.figure, width, theme, figure.name), chart.alt


def figure_files(figure: Figure) -> dict[str, bytes]:
    """Return one figure in every format by suffix; equal content gives equal bytes.

    LaTeX includes it without scaling: lines, and a single matrix of few columns, are as wide as one column.
    """
    small = isinstance(figure, Heatmaps) and len(figure.panels) == 1 and len(figure.panels[0].columns) <= 10
    drawn, alt = picture(figure, COLUMN if small or isinstance(figure, Curves) else PAGE)
    return {"pdf": pdf_file(drawn), "svg": svg_file(drawn, alt)}
