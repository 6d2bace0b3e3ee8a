"""Captions, rows and columns of the papers' tables, in the order in which they are printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedcore.papers import library
from fedcore.papers.library import Paper, TableNotes
from fedcore.papers.published import PublishedValue, load

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
        values: as in the paper's file, with duplicates if the paper prints a value twice.
    """

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


class Headings:
    """The headings of each value of a table, from its fields and its position in the paper's file."""

    def __init__(self, values: Sequence[PublishedValue]) -> None:
        self.values = values

    def of(self, names: str, i: int) -> Heads:
        """Return the headings with these names: fields of the value, or methods of this class."""
        heads = []
        for name in names.split():
            computed = getattr(self, name, None)
            heads.append(computed(i) if computed else getattr(self.values[i], name))
        return tuple(heads)

    def target(self, i: int) -> str:
        return "Avg" if self.values[i].target == "avg" else self.values[i].target

    @cached_property
    def _targets(self) -> dict[str, list[str]]:
        return self._by_dataset("target")

    @cached_property
    def _settings(self) -> dict[str, list[str]]:
        return self._by_dataset("setting")

    def _by_dataset(self, name: str) -> dict[str, list[str]]:
        """Return the distinct headings of one name for each data set, in order."""
        names: dict[str, dict[str, None]] = {}
        for i, value in enumerate(self.values):
            names.setdefault(value.dataset, {})[self.of(name, i)[0]] = None
        return {dataset: list(of_dataset) for dataset, of_dataset in names.items()}

    def same_target(self, i: int) -> str:
        """The heading of a row of FedOT's Table 2: the names of one domain per data set."""
        position = self._targets[self.values[i].dataset].index(self.target(i))
        return " · ".join(dict.fromkeys(names[position] for names in self._targets.values()))

    def block(self, i: int) -> str:
        """The held-out domains of a block of FedOT's Tables 7 and 8, one per data set."""
        position = self._settings[self.values[i].dataset].index(self.values[i].setting)
        return ", ".join(names[position] for names in self._settings.values())

    def side(self, i: int) -> str:
        """The half of FedAlign's Table 4 that a value is in: ranks on the left, layers on the right."""
        return ("LoRA rank r, start layer 2", "LoRA start layer l, rank 4")[i // 2 % 2]

    def rank_and_layer(self, i: int) -> str:
        """The rank on the left and the layer on the right of a row of FedAlign's Table 4."""
        left, right = self.values[i - i % 4].setting, self.values[i - i % 4 + 2].setting
        return f"r = {left.split(',')[0].removeprefix('rank ')} | l = {right.rpartition(' ')[2]}"

    def partition(self, i: int) -> str:
        return self.values[i].setting.partition(", ")[0]

    def similarity(self, i: int) -> str:
        return self.values[i].setting.partition(", ")[2]


@library.cached
def tables(work: str) -> tuple[PrintedTable, ...]:
    """Return the tables of a paper and its other editions, in the order of the paper."""
    found: list[PrintedTable] = []
    for paper in library.editions(work):
        found += tables_of(paper, load(paper.key))
    return tuple(found)


def tables_of(paper: Paper, values: Sequence[PublishedValue]) -> list[PrintedTable]:
    """Lay out the values of a source."""
    by_table: dict[str, list[PublishedValue]] = {}
    for value in values:
        by_table.setdefault(value.table, []).append(value)
    return [_table(paper, name, by_table[name]) for name in sorted(by_table, key=table_order)]


def table_order(name: str) -> tuple[bool, int, str]:
    """Sort key for the tables of a source: 1, 1a, 2, 10, A.1; named ones in front in the file's order."""
    number = re.match(r"(\d+)(.*)", name)
    if number:
        return True, int(number[1]), number[2]
    return (True, 10_000, name) if re.match(r"[A-Z]\.\d", name) else (False, 0, "")


@library.cached
def all_tables() -> tuple[PrintedTable, ...]:
    """Return the tables of all papers."""
    return tuple(table for work in library.works() for table in tables(work))


def _default_layout(values: Sequence[PublishedValue]) -> dict[str, str]:
    """Return the headings of a table that gives none: those of its fields that have several values.

    Methods are rows. Base and new accuracies stand side by side, below each other for several data sets.
    """
    several = {
        name for name in ("dataset", "setting", "backbone", "target", "metric")
        if len({getattr(value, name) for value in values}) > 1
    }  # fmt: skip
    metrics = {(value.metric, value.target) for value in values}
    if len({metric for metric, _ in metrics}) == len(metrics):
        several.discard("target")  # such as the metric "base accuracy" with the target "base"
    elif len({target for _, target in metrics}) == len(metrics):
        several.discard("metric")
    panels = "dataset" if {"dataset", "metric"} <= several else ""
    rows = [name for name in ("setting", "backbone") if name in several]
    columns = [name for name in ("dataset", "target", "metric") if name in several and name != panels]
    return {
        "panels": panels,
        "rows": " ".join([*rows, "method"]),
        "columns": " ".join(columns) or "metric",
    }


def _table(paper: Paper, table: str, values: Sequence[PublishedValue]) -> PrintedTable:
    headings = Headings(values)
    notes = paper.tables.get(table, TableNotes())
    layout = _default_layout(values)
    if notes.rows or notes.columns:
        layout |= {
            "panels": notes.panels,
            "rows": notes.rows or "method",
            "columns": notes.columns or "dataset",
        }
    row_names, column_names = layout["rows"], layout["columns"]
    panels: dict[Heads, list[int]] = {}
    for i in range(len(values)):
        panels.setdefault(headings.of(layout["panels"], i), []).append(i)
    place_in = {i: (headings.of(row_names, i), headings.of(column_names, i)) for i in range(len(values))}
    made = []
    for heads, members in panels.items():
        rows = _grouped(dict.fromkeys(place_in[i][0] for i in members))
        columns = _grouped(dict.fromkeys(place_in[i][1] for i in members))
        at = {place_in[i]: i for i in members}
        cells = [PrintedRow(row, tuple(at.get((row, column)) for column in columns)) for row in rows]
        made.append(PrintedPanel(", ".join(heads), tuple(columns), tuple(cells)))
    title = paper.title_of(table)
    if paper.edition_of:
        edition = paper.title.partition(", ")[2] or paper.title
        title = f"{edition[0].upper()}{edition[1:]}, {title}"
    return PrintedTable(paper.key, table, title, notes.caption, tuple(values), tuple(made))


def _grouped(heads: Sequence[Heads] | dict[Heads, None]) -> list[Heads]:
    """Return headings grouped by their outer headings, in the order of first appearance."""
    ordered = list(heads)
    first: dict[Heads, int] = {}
    for i, head in enumerate(ordered):
        for depth in range(len(head) + 1):
            first.setdefault(head[:depth], i)
    return sorted(ordered, key=lambda head: [first[head[: d + 1]] for d in range(len(head))])
