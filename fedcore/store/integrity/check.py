"""Checks that a database holds what was recorded, before its numbers leave it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from fedcore.errors import DAMAGE, first_line
from fedcore.store.integrity import copies, digests

MOST = 20
"""Findings that are listed of one kind."""
UNEQUAL_SCORES = f"""
SELECT s.round FROM scores s LEFT JOIN
  (SELECT split, stage, round, avg(1.0 * correct / total) AS mean FROM accuracy
   WHERE run_id=:run AND model=test_set GROUP BY split, stage, round) c
  ON c.split=s.split AND c.stage=s.stage AND c.round=s.round
WHERE s.run_id=:run AND s.personal_mean IS NOT NULL AND
  (c.mean IS NULL OR abs(c.mean - s.personal_mean) > 1e-9) LIMIT {MOST}
"""
"""Rounds whose mean accuracy does not follow from their cells."""


def findings(connection: sqlite3.Connection, experiment_ids: Iterable[int] | None = None) -> list[str]:
    """Return one line for each damage in an open database; an empty list where all is as recorded.

    Args:
        experiment_ids: whose rounds are compared with their digests; default: all. The structure of the file
            and the rows of experiments, runs and models are always checked as a whole.
    """
    found: list[str] = []
    try:
        found += structure(connection) or copies.schema_differences(connection)
        if not found:  # otherwise reading rows may fail
            found += _rows(connection, experiment_ids)
    except (sqlite3.Error, *DAMAGE) as error:
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
    for run_id in runs:
        if digests.rounds_without(connection, run_id):
            yield from _old_rounds(connection, run_id)


def _old_rounds(connection: sqlite3.Connection, run_id: int) -> Iterator[str]:
    """Check what follows from other values in a run of an earlier version, whose rounds have no digests."""
    for (number,) in connection.execute(UNEQUAL_SCORES, {"run": run_id}).fetchall():
        yield f"run {run_id}, round {number}: the mean accuracy does not follow from the recorded counts"
    for column in ("model", "test_set"):
        (unknown,) = connection.execute(
            f"SELECT count(*) FROM accuracy a WHERE run_id=? AND NOT EXISTS (SELECT 1 FROM entities e "
            f"WHERE e.run_id=a.run_id AND e.entity=a.{column})",
            [run_id],
        ).fetchone()
        if unknown:
            yield f"run {run_id}: {unknown} cells belong to no known model or test set"
