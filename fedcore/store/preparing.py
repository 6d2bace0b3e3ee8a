"""Creates ``runs.db``, and brings one of an earlier version up to date, before anything else uses it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from fedcore.base.errors import FedLensError, ReadOnlyDatabase, SystemFault, explain, plain_errors
from fedcore.store import database, schema

PROBE_SECONDS = 1.0


def prepare(db: str | Path | None = None) -> str:
    """Create the database if there is none, and bring one of an earlier version up to date.

    Returns: why it cannot be written, on a full disk say, and so opens read-only; empty if it can be.

    Raises:
        FedLensError: field ``db``, on a network file system, for a file that is not a database of this
            version (see ``schema.require_current``), or when none can be made.
    """
    path = database.resolve(db)
    if kind := database.network_file_system(path):
        raise FedLensError(
            f"{path} is on a network file system ({kind}), where SQLite may corrupt it; "
            "put it on a local disk with --db or FEDLENS_DB",
            "db",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_there(path):
            _upgrade(path)
    except (ReadOnlyDatabase, SystemFault, OSError) as error:
        fault = explain(error, path)
        if path.is_file() and database.has_tables(path):
            why = str(fault) if isinstance(fault, SystemFault) else f"{path} cannot be written"
            return f"{why}. Recorded runs can be read, none can be started"
        if isinstance(fault, SystemFault):
            raise fault from error
        raise FedLensError(
            f"cannot create {path}; make its folder writable, or choose a place with --db or FEDLENS_DB", "db"
        ) from error
    return ""


def prepare_for_writing(db: Path) -> None:
    """Do the same, and refuse a database that cannot be written."""
    if why := prepare(db):
        raise ReadOnlyDatabase(why, "db")


def _is_there(path: Path) -> bool:
    """Return whether a database is up to date; refuse one of a newer version, or that cannot be written."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise FedLensError(f"SQLite {sqlite3.sqlite_version} is too old; FedLens needs 3.37 or newer", "db")
    if not path.is_file():
        return False
    with plain_errors(path), closing(sqlite3.connect(path, timeout=PROBE_SECONDS)) as connection:
        if not schema.tables(connection):
            return False
        schema.require_current(path, connection)
        try:
            # a write that changes nothing: the only sure test (BEGIN IMMEDIATE alone succeeds read-only)
            with connection:
                connection.execute("DELETE FROM experiments WHERE 0")
            connection.execute("PRAGMA journal_mode=WAL")  # a backup is in mode DELETE, a single file
        except sqlite3.OperationalError as error:
            if not database.is_locked(error):
                raise
        return schema.version_of(connection) == schema.VERSION


def _upgrade(path: Path) -> None:
    from fedcore.store.migrations import upgrade  # slow, see there

    with database.opened(path) as connection:
        database.until_unlocked(lambda: connection.execute("PRAGMA journal_mode=WAL"), database.BUSY_SECONDS)
        connection.execute("PRAGMA foreign_keys=OFF")  # they would follow a table that is made again
        # of two processes at a first start, one finds the tables made; a kill leaves what was there
        with database.transaction(connection, database.BUSY_SECONDS):
            upgrade(connection)
