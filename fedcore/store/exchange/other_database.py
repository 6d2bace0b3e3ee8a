"""Another database, read through a copy that has our own schema: nothing in it but values is trusted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.store import schema
from fedcore.store.database import reading_as_it_is
from fedcore.store.exchange import from_0_1
from fedcore.store.integrity import digests

LARGEST_VALUE = 50_000_000  # bytes of one text; those of FedLens have a few thousand
REBUILT = ("sqlite_sequence", "copies")
"""Tables that SQLite and the triggers of the copy fill."""


@dataclass(frozen=True)
class Copy:
    """The rows of another database, in tables of ours.

    Attributes:
        with_files: whether the folders of its runs are merged too.
    """

    rows: sqlite3.Connection
    with_files: bool


@contextmanager
def copy_of(path: Path) -> Iterator[Copy]:
    """Copy the rows of another database into an empty one with our schema, a temporary file, and open that.

    Tables and columns are named by our schema, and the schema of the copy checks types, ranges and references
    of all values. Views, triggers, virtual tables and further columns of the other database are never run.

    Raises:
        FedLensError: field ``other``, for a file that is no database of FedLens, or one of a newer version.
        sqlite3.Error, ValueError: for a damaged database.
    """
    with reading_as_it_is(path) as source, closing(sqlite3.connect("")) as copy:
        source.execute("PRAGMA trusted_schema=OFF")
        source.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        steps = from_0_1.steps(source)
        if not steps:
            schema.require_current(path, source, "other")
        elif from_0_1.LAST_STEP not in steps:
            raise FedLensError(from_0_1.too_early(path), "other")
        copy.row_factory = sqlite3.Row
        schema.create(copy)
        for table in sorted(schema.tables(copy).difference(REBUILT)):
            _copy_rows(source, copy, table)
        if copy.execute("PRAGMA foreign_key_check").fetchone():
            raise ValueError("rows refer to runs or experiments that are not there")
        if steps:
            from_0_1.convert(copy, steps)
        runs = [row["id"] for row in copy.execute("SELECT id FROM runs ORDER BY id")]
        for finding in digests.differences(copy, runs):
            raise ValueError(finding)
        yield Copy(copy, with_files=bool(steps))


def _copy_rows(source: sqlite3.Connection, copy: sqlite3.Connection, table: str) -> None:
    kind = source.execute("SELECT type, sql FROM sqlite_master WHERE name=?", [table]).fetchone()
    if kind is None or kind["type"] != "table" or str(kind["sql"]).upper().startswith("CREATE VIRTUAL"):
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
