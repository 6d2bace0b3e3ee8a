"""Which runs are really running: a row says so, but only a living process makes it true."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fedcore.store.database import reading, writing

STALE_SECONDS = 30.0
"""A run without a heartbeat for this long counts as dead where its process cannot be looked at."""

CLOCK_SLACK = 3.0  # a process' start time moves with corrections of the system clock, seconds


@cache
def host_id() -> str:
    """Names the set of processes whose ids we can look up: this boot of this machine, and this container."""
    parts = [socket.gethostname(), str(uuid.getnode())]
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot.exists():  # Linux: host names change while a laptop travels, the boot does not
        parts = [boot.read_text().strip(), os.readlink(space) if space.is_symlink() else ""]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]


def new_owner() -> str:
    """A name for one process that will own runs; no two are equal."""
    return f"{host_id()}/{uuid.uuid4().hex[:12]}"


def this_process() -> tuple[int, float]:
    """This process' id and start time (seconds since 1970)."""
    return os.getpid(), psutil.Process().create_time()


def process_alive(pid: int, started: float | None) -> bool:
    """Whether that very process lives: same id, same start time, and not a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return started is None or abs(process.create_time() - started) <= CLOCK_SLACK
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # it exists, and belongs to somebody else
        return True


def is_alive(row: Mapping[str, Any], now: float | None = None, stale: float = STALE_SECONDS) -> bool:
    """Whether the process that owns a ``running`` or ``stopping`` row lives.

    On this machine its process is looked at. A row claimed a moment ago has no process yet, and another
    container's processes cannot be seen: then a heartbeat younger than ``stale`` seconds counts.
    """
    now = time.time() if now is None else now
    fresh = row["heartbeat_at"] is not None and now - row["heartbeat_at"] < stale
    here = (row["owner"] or "").split("/")[0] == host_id()
    if here and row["pid"] is not None:
        return process_alive(row["pid"], row["pid_started"])
    return fresh


_FIELDS = "id, status, owner, attempt, device, pid, pid_started, heartbeat_at"


@dataclass(frozen=True)
class Work:
    """A table of work that processes claim.

    Attributes:
        name: of one row, for messages.
        remark: column that says in one line why a row ended.
        remedy: what to do when its process is gone.
    """

    table: str
    name: str
    remark: str
    remedy: str

    @property
    def live(self) -> str:
        """SQL: the rows that say ``running`` or ``stopping``."""
        return f"SELECT {_FIELDS} FROM {self.table} WHERE status IN ('running','stopping')"


RUNS = Work("runs", "run", "reason", "resume goes on after the last round")
TASKS = Work("tasks", "task", "error", "start it again")


def orphans(db: str | Path, stale: float = STALE_SECONDS, work: Work = RUNS) -> list[dict[str, Any]]:
    """Rows that say ``running`` or ``stopping`` while their process is dead."""
    with reading(db) as connection:
        rows = [dict(row) for row in connection.execute(work.live)]
    return [row for row in rows if not is_alive(row, stale=stale)]


def reconcile(
    db: str | Path,
    stale: float = STALE_SECONDS,
    reason: Callable[[str], str | None] = lambda owner: None,
    work: Work = RUNS,
) -> list[int]:
    """Mark work whose process is gone: ``interrupted``, or ``stopped`` where a stop had been asked for.

    Cheap when there is nothing to do (one indexed read): pages call it at each poll. ``reason`` says what
    is known about the end of an owner's process.

    Returns: ids of the rows that were marked. They are not queued again by themselves: a run that kills its
    process (memory, a driver) would do so again and again; `resume` goes on from the last checkpoint.
    """
    dead = orphans(db, stale, work)
    if not dead:
        return []
    marked = []
    with writing(db) as database:
        for row in dead:
            why = reason(row["owner"]) or "its process ended without a word"
            cursor = database.execute(
                f"UPDATE {work.table} "
                "SET status = CASE status WHEN 'stopping' THEN 'stopped' ELSE 'interrupted' END, "
                f"finished_at=?, {work.remark}=?, message=NULL, pid=NULL, pid_started=NULL "
                "WHERE id=? AND owner=? AND attempt=? AND status IN ('running','stopping')",
                [time.time(), f"{why}; {work.remedy}", row["id"], row["owner"], row["attempt"]],
            )
            marked += [row["id"]] if cursor.rowcount else []
    return marked


def state(row: Mapping[str, Any], now: float | None = None) -> str:
    """The truth about a row: its status, unless its process is gone and nobody has written so yet."""
    if row["status"] not in ("running", "stopping") or is_alive(row, now):
        return row["status"]
    return "stopped" if row["status"] == "stopping" else "interrupted"
