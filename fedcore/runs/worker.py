"""The supervisor, `python -m fedcore worker`: one per database, torch-free, it starts a process for each run.

Where containers or batch schedulers kill detached processes, run it in the foreground.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedcore.errors import FedLensError
from fedcore.runs import devices, processes
from fedcore.runs.database import artifacts_folder, prepare, reading, resolve
from fedcore.runs.lease import Lease, LostRun, claim
from fedcore.runs.liveness import LIVE, STALE_SECONDS, is_alive, new_owner, orphans, process_alive, reconcile
from fedcore.runs.locks import SupervisorLock

TICK_SECONDS = 0.5
IDLE_SECONDS = 600.0
PATIENCE_SECONDS = 2.0
GRACE_SECONDS = 20.0
logger = logging.getLogger(__name__)

Spawn = Callable[[Lease, str], "subprocess.Popen[bytes]"]


def spawn_job(lease: Lease, device: str) -> subprocess.Popen[bytes]:
    """Start the process that trains a claimed run (and then its experiment's other runs)."""
    arguments = [
        "fedcore.runs.job", "--db", str(lease.db), "--run", str(lease.run_id), "--owner", lease.owner,
        "--attempt", str(lease.attempt), "--device", device,
    ]  # fmt: skip
    return processes.start(arguments, lease.folder / "process.log", devices.environment_for(device))


@dataclass
class Child:
    """A process that trains. ``handle`` is None for one that an earlier supervisor started."""

    owner: str
    device: str
    pid: int
    started: float | None
    handle: subprocess.Popen[bytes] | None = None

    def ended(self) -> bool:
        """Whether it is gone; reaps it where it is ours."""
        if self.handle is not None:
            return self.handle.poll() is not None
        return not process_alive(self.pid, self.started)

    def obituary(self) -> str | None:
        """What is known about its end; None for a process that is not ours to reap."""
        if self.handle is None:
            return None
        try:
            code = self.handle.wait(
                timeout=2
            )  # a killed process with threads can be reaped a moment later only
        except subprocess.TimeoutExpired:
            return None
        if code == -signal.SIGKILL:
            return "its process was killed (signal 9; the system does so when memory runs out)"
        return f"its process ended with {f'signal {-code}' if code < 0 else f'exit status {code}'}"


class Supervisor:
    """Claims queued runs as devices become free, and keeps the states of rows true."""

    def __init__(
        self,
        db: str | Path,
        *,
        device_ids: Sequence[str] | None = None,
        slots: int = 1,
        spawn: Spawn = spawn_job,
        tick: float = TICK_SECONDS,
        idle: float = IDLE_SECONDS,
        stale: float = STALE_SECONDS,
    ) -> None:
        self._db = resolve(db)
        self._devices = tuple(device_ids or (d.id for d in devices.list_devices()))
        self._gpu = next((d for d in self._devices if d != devices.CPU), None)
        self._slots, self._spawn, self._tick, self._idle, self._stale = slots, spawn, tick, idle, stale
        self._children: dict[str, Child] = {}
        self._told: str | None = None
        self.ending = False

    def run(self, lock: SupervisorLock) -> None:
        """Work until idle for ``idle`` seconds, or until asked to end. The caller holds ``lock``."""
        busy = time.monotonic()
        while not self.ending:
            if self.step():
                busy = time.monotonic()
            elif time.monotonic() - busy >= self._idle and self._leave(lock):
                return
            time.sleep(self._tick)
        self._end_children()

    def step(self) -> bool:
        """One look at children and queue. Returns whether there was anything to do."""
        try:
            self._adopt()
            self._bury()
            started = self._start_queued()
            self._told = None
        except (
            FedLensError
        ) as error:  # a full disk, a lock held for long: say so once, go on when it is mended
            if str(error) != self._told:
                logger.error("%s", error.line())
            self._told = str(error)
            return bool(self._children)
        return bool(started or self._children)

    def _adopt(self) -> None:
        """Know every process that trains here: an earlier supervisor's children, runs in the foreground."""
        with reading(self._db) as connection:
            rows = [dict(row) for row in connection.execute(LIVE)]
        for row in rows:
            known = row["owner"] in self._children or row["device"] is None or row["pid"] is None
            if not known and is_alive(row, stale=self._stale):
                self._children[row["owner"]] = Child(
                    row["owner"], row["device"], row["pid"], row["pid_started"]
                )

    def _bury(self) -> None:
        for run_id in reconcile(self._db, self._stale, self._obituary):
            logger.warning("run %d: its process is gone; resume goes on after its last round", run_id)
        self._children = {owner: child for owner, child in self._children.items() if not child.ended()}

    def _obituary(self, owner: str) -> str | None:
        return self._children[owner].obituary() if owner in self._children else None

    def _start_queued(self) -> int:
        started = 0
        for device in self._devices:
            taken = sum(child.device == device for child in self._children.values())
            for _ in range(self._slots - taken):
                lease = claim(self._db, new_owner(), device, accepts=devices.accepts(device, self._gpu))
                if lease is None:
                    break
                self._start(lease, device)
                started += 1
        return started

    def _start(self, lease: Lease, device: str) -> None:
        logger.info("run %d starts on %s", lease.run_id, device)
        try:
            handle = self._spawn(lease, device)
        except OSError as error:
            lease.finish("failed", f"its process could not be started: {error.strerror}")
            return
        try:
            created: float | None = psutil.Process(handle.pid).create_time()
            lease.set_process(handle.pid, created)
        except (psutil.NoSuchProcess, LostRun):  # it has ended already: the next step says how
            created = None
        self._children[lease.owner] = Child(lease.owner, device, handle.pid, created, handle)

    def _leave(self, lock: SupervisorLock) -> bool:
        """Let go of the lock, then look once more; returns whether to exit.

        Whoever queued a run while we held the lock found it taken, and started nobody.
        """
        lock.release()
        with reading(self._db) as connection:
            waiting = connection.execute("SELECT 1 FROM runs WHERE status='queued' LIMIT 1").fetchone()
        return waiting is None or not lock.acquire(PATIENCE_SECONDS)

    def _end_children(self) -> None:
        """Ask our processes to end between two steps; their runs become ``interrupted``, to be resumed."""
        ours = [child for child in self._children.values() if child.handle is not None or _is_job(child)]
        for child in ours:
            _signal(child.pid, child.started)
        end = time.monotonic() + GRACE_SECONDS
        while any(not child.ended() for child in ours) and time.monotonic() < end:
            time.sleep(0.05)
        self._bury()


def _is_job(child: Child) -> bool:
    try:
        return "fedcore.runs.job" in psutil.Process(child.pid).cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _signal(pid: int, started: float | None, kill: bool = False) -> bool:
    """SIGTERM (or SIGKILL) to that very process, never to another that was given its id since."""
    if not process_alive(pid, started):
        return False
    process = psutil.Process(pid)
    process.kill() if kill else process.terminate()
    return True


def force_stop(db: str | Path, run_id: int) -> bool:
    """Kill the process of a run that does not heed a stop; its unfinished round is lost, earlier ones stay.

    Returns: whether there was a process to kill.

    Raises:
        FedLensError: unless a stop was asked for before: signals only escalate.
    """
    with reading(db) as connection:
        row = connection.execute(LIVE + " AND id=?", [run_id]).fetchone()
    if row is None or row["status"] != "stopping":
        raise FedLensError(f"run {run_id} was not asked to stop; stop it first, kill it only if it does not")
    killed = row["pid"] is not None and is_alive(row) and _signal(row["pid"], row["pid_started"], kill=True)
    end = time.monotonic() + 5
    while killed and process_alive(row["pid"], row["pid_started"]) and time.monotonic() < end:
        time.sleep(0.02)
    reconcile(db)
    return killed


def serve(db: str | Path | None = None, **options: Any) -> int:
    """Be the database's supervisor, in the foreground; what ``python -m fedcore worker`` does.

    Args:
        options: of ``Supervisor``.

    Returns: exit status 0, also when another supervisor lives: then the work is in good hands.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stdout)
    access = prepare(db)
    if not access.writable:
        raise FedLensError(access.why or "", "db")
    lock = SupervisorLock(access.path)
    if not lock.acquire(PATIENCE_SECONDS):
        logger.info("a worker is serving %s already", access.path)
        return 0
    supervisor = Supervisor(access.path, **options)

    def end(*_: object) -> None:
        supervisor.ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    logger.info("serving %s; Ctrl-C ends it, its runs can be resumed", access.path)
    try:
        supervisor.run(lock)
    finally:
        lock.release()
    return 0


_STARTED: dict[Path, tuple[float, subprocess.Popen[bytes]]] = {}
RESTART_SECONDS = 5.0


def ensure_worker(db: str | Path) -> bool:
    """Start a detached supervisor when runs are queued, or dead ones need to be marked, and none lives.

    Cheap enough for every poll of a page: two indexed reads when there is nothing to do.

    Returns: whether one was started now.
    """
    path = resolve(db)
    recent = _STARTED.get(path)
    if recent is not None:
        recent[1].poll()  # reaps it if it has ended
        if time.monotonic() - recent[0] < RESTART_SECONDS:
            return False
    with reading(path) as connection:
        queued = connection.execute("SELECT 1 FROM runs WHERE status='queued' LIMIT 1").fetchone() is not None
    if not (queued or orphans(path)) or not SupervisorLock(path).is_free():
        return False
    log = artifacts_folder(path) / "logs" / "worker.log"
    _STARTED[path] = (time.monotonic(), processes.start(["fedcore", "worker", "--db", str(path)], log))
    return True
