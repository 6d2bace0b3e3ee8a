"""Digests of what was recorded in a round, written with it and compared before it is exported."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator

# conditions on all columns before the round in a primary key, so that no query reads other rounds
_NAMES = """
WITH RECURSIVE names(name) AS (
  SELECT min(name) FROM diagnostics WHERE run_id=:run
  UNION ALL
  SELECT (SELECT min(d.name) FROM diagnostics d WHERE d.run_id=:run AND d.name>names.name)
  FROM names WHERE names.name IS NOT NULL)
"""
CONTENT = (
    "SELECT * FROM rounds WHERE run_id=:run AND round=:round",
    "SELECT * FROM client_rounds WHERE run_id=:run AND round=:round ORDER BY client",
    "SELECT * FROM scores WHERE run_id=:run AND split IN (0,1,2) AND stage IN (0,1) AND round=:round "
    "ORDER BY split, stage",
    "SELECT * FROM accuracy WHERE run_id=:run AND split IN (0,1,2) AND stage IN (0,1) AND round=:round "
    "ORDER BY split, stage, model, test_set",
    f"{_NAMES} SELECT * FROM diagnostics WHERE run_id=:run AND name IN (SELECT name FROM names) "
    "AND round=:round ORDER BY name, client_a, client_b",
)
"""Queries of all rows of one round."""


def round_digest(connection: sqlite3.Connection, run_id: int, round_: int) -> str:
    """Return the digest of all rows of one round, as they are stored now."""
    digest = hashlib.blake2b(digest_size=16)
    for statement in CONTENT:
        cursor = connection.execute(statement, {"run": run_id, "round": round_})
        cursor.row_factory = None  # tuples, without the run's id, which differs between databases
        digest.update(repr([row[1:] for row in cursor]).encode())
    return digest.hexdigest()


def write_digests(database: sqlite3.Connection, run_id: int, rounds: Iterable[int]) -> None:
    """Write the digests of rounds, in the transaction that wrote the rounds."""
    for number in rounds:
        database.execute(
            "INSERT OR REPLACE INTO digests(run_id, round, digest) VALUES (?,?,?)",
            [run_id, number, round_digest(database, run_id, number)],
        )


def differences(connection: sqlite3.Connection, run_ids: Iterable[int]) -> Iterator[str]:
    """Yield one line for each round that is not as its digest says, has none, or is lost."""
    for run_id in run_ids:
        rows = connection.execute("SELECT round, digest FROM digests WHERE run_id=? ORDER BY round", [run_id])
        for number, digest in rows.fetchall():
            if round_digest(connection, run_id, number) != digest:
                yield f"run {run_id}, round {number} is not as it was recorded"
        for number in rounds_without(connection, run_id):
            yield f"run {run_id}, round {number} has no digest, so what it recorded cannot be relied on"
        lost = connection.execute(
            "SELECT rounds_done FROM runs WHERE id=:run AND "
            "rounds_done > (SELECT coalesce(max(round), 0) FROM digests WHERE run_id=:run)",
            {"run": run_id},
        ).fetchone()
        if lost:
            yield f"run {run_id} lost rounds: {lost[0]} were recorded"


def rounds_without(connection: sqlite3.Connection, run_id: int) -> list[int]:
    """Return the recorded rounds that have no digest."""
    rows = connection.execute(
        "SELECT round FROM rounds WHERE run_id=:run EXCEPT SELECT round FROM digests WHERE run_id=:run",
        {"run": run_id},
    )
    return [row[0] for row in rows]
