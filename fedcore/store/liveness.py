"""Find out which jobs are really running: a row may say so after its process has died.

A process that owns jobs holds a lock for as long as it lives, on a file of its own beside the database. The
operating system frees it however the process ends. No clock, process id or copy of the database can imitate
it, and processes in other containers see it too.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fedcore.file_lock import try_lock

STALE_SECONDS = 30.0
"""A job without a heartbeat for this long counts as dead where its lock cannot tell."""

CLOCK_SLACK = 3.0  # a heartbeat that lies further in the future was written before the clock was set back

RESERVE_BYTES = 512 * 1024
"""Size of a lock file: room to give back, so that a run can record its end on a disk that is full."""

INHERITED = "FEDLENS_LOCK"
"""Environment variable with the descriptor of the lock that a process was started with."""

_HELD: dict[Path, int] = {}
"""The locks that this process holds, by their files."""


@cache
def host_id() -> str:
    """Identify the set of processes that we can look up: this boot of this machine, and this container."""
    parts = [socket.gethostname(), str(uuid.getnode())]
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot.exists():  # Linux: host names change while a laptop travels, the boot does not
        parts = [boot.read_text().strip(), os.readlink(namespace) if namespace.is_symlink() else ""]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]


def new_owner() -> str:
    """Make a unique name for a process that will own jobs."""
    return f"{host_id()}/{uuid.uuid4().hex[:12]}"


def lock_folder(db: Path) -> Path:
    """Return the folder of the owners' locks: beside the database, so that a copy of it has none."""
    return db.with_name(f"{db.name}.owners")


def lock_path(db: Path, owner: str) -> Path:
    """Return the file that an owner keeps locked."""
    return lock_folder(db) / f"{owner.rpartition('/')[2]}.lock"


def hold(db: Path, owner: str) -> int | None:
    """Hold the lock of an owner until ``let_go`` or the end of this process.

    A process that was started with the lock takes that one over, so that no moment passes without it.

    Returns: its descriptor; None where there can be none, and heartbeats tell who lives.
    """
    path = lock_path(db, owner)
    if path not in _HELD:
        file = _inherited(path)
        if file is None:
            file = _create(path)
        if file is not None:
            _HELD[path] = file
    return _HELD.get(path)


def let_go(db: Path, owner: str, *, keep_file: bool = False) -> None:
    """Free the lock of an owner in this process.

    Args:
        keep_file: a process that was started with the lock holds it now, or rows may still say that this one
            lives: an unlocked file tells that it does not.
    """
    path = lock_path(db, owner)
    file = _HELD.pop(path, None)
    if file is not None:
        if not keep_file:
            with suppress(OSError):
                path.unlink()
        os.close(file)


def give_up_reserve(db: Path, owner: str) -> None:
    """Give the room that the lock of this process takes back to a full disk."""
    file = _HELD.get(lock_path(db, owner))
    if file is not None:
        with suppress(OSError):
            os.ftruncate(file, 0)


def remove_dead_lock(db: Path, owner: str) -> None:
    """Delete the lock file that a dead process left behind."""
    if is_held(db, owner) is False:
        with suppress(OSError):
            lock_path(db, owner).unlink()


def is_held(db: Path, owner: str | None) -> bool | None:
    """Return whether a living process holds an owner's lock; None when there is no lock to ask."""
    try:
        file = os.open(lock_path(db, owner or ""), os.O_RDONLY)
    except (OSError, ValueError):
        return None
    try:
        return not try_lock(file, exclusive=False)  # shared: two who ask do not take each other for the owner
    except OSError:
        return None
    finally:
        os.close(file)


def is_alive(
    db: Path, row: Mapping[str, Any], now: float | None = None, stale: float = STALE_SECONDS
) -> bool:
    """Return whether the process that owns a ``running`` or ``stopping`` row lives.

    Its lock tells. A row claimed a moment ago has none yet, some file systems have no locks, and a lock that
    was taken on another machine looks free here: then a heartbeat younger than ``stale`` seconds counts.

    Args:
        db: the database that holds the row.
        row: ``owner`` and ``heartbeat_at`` of a job.
        now: seconds since 1970, default: the present.
    """
    held = is_held(db, row["owner"])
    if held or (held is False and is_here(row)):
        return held
    now = time.time() if now is None else now
    return bool(row["heartbeat_at"] is not None and -CLOCK_SLACK <= now - row["heartbeat_at"] < stale)


def is_here(row: Mapping[str, Any]) -> bool:
    """Return whether a job was claimed on this machine, in this container and since it was booted."""
    return (row["owner"] or "").split("/")[0] == host_id()


def process_of(db: Path, row: Mapping[str, Any]) -> psutil.Process | None:
    """Return the living process of a job; None where it cannot be told for certain from another's.

    Its id is that of no other process while it holds its lock.
    """
    if row["pid"] is None or not is_here(row):
        return None
    try:
        process = psutil.Process(row["pid"])
        if is_held(db, row["owner"]) or row["owner"] in process.cmdline():
            return process
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return None


def state(db: Path, row: Mapping[str, Any], now: float | None = None) -> str:
    """Return a job's true status, which is ``interrupted`` or ``stopped`` once its process is gone."""
    if row["status"] not in ("running", "stopping") or is_alive(db, row, now):
        return str(row["status"])
    return "stopped" if row["status"] == "stopping" else "interrupted"


def _inherited(path: Path) -> int | None:
    """Return the descriptor of a lock that this process was started with."""
    number = os.environ.pop(INHERITED, "")
    if not number.isdecimal():
        return None
    file = int(number)
    try:
        if not os.path.samestat(os.fstat(file), path.stat()):
            return None
        os.set_inheritable(file, False)
    except OSError:
        return None
    return file


def _create(path: Path) -> int | None:
    """Make a file that is locked from the moment at which others can see it."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(exist_ok=True)
        file = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return None
    try:
        if not try_lock(file, exclusive=True):
            raise OSError(f"{part} is locked")
        part.replace(path)
    except OSError:
        os.close(file)
        return None
    with suppress(OSError):  # a full disk: the lock itself is there
        os.write(file, bytes(RESERVE_BYTES))
    return file


def _close_all() -> None:
    """Close the copies that a forked process has of our locks: it must not keep us alive."""
    for file in _HELD.values():
        os.close(file)
    _HELD.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_all)
