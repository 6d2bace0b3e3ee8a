"""Launchers start jobs; at present each job is a process on this machine.

The supervisor knows only ``Launcher`` and ``LaunchedJob``. Anything that can start a job and tell how it
ended may replace a process: a remote task, say, whose events a local watcher passes to ``job.execute`` as the
job's handler.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from fedcore.errors import FedLensError
from fedcore.jobs import devices
from fedcore.jobs.lanes import TASK_LANE
from fedcore.paths import IN_CHECKOUT, PROJECT
from fedcore.store import Store
from fedcore.store.jobs import RUNS, Claim, LostClaim
from fedcore.store.liveness import is_alive, process_of

PROCESS_LOG = "process.log"
KILL_SECONDS = 5.0


class LaunchedJob(Protocol):
    """A job that was started, by this supervisor or by another."""

    def ended(self) -> bool:
        """Return whether it is gone."""

    def exit_reason(self) -> str | None:
        """Say what is known about its end; None if nothing is."""

    def terminate(self) -> bool:
        """Ask it to end between two steps; returns False for one that a user started and that stays."""


class Launcher(Protocol):
    """Starts claimed jobs."""

    def launch(self, claim: Claim, lane: str) -> LaunchedJob:
        """Start a job on a device, or in the lane of the tasks.

        Raises:
            OSError: when it cannot be started.
        """

    def adopt(self, row: Mapping[str, Any]) -> LaunchedJob:
        """Take over a job that was started elsewhere, given its row (see ``JobTable.live``)."""


Start = Callable[[Claim, str], "subprocess.Popen[bytes]"]


def start_process(claim: Claim, lane: str) -> subprocess.Popen[bytes]:
    """Start the process that does a claimed job, ``fedlens job``.

    A task uses the device on which runs would train: it encodes for them, and each device has its own
    encodings.
    """
    device = devices.default_device() if lane == TASK_LANE else lane
    arguments = [
        "fedcore", "job", "--kind", claim.kind, "--id", str(claim.id), "--owner", claim.owner,
        "--attempt", str(claim.attempt), "--device", device, "--db", str(claim.db),
    ]  # fmt: skip
    environment = devices.environment_for(device, Store(claim.db).queue.slots().get(device, 1))
    return start_detached(arguments, claim.folder / PROCESS_LOG, environment)


def start_detached(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``python -m <arguments>`` in a session of its own, without a shell.

    It outlives a closed terminal, Ctrl-C and the process that started it. Output is appended to ``log``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    folders = [str(PROJECT) if IN_CHECKOUT else "", os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    flags = 0
    if sys.platform == "win32":  # untested
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            creationflags=flags,
            start_new_session=sys.platform != "win32",
        )


class LocalLauncher:
    """Starts jobs as processes of this machine.

    Args:
        start: starts the process.
    """

    def __init__(self, start: Start = start_process) -> None:
        self._start = start

    def launch(self, claim: Claim, lane: str) -> LocalJob:
        """Start the process and record it in the job's row."""
        process = self._start(claim, lane)
        started: float | None = None
        with suppress(psutil.NoSuchProcess, LostClaim):  # ended already: the supervisor's next step tells how
            started = psutil.Process(process.pid).create_time()
            claim.set_process(process.pid, started)
        return LocalJob({"owner": claim.owner, "pid": process.pid, "pid_started": started}, process)

    def adopt(self, row: Mapping[str, Any]) -> LocalJob:
        """Take over a process that an earlier supervisor or a user started."""
        return LocalJob(row)


class LocalJob:
    """A process that does a job; ``process`` is None if an earlier supervisor or a user started it."""

    def __init__(self, row: Mapping[str, Any], process: subprocess.Popen[bytes] | None = None) -> None:
        self._row = row
        self.process = process

    def ended(self) -> bool:
        """Return whether it is gone; reaps it where it is our child."""
        if self.process is not None:
            return self.process.poll() is not None
        return not is_alive(self._row)

    def exit_reason(self) -> str | None:
        """Say how the process ended; None for one that is not our child."""
        if self.process is None:
            return None
        try:  # a killed process with threads can be reaped only a moment later
            code = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return None
        if code == -signal.SIGKILL:
            return "its process was killed (signal 9; the system does so when memory runs out)"
        return f"its process ended with {f'signal {-code}' if code < 0 else f'exit status {code}'}"

    def terminate(self) -> bool:
        """Send SIGTERM, unless a user started the process."""
        if self.process is None and not self._started_by_supervisor():
            return False
        process = process_of(self._row)
        if process is not None:
            process.terminate()
        return True

    def _started_by_supervisor(self) -> bool:
        """Return whether the claim's owner is on its command line, as it is if a supervisor started it."""
        try:
            return self._row["owner"] in psutil.Process(self._row["pid"]).cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def force_stop(store: Store, run_id: int) -> bool:
    """Kill the process of a run that does not react to a stop; its current round is lost, earlier ones stay.

    Returns: whether there was a process to kill.

    Raises:
        FedLensError: unless a stop has been requested before.
    """
    row = next((row for row in store.jobs.live(RUNS) if row["id"] == run_id), None)
    if row is None or row["status"] != "stopping":
        raise FedLensError(f"run {run_id} was not asked to stop; stop it first, kill it only if it does not")
    process = process_of(row) if row["pid"] is not None and is_alive(row) else None
    if process is not None:
        process.kill()
    end = time.monotonic() + KILL_SECONDS
    while process is not None and process_of(row) is not None and time.monotonic() < end:
        time.sleep(0.02)
    store.jobs.reconcile()
    return process is not None
