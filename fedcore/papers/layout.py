"""The papers' tables as printed, and their export with our values beside the printed ones."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedcore.base.errors import FedLensError
from fedcore.papers import library
from fedcore.papers.cells import TableCell
from fedcore.papers.library import ListedHeadings, Paper
from fedcore.papers.published import COLUMNS, NAMING, PublishedValue, load
from fedcore.results.sharing import tex
from fedcore.results.statistics import group_by, nothing_differs

Heads = tuple[str, ...]
"""The headings of a row or column, outermost first."""


@dataclass(frozen=True)
class PrintedRow:
    """A row of a table; its cells are positions in the table's ``values``, None if nothing is printed."""

    heads: Heads
    cells: tuple[int | None, ...]


@dataclass(frozen=True)
class PrintedPanel:
    """A table, or a part of one that the paper prints under a separate heading."""

    title: str
    columns: tuple[Heads, ...]
    rows: tuple[PrintedRow, ...]


@dataclass(frozen=True)
class PrintedTable:
    """A table of a paper.

    Attributes:
        values: as in its file, with duplicates if a value is printed twice.
        cells: of a table without values, its text as printed; the first row has headings.
    """

    paper: str
    table: str
    title: str
    caption: str
    values: tuple[PublishedValue, ...]
    panels: tuple[PrintedPanel, ...]
    cells: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """Unique name for URLs and files, such as ``fedot-1``."""
        return f"{self.paper}-{self.table}".replace(" ", "-").replace("_", "-")


def shows_nothing(table: PrintedTable, cells: Sequence[TableCell]) -> bool:
    """Return whether a table is rehearsed as far as it can be, and no two values of a column differ."""
    if any(cell.missing or cell.active for cell in cells):
        return False
    measured = [cell.measurement if cell.status == "rehearsed" else None for cell in cells]
    return nothing_differs(
        [found.by_seed for i in column if i is not None and (found := measured[i]) is not None]
        for panel in table.panels
        for column in zip(*(row.cells for row in panel.rows), strict=True)
    )


def _headings(values: Sequence[PublishedValue], listed: Mapping[str, ListedHeadings], name: str) -> list[str]:
    """Return one heading of each value: one of ``listed``, or a field of the value."""
    if name in listed:
        return [listed[name].of(i) for i in range(len(values))]
    if name not in NAMING:
        raise FedLensError(
            f"{values[0].paper}, table {values[0].table}: no heading is called '{name}'; name one of the "
            f"{', '.join(NAMING)}, or list it under [tables.{values[0].table}.headings]",
            "tables",
        )
    texts = [str(getattr(value, name)) for value in values]
    return ["Avg" if name == "target" and text == "avg" else text for text in texts]


@library.cached
def tables(work: str) -> tuple[PrintedTable, ...]:
    """Return the tables of a paper and its other editions, in the order of the paper."""
    return tuple(table for paper in library.editions(work) for table in tables_of(paper, load(paper.key)))


def tables_of(paper: Paper, values: Sequence[PublishedValue]) -> list[PrintedTable]:
    """Lay out the values of a source: its tables 1, 1a, 2, 10, A.1; named ones in front, as in the file."""

    def place(name: str) -> tuple[bool, int, str]:
        if number := re.match(r"(\d+)(.*)", name):
            return True, int(number[1]), number[2]
        return (True, 10_000, name) if re.match(r"[A-Z]\.\d", name) else (False, 0, "")

    of_text: dict[str, list[PublishedValue]] = {
        name: [] for name, notes in paper.tables.items() if notes.cells
    }
    by_table = of_text | group_by(values, lambda value: value.table)
    return [_table(paper, name, by_table[name]) for name in sorted(by_table, key=place)]


@library.cached
def all_tables() -> tuple[PrintedTable, ...]:
    """Return the tables of all papers."""
    return tuple(table for work in library.works() for table in tables(work))


def _default_layout(values: Sequence[PublishedValue]) -> tuple[str, str, str]:
    """Return the headings of panels, rows and columns of a table that gives none: fields of several values.

    Methods are rows. Base and new accuracies stand side by side, below each other for several data sets.
    """
    several = {name for name in NAMING if len({getattr(value, name) for value in values}) > 1}
    metrics = {(value.metric, value.target) for value in values}
    if len({metric for metric, _ in metrics}) == len(metrics):
        several.discard("target")  # such as the metric "base accuracy" with the target "base"
    elif len({target for _, target in metrics}) == len(metrics):
        several.discard("metric")
    panels = "dataset" if {"dataset", "metric"} <= several else ""
    rows = [name for name in ("setting", "backbone") if name in several]
    columns = [name for name in ("dataset", "target", "metric") if name in several and name != panels]
    return panels, " ".join([*rows, "method"]), " ".join(columns) or "metric"


def _table(paper: Paper, table: str, values: Sequence[PublishedValue]) -> PrintedTable:
    notes = paper.notes_on(table)
    if not values:
        return PrintedTable(paper.key, table, paper.title_of(table), notes.caption, (), (), notes.cells)
    panels_of, rows_of, columns_of = notes.panels, notes.rows or "method", notes.columns or "dataset"
    if not (notes.rows or notes.columns):
        panels_of, rows_of, columns_of = _default_layout(values)

    def heads_of(names: str) -> list[Heads]:
        columns = [_headings(values, notes.headings, name) for name in names.split()]
        return list(zip(*columns, strict=True)) if columns else [()] * len(values)

    panels = group_by(range(len(values)), heads_of(panels_of).__getitem__)
    place_in = list(zip(heads_of(rows_of), heads_of(columns_of), strict=True))
    made = []
    for heads, members in panels.items():
        rows, columns = (_grouped(dict.fromkeys(place_in[i][axis] for i in members)) for axis in (0, 1))
        at = {place_in[i]: i for i in members}
        cells = [PrintedRow(row, tuple(at.get((row, column)) for column in columns)) for row in rows]
        made.append(PrintedPanel(", ".join(heads), tuple(columns), tuple(cells)))
    title = paper.title_of(table)
    if paper.edition_of:
        edition = paper.title.partition(", ")[2] or paper.title
        title = f"{edition[0].upper()}{edition[1:]}, {title}"
    return PrintedTable(paper.key, table, title, notes.caption, tuple(values), tuple(made))


def _grouped(heads: Iterable[Heads]) -> list[Heads]:
    """Return headings grouped by their outer headings, in the order of first appearance."""
    ordered = list(heads)
    first: dict[Heads, int] = {}
    for i, head in enumerate(ordered):
        for depth in range(1, len(head) + 1):
            first.setdefault(head[:depth], i)
    return sorted(ordered, key=lambda head: [first[head[:depth]] for depth in range(1, len(head) + 1)])


EXPORTED = (
    "paper", "table", "dataset", "setting", "backbone", "method", "target", "metric",
    "printed", "printed_std", "rule", "ours", "ours_std", "n", "difference", "comparability", "reasons",
    "rehearsed", "rehearsed_std", "rehearsed_n", "missing_runs", "seconds", "lacks",
)  # fmt: skip
"""Columns of the CSV file; a cell is empty if the number does not exist. ``rule`` is a key of ``RULES``."""


def table_csv(cells: Sequence[TableCell], cost: Callable[[TableCell], float | None]) -> str:
    """Return the cells of a table as CSV, a line per printed value in the order of the paper's file.

    Rehearsed values have separate columns, so that they are not mistaken for ours when files are combined.

    Args:
        cost: seconds that the missing runs of a cell take; None if that was never measured.
    """
    lines: list[list[object]] = []
    for cell in cells:
        value = cell.value
        nothing = [None] * 3
        rehearsed = cell.status == "rehearsed"
        numbers = nothing if cell.stat is None else [cell.stat.mean, cell.stat.std, cell.stat.n]
        seconds = cost(cell) if cell.missing else None
        lines.append(
            [
                library.find(value.paper).title,
                *(getattr(value, name) for name in COLUMNS),
                value.rule,
                *(nothing if rehearsed else numbers),
                cell.gap,
                cell.status,
                "; ".join([text for _, text in cell.comparability.reasons] or [cell.reason]),
                *(numbers if rehearsed else nothing),
                len(cell.missing),
                None if seconds is None else round(seconds),
                "; ".join(lack.text for lack in cell.lacks),
            ]
        )
    return library.csv_text([EXPORTED, *lines])


def file_name(table: PrintedTable, rehearsal: bool, suffix: str) -> str:
    """Return the file name for an exported table; it tells a rehearsal apart."""
    return f"{table.name}{'-rehearsal' if rehearsal else ''}.{suffix}"


_MARKS = {"with a caveat": r"$^\dagger$", "not comparable": r"$^\ddagger$"}


def table_latex(table: PrintedTable, by_value: Mapping[PublishedValue, TableCell]) -> str:
    """Return a booktabs table for each panel, with the rows and columns of the paper.

    A cell has three lines: as printed; ours as mean, sample standard deviation and number of seeds; the
    difference. A rehearsed value is in italics and has no difference.
    """
    panels = [_latex_panel(table, panel, number, by_value) for number, panel in enumerate(table.panels, 1)]
    return "\n".join([r"% needs \usepackage{booktabs}", *panels, ""])


def _latex_panel(
    table: PrintedTable, panel: PrintedPanel, number: int, by_value: Mapping[PublishedValue, TableCell]
) -> str:
    import pandas as pd

    cells = [by_value[table.values[i]] for row in panel.rows for i in row.cells if i is not None]
    parts = (library.find(table.paper).title, table.title, panel.title)
    title = f"{tex(', '.join(filter(None, parts)))}: {tex(table.caption)}"
    ours = r" (mean $\pm$ sample standard deviation, number of seeds)"
    if any(c.status == "rehearsed" for c in cells):
        ours += r", \textit{in italics: a rehearsal with a miniature model, no evidence}"
    heads = [
        # In braces, LaTeX does not take a bracket at the start of a row for an optional argument of the
        # preceding line's end.
        pd.MultiIndex.from_tuples([tuple(f"{{{tex(text)}}}" for text in heads) for heads in every])
        for every in ([row.heads for row in panel.rows], panel.columns)
    ]
    frame = pd.DataFrame(
        ["" if i is None else _latex_cell(by_value[table.values[i]]) for i in row.cells] for row in panel.rows
    )
    frame.index, frame.columns = (h if h.nlevels > 1 else h.get_level_values(0) for h in heads)
    text = frame.style.to_latex(
        column_format="l" * heads[0].nlevels + "c" * len(panel.columns),
        hrules=True,
        multirow_align="naive",
        multicol_align="c",
        caption=f"{title}. Each cell: as printed; ours{ours}; difference.",
        label=f"tab:{table.name}-{number}",
    )
    reasons = [(c.status, text) for c in cells if c.stat is not None for _, text in c.comparability.reasons]
    below = [
        rf"\par\smallskip{{\footnotesize {_MARKS.get(status, '')} {tex(reason)}}}"
        for status, reason in dict.fromkeys(reasons)
    ]
    end = r"\end{table}"
    return "\n".join([text.partition(end)[0].rstrip(), *below, end])


def _latex_cell(cell: TableCell) -> str:
    lines = [tex(cell.value.text)]
    if cell.stat is None:
        lines.append("--")
    else:
        ours, mark = tex(cell.stat.text(cell.value.digits)), _MARKS.get(cell.comparability.state, "")
        said = rf"\textit{{{ours}}}" if cell.status == "rehearsed" else f"{ours}{mark}"
        lines.append(f"{said} ({cell.stat.n or cell.seeds_text})")
    if cell.gap_text:
        lines.append(tex(cell.gap_text))
    stacked = r" \\ ".join(lines).replace("±", r"$\pm$")
    return rf"\shortstack{{{stacked}}}"
