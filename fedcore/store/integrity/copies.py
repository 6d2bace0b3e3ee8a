"""Second copies of the rows that describe experiments, runs and their models, so that damage is noticed.

SQLite has no checksums of its own: a bit that flips on the disk would change a label or a date without a
word. Triggers keep the copies, so they follow every write, also one made with another program.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

KEYS = {"experiments": ("id",), "runs": ("id",), "entities": ("run_id", "entity"), "views": ("id",)}
"""Tables whose rows are copied, with their keys."""
VOLATILE = ("owner", "pid", "pid_started", "heartbeat_at")
"""Columns that say which process does a run; they change every few seconds, and nothing exports them."""


def create_triggers(database: sqlite3.Connection) -> None:
    """Copy every change from here on, and the definitions of tables, indices and triggers."""
    for table in KEYS:
        columns = _columns(database, table)
        key, content = _key(table, "NEW."), _content(columns, "NEW.")
        copy = f"INSERT OR REPLACE INTO copies VALUES ('{table}', {key}, {content})"
        actions = {
            "INSERT": copy,
            f"UPDATE OF {', '.join(columns)}": copy,
            "DELETE": f"DELETE FROM copies WHERE table_name='{table}' AND key={_key(table, 'OLD.')}",
        }
        for event, action in actions.items():
            name = f"copies_of_{table}_{event.partition(' ')[0].lower()}"
            database.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {action}; END")
    database.execute("INSERT INTO copies SELECT 'schema', name, sql FROM sqlite_master WHERE sql IS NOT NULL")


def schema_differences(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield one line for each table, index or trigger of ours whose statement is not as it was made."""
    rows = connection.execute(
        "SELECT c.key FROM copies c LEFT JOIN sqlite_master m ON m.name=c.key "
        "WHERE c.table_name='schema' AND m.sql IS NOT c.content"
    )
    yield from (f"the definition of {row[0]} is not as it was made" for row in rows)


def differences(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield one line for each row that is not as its copy says."""
    for table in KEYS:
        content = _content(_columns(connection, table), "r.")
        rows = connection.execute(
            f"SELECT {_key(table, 'r.')} FROM {table} r LEFT JOIN copies c ON c.table_name='{table}' "
            f"AND c.key={_key(table, 'r.')} WHERE c.content IS NOT {content}"
        )
        yield from (f"{table}: row {row[0]} is not as it was written" for row in rows.fetchall())
        lost = connection.execute(
            f"SELECT key FROM copies c WHERE table_name='{table}' AND NOT EXISTS "
            f"(SELECT 1 FROM {table} r WHERE {_key(table, 'r.')}=c.key)"
        )
        yield from (f"{table}: row {row[0]} is lost" for row in lost.fetchall())


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    return [name for name in names if name not in VOLATILE]


def _key(table: str, row: str) -> str:
    return " || ' ' || ".join(f"{row}{name}" for name in KEYS[table]) + (" || ''" * (len(KEYS[table]) == 1))


def _content(columns: list[str], row: str) -> str:
    """Return SQL for all values in one text; ``quote`` writes numbers so that they read back exactly."""
    return " || ',' || ".join(f"quote({row}{name})" for name in columns)
