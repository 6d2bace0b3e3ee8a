"""A table that was pasted or uploaded, and the printed values in its cells."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.base.errors import FedLensError
from fedcore.papers import library
from fedcore.papers.published import COLUMNS, PublishedValue, decimals_of, values_from

Role = Literal["method", "dataset", "setting", "target", "metric", "backbone", "value", "ignored"]
ROLES: dict[Role, str] = {
    "value": "values of",
    "method": "method",
    "dataset": "data set",
    "setting": "setting",
    "target": "domain or class group",
    "metric": "metric",
    "backbone": "backbone",
    "ignored": "left out",
}
LARGEST = 2_000
"""Lines of a pasted table."""
_NUMBER = re.compile(
    r"^[*_↑↓\s]*(?P<value>-?\d+(?:[.,]\d+)?)\s*%?\s*(?:(?:±|\+-|\+/-|\\pm|\(|\$\\pm\$)\s*(?P<std>\d+(?:[.,]\d+)?)\)?)?[*_↑↓\s]*$"
)
_GROUPED = re.compile(r"\d,\d{3}(?!\d)")
"""A comma that separates thousands in one country and decimals in another."""
AVERAGE = "avg"
_HEADINGS: dict[str, Role] = {
    "data": "dataset",
    "setting": "setting",
    "backbone": "backbone",
    "domain": "target",
    "metric": "metric",
}
"""Word in the heading of a column of texts -> the role of the column."""
_GROUPS = {"base": "base", "seen": "base", "new": "new", "novel": "new", "unseen": "new"}
"""First word of the heading of a column of values -> the group of classes."""
_EMPTY = ("", "-", "\N{EN DASH}", "\N{EM DASH}", "n/a", "N/A", "--")


@dataclass(frozen=True)
class PastedColumn:
    """The content of a column of a printed table.

    Attributes:
        role: "value" for accuracies; the others name the values of their line.
        dataset, target, metric: of a column of values, unless another column names them.
    """

    role: Role
    dataset: str = ""
    target: str = "avg"
    metric: str = ""


@dataclass(frozen=True)
class PastedTable:
    """The cells of a pasted table: one line of headings, then the lines."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    @property
    def is_long(self) -> bool:
        """True if it has the columns of ``values.csv``, one value a line."""
        return set(COLUMNS) == set(self.head)


def read(text: str) -> PastedTable:
    """Read a table that was copied from a page, a spreadsheet, Markdown, LaTeX or a CSV file."""
    lines = [line.rstrip("\r\n") for line in text.strip("\n").splitlines() if line.strip()]
    if len(lines) < 2:
        raise FedLensError("paste a line of headings and at least one line of values", "table")
    if len(lines) > LARGEST:
        raise FedLensError(
            f"the table has {len(lines):,} lines; divide it into tables of {LARGEST:,}", "table"
        )
    try:
        # one space for several: the pattern of numbers is slow on long runs of them
        rows = [[" ".join(cell.split()) for cell in row] for row in _rows(lines)]
    except csv.Error as error:
        raise FedLensError(f"the table cannot be read: {error}; mend that line", "table") from error
    width = len(rows[0])
    for number, row in enumerate(rows, start=1):
        if len(row) != width:
            raise FedLensError(
                f"line {number} has {len(row)} cells and the headings {width}; add or remove a separator, or "
                "quote a cell that contains one",
                "table",
            )
    if width < 2:
        raise FedLensError("the table has one column; separate cells by tabs, commas, | or &", "table")
    return PastedTable(tuple(rows[0]), tuple(map(tuple, rows[1:])))


def _rows(lines: Sequence[str]) -> list[list[str]]:
    first = lines[0]
    if "|" in first:
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
        return [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    if "&" in first:
        rules = r"\\(?:top|mid|bottom|h|c)(?:rule|line)(?:\{[^}]*\})?"
        cleaned = [re.sub(rules, "", line).replace(r"\\", "").strip() for line in lines]
        plain = [re.sub(r"\\(?:textbf|underline|textit)\{([^{}]*)\}", r"\1", line) for line in cleaned]
        return [[cell.strip().replace(r"\%", "%") for cell in line.split("&")] for line in plain if line]
    if "\t" in first:
        return [[cell.strip() for cell in line.split("\t")] for line in lines]
    separator = ";" if first.count(";") > first.count(",") else ","
    return [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)]


def guess(table: PastedTable) -> list[PastedColumn]:
    """Guess what the columns hold: numbers are values; texts name methods, data sets and so on.

    The heading of a column of values is a data set, or a metric if another column names the data sets.
    """
    columns: list[PastedColumn] = []
    for i, title in enumerate(table.head):
        cells = [line[i] for line in table.lines if line[i] not in _EMPTY]
        if cells and sum(_NUMBER.match(cell) is not None for cell in cells) >= len(cells) / 2:
            group = _group(title)
            if title.lower().strip(". ") in ("avg", "average", "mean"):
                columns.append(PastedColumn("value", AVERAGE))
            else:
                columns.append(
                    PastedColumn("value", "", group, title) if group else PastedColumn("value", title)
                )
            continue
        taken = {column.role for column in columns}
        role: Role = next((role for word, role in _HEADINGS.items() if word in title.lower()), "method")
        columns.append(PastedColumn(role if role not in taken else "ignored"))
    if any(column.role == "dataset" for column in columns):
        columns = [
            PastedColumn("value", "", _group(title) or "avg", title)
            if column.role == "value" and column.dataset != AVERAGE
            else column
            for column, title in zip(columns, table.head, strict=True)
        ]
    return columns


def _group(title: str) -> str | None:
    """Return the group of classes that the first word of a heading names."""
    return _GROUPS.get((title.lower().split() or [""])[0])


def values(
    table: PastedTable, columns: Sequence[PastedColumn], common: Mapping[str, str], paper: str
) -> list[PublishedValue]:
    """Return the values of a pasted table.

    Args:
        columns: what each column holds.
        common: ``table``, and ``dataset``, ``setting``, ``backbone``, ``metric`` unless a column names them.
    """
    if table.is_long:
        return list(values_from(library.csv_text([table.head, *table.lines]), paper, "the table"))
    roles = [column.role for column in columns]
    if "method" not in roles:
        raise FedLensError("say which column names the method", "columns")
    if "value" not in roles:
        raise FedLensError("say which columns hold values", "columns")
    for role in set(roles) - {"value", "ignored"}:
        if roles.count(role) > 1:
            raise FedLensError(f"two columns are the {ROLES[role]}; leave one out", "columns")
    found: list[PublishedValue] = []
    places: dict[tuple[str, ...], str] = {}
    for number, line in enumerate(table.lines, start=2):
        named: dict[str, str] = {
            role: line[i] for i, role in enumerate(roles) if role not in ("value", "ignored")
        }
        if not named["method"]:
            raise FedLensError(f"line {number}: the method is empty; write it into every line", "table")
        for i, column in enumerate(columns):
            if column.role != "value" or line[i] in _EMPTY:
                continue
            where = f"line {number}, column '{table.head[i]}'"
            mean, std, decimals = _number(line[i], where)
            value = PublishedValue(
                paper,
                common["table"],
                named.get("dataset") or column.dataset or common.get("dataset", ""),
                named.get("setting") or common.get("setting", ""),
                named.get("backbone") or common.get("backbone", ""),
                named["method"],
                named.get("target") or column.target or "avg",
                named.get("metric") or column.metric or common.get("metric") or "accuracy",
                mean,
                std,
                decimals,
            )
            place = tuple(getattr(value, name) for name in COLUMNS[:-2])
            if place in places:
                raise FedLensError(
                    f"{where}: the same method, data set, target and metric as in {places[place]}; give one "
                    "of them another setting, target or metric",
                    "table",
                )
            places[place] = where
            found.append(value)
    if not found:
        raise FedLensError("no cell holds a value; check what the columns hold", "columns")
    return found


def _number(cell: str, where: str) -> tuple[float, float | None, tuple[int, int]]:
    """Return the value of a cell, its spread, and the decimals of both."""
    read_as = _NUMBER.match(cell)
    if read_as is None:
        raise FedLensError(
            f"{where}: {cell!r:.40} is not a number; write 83.21 or 83.21 ± 0.14, or - if nothing is printed",
            "table",
        )
    if _GROUPED.search(cell):
        raise FedLensError(
            f"{where}: {cell!r:.40} may have thousands or decimals after its comma; write 1234 or 1.234",
            "table",
        )
    value, std = ((read_as[part] or "").replace(",", ".") for part in ("value", "std"))
    return float(value), float(std) if std else None, (decimals_of(value), decimals_of(std))
