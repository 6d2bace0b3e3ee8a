"""Checks that a database holds what was recorded, before its numbers leave it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from fedcore.errors import first_line
from fedcore.store.integrity import copies, digests
from fedcore.system_errors import SystemFault, explain

MOST = 20
"""Findings that are listed of one kind."""


def findings(connection: sqlite3.Connection, experiment_ids: Iterable[int] | None = None) -> list[str]:
    """Return one line for each damage in an open database; an empty list where all is as recorded.

    Args:
        experiment_ids: whose rounds are compared with their digests; default: all. The structure of the file
            and the rows of experiments, runs and models are always checked as a whole.

    Raises:
        sqlite3.Error: where the machine failed, so that nothing is known about the content.
    """
    found: list[str] = []
    try:
        found += structure(connection) or copies.schema_differences(connection)
        if not found:  # otherwise reading rows may fail
            found += _rows(connection, experiment_ids)
    except sqlite3.Error as error:
        if isinstance(explain(error, "the database"), SystemFault):
            raise
        found.append(first_line(error))
    return found


def structure(connection: sqlite3.Connection) -> list[str]:
    """Return one line for each damage of the file itself, which may be of any version."""
    lines = [row[0] for row in connection.execute(f"PRAGMA integrity_check({MOST})")]
    if lines != ["ok"]:
        return [" ".join(str(line).split()) for line in lines]
    broken = connection.execute("PRAGMA foreign_key_check").fetchmany(MOST)
    return [f"{row[0]}: row {row[1]} refers to a row of {row[2]} that is not there" for row in broken]


def _rows(connection: sqlite3.Connection, experiment_ids: Iterable[int] | None) -> Iterator[str]:
    yield from copies.differences(connection)
    rows = connection.execute("SELECT id, experiment_id FROM runs ORDER BY id").fetchall()
    chosen = None if experiment_ids is None else set(experiment_ids)
    runs = [run_id for run_id, experiment in rows if chosen is None or experiment in chosen]
    yield from digests.differences(connection, runs)
