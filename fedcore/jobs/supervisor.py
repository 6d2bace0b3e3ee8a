"""The supervisor (`fedlens worker`) starts queued jobs. It never imports torch.

A database has at most one, which holds ``SupervisorLock``. Runs train in the slots of the devices; tasks
(checks, encodings, analyses) have separate slots. If a container or batch scheduler kills detached processes,
run it in the foreground.
"""

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

from fedcore.base import devices
from fedcore.base.errors import DiskFull, FedLensError, SystemFault, check_room, explain, plain_errors
from fedcore.base.files import open_lock, try_lock
from fedcore.jobs import launcher
from fedcore.jobs.launcher import LaunchedJob, Machines, ThisMachine
from fedcore.jobs.on_finish import VARIABLE, FinishWatch
from fedcore.jobs.tuning import advance, record_problems
from fedcore.store import Store
from fedcore.store.damage import SHARE
from fedcore.store.database import BUSY_SECONDS, held_open, resolve
from fedcore.store.jobs import JOB_TABLES, Claim
from fedcore.store.liveness import STALE_SECONDS, is_alive, is_resting

TICK_SECONDS = 0.5  # between two looks at the queue
IDLE_SECONDS = 600.0  # without work, after which a supervisor exits
LOCK_SECONDS = 2.0  # for which a supervisor tries to take the lock of another
GRACE_SECONDS = 20.0  # for jobs to end between two steps when the supervisor ends
RESTART_SECONDS = 5.0  # between two starts of a supervisor, and between two looks at a full disk
START_PAUSE_SECONDS = 5.0
"""Pause after a process could not be started, for example because memory or open files ran out."""
NEXT = ".lock.next"
"""Suffix of the lock that the next supervisor holds while it waits for the present one to leave."""
logger = logging.getLogger(__name__)


class SupervisorLock:
    """The lock on the file ``<db>.lock``, one per database; ``NEXT`` is of a supervisor that waits.

    The kernel frees it however its holder dies, so a killed supervisor never blocks the next one.
    """

    def __init__(self, db: str | Path, suffix: str = ".lock") -> None:
        self.db = resolve(db)
        self.path = self.db.with_name(self.db.name + suffix)
        self._file: int | None = None

    def acquire(self, patience: float = 0.0) -> bool:
        """Take the lock, trying for some seconds; returns False if another process holds it."""
        end = time.monotonic() + patience
        while not self._try():
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_free(self) -> bool:
        # A shared lock, tried and released: two processes that ask at once do not see each other as holders.
        return self._try(exclusive=False)

    def is_awaited(self) -> bool:
        """Return whether another supervisor waits for this one to leave."""
        following = SupervisorLock(self.db, NEXT)
        return following.path.exists() and not following.is_free()

    def _try(self, exclusive: bool = True) -> bool:
        file = open_lock(self.path)
        locked = False
        try:
            locked = try_lock(file, exclusive)
        finally:
            if locked and exclusive:
                self._file = file
            else:
                os.close(file)
        return locked


@dataclass(frozen=True)
class Child:
    """A running job and the pool (a device, or that of the tasks) in which it takes a slot."""

    pool: str
    job: LaunchedJob


class Supervisor:
    """Claims queued jobs as slots become free, and marks the rows of jobs that died."""

    def __init__(
        self,
        store: Store,
        machines: Machines,
        *,
        tick: float = TICK_SECONDS,
        idle: float = IDLE_SECONDS,
        stale: float = STALE_SECONDS,
        finish: FinishWatch | None = None,
        retire: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._machines = store, machines
        self._finish, self._retire = finish, retire
        self._tick, self._idle, self._stale = tick, idle, stale
        self._children: dict[str, Child] = {}
        self._reported: str | None = None
        self._held: dict[int, str] = {}  # search that cannot go on -> why
        self._next_start = self._next_search = 0.0
        self._handing_over = False
        self.ending = False

    def run(self, lock: SupervisorLock) -> None:
        """Work until idle for ``idle`` seconds, or until ``ending`` is set; the caller holds ``lock``."""
        busy = time.monotonic()
        with held_open(self._store.path):
            while not self.ending:
                # If another supervisor waits, for example with another cluster, this one starts no more jobs
                # and leaves once its own have ended. Only then does the next one get the lock, so that every
                # job has a supervisor that knows its device.
                self._handing_over = lock.is_awaited() or self._retire()
                if self.step():
                    busy = time.monotonic()
                else:
                    is_idle = time.monotonic() - busy >= self._idle
                    if (self._handing_over and not self._children) or (is_idle and self._leave(lock)):
                        return
                self.pause()
            self._end_children()

    def pause(self) -> None:
        self._machines.wait(self._tick)

    def step(self) -> bool:
        """Look once at the children and the queue; returns whether there was anything to do.

        A full disk or a long lock is reported once, and the work continues as soon as it is resolved.
        """
        try:
            with self._store.one_connection():
                self._adopt()
                self._reap()
                self._follow_searches()
                if self._finish is not None:
                    self._finish.look()
                started = self._start_queued()
            if self._children:
                devices.sample_loads()
        except (FedLensError, OSError) as error:
            plain = explain(error, self._store.path) or error
            kind = type(plain).__name__ if isinstance(plain, SystemFault) else str(plain)
            if kind != self._reported:
                logger.error("%s", plain)
            self._reported = kind
            return self._store.path.exists()  # a deleted database has nothing more to do
        if self._reported is not None and not self._pausing():
            logger.info("recovered; resuming the queue")
            self._reported = None
        return bool(started or self._children or self._pausing())

    def _pausing(self) -> bool:
        """Return whether a recent failure to start a process delays the next start."""
        return time.monotonic() < self._next_start

    def _adopt(self) -> None:
        """Take over running jobs that an earlier supervisor or a user started; they occupy slots too."""
        rows = [row for table in JOB_TABLES for row in self._store.jobs.live(table)]
        # One row names an owner's process: not that of a run which waits for its turn there.
        for row in sorted(rows, key=is_resting):
            # Without a device, a script records the run (``Recorder``), which takes no slot of ours.
            ours = row["owner"] in self._children or row["device"] is None
            if not ours and is_alive(self._store.path, row, stale=self._stale):
                self._children[row["owner"]] = Child(row["device"], self._machines.adopt(self._store, row))

    def _reap(self) -> None:
        """Mark the rows of jobs whose process has ended, and forget these children."""

        def exit_reason(owner: str) -> str | None:
            return self._children[owner].job.exit_reason() if owner in self._children else None

        # The children are asked before the rows are read. A child that ends in between stays in the list for
        # the next look: only its handle knows the exit status, and forgetting it now would lose the reason.
        ended = {owner for owner, child in self._children.items() if child.job.ended()}
        for table in JOB_TABLES:
            for number in self._store.jobs.reconcile(self._stale, exit_reason, table, ended):
                logger.warning("%s %d: its process is gone; %s", table.name, number, table.remedy)
        self._children = {owner: child for owner, child in self._children.items() if owner not in ended}

    def _follow_searches(self) -> None:
        """Queue what follows ended searches; one that cannot go on is reported once and holds nothing up."""
        held, began = {}, time.monotonic()
        for search in self._store.searches.waiting():
            if search in self._held and began < self._next_search:
                held[search] = self._held[search]
                continue
            try:
                advance(self._store, search)
            except SystemFault:
                raise
            except FedLensError as error:
                if self._held.get(search) != str(error):
                    logger.error("the search of experiment %d cannot go on: %s", search, error.line())
                held[search] = str(error)
                self._next_search = time.monotonic() + (time.monotonic() - began) / SHARE
        if held != self._held:
            record_problems(self._store, held)
        self._held = held

    def _start_queued(self) -> int:
        if self._handing_over or self._pausing() or not self._store.jobs.any_queued():
            return 0
        check_room(self._store.path)
        started = 0
        for pool in self._machines.names():
            running = sum(child.pool == pool for child in self._children.values())
            while (claim := self._machines.claim(self._store, pool, running)) is not None:
                self._start(claim, pool)
                started, running = started + 1, running + (claim.owner in self._children)
        return started

    def _start(self, claim: Claim, pool: str) -> None:
        """Start a claimed job; if the machine cannot start a process now, the job is queued again."""
        logger.info("%s %d starts on %s", claim.table.name, claim.id, pool)
        try:
            job = self._machines.launch(claim, pool)
        except (OSError, FedLensError) as error:
            fault = explain(error, claim.db)
            if not isinstance(fault, SystemFault):
                reason = error.strerror if isinstance(error, OSError) else error
                claim.finish("failed", f"its process could not be started: {reason}", patience=BUSY_SECONDS)
                return
            self._next_start = time.monotonic() + START_PAUSE_SECONDS
            claim.give_back()
            raise fault from error
        self._children[claim.owner] = Child(pool, job)

    def _leave(self, lock: SupervisorLock) -> bool:
        """Release the lock, then look at the queue once more; returns whether to exit."""
        # In this order: a page that queues a job while the lock is held starts no worker. Without the second
        # look, a job that arrived after our last one would wait until somebody opens a page.
        lock.release()
        try:
            if not self._store.jobs.any_queued() and self._held.keys() >= set(self._store.searches.waiting()):
                return True
        except FedLensError:  # there may be jobs that cannot be read now: stay, unless the database is gone
            if not self._store.path.exists():
                return True
            logger.exception("cannot look into the queue")
        return not lock.acquire(LOCK_SECONDS)

    def _end_children(self) -> None:
        """Ask our jobs to end between two steps; they become ``interrupted``, and runs can be resumed."""
        ours = [child for child in self._children.values() if child.job.terminate()]
        end = time.monotonic() + GRACE_SECONDS
        while any(not child.job.ended() for child in ours) and time.monotonic() < end:
            time.sleep(0.05)
        try:
            self._reap()
        except FedLensError as error:  # the next process that reads the queue marks the rows
            logger.error("%s", error.line())


def serve(
    db: str | Path | None = None,
    *,
    slots: int | None = None,
    machines: Callable[[Store], Machines] | None = None,
    wait: bool = False,
    on_finish: str | None = None,
    over: int | None = None,
    ahead: bool = False,
    **options: Any,
) -> int:
    """Be the database's supervisor in this process, as ``fedlens worker`` does; returns its exit status.

    Args:
        slots: runs at once on each device, stored for later workers too; None: as stored.
        machines: returns where jobs start, once this is the supervisor; default: this machine.
        wait: if another supervisor serves the database, wait for it; it starts no more jobs, and exits when
            its running jobs have ended.
        on_finish: command or address that is notified when an experiment has ended (default: that of
            ``FEDLENS_ON_FINISH``). Giving one implies ``wait``, as the other supervisor would not notify it.
        over: devices of this machine over which each run is spread, one run at a time.
        ahead: whether a process loads torch before there is a run.
        options: of ``Supervisor``.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stdout)
    devices.try_gpus()
    for refused in devices.refused_gpus():
        logger.warning("%s", refused)
    here = ThisMachine(over=over)
    store = Store(db)
    writable, finish = _is_writable(store), None
    target = (os.environ.get(VARIABLE) or None) if on_finish is None else on_finish
    if target is not None:
        try:
            finish = FinishWatch(store, target)
        except FedLensError as error:  # a faulty target from the environment is only logged
            if on_finish is not None:
                raise
            logger.error("%s is ignored: %s", VARIABLE, error)
    lock = SupervisorLock(store.path)
    if not lock.acquire(LOCK_SECONDS):
        if finish is not None and writable:
            finish.follow()  # experiments that end during the handover are reported too
        if not ((wait or on_finish is not None) and _follow(lock)):
            if on_finish is not None:
                raise FedLensError(
                    f"two workers already serve {store.path}, one of them waiting; end the one that waits, "
                    "then start this one",
                    "on-finish",
                )
            logger.info("a worker is serving %s already", store.path)
            return 0
    try:
        if not writable:
            logger.error(
                "the disk that holds %s is full; the queue continues once there is free space", store.path
            )
        while not writable:
            time.sleep(RESTART_SECONDS)
            writable = _is_writable(store)
        supervisor = Supervisor(store, machines(store) if machines else here, finish=finish, **options)
        if slots is not None:
            for device in here.device_ids:
                store.queue.set_slots(device, slots)

        def end(*_: object) -> None:
            supervisor.ending = True

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        logger.info("serving %s; Ctrl-C ends it, its runs can be resumed", store.path)
        if ahead and over is None:
            here.load_ahead(store)
        supervisor.run(lock)
    finally:
        lock.release()
    return 0


def _follow(lock: SupervisorLock) -> bool:
    """Wait until the supervisor that holds the lock has left, and take it; False if another waits already.

    The second lock (``NEXT``) both tells the present supervisor to leave and admits only one successor.
    """
    following = SupervisorLock(lock.db, NEXT)
    if not following.acquire():
        return False
    logger.info(
        "another worker serves the database; this one takes over when the runs of that one have ended"
    )
    try:
        while not lock.acquire(LOCK_SECONDS):
            pass
    finally:
        following.release()
    return True


def _is_writable(store: Store) -> bool:
    """Prepare the database; returns False while its disk is full."""
    try:
        if why := store.prepare():
            check_room(store.path)
            raise FedLensError(why, "db")
    except DiskFull:
        return False
    return True


def start_follower(store: Store) -> None:
    """Start a detached supervisor that takes over from the present one, for example on another cluster."""
    _start_detached(store, ["fedcore", "worker", "--follow", "--db"])


def _start_detached(store: Store, command: Sequence[str]) -> subprocess.Popen[bytes]:
    log = store.artifacts / "logs" / "worker.log"
    return launcher.start_detached([*command, str(store.path)], log, launcher.environment_before())


_STARTED: dict[Path, tuple[float, subprocess.Popen[bytes]]] = {}


def ensure_worker(
    store: Store, command: Sequence[str] = ("fedcore", "worker", "--db"), ahead: bool = False
) -> bool:
    """Start a detached supervisor if there is work for it and none is running; return whether it was started.

    Work means queued jobs, dead ones to be marked, and searches whose draws have ended. When there is none,
    this costs a few indexed reads, cheap enough for every poll of a page. A ``SystemFault`` says that the
    machine cannot start a process now.

    Args:
        command: module and arguments of the supervisor, before the path of the database.
        ahead: start one even without work, which loads torch for a run that is likely to come.
    """
    path = store.path
    if (recent := _STARTED.get(path)) is not None:
        recent[1].poll()  # reaps it if it has ended
        if time.monotonic() - recent[0] < RESTART_SECONDS:
            return False
    has_work = ahead or store.jobs.any_queued() or any(store.jobs.orphans(table) for table in JOB_TABLES)
    with plain_errors(path):
        if not (has_work or store.searches.waiting()) or not SupervisorLock(path).is_free():
            return False
        process = _start_detached(store, [*command[:-1], "--ahead", command[-1]] if ahead else command)
    _STARTED[path] = (time.monotonic(), process)
    return True
