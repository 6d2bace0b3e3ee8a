"""Find and open ``runs.db``: WAL to write, a short read-only connection per query."""

import hashlib
import json
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import ConfigDict, TypeAdapter

from fedcore.base.errors import FedLensError, plain_errors
from fedcore.base.files import IN_CHECKOUT, PROJECT, user_path
from fedcore.store import schema

BUSY_SECONDS = 10.0
"""Seconds for which a page or a command waits while another program has locked the database."""
NO_SHARED_MEMORY = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
)
ID_LIST = "(SELECT value FROM json_each(:ids))"
"""A list of ids as one JSON parameter, so that the statement does not depend on their number."""
JSON_TABLE = TypeAdapter(dict[str, Any])
"""Reads a column that holds a JSON object."""
STORED = ConfigDict(strict=True)
"""Of a dataclass of stored values: one of another type is a ``ValueError``, for ``reading_stored``."""
_CURRENT: set[tuple[Path, int]] = set()
"""Databases that this process has found to be of this version, by path and inode."""


_Row = TypeVar("_Row")


class _Lent(threading.local):
    """The connection that the reads of a thread share, and its database (``one_connection``)."""

    path: Path | None = None
    connection: sqlite3.Connection


_lent = _Lent()


def resolve(db: str | Path | None) -> Path:
    """Return an absolute path.

    None means FEDLENS_DB, else ``runs.db`` in the checkout, or in the current folder outside of one.
    """
    if db is None:
        db = os.environ.get("FEDLENS_DB") or (PROJECT if IN_CHECKOUT else Path.cwd()) / "runs.db"
    return user_path(db, "db").resolve()


def artifacts_folder(db: str | Path) -> Path:
    """Return ``artifacts/`` beside the database, the folder of checkpoints, logs and encodings."""
    return resolve(db).parent / "artifacts"


def is_locked(error: sqlite3.OperationalError) -> bool:
    """Return whether another connection holds the lock that was needed."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def until_unlocked(action: Callable[[], object], seconds: float) -> None:
    """Retry an action that a lock of another process refuses, for some seconds and with growing pauses.

    SQLite itself waits for the timeout of the connection, but not in every case, and not for minutes.
    """
    end, pause = time.monotonic() + seconds, 0.01
    while True:
        try:
            action()
            return
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


@contextmanager
def reading(db: str | Path) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection for one call; rows are ``sqlite3.Row``.

    Within ``one_connection`` its connection is lent instead.
    """
    if db == _lent.path:
        with plain_errors(_lent.path), _shared(_lent.connection) as connection:
            yield connection
        return
    path = resolve(db)
    if not path.is_file():
        raise FedLensError(f"no database at {path}; start the app or run an experiment first", "db")
    with plain_errors(path):
        has_tables(path)
        with closing(read_only(path)) as connection:
            yield connection


@contextmanager
def one_connection(path: Path) -> Iterator[None]:
    """Let all reads of this thread share one connection during the block, such as a drawing of a page.

    Each new connection reads the whole schema, which takes longer than most queries. Every query still sees
    what was last written, because none is in a transaction.
    """
    if _lent.path is not None:  # a part of a page within the page
        yield
        return
    with reading(path) as _lent.connection:
        _lent.path = path
        try:
            yield
        finally:
            _lent.path = None
            del _lent.connection


def has_tables(path: Path) -> bool:
    """Return whether a database has tables; once per process, refuse those of another program or version."""
    with plain_errors(path):
        key = (path, path.stat().st_ino)
        if key not in _CURRENT:
            with closing(read_only(path)) as connection:
                if not schema.tables(connection):
                    return False
                schema.require_current(path, connection)
                _CURRENT.add(key)
    return True


def read_only(path: Path) -> sqlite3.Connection:
    """Open a connection with mode=ro, or with immutable=1 if WAL's shared memory cannot be created.

    That happens in a folder that cannot be written and on a full disk. The file counts as immutable only if
    the -wal file is empty.
    """
    for options in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            log = path.with_name(path.name + "-wal")
            in_use = log.exists() and log.stat().st_size > 0
            if "immutable" in options or error.sqlite_errorcode & 0xFF not in NO_SHARED_MEMORY or in_use:
                raise
            continue
        connection.row_factory = sqlite3.Row
        return connection
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def held_open(db: Path) -> Iterator[None]:
    """Keep a connection open during the block, so that the database stays readable when the disk fills up.

    The last connection to close deletes the shared memory file, and a full disk has no space for another.
    """
    with ExitStack() as stack:
        with suppress(sqlite3.Error):  # the next read or write reports the error
            connection = stack.enter_context(closing(read_only(db)))
            connection.execute("SELECT count(*) FROM experiments").fetchone()
        yield


@contextmanager
def opened(path: Path, timeout: float = math.inf, synced: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a connection that may write; its errors name the file and a remedy."""
    with plain_errors(path), closing(sqlite3.connect(path, timeout=min(timeout, BUSY_SECONDS))) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        yield connection


@contextmanager
def writing(
    db: str | Path, patience: float | None = None, *, synced: bool = False
) -> Iterator[sqlite3.Connection]:
    """Open one write transaction: committed at the end, rolled back by an exception.

    It takes the write lock at once (BEGIN IMMEDIATE), so that reading and then writing cannot fail half-way.

    Args:
        patience: seconds to wait while another program has locked the database; default: BUSY_SECONDS.
        synced: whether the transaction, and all before it, survive a power failure once it is committed.

    Raises:
        ReadOnlyDatabase: when it cannot be written.
        SystemFault: field ``db``; ``DiskFull``, or ``Locked`` when it stays locked.
    """
    path = resolve(db)
    if path.is_file():
        has_tables(path)
    patience = BUSY_SECONDS if patience is None else patience
    with opened(path, patience, synced) as database:
        database.execute("PRAGMA foreign_keys=ON")
        with transaction(database, patience):
            yield database


@contextmanager
def transaction(database: sqlite3.Connection, patience: float) -> Iterator[None]:
    """Take the write lock, and commit at the end of the block; an exception rolls back."""
    until_unlocked(lambda: database.execute("BEGIN IMMEDIATE"), patience)
    try:
        yield
        database.commit()
    except BaseException:
        database.rollback()
        raise


def text_or_bytes(stored: bytes) -> str | bytes:
    """Decode a stored text; one that is not UTF-8 stays bytes, so that only its row is refused.

    The error of SQLite itself would end the whole query.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


@dataclass(frozen=True)
class DatabaseFile:
    """One database file; each read and each write opens a short connection (0.5 ms), see ``one_connection``.

    Attributes:
        snapshot: a connection within a transaction, from which everything is read instead.
        checked: experiments without damage in this snapshot.
    """

    path: Path
    snapshot: sqlite3.Connection | None = None
    checked: frozenset[int] = frozenset()

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a read-only connection (see ``reading``), or use that of the snapshot."""
        return reading(self.path) if self.snapshot is None else _shared(self.snapshot)

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        return writing(self.path)

    def rows(
        self, statement: str, values: Mapping[str, object] | None = None, *, damaged_texts: bool = False
    ) -> list[sqlite3.Row]:
        """Return all rows of one query.

        Args:
            damaged_texts: whether to return texts that are not UTF-8 as bytes, see ``text_or_bytes``.
        """
        with self.reading() as connection:
            if damaged_texts:
                connection.text_factory = text_or_bytes
            return connection.execute(statement, values or {}).fetchall()


def readable(
    rows: Iterable[sqlite3.Row], read: Callable[[sqlite3.Row], _Row]
) -> tuple[list[_Row], dict[int, str]]:
    """Return rows as ``read`` returns them, and one line for each that is damaged, by its id."""
    found, damaged = [], {}
    for row in rows:
        try:
            found.append(read(row))
        except FedLensError as error:
            damaged[row["id"]] = str(error)
    return found, damaged


class Queries:
    """The queries of a store on one subject, such as ``Store.runs``."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file


@contextmanager
def _shared(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Lend a connection to one call; afterwards it reads texts as before, in a transaction only if before."""
    in_transaction = connection.in_transaction
    try:
        yield connection
    finally:
        connection.text_factory = str
        if not in_transaction:
            connection.rollback()


def run_folders(db: str | Path, run_ids: Iterable[int]) -> dict[int, Path]:
    """Return the folders of the runs that exist: ``artifacts/run-<id>-<start of the experiment's uuid>``.

    The uuid distinguishes the runs of two databases in one folder.
    """
    with reading(db) as connection:
        rows = connection.execute(
            "SELECT r.id, e.uuid FROM runs r JOIN experiments e ON e.id=r.experiment_id "
            f"WHERE r.id IN {ID_LIST}",
            {"ids": as_json(run_ids)},
        )
        return {number: artifacts_folder(db) / f"run-{number}-{uuid[:8]}" for number, uuid in rows}


def run_folder(db: str | Path, run_id: int) -> Path:
    """Return the folder of a run's checkpoints and log; it may not exist yet."""
    if not (found := run_folders(db, [run_id])):
        raise FedLensError(f"no run {run_id}; `fedlens list` shows them")
    return found[run_id]


def task_folder(db: str | Path, kind: str, key: str, run_id: int | None = None) -> Path:
    """Return the folder of a task's files; for a task of a run it is in the run's folder.

    The database's name distinguishes the tasks of two databases in one folder.
    """
    name = f"{kind}-{hashlib.sha256(repr((resolve(db).name, kind, key)).encode()).hexdigest()[:16]}"
    return (artifacts_folder(db) if run_id is None else run_folder(db, run_id)) / "tasks" / name


def remove_folder(folder: Path) -> None:
    """Delete a folder with its files if it exists."""
    if folder.is_dir():
        shutil.rmtree(folder)


def as_json(ids: Iterable[int]) -> str:
    """Return ids as the parameter of ID_LIST."""
    return json.dumps([int(i) for i in ids])


NETWORK_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ncpfs", "ceph", "glusterfs", "lustre"}
    | {"gpfs", "beegfs", "9p", "afpfs", "webdav", "davfs", "davfs2"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "rclone", "s3fs", "gcsfuse", "davfs2", "ceph")}
)


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that holds a path, None on a local disk.

    WAL needs shared memory between processes of one machine; on NFS and the like the database corrupts.
    """
    target = next(p for p in (path.resolve(), *path.resolve().parents) if p.exists())
    # the deepest mount point holds the path; of two on one point the later hides the earlier
    holding = [
        (len(Path(mount.mountpoint).parts), i, mount.fstype.lower())
        for i, mount in enumerate(psutil.disk_partitions(all=True))
        if target.is_relative_to(mount.mountpoint)
    ]
    kind = max(holding)[2] if holding else ""
    return kind if kind in NETWORK_SYSTEMS else None
