"""The map of all published values: a small mark for each, at the position of the value in its table."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedcore.papers import library
from fedcore.papers.tables.printed_layout import PrintedTable, tables
from fedcore.papers.tables.status import MEASURED, STATUSES, CellStatus, TableCell, counts_text
from pages.widgets.markup import esc

STEP, SIDE = 8, 6
"""Distance between marks, and size of a mark, in pixels."""
PANEL_GAP = 6
_HALF = SIDE // 2
_SQUARE = f"h{SIDE}v{SIDE}h-{SIDE}z"
MARKS: dict[CellStatus, tuple[str, str, str]] = {
    "comparable": (_SQUARE, "fill:#009E73", ""),
    "with a caveat": (f"m0 {SIDE}v-{SIDE}h{SIDE}z", "fill:#0072B2", "fill:#56B4E9"),
    "not comparable": (f"l{SIDE} {SIDE}m-{SIDE} 0l{SIDE} -{SIDE}", "stroke:#D55E00;stroke-width:2", ""),
    "rehearsed": (f"m0 {SIDE}l{SIDE} -{SIDE}", "stroke:currentColor;stroke-width:2.5", ""),
    "in progress": (
        f"m0 {_HALF}a{_HALF} {_HALF} 0 1 0 {SIDE} 0a{_HALF} {_HALF} 0 1 0 -{SIDE} 0",
        "fill:#B8860B",
        "fill:#F0E442",
    ),
    "can be run": (_SQUARE, "fill:none;stroke:currentColor;stroke-width:1.2", ""),
    "needs weights": (
        f"m0.5 0.5h{SIDE - 1}v{SIDE - 1}h-{SIDE - 1}z",
        "fill:none;stroke:currentColor;stroke-width:0.8;stroke-dasharray:1.5 1",
        "",
    ),
    "needs data": ("m1.5 1.5h3v3h-3z", "fill:currentColor;opacity:0.45", ""),
    "not implemented": (f"m0 {_HALF}h{SIDE}", "stroke:currentColor;stroke-width:1;opacity:0.6", ""),
    "no single run": ("m2.2 2.2h1.6v1.6h-1.6z", "fill:currentColor;opacity:0.45", ""),
}
"""Status -> the path of its mark, its style, and its style in the dark theme if that differs."""
CellsByTable = Mapping[str, Sequence[TableCell]]


def map_html(cells: CellsByTable, dark: bool, rehearsal: bool) -> str:
    """Return the marks of all values, grouped by paper and table; each table is a button."""
    papers = []
    for book in library.works():
        statuses = [cell.status for table in tables(book) for cell in cells[table.name]]
        drawn = "".join(_table(table, cells[table.name], dark) for table in tables(book))
        papers.append(
            f"<section><h3>{esc(library.find(book).title)}: {esc(share_text(statuses, rehearsal))}</h3>"
            f'<div class="map">{drawn}</div></section>'
        )
    return f'<div class="papers">{"".join(papers)}</div>'


def share_text(statuses: Sequence[CellStatus], rehearsal: bool) -> str:
    """Return in words how many values were measured, or rehearsed."""
    counts = Counter(statuses)
    count = counts["rehearsed"] if rehearsal else sum(counts[s] for s in MEASURED)
    return f"{count:,} of {len(statuses):,} {'rehearsed' if rehearsal else 'measured'}"


def legend_html(cells: CellsByTable, dark: bool) -> str:
    """Return the marks of the statuses that occur, with their meaning."""
    present = {cell.status for of_table in cells.values() for cell in of_table}
    items = "".join(
        f'<li><svg width="{SIDE + 4}" height="{SIDE + 4}" viewBox="-2 -2 {SIDE + 4} {SIDE + 4}" '
        f'aria-hidden="true">{_path(status, [(0, 0)], dark)}</svg>'
        f'<span title="{esc(meaning)}">{esc(status)}</span></li>'
        for status, meaning in STATUSES.items()
        if status in present
    )
    return f'<ul class="legend">{items}</ul>'


def _table(table: PrintedTable, cells: Sequence[TableCell], dark: bool) -> str:
    """Return the button of a table: its name, and the marks of its values in the table's layout."""
    places: dict[CellStatus, list[tuple[int, int]]] = {}
    left, bottom = 0, 0
    for panel in table.panels:
        for i, row in enumerate(panel.rows):
            for j, position in enumerate(row.cells):
                if position is not None:
                    at = left + j * STEP, i * STEP
                    places.setdefault(cells[position].status, []).append(at)
        left += len(panel.columns) * STEP + PANEL_GAP
        bottom = max(bottom, len(panel.rows) * STEP)
    width, height = left - PANEL_GAP + 2, bottom + 2
    paths = "".join(_path(status, at, dark) for status, at in places.items())
    said = f"{table.title}: {counts_text([cell.status for cell in cells])}"
    return (
        f'<button data-choice="table {esc(table.name)}" aria-label="{esc(said)}" title="{esc(said)}">'
        f'<small>{esc(table.title)}</small><svg width="{width}" height="{height}" '
        f'viewBox="-1 -1 {width} {height}" aria-hidden="true">{paths}</svg></button>'
    )


def _path(status: CellStatus, places: Sequence[tuple[int, int]], dark: bool) -> str:
    mark, style, in_the_dark = MARKS[status]
    drawn = "".join(f"M{x} {y}{mark}" for x, y in places)
    return f'<path style="{(dark and in_the_dark) or style}" d="{drawn}"/>'
