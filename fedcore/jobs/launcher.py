"""The start of queued jobs: pools of slots decide which job is claimed, and a process is started for it.

There is a pool per device, whose memory its runs share, and one for tasks. The supervisor uses only the
protocols ``Machines`` and ``LaunchedJob``, which a package for a cluster implements too. Such a package
registers a module in the group ``fedlens.cluster`` of entry points, as ``fedlens-ray`` of this repository
does; nothing here imports it by name.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.files import IN_CHECKOUT, PROJECT
from fedcore.base.progress import counted
from fedcore.store import Store
from fedcore.store.database import BUSY_SECONDS
from fedcore.store.jobs import PROGRESS_PATIENCE, RUNS, TASKS, TRAINING, Claim, LostClaim
from fedcore.store.liveness import INHERITED, hold, let_go, new_owner, process_of, remove_dead_lock

if TYPE_CHECKING:
    from fedcore.engine.train import Spread

logger = logging.getLogger(__name__)
HOW_TO_INSTALL = "pip install ./fedlens-ray"
TASK_POOL, TASK_SLOTS = "tasks", 2
"""Tasks have a separate pool, so that a check does not wait for hours of training."""
UNMEASURED_SHARE = 0.5
"""Share of a device's memory that a run is assumed to need before any run of its setting was measured."""


class LaunchedJob(Protocol):
    """A job that was started, by this supervisor or by another."""

    def ended(self) -> bool:
        """Return whether it has ended."""

    def exit_reason(self) -> str | None:
        """Return how it ended, for the user; None if that is unknown."""

    def terminate(self) -> bool:
        """Ask it to end between two steps; returns False if a user started it, since it then continues."""


class Machines(Protocol):
    """Where a supervisor starts jobs: pools of slots, which decide what starts in them."""

    def names(self) -> Sequence[str]:
        """Return the pools in which jobs may start now, in the order of filling."""

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        """Claim the next job that fits into a pool beside its ``running`` jobs; None if none does."""

    def launch(self, claim: Claim, pool: str) -> LaunchedJob:
        """Start a claimed job.

        Raises:
            OSError: when it cannot be started.
        """

    def adopt(self, store: Store, row: Mapping[str, Any]) -> LaunchedJob:
        """Take over a job that was started elsewhere, given its row (see ``Jobs.live``)."""

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until a job has ended if that is noticed earlier."""


def next_fits(store: Store, device: str, accepts: tuple[str, ...], unmeasured: int | None = None) -> bool:
    """Return whether there is a next run for a device that fits into its memory beside those that run there.

    A run needs the peak memory of earlier runs of its setting (its config without the seed).

    Args:
        unmeasured: bytes of a run of whose setting none was measured; default: half of the device.
    """
    waiting = store.jobs.next_run(accepts)
    facts = next((d for d in devices.list_devices() if d.id == device), None)
    if waiting is None or facts is None:
        return False
    unmeasured = int(UNMEASURED_SHARE * facts.memory_total) if unmeasured is None else unmeasured
    needs = store.queue.memory_needs(device, waiting)
    return sum(unmeasured if n is None else n for n in needs) <= facts.memory_total - facts.memory_used


class Cluster(Protocol):
    """The module that a package for a cluster registers."""

    def serve(self, db: str | Path | None, address: str, **options: Any) -> int:
        """Be the database's supervisor with the devices of a cluster, with the options of the worker."""

    def serve_chosen(self, db: str | Path | None, **options: Any) -> int | None:
        """Be the supervisor on the cluster that was chosen on the page; None if none was."""

    def spread(self, address: str, count: int, device: str | None) -> Spread:
        """Return a ``Spread`` of runs of this process over ``count`` devices of a cluster."""

    def is_used(self, store: Store) -> bool:
        """Return whether queued runs may wait for a device of a cluster."""

    def draw(self, slots: Callable[[dict[str, str]], None]) -> Mapping[int, str] | None:
        """Draw the cluster on the page Experiments, with ``slots`` the number of runs at once per device.

        Returns what the next queued runs wait for, by id; None while no cluster is joined.
        """


@cache
def cluster() -> Cluster | None:
    """Return what the installed package for a cluster offers; None without one."""
    module: Cluster | None = next((found.load() for found in entry_points(group="fedlens.cluster")), None)
    return module


def required_cluster() -> Cluster:
    """Return what the package offers, or say how to install it."""
    found = cluster()
    if found is None:
        message = f"the package for Ray clusters is missing; in a checkout of FedLens: {HOW_TO_INSTALL}"
        raise FedLensError(message, "ray")
    return found


PROCESS_LOG = "process.log"
KILL_SECONDS, AHEAD_SECONDS = 5.0, 600.0
UNRECORDED_STATUS = 74
"""Exit status of a process that could not record the end of its job (EX_IOERR of sysexits.h)."""
_CRASHES = -signal.SIGABRT, -signal.SIGSEGV
"""Exit statuses of a process that its GPU's driver may have ended."""
ENVIRONMENT_BEFORE = "FEDLENS_ENVIRONMENT_BEFORE"
"""Variable of a job's process with JSON: the original values of the variables that its device changed."""


Start = Callable[[Claim, str], "subprocess.Popen[bytes]"]


def start_process(claim: Claim, pool: str, more: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start the process that does a claimed job.

    A task uses the device on which runs would train, since each device has its own encodings.
    """
    device = devices.default_device() if pool == TASK_POOL else pool
    arguments = [
        "fedcore", "job", "--claim", claim.kind, str(claim.id), str(claim.attempt), "--owner", claim.owner,
        "--device", device, "--db", str(claim.db), *(more if claim.table is RUNS else ()),
    ]  # fmt: skip
    environment = environment_of(Store(claim.db), device)
    return start_detached(arguments, claim.folder / PROCESS_LOG, environment, (claim.db, claim.owner))


def environment_of(store: Store, device: str) -> dict[str, str]:
    """Return the variables that the process of a job on a device gets."""
    environment = devices.environment_for(device, store.queue.slots().get(device, 1))
    before = {name: os.environ.get(name) for name in environment}
    return {**environment, ENVIRONMENT_BEFORE: json.dumps(before)}


def start_detached(
    arguments: list[str],
    log: Path,
    environment: Mapping[str, str | None] | None = None,
    holder: tuple[Path, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``python -P -m <arguments>`` in a new session: it outlives its terminal, Ctrl-C and this process.

    It imports nothing from the folder in which it starts.

    Args:
        environment: variables to change; None removes one.
        holder: a database and an owner of jobs, whose lock the process inherits (see ``liveness.hold``).
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Without empty parts: Python takes one, as of "$PYTHONPATH:/more", for the folder in which it starts.
    folders = [str(PROJECT) if IN_CHECKOUT else "", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    # The supervisor takes the lock of the job's owner, passes the open descriptor to the child, and closes
    # its copy. Since flock belongs to the open file, the lock is held without a gap until the child ends, and
    # a supervisor that dies right after the start does not make the child look dead.
    lock = hold(*holder) if holder is not None and sys.platform != "win32" else None
    variables[INHERITED] = None if lock is None else str(lock)
    flags = 0
    if sys.platform == "win32":  # untested
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", *arguments],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in variables.items() if value is not None},
                creationflags=flags,
                start_new_session=sys.platform != "win32",
                pass_fds=() if lock is None else (lock,),
            )
    finally:
        if holder is not None and lock is not None:
            let_go(*holder, keep_file=True)


def environment_before() -> dict[str, str | None]:
    """Return the original values of the variables that were changed for this job's device.

    A supervisor that a job starts must not inherit the others: it would hide GPUs from its other jobs.
    """
    before: dict[str, str | None] = json.loads(os.environ.get(ENVIRONMENT_BEFORE, "{}"))
    return {**before, ENVIRONMENT_BEFORE: None} if before else {}


FIRST_REST, LONGEST_REST = 60.0, 3600.0
"""Seconds that a device, or a node of a cluster, rests after a fault before it is tried."""


@dataclass(frozen=True)
class Rest:
    """The rest of a device after a fault until a trial at a monotonic time; ``reason`` is None afterwards.

    After another fault within an hour it rests for twice as many ``seconds``.
    """

    until: float
    seconds: float
    reason: str | None

    @classmethod
    def after(cls, before: Rest | None, reason: str) -> Rest:
        """Begin a rest; ``before`` is the last one of the same device."""
        now = time.monotonic()
        again = before is not None and now < before.until + LONGEST_REST
        seconds = min(2 * before.seconds, LONGEST_REST) if before is not None and again else FIRST_REST
        return cls(now + seconds, seconds, f"{devices.RESTS} {reason}")


@dataclass(frozen=True)
class Ahead:
    """A process that loads torch and then waits for a run, in an environment, until a monotonic time."""

    db: Path
    owner: str
    environment: Mapping[str, str]
    until: float
    process: subprocess.Popen[bytes]

    def take(self, claim: Claim) -> bool:
        """Give it a run through its pipe; returns False if it has died."""
        assert self.process.stdin is not None
        try:
            with self.process.stdin as pipe:
                pipe.write(f"{claim.id} {claim.attempt}\n".encode())
        except BrokenPipeError:
            return False
        return True

    def end(self) -> None:
        """Kill and reap it; it has nothing to lose."""
        assert self.process.stdin is not None
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
            self.process.wait(KILL_SECONDS)
        remove_dead_lock(self.db, self.owner)


class ThisMachine:
    """The devices of this machine, the pool of its tasks, and the processes that do their jobs.

    Args:
        device_ids: default: all that runs can use.
        over: devices over which each run is spread, one run at a time; without a GPU, processes on the CPU.
    """

    def __init__(
        self,
        device_ids: Sequence[str] | None = None,
        start: Start = start_process,
        over: int | None = None,
    ) -> None:
        found = [d.id for d in devices.list_devices()] if device_ids is None else device_ids
        gpus = [d for d in found if d != devices.CPU]
        self.device_ids, self._start, self._over = tuple(found), start, over
        self._gpu = gpus[0] if gpus else None
        self._rests: dict[str, Rest] = {}
        self._ahead: Ahead | None = None
        if over is not None:
            if 0 < len(gpus) < over:
                has = f"this machine has {counted(len(gpus), 'GPU')}, not {over}"
                fewer = f"at most {len(gpus)} devices per run" if len(gpus) > 1 else "whole runs"
                raise FedLensError(f"{has}; choose {fewer}", "over")
            self.device_ids = (devices.default_device(),)  # which aggregates
            self._start = partial(start_process, more=["--over", str(over)])

    def names(self) -> Sequence[str]:
        return (*(d for d in self.device_ids if d == devices.CPU or not self._is_resting(d)), TASK_POOL)

    def _is_resting(self, gpu: str) -> bool:
        """Return whether a GPU rests; when it has rested, a thread tries it."""
        rest, why = self._rests.get(gpu), devices.rest_of(gpu)
        if why and (rest is None or rest.reason is None):  # a run has met a fault
            rest = self._rests[gpu] = Rest.after(rest, why.removeprefix(devices.RESTS).strip())
            logger.warning("%s %s; it is tried in %.0f s", gpu, rest.reason, rest.seconds)
        elif why and rest is not None and time.monotonic() >= rest.until:
            self._rests[gpu] = replace(rest, until=math.inf)
            threading.Thread(target=self._try, args=(gpu, rest), daemon=True).start()
        return bool(why)

    def _try(self, gpu: str, rest: Rest) -> None:
        fault = devices.trial(gpu) or ""
        # Before the memory's entry: a rest that only the file knows looks like another fault.
        devices.let_rest(gpu, fault)
        self._rests[gpu] = Rest.after(rest, fault) if fault else replace(rest, reason=None)
        logger.warning("%s %s", gpu, self._rests[gpu].reason or "has passed its trial")

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        if pool == TASK_POOL:
            return store.jobs.claim(new_owner(), pool, TASKS) if running < TASK_SLOTS else None
        accepts = devices.accepts(pool, self._gpu)
        if self._over is not None and self._gpu is not None:
            accepts = accepts[1:]  # a run that asks for one GPU is not spread
        if running:  # the next run has to fit beside those that train there
            is_full = self._over is not None or running >= store.queue.slots().get(pool, 1)
            if is_full or not next_fits(store, pool, accepts):
                return None
        owner, ahead = new_owner(), self._ahead
        if ahead is not None and ahead.environment == environment_of(store, pool):
            owner = ahead.owner
        return store.jobs.claim(owner, pool, RUNS, accepts=accepts)

    def load_ahead(self, store: Store) -> None:
        """Start a process that loads torch before there is a run, and reads from a pipe which one it gets.

        From its beginning it holds the lock of its owner, in whose name the run is claimed. It ends when the
        pipe closes, so however this supervisor ends.
        """
        owner, device, log = new_owner(), self.device_ids[0], store.artifacts / "logs" / "worker.log"
        arguments = ["fedcore", "job", "--owner", owner, "--device", device, "--db", str(store.path)]
        with suppress(OSError, FedLensError):  # the run then starts a process itself, and reports a failure
            environment, until = environment_of(store, device), time.monotonic() + AHEAD_SECONDS
            process = start_detached(arguments, log, environment, (store.path, owner), subprocess.PIPE)
            self._ahead = Ahead(store.path, owner, environment, until, process)

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.end()
        self._ahead = None

    def launch(self, claim: Claim, pool: str) -> LocalJob:
        process, ahead = None, self._ahead
        if ahead is not None and ahead.owner == claim.owner:
            claim.folder.mkdir(parents=True, exist_ok=True)
            (claim.folder / PROCESS_LOG).touch()  # not by the process: on a full disk the run stays queued
            if ahead.take(claim):
                process, self._ahead = ahead.process, None
        if claim.table is RUNS:  # if it has not got this run, another process trains now
            self._end_ahead()
        process = process or self._start(claim, pool)
        # If this fails, the process has ended already, or records its id itself when it begins the job.
        with suppress(LostClaim, FedLensError):
            claim.update("pid=:pid", PROGRESS_PATIENCE, pid=process.pid)
        return LocalJob(Store(claim.db), {"owner": claim.owner, "pid": process.pid, "device": pool}, process)

    def adopt(self, store: Store, row: Mapping[str, Any]) -> LocalJob:
        """Take over a process that an earlier supervisor or a user started."""
        if row["device"] != TASK_POOL:
            self._end_ahead()
        return LocalJob(store, row)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
        ahead = self._ahead
        if ahead is not None and (ahead.process.poll() is not None or time.monotonic() >= ahead.until):
            self._end_ahead()


@dataclass(frozen=True, eq=False)
class LocalJob:
    """The process of a job; ``process`` is None if an earlier supervisor or a user started it."""

    store: Store
    row: Mapping[str, Any]
    process: subprocess.Popen[bytes] | None = None

    def ended(self) -> bool:
        """Return whether it has ended; reaps it if it is our child. A GPU on which it crashed rests."""
        if self.process is not None:
            if self.process.poll() in _CRASHES and self.row["device"] not in (devices.CPU, TASK_POOL):
                devices.let_rest(self.row["device"], self.exit_reason() or "")
            return self.process.returncode is not None
        return not self.store.jobs.owner_lives(self.row["owner"])

    def exit_reason(self) -> str | None:
        """Return how the process ended; None if it is not our child."""
        if self.process is None:
            return None
        try:  # a killed process with threads can be reaped only a moment later
            code = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return None
        if code == -signal.SIGKILL:
            return "its process was killed (signal 9; the system does so when memory runs out)"
        if code == UNRECORDED_STATUS:
            return "its process could not write to the database (a full disk, or a lock held for long)"
        return f"its process ended with {f'signal {-code}' if code < 0 else f'exit status {code}'}"

    def terminate(self) -> bool:
        """Send SIGTERM, unless a user started the process."""
        if self.process is None:  # of a job that a supervisor started, the owner is on the command line
            try:
                if self.row["owner"] not in psutil.Process(self.row["pid"]).cmdline():
                    return False
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                return False
        process = process_of(self.store.path, self.row)
        if process is not None:
            process.terminate()
        return True


def force_stop(store: Store, run_id: int) -> bool:
    """Kill the process of a run that hangs inside a step; return whether there was one.

    Only its current round is lost. It must follow a stop, which the process obeys between two steps, so that
    the row is marked as stopped afterwards and not as interrupted. A run that has not begun, because its
    process still trains another, is only taken from it; one on another machine is taken from the worker,
    which then kills the process there.
    """
    row = next((row for row in store.jobs.live(RUNS) if row["id"] == run_id), None)
    if row is None or row["status"] != "stopping":
        raise FedLensError(
            f"run {run_id} has ended, or was not asked to stop; stop it first, and kill it only if it goes on"
        )
    on_another = (row["device"] or "").endswith(("/gpu", "/cpu"))  # as alpha/gpu, of a node of a cluster
    if row["pid"] is None:
        with suppress(LostClaim):  # it may have ended or begun in the meantime
            Claim(store.path, TRAINING, run_id, row["owner"], row["attempt"]).finish(
                "stopped",
                "killed on its node" if on_another else "stopped while it waited for its turn",
                patience=BUSY_SECONDS,
            )
        return on_another
    process = process_of(store.path, row)
    if process is not None:
        process.kill()
    end = time.monotonic() + KILL_SECONDS
    while process is not None and process_of(store.path, row) is not None and time.monotonic() < end:
        time.sleep(0.02)
    store.jobs.reconcile()
    return process is not None
