"""Find out which jobs are really running, because a row may still be marked as running after a crash.

A process that owns jobs holds a lock on a separate file beside the database for as long as it lives. The
operating system frees the lock however the process ends. A process id may be reused and a heartbeat depends
on clocks; a lock has neither weakness, and processes in other containers see it too.
"""

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

from fedcore.base.errors import FedLensError
from fedcore.base.files import open_lock, try_lock

STALE_SECONDS = 30.0
"""A job without a heartbeat for this long counts as dead if its lock cannot tell."""
CLOCK_SLACK = 3.0  # a heartbeat further in the future was written before the clock was set back

RESTING = "waiting for its turn"
"""What the row of a run says while its process trains another; ``finished_at`` is when its rest began."""
RESERVE_BYTES = 512 * 1024
"""Size of a lock file: a reserve that is freed so that a run can record its end on a full disk."""
INHERITED = "FEDLENS_LOCK"
"""Environment variable with the descriptor of the lock that a process was started with."""
_HELD: dict[Path, int] = {}
"""Lock file -> descriptor of the lock that this process holds."""


@cache
def host_id() -> str:
    """Identify this boot of this machine and this container, within which process ids have a meaning."""
    parts = [socket.gethostname(), str(uuid.getnode())]
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot.exists():  # Linux: host names change while a laptop travels, the boot does not
        parts = [boot.read_text().strip(), os.readlink(namespace) if namespace.is_symlink() else ""]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]


def new_owner() -> str:
    """Return a unique name for a process that will own jobs."""
    return f"{host_id()}/{uuid.uuid4().hex[:12]}"


def lock_folder(db: Path) -> Path:
    """Return the folder of the owners' locks; it is not part of a copy of the database."""
    return db.with_name(f"{db.name}.owners")


def lock_path(db: Path, owner: str) -> Path:
    """Return the lock file of an owner."""
    return lock_folder(db) / f"{owner.rpartition('/')[2]}.lock"


def hold(db: Path, owner: str) -> int | None:
    """Hold the lock of an owner until ``let_go`` or the end of this process.

    A process that inherited a lock keeps that one, so that the job is never unlocked.

    Returns: its descriptor; None if the file system has no locks, so that only heartbeats are left.
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
        keep_file: do not delete the file: a child process has inherited the lock, or rows may still be marked
            as running. An unlocked file then proves that their process has ended; without it, others would
            wait until the heartbeat is stale.
    """
    path = lock_path(db, owner)
    file = _HELD.pop(path, None)
    if file is not None:
        if not keep_file:
            with suppress(OSError):
                path.unlink()  # while locked, so that a job that ended well never looks dead
        os.close(file)


def give_up_reserve(db: Path, owner: str) -> None:
    """Free the disk space of this process's lock file, on a full disk; the lock itself stays."""
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
    """Return whether a living process holds an owner's lock; None if there is no lock file, or no locking."""
    try:
        file = os.open(lock_path(db, owner or ""), os.O_RDONLY)
    except (OSError, ValueError):
        return None
    try:
        return not try_lock(
            file, exclusive=False
        )  # shared, so that two processes that ask do not block each other
    except OSError:
        return None
    finally:
        os.close(file)


def is_alive(db: Path, row: Mapping[str, Any], stale: float = STALE_SECONDS) -> bool:
    """Return whether the process that owns a ``running`` or ``stopping`` row is alive.

    The lock decides. A row that was just claimed has no lock yet, some file systems have no locks, and a lock
    held on another machine looks free from here. In these cases the process counts as alive if its heartbeat
    is younger than ``stale`` seconds.

    Args:
        row: ``owner`` and ``heartbeat_at`` of a job.
    """
    owner, heartbeat = row["owner"], row["heartbeat_at"]
    if not isinstance(owner, str | None) or not isinstance(heartbeat, float | int | None):
        raise FedLensError("the owner or heartbeat of a job is damaged; `fedlens restore` puts a backup back")
    held = is_held(db, owner)
    if held or (held is False and is_local(owner)):
        return held
    return heartbeat is not None and -CLOCK_SLACK <= time.time() - heartbeat < stale


def is_local(owner: str | None) -> bool:
    """Return whether a job was claimed on this machine, in this container and since the last boot."""
    return (owner or "").split("/")[0] == host_id()


def process_of(db: Path, row: Mapping[str, Any]) -> psutil.Process | None:
    """Return the living process of a job; None unless its process id was certainly not reused."""
    # Callers send signals to this process. Its id is safe while the owner's lock is held, since the holder is
    # alive then; otherwise the owner must appear on the command line.
    if row["pid"] is None or not is_local(row["owner"]):
        return None
    try:
        process = psutil.Process(row["pid"])
        if is_held(db, row["owner"]) or row["owner"] in process.cmdline():
            return process
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return None


def is_resting(row: Mapping[str, Any]) -> bool:
    """Return whether a run that is marked as running waits for its turn in its process."""
    return row["finished_at"] is not None and row["status_text"] == RESTING


def state(db: Path, row: Mapping[str, Any]) -> str:
    """Return a job's true status once its process has died: ``interrupted``, ``stopped``, or ``queued``."""
    if row["status"] not in ("running", "stopping") or is_alive(db, row):
        return str(row["status"])
    if row["status"] == "stopping":
        return "stopped"
    return "queued" if is_resting(row) else "interrupted"


def _inherited(path: Path) -> int | None:
    """Return the descriptor of the inherited lock if it belongs to this file."""
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
    """Create a lock file that is locked before others can see it."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = open_lock(part)
    except OSError:
        return None
    try:
        if not try_lock(file, exclusive=True):
            raise OSError(f"{part} is locked")
        part.replace(path)
    except OSError:
        os.close(file)
        return None
    with suppress(OSError):  # on a full disk there is a lock without a reserve
        os.write(file, bytes(RESERVE_BYTES))
    return file


def _close_all() -> None:
    """Close our locks in a forked child, which would otherwise make us look alive after our end."""
    for file in _HELD.values():
        os.close(file)
    _HELD.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_all)
