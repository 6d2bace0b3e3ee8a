"""Export a paper's table with our values beside the printed ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

from fedcore.papers.published import PAPERS
from fedcore.papers.tables.layout import PrintedTable
from fedcore.papers.tables.standing import STANDINGS, CellStanding, Standing

COLUMNS = (
    "paper", "table", "dataset", "setting", "backbone", "method", "target", "metric",
    "printed", "printed_std", "rule", "ours", "ours_std", "n", "difference", "standing", "reasons",
    "rehearsed", "rehearsed_std", "rehearsed_n", "missing_runs", "seconds", "lacks",
)  # fmt: skip
"""Columns of the CSV file. Empty cells: there is no such number. ``rule`` is a key of ``RULES``."""


def csv_text(
    table: PrintedTable, cells: Sequence[CellStanding], cost: Callable[[CellStanding], float | None]
) -> str:
    """Return a table as CSV, a line per printed value in the order of the paper's file.

    A rehearsed value has columns of its own, so that files laid together never pass it off as ours.

    Args:
        cost: seconds that the missing runs of a cell take; None if they were never measured.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        writer.writerow(_line(cell, cost(cell)))
    return file.getvalue()


def _line(cell: CellStanding, seconds: float | None) -> list[object]:
    value, stat = cell.value, cell.stat
    reasons = [text for _, text in cell.comparability.reasons] or [cell.reason]
    numbers = ["", "", ""] if stat is None else [stat.mean, "" if stat.std is None else stat.std, stat.n]
    rehearsed = cell.standing == "rehearsed"
    return [
        PAPERS[value.paper].title,
        value.table,
        value.dataset,
        value.setting,
        value.backbone,
        value.method,
        value.target,
        value.metric,
        value.value,
        "" if value.std is None else value.std,
        value.rule,
        *(["", "", ""] if rehearsed else numbers),
        "" if cell.gap is None else cell.gap,
        cell.standing,
        "; ".join(filter(None, reasons)),
        *(numbers if rehearsed else ["", "", ""]),
        len(cell.missing),
        "" if seconds is None or not cell.missing else round(seconds),
        "; ".join(lack.text for lack in cell.lacks),
    ]


def file_name(table: PrintedTable, rehearsal: bool) -> str:
    """Return the name of a table's CSV file; a rehearsal's says so."""
    return f"{table.name}{'-rehearsal' if rehearsal else ''}.csv"


def counts(standings: Iterable[Standing]) -> list[tuple[Standing, int]]:
    """Return the number of values of every standing, also of those that do not occur."""
    given = list(standings)
    return [(standing, given.count(standing)) for standing in STANDINGS]
