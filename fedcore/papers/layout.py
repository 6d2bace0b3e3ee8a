"""Captions, rows and columns of the papers' tables, in the order in which they are printed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedcore.base.errors import FedLensError
from fedcore.papers import library
from fedcore.papers.library import ListedHeadings, Paper, TableNotes
from fedcore.papers.published import PublishedValue, load
from fedcore.results.statistics import group_by

HEADINGS = ("dataset", "setting", "backbone", "method", "target", "metric")
"""Fields of a value that can be headings."""
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
    """A table of a paper; ``values`` are as in its file, with duplicates if a value is printed twice."""

    paper: str
    table: str
    title: str
    caption: str
    values: tuple[PublishedValue, ...]
    panels: tuple[PrintedPanel, ...]

    @property
    def name(self) -> str:
        """Unique name for URLs and files, such as ``fedot-1``."""
        return f"{self.paper}-{self.table}".replace(" ", "-").replace("_", "-")


def _headings(values: Sequence[PublishedValue], listed: Mapping[str, ListedHeadings], name: str) -> list[str]:
    """Return one heading of each value: one of ``listed``, a field of the value or a part of it.

    ``same_target`` and ``same_setting`` join the names at the same position of every data set, as a table
    does whose rows or panels are of one domain per data set.
    """
    if name in listed:
        return [listed[name].of(i) for i in range(len(values))]
    if name == "target":
        return ["Avg" if value.target == "avg" else value.target for value in values]
    if name in ("partition", "similarity"):
        return [value.setting.partition(", ")[0 if name == "partition" else 2] for value in values]
    field = name.removeprefix("same_")
    if field not in HEADINGS:
        raise FedLensError(
            f"{values[0].paper}, table {values[0].table}: no heading is called '{name}'; name one of the "
            f"{', '.join(HEADINGS)}, or list it under [tables.{values[0].table}.headings]",
            "tables",
        )
    if field == name:
        return [str(getattr(value, name)) for value in values]
    headings = list(zip((value.dataset for value in values), _headings(values, listed, field), strict=True))
    by_data: dict[str, list[str]] = {}
    for dataset, heading in dict.fromkeys(headings):
        by_data.setdefault(dataset, []).append(heading)
    places = (by_data[dataset].index(heading) for dataset, heading in headings)
    between = " · " if field == "target" else ", "
    return [between.join(dict.fromkeys(of[place] for of in by_data.values())) for place in places]


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

    by_table = group_by(values, lambda value: value.table)
    return [_table(paper, name, by_table[name]) for name in sorted(by_table, key=place)]


@library.cached
def all_tables() -> tuple[PrintedTable, ...]:
    """Return the tables of all papers."""
    return tuple(table for work in library.works() for table in tables(work))


def _default_layout(values: Sequence[PublishedValue]) -> dict[str, str]:
    """Return the headings of a table that gives none: those of its fields that have several values.

    Methods are rows. Base and new accuracies stand side by side, below each other for several data sets.
    """
    several = {
        name
        for name in ("dataset", "setting", "backbone", "target", "metric")
        if len({getattr(value, name) for value in values}) > 1
    }
    metrics = {(value.metric, value.target) for value in values}
    if len({metric for metric, _ in metrics}) == len(metrics):
        several.discard("target")  # such as the metric "base accuracy" with the target "base"
    elif len({target for _, target in metrics}) == len(metrics):
        several.discard("metric")
    panels = "dataset" if {"dataset", "metric"} <= several else ""
    rows = [name for name in ("setting", "backbone") if name in several]
    columns = [name for name in ("dataset", "target", "metric") if name in several and name != panels]
    return {"panels": panels, "rows": " ".join([*rows, "method"]), "columns": " ".join(columns) or "metric"}


def _table(paper: Paper, table: str, values: Sequence[PublishedValue]) -> PrintedTable:
    notes = paper.tables.get(table, TableNotes())
    layout = _default_layout(values)
    if notes.rows or notes.columns:
        layout |= {
            "panels": notes.panels,
            "rows": notes.rows or "method",
            "columns": notes.columns or "dataset",
        }

    def heads_of(names: str) -> list[Heads]:
        columns = [_headings(values, notes.headings, name) for name in names.split()]
        return list(zip(*columns, strict=True)) if columns else [()] * len(values)

    panels = group_by(range(len(values)), heads_of(layout["panels"]).__getitem__)
    place_in = list(zip(heads_of(layout["rows"]), heads_of(layout["columns"]), strict=True))
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
