"""Copies of a whole database: made while it is in use, checked before they count, and put back."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedcore.cache.durable import publish
from fedcore.errors import FedLensError, first_line
from fedcore.store import schema
from fedcore.store.integrity.check import findings, structure
from fedcore.system_errors import check_room, plain_errors

LOGS = ("-wal", "-shm")
"""Files that SQLite keeps beside a database while it is in use."""


def default_target(db: Path, what: str = "backup") -> Path:
    """Return a name beside the database that says when and why the copy was made."""
    return db.with_name(f"{db.stem}-{time.strftime('%Y%m%d-%H%M%S')}.{what}{db.suffix}")


def back_up(db: Path, target: Path | None = None, what: str = "backup") -> Path:
    """Copy a database while others read and write it, and check the copy; returns its path.

    Checkpoints, logs and encodings are files beside the database, and not part of the copy.

    Args:
        target: a file that does not exist yet; default: ``default_target``.

    Raises:
        FedLensError: when the target exists or cannot be written, and when the database is damaged: a copy of
            it would take the place of a sound one.
    """
    target = target or default_target(db, what)
    if target.exists():
        raise FedLensError(f"{target} exists already; name another file", "target")
    if not db.is_file():
        raise FedLensError(f"no database at {db}", "db")
    part = target.with_name(f"{target.name}.part")
    with plain_errors(target):
        check_room(target.parent, db.stat().st_size)
        try:
            with closing(_readable(db)) as source, closing(sqlite3.connect(part)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            _require_sound(part, f"{db} is damaged, so no backup was made")
            publish(part, target)
        finally:
            part.unlink(missing_ok=True)
    return target


def restore(db: Path, backup: Path) -> Path | None:
    """Put a backup in the place of a database, and keep what was there.

    Other programs may have the database open: they see the backup with their next query.

    Returns: the file that holds the database as it was before; None if there was none.

    Raises:
        FedLensError: when the backup is damaged or no database of FedLens; then nothing has changed.
    """
    if not backup.is_file():
        raise FedLensError(f"no backup at {backup}", "backup")
    if backup.samefile(db) if db.exists() else False:
        raise FedLensError(f"{backup} is the database itself; name a backup", "backup")
    _require_sound(backup, f"{backup} is damaged, so nothing was restored")
    with plain_errors(db):
        check_room(db.parent, 2 * backup.stat().st_size)
        before = default_target(db, "replaced") if db.exists() else None
        if before is not None:
            _keep(db, before)
        try:
            _copy_into(backup, db)
        except sqlite3.DatabaseError:  # too damaged to be opened: start with an empty file
            for path in (db, *(db.with_name(db.name + end) for end in LOGS)):
                path.unlink(missing_ok=True)
            _copy_into(backup, db)
    return before


def vacuum(db: Path) -> tuple[int, int]:
    """Give the room of deleted experiments back to the disk; returns the bytes before and after.

    Raises:
        FedLensError: when the database is damaged, locked, or the disk has no room for a second copy.
    """
    before = _size(db)
    _require_sound(db, f"{db} is damaged, so it was left as it is")
    with plain_errors(db):
        check_room(db.parent, 2 * before)
        with closing(sqlite3.connect(db, timeout=10)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return before, _size(db)


def _size(db: Path) -> int:
    return sum(path.stat().st_size for path in (db, db.with_name(f"{db.name}-wal")) if path.exists())


def _readable(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)


@contextmanager
def _opened(path: Path, refusal: str) -> Iterator[sqlite3.Connection]:
    try:
        with closing(_readable(path)) as connection:
            yield connection
    except sqlite3.DatabaseError as error:
        raise FedLensError(f"{refusal} ({first_line(error)})", "db") from error


def _require_sound(path: Path, refusal: str) -> None:
    """Refuse a database that is damaged, or that no FedLens made; those of earlier versions are accepted."""
    with _opened(path, refusal) as connection:
        applied = schema.applied_migrations(connection)
        if not applied:
            raise FedLensError(f"{path} is not a database of FedLens; name another file", "db")
        if applied - set(schema.STEPS):
            raise FedLensError(f"{path} was made by a newer FedLens; update FedLens", "db")
        found = findings(connection) if applied == set(schema.STEPS) else list(structure(connection))
    if found:
        raise FedLensError(f"{refusal} ({found[0]}); `fedlens doctor` shows all", "db")


def _keep(db: Path, target: Path) -> None:
    """Copy a database as it is, damaged or not."""
    try:
        with closing(_readable(db)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.DatabaseError:
        for end in ("", *LOGS):
            path = db.with_name(db.name + end)
            if path.exists():
                shutil.copyfile(path, target.with_name(target.name + end))


def _copy_into(backup: Path, db: Path) -> None:
    with closing(_readable(backup)) as source, closing(sqlite3.connect(db, timeout=10)) as target:
        source.backup(target)
