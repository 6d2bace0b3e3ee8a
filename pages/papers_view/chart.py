"""The map of all published values: a small mark each, drawn where the value stands in its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedcore.papers.published import PAPERS
from fedcore.papers.tables.layout import BOOKS, PrintedTable, tables
from fedcore.papers.tables.standing import MEASURED, STANDINGS, CellStanding, Standing, counts_text
from pages.widgets.markup import esc

STEP, SIDE = 8, 6
"""Pixels from a mark to the next, and across a mark."""
PANEL_GAP = 6
_HALF = SIDE // 2
_SQUARE = f"h{SIDE}v{SIDE}h-{SIDE}z"
MARKS: dict[Standing, tuple[str, str, str]] = {
    "comparable": (_SQUARE, "fill:#009E73", ""),
    "with a caveat": (f"m0 {SIDE}v-{SIDE}h{SIDE}z", "fill:#0072B2", "fill:#56B4E9"),
    "not comparable": (f"l{SIDE} {SIDE}m-{SIDE} 0l{SIDE} -{SIDE}", "stroke:#D55E00;stroke-width:2", ""),
    "rehearsed": (f"m0 {SIDE}l{SIDE} -{SIDE}", "stroke:currentColor;stroke-width:2.5", ""),
    "in progress": (f"m0 {_HALF}a{_HALF} {_HALF} 0 1 0 {SIDE} 0a{_HALF} {_HALF} 0 1 0 -{SIDE} 0",
                    "fill:#B8860B", "fill:#F0E442"),
    "can be run": (_SQUARE, "fill:none;stroke:currentColor;stroke-width:1.2", ""),
    "needs weights": (f"m0.5 0.5h{SIDE - 1}v{SIDE - 1}h-{SIDE - 1}z",
                      "fill:none;stroke:currentColor;stroke-width:0.8;stroke-dasharray:1.5 1", ""),
    "needs data": ("m1.5 1.5h3v3h-3z", "fill:currentColor;opacity:0.45", ""),
    "not implemented": (f"m0 {_HALF}h{SIDE}", "stroke:currentColor;stroke-width:1;opacity:0.6", ""),
    "no single run": ("m2.2 2.2h1.6v1.6h-1.6z", "fill:currentColor;opacity:0.45", ""),
}  # fmt: skip
"""Standing -> the path of its mark, its style, and the style in the dark where another is needed."""
Cells = Mapping[str, Sequence[CellStanding]]


def map_html(cells: Cells, dark: bool, rehearsal: bool) -> str:
    """Return the marks of all values, grouped by paper and table; each table is a button."""
    papers = []
    for book in BOOKS:
        own = [cell.standing for table in tables(book) for cell in cells[table.name]]
        drawn = "".join(_table(table, cells[table.name], dark) for table in tables(book))
        papers.append(
            f"<section><h3>{esc(PAPERS[book].title)}: {esc(share_text(own, rehearsal))}</h3>"
            f'<div class="map">{drawn}</div></section>'
        )
    return f'<div class="papers">{"".join(papers)}</div>'


def share_text(standings: Sequence[Standing], rehearsal: bool) -> str:
    """Return how many of some values were measured or rehearsed here, in words."""
    counts = Counter(standings)
    count = counts["rehearsed"] if rehearsal else sum(counts[s] for s in MEASURED)
    return f"{count:,} of {len(standings):,} {'rehearsed' if rehearsal else 'measured'}"


def legend_html(cells: Cells, dark: bool) -> str:
    """Return the marks of the standings that occur, with their meaning."""
    there = {cell.standing for own in cells.values() for cell in own}
    items = "".join(
        f'<li><svg width="{SIDE + 4}" height="{SIDE + 4}" viewBox="-2 -2 {SIDE + 4} {SIDE + 4}" '
        f'aria-hidden="true">{_path(standing, [(0, 0)], dark)}</svg>'
        f'<span title="{esc(meaning)}">{esc(standing)}</span></li>'
        for standing, meaning in STANDINGS.items()
        if standing in there
    )
    return f'<ul class="legend">{items}</ul>'


def _table(table: PrintedTable, cells: Sequence[CellStanding], dark: bool) -> str:
    """Return the button of a table: its name, and its values where they stand in it."""
    places: dict[Standing, list[tuple[int, int]]] = {}
    left, bottom = 0, 0
    for panel in table.panels:
        for i, row in enumerate(panel.rows):
            for j, position in enumerate(row.cells):
                if position is not None:
                    at = left + j * STEP, i * STEP
                    places.setdefault(cells[position].standing, []).append(at)
        left += len(panel.columns) * STEP + PANEL_GAP
        bottom = max(bottom, len(panel.rows) * STEP)
    width, height = left - PANEL_GAP + 2, bottom + 2
    paths = "".join(_path(standing, at, dark) for standing, at in places.items())
    said = f"{table.title}: {counts_text([cell.standing for cell in cells])}"
    return (
        f'<button data-choice="table {esc(table.name)}" aria-label="{esc(said)}" title="{esc(said)}">'
        f'<small>{esc(table.title)}</small><svg width="{width}" height="{height}" '
        f'viewBox="-1 -1 {width} {height}" aria-hidden="true">{paths}</svg></button>'
    )


def _path(standing: Standing, places: Sequence[tuple[int, int]], dark: bool) -> str:
    mark, style, in_the_dark = MARKS[standing]
    drawn = "".join(f"M{x} {y}{mark}" for x, y in places)
    return f'<path style="{(dark and in_the_dark) or style}" d="{drawn}"/>'
