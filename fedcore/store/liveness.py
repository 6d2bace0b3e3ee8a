"""Find out which jobs are really running: a row may say so after its process has died."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

STALE_SECONDS = 30.0
"""A job without a heartbeat for this long counts as dead where its process cannot be seen."""

CLOCK_SLACK = 3.0  # a process' start time moves with corrections of the system clock, seconds


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


def this_process() -> tuple[int, float]:
    """Return this process' id and start time (seconds since 1970)."""
    return os.getpid(), psutil.Process().create_time()


def is_alive(row: Mapping[str, Any], now: float | None = None, stale: float = STALE_SECONDS) -> bool:
    """Return whether the process that owns a ``running`` or ``stopping`` row lives.

    On this machine the process itself is checked. A row claimed a moment ago has no process yet, and another
    container's processes cannot be seen: then a heartbeat younger than ``stale`` seconds counts.

    Args:
        row: ``owner``, ``pid``, ``pid_started`` and ``heartbeat_at`` of a job.
        now: seconds since 1970, default: the present.
    """
    if is_here(row):
        return process_of(row) is not None
    now = time.time() if now is None else now
    return bool(row["heartbeat_at"] is not None and now - row["heartbeat_at"] < stale)


def is_here(row: Mapping[str, Any]) -> bool:
    """Return whether a job's process belongs to this machine, so that it can be checked."""
    return (row["owner"] or "").split("/")[0] == host_id() and row["pid"] is not None


def process_of(row: Mapping[str, Any]) -> psutil.Process | None:
    """Return the living process with a row's id and start time; None when it has ended or is a zombie."""
    try:
        process = psutil.Process(row["pid"])
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        started = row["pid_started"]
        same = started is None or abs(process.create_time() - started) <= CLOCK_SLACK
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:  # it exists, and belongs to another user
        return process
    return process if same else None


def state(row: Mapping[str, Any], now: float | None = None) -> str:
    """Return a job's true status, which is ``interrupted`` or ``stopped`` once its process is gone."""
    if row["status"] not in ("running", "stopping") or is_alive(row, now):
        return str(row["status"])
    return "stopped" if row["status"] == "stopping" else "interrupted"
