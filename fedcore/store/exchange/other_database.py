"""Another database, read through a copy that has our own schema: nothing in it but values is trusted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.store.database import reading_as_it_is
from fedcore.store.integrity import digests
from fedcore.store.schema import MIGRATION_SET, STEPS, applied_migrations, migrations

LARGEST_VALUE = 50_000_000  # bytes of one text; those of FedLens have a few thousand
REBUILT = ("_sqlite_migrations", "sqlite_sequence", "copies")
"""Tables of the copy that its own migrations fill."""


@contextmanager
def copy_of(path: Path) -> Iterator[sqlite3.Connection]:
    """Copy the rows of another database into an empty one with our schema, a temporary file, and open that.

    Tables and columns are named by our schema, as it was when the other database was last migrated; the copy
    is then brought up to date. Types, ranges and references of all values are checked by the schema of the
    copy. Views, triggers, virtual tables and further columns of the other database are never run.

    Raises:
        FedLensError: field ``other``, for a file that is no database of FedLens, or one of a newer FedLens.
        sqlite3.Error, ValueError: for a damaged database.
    """
    from sqlite_utils import Database

    with reading_as_it_is(path) as source, closing(sqlite3.connect("")) as copy:
        source.execute("PRAGMA trusted_schema=OFF")
        source.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        missing = _missing_steps(path, source)
        copy.row_factory = sqlite3.Row
        steps, database = migrations(), Database(copy)
        steps.apply(database, stop_before=missing[0] if missing else None)
        for table in database.table_names():
            if table not in REBUILT:
                _copy_rows(source, copy, table)
        if copy.execute("PRAGMA foreign_key_check").fetchone():
            raise ValueError("rows refer to runs or experiments that are not there")
        if not missing:
            _check_digests(copy)
        steps.apply(database)
        yield copy


def _check_digests(copy: sqlite3.Connection) -> None:
    runs = [row["id"] for row in copy.execute("SELECT id FROM runs ORDER BY id")]
    for finding in digests.differences(copy, runs):
        raise ValueError(finding)


def _missing_steps(path: Path, source: sqlite3.Connection) -> list[str]:
    """Return the migrations that the other database has not had yet."""
    applied = applied_migrations(source)
    if not applied:
        raise FedLensError(f"{path} is not a database of FedLens; name a runs.db", "other")
    names = list(STEPS)
    if applied - set(names):
        raise FedLensError(f"{path} was made by a newer FedLens; update FedLens", "other")
    if applied != set(names[: len(applied)]):
        raise FedLensError(f"{path} is damaged: some migrations of '{MIGRATION_SET}' are missing", "other")
    return names[len(applied) :]


def _copy_rows(source: sqlite3.Connection, copy: sqlite3.Connection, table: str) -> None:
    kind = source.execute("SELECT type, sql FROM sqlite_master WHERE name=?", [table]).fetchone()
    if kind is None or kind["type"] != "table" or kind["sql"].upper().startswith("CREATE VIRTUAL"):
        raise ValueError(f"{table} is not a table")
    columns = [row["name"] for row in copy.execute(f"PRAGMA table_info({table})")]
    stored = {row["name"] for row in source.execute(f"PRAGMA table_xinfo({table})") if row["hidden"] == 0}
    if lost := [name for name in columns if name not in stored]:
        raise ValueError(f"table {table} has no column {lost[0]!r}")
    names = ", ".join(columns)
    # NOT INDEXED: an index may hold other values than its table
    rows = source.execute(f"SELECT {names} FROM {table} NOT INDEXED")
    with copy:
        copy.executemany(
            f"INSERT INTO {table}({names}) VALUES ({', '.join('?' * len(columns))})", map(tuple, rows)
        )
