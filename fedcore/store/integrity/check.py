"""Checks that a database holds what was recorded, before its numbers leave it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from fedcore.errors import DAMAGE, FedLensError, first_line
from fedcore.store.database import ID_LIST, DatabaseFile, as_json
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


class Integrity:
    """Tells whether a store holds what was recorded (``Store.integrity``)."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    def findings(self, experiment_ids: Iterable[int] | None = None) -> list[str]:
        """Return one line for each damage; an empty list means that all is as it was recorded.

        Args:
            experiment_ids: whose rounds are compared with their digests; default: all. The structure of the
                file and the rows of experiments, runs and models are always checked as a whole.

        Raises:
            FedLensError: when the database cannot be opened.
        """
        with self._file.reading() as connection:
            return findings(connection, experiment_ids)

    def require(self, experiment_ids: Iterable[int]) -> None:
        """Refuse to go on with damaged experiments.

        Raises:
            FedLensError: field ``db``, with the first damage and the remedy.
        """
        found = self.findings(experiment_ids)
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise FedLensError(
                f"{self._file.path} is damaged ({found[0]}{more}), so nothing is exported; `fedlens doctor` "
                "shows all of it, `fedlens restore` puts a backup in its place",
                "db",
            )


def findings(connection: sqlite3.Connection, experiment_ids: Iterable[int] | None = None) -> list[str]:
    """Return one line for each damage in an open database (see ``Integrity.findings``)."""
    found: list[str] = []
    try:
        for part in (_structure(connection), _rows(connection, experiment_ids)):
            found += part
            if found:
                break  # what comes next may fail on it
    except (sqlite3.Error, *DAMAGE) as error:
        found.append(first_line(error))
    return found


def _structure(connection: sqlite3.Connection) -> Iterator[str]:
    lines = [row[0] for row in connection.execute(f"PRAGMA integrity_check({MOST})")]
    yield from (" ".join(str(line).split()) for line in lines if line != "ok")
    if lines == ["ok"]:
        yield from copies.schema_differences(connection)
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchmany(MOST):
            yield f"{table}: row {row} refers to a row of {parent} that is not there"


def _rows(connection: sqlite3.Connection, experiment_ids: Iterable[int] | None) -> Iterator[str]:
    yield from copies.differences(connection)
    which = "" if experiment_ids is None else f"WHERE experiment_id IN {ID_LIST}"
    values = {} if experiment_ids is None else {"ids": as_json(experiment_ids)}
    runs = [row[0] for row in connection.execute(f"SELECT id FROM runs {which} ORDER BY id", values)]
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
