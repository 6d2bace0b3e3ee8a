"""The tables of a comparison as files, by name and format: of the command, the page and a report's folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from fedcore.reports.content import CheckedComparison
from fedcore.results import exports as tables
from fedcore.results import latex

Table = Literal["summary", "domains", "configs", "breakdowns", "rounds", "clients", "experiment"]
Format = Literal["csv", "latex", "json"]
SUFFIXES: dict[Format, str] = {"csv": "csv", "latex": "tex", "json": "json"}


def _summary_csv(checked: CheckedComparison) -> str:
    choice = checked.choice
    return tables.table_csv(checked.comparison, "summary", choice.baseline, choice.test, checked.printed)


def _table_csv(table: tables.TableName, checked: CheckedComparison) -> str:
    return tables.table_csv(checked.comparison, table)


WRITERS: dict[tuple[Table, Format], Callable[[CheckedComparison], str]] = {
    ("summary", "csv"): _summary_csv,
    ("summary", "latex"): lambda c: latex.summary_latex(c.comparison, c.printed, c.choice.digits),
    ("summary", "json"): lambda c: tables.summary_json(c.store, c.comparison, c.printed),
    ("domains", "csv"): partial(_table_csv, "domains"),
    ("configs", "csv"): partial(_table_csv, "configs"),
    ("breakdowns", "csv"): partial(_table_csv, "breakdowns"),
    ("rounds", "csv"): lambda c: tables.rounds_csv(c.store, c.comparison),
    ("clients", "csv"): lambda c: tables.clients_csv(c.store, c.comparison),
    ("experiment", "json"): lambda c: c.store.experiments.to_json(e.id for e in c.comparison.experiments),
}
"""The writer of each file; ``experiment`` is everything that was recorded, to import elsewhere."""
