"""The supervisor, `fedlens worker`: one per database, torch-free, it starts a process for each run.

Runs train in the slots of the devices; tasks (checks, encodings, analyses) have slots of their own beside.

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
from fedcore.jobs import devices, processes, tasks
from fedcore.jobs.locks import SupervisorLock
from fedcore.jobs.slots import fits, set_slots, slots
from fedcore.jobs.tasks import TaskClaim
from fedcore.store import Store
from fedcore.store.claims import LostRun
from fedcore.store.database import artifacts_folder, reading, resolve
from fedcore.store.lease import Lease, claim, next_queued
from fedcore.store.liveness import (
    RUNS,
    STALE_SECONDS,
    TASKS,
    is_alive,
    new_owner,
    orphans,
    process_alive,
    reconcile,
)

TICK_SECONDS = 0.5
IDLE_SECONDS = 600.0
PATIENCE_SECONDS = 2.0
GRACE_SECONDS = 20.0
TASK_LANE, TASK_SLOTS = "tasks", 2
"""Where tasks run: beside the devices, so that a check does not wait for hours of training."""
WAITING = """
SELECT 1 WHERE EXISTS (SELECT 1 FROM runs WHERE status='queued')
OR EXISTS (SELECT 1 FROM tasks WHERE status='queued')
"""
logger = logging.getLogger(__name__)

Spawn = Callable[[Lease, str], "subprocess.Popen[bytes]"]
SpawnTask = Callable[[TaskClaim], "subprocess.Popen[bytes]"]


def spawn_job(lease: Lease, device: str) -> subprocess.Popen[bytes]:
    """Start the process that trains a claimed run (and then its experiment's other runs)."""
    arguments = [
        "fedcore.jobs.job", "--db", str(lease.db), "--run", str(lease.run_id), "--owner", lease.owner,
        "--attempt", str(lease.attempt), "--device", device,
    ]  # fmt: skip
    sharers = slots(lease.db).get(device, 1)
    return processes.start(arguments, lease.folder / "process.log", devices.environment_for(device, sharers))


def spawn_task(claimed: TaskClaim) -> subprocess.Popen[bytes]:
    """Start the process that does a claimed task.

    It sees the device on which runs would train: what it encodes is for them, and encodings of another
    device are others.
    """
    device = devices.default_device()
    arguments = [
        "fedcore", "task", str(claimed.id), "--db", str(claimed.db), "--owner", claimed.owner,
        "--attempt", str(claimed.attempt), "--device", device,
    ]  # fmt: skip
    environment = devices.environment_for(device, slots(claimed.db).get(device, 1))
    return processes.start(arguments, tasks.get(claimed.db, claimed.id).log, environment)


@dataclass
class Child:
    """A process that works. ``device`` is the lane that it takes.

    ``handle`` is None for one that an earlier supervisor started.
    """

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
        spawn: Spawn = spawn_job,
        spawn_task: SpawnTask = spawn_task,
        tick: float = TICK_SECONDS,
        idle: float = IDLE_SECONDS,
        stale: float = STALE_SECONDS,
    ) -> None:
        self._db = resolve(db)
        self.device_ids = tuple(device_ids or (d.id for d in devices.list_devices()))
        self._gpu = next((d for d in self.device_ids if d != devices.CPU), None)
        self._spawn, self._spawn_task = spawn, spawn_task
        self._tick, self._idle, self._stale = tick, idle, stale
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
        """Know every process that works here: an earlier supervisor's children, those in the foreground."""
        with reading(self._db) as connection:
            rows = [dict(row) for work in (RUNS, TASKS) for row in connection.execute(work.live)]
        for row in rows:
            known = row["owner"] in self._children or row["device"] is None or row["pid"] is None
            if not known and is_alive(row, stale=self._stale):
                self._children[row["owner"]] = Child(
                    row["owner"], row["device"], row["pid"], row["pid_started"]
                )

    def _bury(self) -> None:
        # looked at first: one that ends after its row was looked at is kept, or nobody could say how it ended
        ended = {owner for owner, child in self._children.items() if child.ended()}
        for work in (RUNS, TASKS):
            for number in reconcile(self._db, self._stale, self._obituary, work):
                logger.warning("%s %d: its process is gone; %s", work.name, number, work.remedy)
        self._children = {owner: child for owner, child in self._children.items() if owner not in ended}

    def _obituary(self, owner: str) -> str | None:
        return self._children[owner].obituary() if owner in self._children else None

    def _start_queued(self) -> int:
        started = 0
        for lane in (*self.device_ids, TASK_LANE):
            while (claimed := self._next(lane)) is not None and self._start(claimed, lane):
                started += 1
        return started

    def _next(self, lane: str) -> Lease | TaskClaim | None:
        """Claim what may start there now."""
        taken = sum(child.device == lane for child in self._children.values())
        if lane == TASK_LANE:
            return tasks.claim(self._db, new_owner(), lane) if taken < TASK_SLOTS else None
        accepts = devices.accepts(lane, self._gpu)
        if taken and not self._one_more(lane, taken, accepts):
            return None
        return claim(self._db, new_owner(), lane, accepts=accepts)

    def _one_more(self, device: str, taken: int, accepts: tuple[str, ...]) -> bool:
        if taken >= slots(self._db).get(device, 1):
            return False
        waiting = next_queued(self._db, accepts)
        facts = next((d for d in devices.list_devices() if d.id == device), None)
        return waiting is not None and facts is not None and fits(self._db, facts, waiting)

    def _start(self, claimed: Lease | TaskClaim, lane: str) -> bool:
        """Start its process. Returns: whether there is one."""
        logger.info("%s %d starts on %s", claimed.work.name, claimed.id, lane)
        try:
            handle = (
                self._spawn_task(claimed) if isinstance(claimed, TaskClaim) else self._spawn(claimed, lane)
            )
        except OSError as error:
            claimed.finish("failed", f"its process could not be started: {error.strerror}")
            return False
        try:
            created: float | None = psutil.Process(handle.pid).create_time()
            claimed.set_process(handle.pid, created)
        except (psutil.NoSuchProcess, LostRun):  # it has ended already: the next step says how
            created = None
        self._children[claimed.owner] = Child(claimed.owner, lane, handle.pid, created, handle)
        return True

    def _leave(self, lock: SupervisorLock) -> bool:
        """Let go of the lock, then look once more; returns whether to exit.

        Whoever queued a run while we held the lock found it taken, and started nobody.
        """
        lock.release()
        with reading(self._db) as connection:
            waiting = connection.execute(WAITING).fetchone()
        return waiting is None or not lock.acquire(PATIENCE_SECONDS)

    def _end_children(self) -> None:
        """Ask our processes to end between two steps; their runs become ``interrupted``, to be resumed."""
        ours = [child for child in self._children.values() if child.handle is not None or _was_given(child)]
        for child in ours:
            _signal(child.pid, child.started)
        end = time.monotonic() + GRACE_SECONDS
        while any(not child.ended() for child in ours) and time.monotonic() < end:
            time.sleep(0.05)
        self._bury()


def _was_given(child: Child) -> bool:
    """Whether a supervisor started it: then its owner stands on its command line. A user's own stays."""
    try:
        return child.owner in psutil.Process(child.pid).cmdline()
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
        row = connection.execute(RUNS.live + " AND id=?", [run_id]).fetchone()
    if row is None or row["status"] != "stopping":
        raise FedLensError(f"run {run_id} was not asked to stop; stop it first, kill it only if it does not")
    killed = row["pid"] is not None and is_alive(row) and _signal(row["pid"], row["pid_started"], kill=True)
    end = time.monotonic() + 5
    while killed and process_alive(row["pid"], row["pid_started"]) and time.monotonic() < end:
        time.sleep(0.02)
    reconcile(db)
    return killed


def serve(db: str | Path | None = None, *, slots: int | None = None, **options: Any) -> int:
    """Be the database's supervisor, in the foreground; what ``fedlens worker`` does.

    Args:
        slots: runs at once on each device, stored for later workers too; None: as stored.
        options: of ``Supervisor``.

    Returns: exit status 0, also when another supervisor lives: then the work is in good hands.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stdout)
    access = Store(db).prepare()
    if not access.writable:
        raise FedLensError(access.why or "", "db")
    lock = SupervisorLock(access.path)
    if not lock.acquire(PATIENCE_SECONDS):
        logger.info("a worker is serving %s already", access.path)
        return 0
    supervisor = Supervisor(access.path, **options)
    for device in supervisor.device_ids if slots is not None else ():
        set_slots(access.path, device, slots)

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
    """Start a detached supervisor when runs or tasks wait, or dead ones need to be marked, and none lives.

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
        queued = connection.execute(WAITING).fetchone() is not None
    work = queued or orphans(path) or orphans(path, work=TASKS)
    if not work or not SupervisorLock(path).is_free():
        return False
    log = artifacts_folder(path) / "logs" / "worker.log"
    _STARTED[path] = (time.monotonic(), processes.start(["fedcore", "worker", "--db", str(path)], log))
    return True
