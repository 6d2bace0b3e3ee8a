"""The supervisor, `fedlens worker`: one per database, torch-free, it starts queued jobs.

Runs train in the slots of the devices; tasks (checks, encodings, analyses) have slots of their own.

If a container or batch scheduler kills detached processes, run it in the foreground.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore import devices
from fedcore.errors import FedLensError
from fedcore.jobs import launcher
from fedcore.jobs.lanes import Lanes, LocalLanes
from fedcore.jobs.launcher import LaunchedJob, Launcher, LocalLauncher
from fedcore.jobs.locks import NEXT, SupervisorLock
from fedcore.jobs.on_finish import VARIABLE, FinishWatch
from fedcore.store import Store
from fedcore.store.database import BUSY_SECONDS, kept_open
from fedcore.store.jobs import JOB_TABLES, Claim
from fedcore.store.liveness import STALE_SECONDS, is_alive
from fedcore.system_errors import DiskFull, SystemFault, check_room, explain, plain_errors

TICK_SECONDS = 0.5
IDLE_SECONDS = 600.0
PATIENCE_SECONDS = 2.0
GRACE_SECONDS = 20.0
RESTART_SECONDS = 5.0
START_PAUSE_SECONDS = 5.0
"""Pause after a process that could not be started, for want of memory or open files, say."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Child:
    """A job that runs, with the lane (a device, or that of the tasks) in which it takes a slot."""

    lane: str
    job: LaunchedJob


class Supervisor:
    """Claims queued jobs as lanes become free, and keeps the states of rows true."""

    def __init__(
        self,
        store: Store,
        *,
        device_ids: Sequence[str] | None = None,
        launcher: Launcher | None = None,
        lanes: Lanes | None = None,
        tick: float = TICK_SECONDS,
        idle: float = IDLE_SECONDS,
        stale: float = STALE_SECONDS,
        finish: FinishWatch | None = None,
        retire: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._finish = finish
        self._retire = retire
        self.device_ids = tuple(device_ids or (d.id for d in devices.list_devices()))
        self._lanes = lanes or LocalLanes(self.device_ids)
        self._launcher = launcher or LocalLauncher()
        self._tick, self._idle, self._stale = tick, idle, stale
        self._children: dict[str, Child] = {}
        self._reported: str | None = None
        self._next_start = 0.0
        self._handing_over = False
        self.ending = False

    def run(self, lock: SupervisorLock) -> None:
        """Work until idle for ``idle`` seconds, or until ``ending`` is set; the caller holds ``lock``."""
        busy = time.monotonic()
        with kept_open(self._store.path):
            while not self.ending:
                self._handing_over = lock.is_awaited() or self._retire()
                if self.step():
                    busy = time.monotonic()
                elif self._may_leave(lock, time.monotonic() - busy):
                    return
                time.sleep(self._tick)
            self._end_children()

    def _may_leave(self, lock: SupervisorLock, idle: float) -> bool:
        """Return whether to exit: another supervisor is to follow, or there was no work for long."""
        if not self._children and self._handing_over:
            return True
        return idle >= self._idle and self._leave(lock)

    def step(self) -> bool:
        """Look once at children and queue; returns whether there was anything to do.

        A full disk, a lock held for long and the like are reported once; the work goes on when that is over.
        """
        try:
            self._adopt()
            self._reap()
            if self._finish is not None:
                self._finish.look()
            started = self._start_queued()
        except (FedLensError, OSError) as error:
            plain = explain(error, self._store.path) or error
            kind = type(plain).__name__ if isinstance(plain, SystemFault) else str(plain)
            if kind != self._reported:
                logger.error("%s", plain)
            self._reported = kind
            return self._store.path.exists()  # a deleted database has nothing more to do
        if self._reported is not None and not self._pausing():
            logger.info("that is over; the queue goes on")
            self._reported = None
        return bool(started or self._children or self._pausing())

    def _pausing(self) -> bool:
        """Return whether a job could not be started a moment ago."""
        return time.monotonic() < self._next_start

    def _adopt(self) -> None:
        """Take over the jobs that run here already: an earlier supervisor's, and those that users started."""
        for row in [row for table in JOB_TABLES for row in self._store.jobs.live(table)]:
            known = row["owner"] in self._children or row["device"] is None
            if not known and is_alive(self._store.path, row, stale=self._stale):
                self._children[row["owner"]] = Child(row["device"], self._launcher.adopt(self._store, row))

    def _reap(self) -> None:
        """Mark the rows of jobs that are gone, and forget them."""
        # first, so that a job which ends after its row was read is kept: nobody else could tell how it ended
        ended = {owner for owner, child in self._children.items() if child.job.ended()}
        for table in JOB_TABLES:
            for number in self._store.jobs.reconcile(self._stale, self._exit_reason, table, ended):
                logger.warning("%s %d: its process is gone; %s", table.name, number, table.remedy)
        self._children = {owner: child for owner, child in self._children.items() if owner not in ended}

    def _exit_reason(self, owner: str) -> str | None:
        return self._children[owner].job.exit_reason() if owner in self._children else None

    def _start_queued(self) -> int:
        if self._handing_over or self._pausing() or not self._store.jobs.any_queued():
            return 0
        check_room(self._store.path)
        started = 0
        for lane in self._lanes.names():
            while (claimed := self._claim(lane)) is not None:
                self._start(claimed, lane)
                started += 1
        return started

    def _claim(self, lane: str) -> Claim | None:
        running = sum(child.lane == lane for child in self._children.values())
        return self._lanes.claim(self._store, lane, running)

    def _start(self, claimed: Claim, lane: str) -> None:
        """Start a claimed job; when the machine cannot start any at present, it is queued again.

        Raises:
            SystemFault: when it is queued again.
        """
        logger.info("%s %d starts on %s", claimed.table.name, claimed.id, lane)
        try:
            job = self._launcher.launch(claimed, lane)
        except (OSError, FedLensError) as error:
            fault = explain(error, claimed.db)
            if not isinstance(fault, SystemFault):
                reason = error.strerror if isinstance(error, OSError) else error
                claimed.finish("failed", f"its process could not be started: {reason}", patience=BUSY_SECONDS)
                return
            self._next_start = time.monotonic() + START_PAUSE_SECONDS
            claimed.give_back()
            raise fault from error
        self._children[claimed.owner] = Child(lane, job)

    def _leave(self, lock: SupervisorLock) -> bool:
        """Let go of the lock, then look once more; returns whether to exit.

        Whoever queued a job while we held the lock saw it taken, and started no other worker.
        """
        lock.release()
        try:
            if not self._store.jobs.any_queued():
                return True
        except FedLensError:  # it cannot be read at present: stay
            if not self._store.path.exists():
                return True
            logger.exception("cannot look into the queue")
        return not lock.acquire(PATIENCE_SECONDS)

    def _end_children(self) -> None:
        """Ask our jobs to end between two steps; they become ``interrupted``, and runs can be resumed."""
        ours = [child for child in self._children.values() if child.job.terminate()]
        end = time.monotonic() + GRACE_SECONDS
        while any(not child.job.ended() for child in ours) and time.monotonic() < end:
            time.sleep(0.05)
        try:
            self._reap()
        except FedLensError as error:  # whoever looks next marks the rows
            logger.error("%s", error.line())


def serve(
    db: str | Path | None = None,
    *,
    slots: int | None = None,
    make: Callable[..., Supervisor] = Supervisor,
    wait: bool = False,
    on_finish: str | None = None,
    **options: Any,
) -> int:
    """Be the database's supervisor in this process, as ``fedlens worker`` does.

    Args:
        slots: runs at once on each device, stored for later workers too; None: as stored.
        make: makes the supervisor from the store and ``options``.
        wait: wait for a supervisor that serves the database already; it starts no more jobs, and leaves.
        on_finish: command or address that is told when an experiment has ended; default: that of the
            environment variable ``FEDLENS_ON_FINISH``, if any. One that is given is a reason to wait: the
            supervisor that serves the database knows nothing of it.
        options: of ``Supervisor``.

    Returns: exit status 0, also when another supervisor serves the database already.

    Raises:
        FedLensError: when the database cannot be written, or nobody would be told of an experiment's end.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stdout)
    store = Store(db)
    room = _has_room(store)
    finish = _finish_watch(store, on_finish)
    lock = SupervisorLock(store.path)
    if not lock.acquire(PATIENCE_SECONDS):
        if finish is not None and room:
            finish.follow()  # what ends under the other supervisor is told too
        if not ((wait or on_finish is not None) and _follow(lock)):
            if on_finish is not None:
                raise FedLensError(
                    f"two workers are there for {store.path} already, one of them waiting; end the one that "
                    "waits, then start this one",
                    "on-finish",
                )
            logger.info("a worker is serving %s already", store.path)
            return 0
    try:
        if not room:
            logger.error(
                "the disk that holds %s is full; free some space, then the queue goes on", store.path
            )
        while not room:
            time.sleep(RESTART_SECONDS)
            room = _has_room(store)
        supervisor = make(store, finish=finish, **options)
        if slots is not None:
            for device in supervisor.device_ids:
                store.queue.set_slots(device, slots)

        def end(*_: object) -> None:
            supervisor.ending = True

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        logger.info("serving %s; Ctrl-C ends it, its runs can be resumed", store.path)
        supervisor.run(lock)
    finally:
        lock.release()
    return 0


def _finish_watch(store: Store, on_finish: str | None) -> FinishWatch | None:
    """Return the watch for the given target, or for the one of the environment, whose errors are logged.

    Raises:
        FedLensError: field ``on-finish``, for a given target that is none.
    """
    if on_finish is not None:
        return FinishWatch(store, on_finish)
    target = os.environ.get(VARIABLE, "")
    try:
        return FinishWatch(store, target) if target else None
    except FedLensError as error:
        logger.error("%s is ignored: %s", VARIABLE, error)
        return None


def _follow(lock: SupervisorLock) -> bool:
    """Wait until the supervisor that holds the lock has left, and take it; False if another waits already."""
    following = SupervisorLock(lock.path.with_name(lock.path.name.removesuffix(".lock")), NEXT)
    if not following.acquire():
        return False
    logger.info(
        "another worker serves the database; this one follows once the runs that it trains now have ended"
    )
    try:
        while not lock.acquire(PATIENCE_SECONDS):
            pass
    finally:
        following.release()
    return True


def _has_room(store: Store) -> bool:
    """Prepare the database; returns False while its disk is full.

    Raises:
        FedLensError: when it cannot be written for another reason.
    """
    try:
        access = store.prepare()
        if not access.writable:
            check_room(store.path)
    except DiskFull:
        return False
    if not access.writable:
        raise FedLensError(access.why or "", "db")
    return True


def start_follower(store: Store) -> None:
    """Start a detached supervisor that follows one that serves the database already, for a new choice, say.

    Raises:
        OSError: when no process can be started at present.
    """
    log = store.artifacts / "logs" / "worker.log"
    command = ["fedcore", "worker", "--follow", "--db", str(store.path)]
    launcher.start_detached(command, log, launcher.environment_before())


_STARTED: dict[Path, tuple[float, subprocess.Popen[bytes]]] = {}


def ensure_worker(store: Store, command: Sequence[str] = ("fedcore", "worker", "--db")) -> bool:
    """Start a detached supervisor when jobs wait, or dead ones need to be marked, and none lives.

    Cheap enough for every poll of a page: a few indexed reads when there is nothing to do.

    Args:
        command: module and arguments of the supervisor, before the path of the database.

    Returns: whether one was started now.

    Raises:
        SystemFault: when none can be started at present.
    """
    path = store.path
    recent = _STARTED.get(path)
    if recent is not None:
        recent[1].poll()  # reaps it if it has ended
        if time.monotonic() - recent[0] < RESTART_SECONDS:
            return False
    needed = store.jobs.any_queued() or any(store.jobs.orphans(table) for table in JOB_TABLES)
    with plain_errors(path):
        if not needed or not SupervisorLock(path).is_free():
            return False
        log = store.artifacts / "logs" / "worker.log"
        process = launcher.start_detached([*command, str(path)], log, launcher.environment_before())
    _STARTED[path] = (time.monotonic(), process)
    return True
