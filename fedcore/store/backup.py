"""Backups of a database: made while it is in use, checked before they get their name, and restored."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

from fedcore.base.errors import FedLensError, SystemFault, check_room, explain, first_line, plain_errors
from fedcore.base.files import link, publish
from fedcore.store import schema
from fedcore.store.damage import findings
from fedcore.store.preparing import prepare

LOGS = ("-wal", "-shm")
"""Files that SQLite keeps beside a database while it is in use."""
PATIENCE = 10.0
"""Seconds for which a copy waits while another program has locked a database."""


def default_target(db: Path, reason: str = "backup") -> Path:
    """Return an unused path beside the database that says when and why the copy was made."""
    stem, number = f"{db.stem}-{time.strftime('%Y%m%d-%H%M%S')}", 1
    target = db.with_name(f"{stem}.{reason}{db.suffix}")
    while any(target.with_name(target.name + end).exists() for end in ("", *LOGS)):
        number += 1
        target = db.with_name(f"{stem}-{number}.{reason}{db.suffix}")
    return target


def back_up(db: Path, target: Path | None = None) -> Path:
    """Copy a database while others read and write it, and check the copy; returns its path.

    Checkpoints, logs and encodings are files beside the database, and not part of the copy.

    Args:
        target: a file that does not exist yet; default: ``default_target``.

    Raises:
        FedLensError: if the target exists or cannot be written, or if the database is damaged, because a copy
            of it could later replace a sound one.
    """
    target = target or default_target(db)
    if target.exists():
        raise FedLensError(f"{target} exists already; name another file", "target")
    if not db.is_file():
        raise FedLensError(f"no database at {db}", "db")
    with plain_errors(target):
        check_room(target.parent, _size(db))
        with (
            closing(_readable(db)) as source,
            _copied(source, target) as part,
            closing(_readable(part)) as copy,
        ):
            _require_sound(db, f"{db} is damaged, so no backup was made", copy)
    return target


def restore(db: Path, backup: Path, patience: float = PATIENCE) -> Path | None:
    """Replace the content of a database with that of a backup, and keep a copy of what was there.

    Other programs may have the database open and would not notice that another file took its name: they would
    write to the old one, and the last of them to close it would delete the new one's write-ahead log.
    Therefore the content is replaced in one transaction of SQLite. The write lock is held from before the
    copy is made until the end, so that every commit is in the copy or follows the restore. Other programs see
    the backup with their next query, and an error at any step, even a full disk, leaves the database
    unchanged. Files are exchanged only if SQLite cannot read the database, which then has no transactions.

    Args:
        patience: seconds to wait while another program has locked the database.

    Returns: the copy of the former database; None if there was none.

    Raises:
        FedLensError: if the backup is damaged or not a database of FedLens, if the database stays locked, or
            if the disk lacks space for both copies; then nothing has changed.
    """
    if not backup.is_file():
        raise FedLensError(f"no backup at {backup}", "backup")
    if db.exists() and backup.samefile(db):
        raise FedLensError(f"{backup} is the database itself; name a backup", "backup")
    with closing(_readable(backup)) as source:
        # a snapshot, so that what is copied is what has been checked
        _require_sound(backup, f"{backup} is damaged, so nothing was restored", source)
        with plain_errors(db):
            # the copy of what was there, the log of the transaction, and the content where it stays
            check_room(db.parent, _size(db) + 2 * _size(backup))
            try:
                former = (
                    _replace_content(source, db, patience) if db.exists() else _exchange_files(source, db)
                )
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                former = _exchange_files(source, db)
    prepare(db)  # a backup of an earlier version is brought up to date
    return former


def vacuum(db: Path) -> tuple[int, int]:
    """Shrink the database after deletions; returns its bytes before and after."""
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


def _require_sound(path: Path, refusal: str, connection: sqlite3.Connection | None = None) -> None:
    """Refuse a database that is damaged, or not of this version.

    Args:
        connection: to the file, or to a copy of it; the snapshot that it reads stays open.
    """
    try:
        with nullcontext(connection) if connection else closing(_readable(path)) as opened:
            _begin_reading(opened)
            schema.require_current(path, opened)
            found = findings(opened)
    except sqlite3.DatabaseError as error:
        fault = explain(error, path)
        if isinstance(fault, SystemFault):
            raise fault from error
        raise FedLensError(f"{refusal} ({first_line(error)})", "db") from error
    if found:
        raise FedLensError(f"{refusal} ({found[0]}); `fedlens doctor` shows all", "db")


def _begin_reading(connection: sqlite3.Connection) -> None:
    """Start a snapshot; otherwise SQLite restarts the copy whenever the database changes."""
    if not connection.in_transaction:
        connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


@contextmanager
def _copied(source: sqlite3.Connection, target: Path, journal: str = "DELETE") -> Iterator[Path]:
    """Copy a database into a temporary file, which gets the target's name if the block succeeds."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        _begin_reading(source)
        with closing(sqlite3.connect(part)) as copy:
            _copy_pages(source, copy)
            copy.execute(f"PRAGMA journal_mode={journal}")
        yield part
        publish(part, target)
    finally:
        part.unlink(missing_ok=True)


def _copy_pages(
    source: sqlite3.Connection, target: sqlite3.Connection, once_locked: Callable[[], None] = lambda: None
) -> None:
    """Copy all pages in one transaction of the target, which an error rolls back.

    Args:
        once_locked: called once, when the target's write lock is held and nothing has been committed.
    """
    waiting = [once_locked]

    def after_each_page(status: int, remaining: int, total: int) -> None:
        if status not in (sqlite3.SQLITE_OK, sqlite3.SQLITE_DONE):  # otherwise Python would wait forever
            error = sqlite3.OperationalError(f"copying a page failed with SQLite's error {status}")
            error.sqlite_errorcode = status
            raise error
        if waiting:
            waiting.pop()()

    source.backup(target, pages=1, progress=after_each_page)


def _is_damage(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _replace_content(source: sqlite3.Connection, db: Path, patience: float) -> Path:
    """Replace the content of a database in one transaction; returns the copy of what was there."""
    copies: list[Path] = []

    def keep() -> None:
        target = default_target(db, "replaced")
        with closing(_readable(db)) as before, _copied(before, target):
            pass
        copies.append(target)

    with closing(sqlite3.connect(db, timeout=patience)) as live:
        live.execute("PRAGMA journal_mode=WAL")  # lets others, ``keep`` included, read meanwhile
        try:
            _copy_pages(source, live, keep)
        except (sqlite3.Error, OSError) as error:
            fault = explain(error, db)
            if not copies or fault is None or _is_damage(error):
                raise
            raise type(fault)(f"{fault}; {db} is as it was, and a copy of it is {copies[0]}", "db") from error
        finally:
            with suppress(sqlite3.Error):  # shrinks the log now rather than at a later commit
                live.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return copies[0]


def _exchange_files(source: sqlite3.Connection, db: Path) -> Path | None:
    """Replace a missing file, or one that SQLite cannot read, by a checked copy of a backup.

    The old file gets a second name before the new one takes its first name, so that there is a database at
    every moment. Its logs are renamed before that, since SQLite would apply them to the new file.
    """
    former = default_target(db, "replaced")
    with _copied(source, db, journal="WAL") as part:
        _require_sound(part, f"the copy of the backup, {part}, is damaged, so {db} was left as it is")
        if db.exists():
            link(db, former)
        for end in LOGS:
            log = db.with_name(db.name + end)
            if log.exists():
                log.rename(former.with_name(former.name + end))
    return former if former.exists() else None
