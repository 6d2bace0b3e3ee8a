"""Executes one claimed job: a run's training, a check, an encoding, a download or an analysis.

A handler (``fedcore.jobs.handlers``) yields events and returns its result; ``execute`` records both. Handlers
do not write to the store themselves, so events that another machine sends are recorded in the same way.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from fedcore.base import devices
from fedcore.base.devices import CPU, peak_memory, torch_name
from fedcore.base.errors import (
    DiskFull,
    Elsewhere,
    FaultyDevice,
    FedLensError,
    Locked,
    SystemFault,
    Transient,
    check_room,
    explain,
    first_line,
)
from fedcore.base.events import Event, Notice, RoundFinished, Started
from fedcore.base.lazy import is_half_imported
from fedcore.base.progress import Progress, relay, result_of
from fedcore.engine.clients.local import Stopped
from fedcore.jobs.handlers import Handler, Job, load_handler
from fedcore.methods.base import FedLensMethodError
from fedcore.store import Store
from fedcore.store.database import BUSY_SECONDS, held_open
from fedcore.store.jobs import ARRAYS_NAME, RUNS, Claim, LostClaim
from fedcore.store.liveness import give_up_reserve
from fedcore.store.runs import LOG_NAME
from fedcore.store.writer import RunWriter

PROGRESS_SECONDS = 0.5  # between two records of progress
BEAT_SECONDS = 5.0  # between two heartbeats
LOOK_SECONDS = 0.5  # between two looks for a requested stop
RETRY_SECONDS = (2.0, 10.0, 60.0)
"""Pauses before a job is tried again after a transient failure, such as a network error."""
PAUSE_SECONDS = 0.1  # between two looks whether a pause has ended; a stop need not wait for its end
Listen = Callable[[Event], None]
logger = logging.getLogger(__name__)


def execute(claim: Claim, heartbeat: Heartbeat, listen: Listen = lambda event: None, **options: Any) -> str:
    """Execute one claimed job to its end, with the arguments and the result of ``steps``.

    Args:
        listen: called with every event after it was recorded (progress bars).
    """
    return result_of(
        steps(claim, heartbeat, **options),
        lambda event: listen(event) if event else time.sleep(PAUSE_SECONDS),
    )


def steps(
    claim: Claim,
    heartbeat: Heartbeat,
    *,
    handler: Handler | None = None,
    device: str = CPU,
    terminated: Callable[[], bool] = lambda: False,
    ends_as: str = "interrupted",
    memory: Callable[[], int] | None = None,
    elsewhere: bool = False,
    queues_again: bool = True,
) -> Generator[Event | None, bool | None, str]:
    """Execute one claimed job step by step: yield every event after it was recorded, and record its end.

    A transient failure is retried a few times, each time after a pause and from the last checkpoint; during
    the pause None is yielded. The caller sends True after a rest of the job (``Claim.rest``). A full disk
    stops the job, and so does the run's time limit, which does not count the caller's time.

    Args:
        handler: default: that of the job's kind.
        terminated: called between steps; once true the job ends as ``ends_as``, and a run can be resumed.
        memory: returns the peak memory of the job in bytes; default: that of this process.
        elsewhere: whether another machine executes the job and this process only records it.
        queues_again: whether a run goes back to the queue, for another machine, if its machine failed.

    Returns: how the job ended: ``done``, ``failed``, ``stopped``, ``interrupted``; ``queued`` if another
    machine is to continue it; ``lost`` when it had been taken from this process (nothing was written then),
    or ``unrecorded`` when its end could not be written. After ``unrecorded`` the process has to exit: that
    frees its lock, and other processes then mark the row.
    """
    folder = claim.folder
    log = partial(write_log, folder / LOG_NAME)
    limit = Store(claim.db).runs.config(claim.id).time_limit if claim.table is RUNS else None
    deadline = time.monotonic() + (math.inf if limit is None else 60 * limit)

    def should_stop() -> bool:
        return heartbeat.stop_requested or heartbeat.lost or terminated() or time.monotonic() >= deadline

    job = Job(claim, {}, folder, torch_name(device), should_stop, log)
    try:
        # From `begin` on this process holds the owner's lock, so nobody takes the job for dead. Only then may
        # it delete the files of an earlier attempt, whose process is certainly gone.
        claim.begin(elsewhere=elsewhere)
        heartbeat.watch(claim)
        (folder / ARRAYS_NAME).unlink(missing_ok=True)
        check_room(folder)
        job = replace(job, args=claim.arguments())
        writer = EventWriter(job, memory or partial(peak_memory, device))
        with closing(_with_retries(job, handler or load_handler(claim.kind), writer)) as recorded:
            while True:
                try:
                    event = next(recorded)
                except StopIteration as end:
                    result = end.value
                    break
                left = time.monotonic()
                if (yield event):
                    heartbeat.watch(claim)
                    claim.begin(elsewhere=elsewhere)
                deadline += time.monotonic() - left
        claim.finish("done", result=result)
        log("done")
        return "done"
    except Stopped:
        if heartbeat.lost:
            log(f"{claim.table.name} {claim.id} was taken from this process; this process stops here")
            return "lost"
        if heartbeat.stop_requested:
            return _end(job, "stopped", "stopped as asked")
        if time.monotonic() >= deadline:
            reason = f"it reached its time limit of {limit:g} minutes; {claim.table.remedy}"
            return _end(job, "stopped", reason)
        return _end(job, ends_as, "its process was asked to end")
    except LostClaim as error:
        log(f"{error}; this process stops here")
        return "lost"
    except Exception as error:  # noqa: BLE001 - one job must not end the others; its log has the traceback
        return _fail(job, error, queues_again, None if elsewhere or device == CPU else device)


def _with_retries(
    job: Job, handler: Handler, writer: EventWriter
) -> Generator[Event | None, None, dict[str, Any]]:
    """Record the events of a handler, with retries after transient failures; returns its result.

    Memory errors are transient too: other programs and other runs share the memory, and what they free helps
    the next attempt. Each attempt starts from the last checkpoint, so a retry costs at most one round.
    """

    def record(event: Event) -> bool:
        writer.write(event)
        # Not after other events: after a round the handler still prunes checkpoints, and a run that reported
        # its last round is done, not stopped.
        if isinstance(event, Progress) and job.should_stop():
            raise Stopped
        return True

    number = 0
    while True:
        try:
            if job.should_stop():
                raise Stopped
            result: dict[str, Any] | None = yield from relay(handler(job), record)
            if result is None:
                raise RuntimeError(f"the handler of '{job.claim.kind}' ended without a result")
            return result
        except (Stopped, LostClaim):
            raise
        except Exception as error:
            fault = explain(error, job.folder)
            # Python keeps a torch whose import failed half-way: every retry in this process would fail too.
            transient = isinstance(fault, Transient) and not is_half_imported("torch")
            if number == len(RETRY_SECONDS) or not transient:
                raise
            pause, number = RETRY_SECONDS[number], number + 1
            job.log(traceback.format_exc())
            writer.write(Notice(f"{fault}. Tried again after {pause:g} s ({number} of {len(RETRY_SECONDS)})"))
            end = time.monotonic() + pause
            while time.monotonic() < end and not job.should_stop():
                yield None


def _fail(job: Job, error: Exception, queues_again: bool, gpu: str | None) -> str:
    """Record the end of a job that raised an error.

    After a fault of the machine, a run can be resumed. A fault of the method also stops the experiment's
    other runs of that method, since they would fail in the same way.

    Args:
        gpu: that of this machine on which the job ran; it rests if it has a fault.
    """
    text = traceback.format_exc()
    job.log(text)
    fault = explain(error, job.folder)
    if isinstance(fault, DiskFull):
        give_up_reserve(job.claim.db, job.claim.owner)  # its bytes let SQLite write the end of this run
        return _end(job, "stopped", str(fault))
    if isinstance(fault, FaultyDevice) and gpu is not None:
        devices.let_rest(gpu, fault.reason)
    if isinstance(fault, Elsewhere) and queues_again:
        try:
            if job.claim.queue_again(fault.reason):
                job.log(f"queued again: {fault}")
                return "queued"
        except (LostClaim, FedLensError):
            job.log("it could not be queued again")
    if isinstance(fault, SystemFault):
        return _end(job, "interrupted", str(fault), patience=BUSY_SECONDS)
    if isinstance(error, FedLensMethodError):
        outcome = _end(job, "failed", error.line(), text)
        if outcome == "failed" and job.claim.table is RUNS:
            others = job.store.runs.stop_others_of_method(job.id, job.claim.owner)
            job.log(f"runs stopped because of this fault: {', '.join(map(str, others)) or 'none'}")
        return outcome
    known = fault or error
    if isinstance(known, FedLensError):  # one line explains it, the log has the traceback
        return _end(job, "failed", known.line())
    return _end(job, "failed", first_line(error), text)


def _end(job: Job, status: str, reason: str, text: str | None = None, patience: float | None = None) -> str:
    """Record why a job ended early; returns the outcome (see ``execute``)."""
    job.log(f"{status}: {reason}")
    try:
        job.claim.finish(status, reason, text, patience=patience)
    except LostClaim as error:
        job.log(f"{error}; this process stops here")
        return "lost"
    except FedLensError as error:
        job.log(f"its end could not be recorded: {error.line()}")
        logger.error("%s", error.line())
        return "unrecorded"
    return status


class EventWriter:
    """Writes a job's events and its peak memory to its row, to the tables of results and to its log."""

    def __init__(self, job: Job, memory: Callable[[], int]) -> None:
        self._claim, self._log, self._memory = job.claim, job.log, memory
        self._run = RunWriter(job.claim)
        self._next_progress = 0.0

    def write(self, event: Event) -> None:
        if isinstance(event, Progress):
            now = time.monotonic()
            if now >= self._next_progress or event.done == event.total:
                self._next_progress = now + PROGRESS_SECONDS
                try:
                    self._claim.progress(event)
                except Locked:  # progress is only for display: training does not wait for a locked database
                    self._next_progress = now + BUSY_SECONDS
        elif isinstance(event, RoundFinished):
            self._run.write_round(event, self._memory())
            loss = "" if event.train_loss is None else f", loss {event.train_loss:.4f}"
            self._log(f"round {event.round}{loss}")
            check_room(self._claim.db)
        elif isinstance(event, Started):
            self._run.started(event)
            facts = ", ".join(f"{name} {value}" for name, value in event.environment.items())
            self._log(f"started: {facts}")
        elif isinstance(event, Notice):
            self._run.notice(event.message, event.repeats_exactly, event.fitted)
            self._log(event.message + event.detail)


def write_log(path: Path, text: str) -> None:
    """Append an entry to a log; one that cannot be written (a full disk) does not end the job."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
    except OSError as error:
        logger.warning("cannot write %s: %s", path, error.strerror)


class Heartbeat:
    """A thread that renews the heartbeat of a process's jobs, and notices when one has to stop.

    It is for those who cannot ask the lock of a job's owner whether its process lives: other machines, and
    file systems without locks (see ``fedcore.store.liveness``).

    Args:
        waiting: jobs that this process has claimed and not begun yet.

    Attributes:
        stop_requested: the row of the watched job says ``stopping``.
        lost: the watched job was taken from this process, which may not write to it any more.
    """

    def __init__(
        self,
        store: Store,
        waiting: Iterable[Claim] = (),
        beat_seconds: float = BEAT_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        at_beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._store, self._claims, self._at_beat = store, tuple(waiting), at_beat
        self._beat_seconds, self._look_seconds = beat_seconds, look_seconds
        self._watched: Claim | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heartbeat", daemon=True)
        self.stop_requested = self.lost = False

    def __enter__(self) -> Heartbeat:
        with ExitStack() as opened:  # closes the database again if the system refuses a thread
            opened.enter_context(held_open(self._store.path))
            self._thread.start()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join(timeout=30)
        self._opened.close()

    def add(self, waiting: Iterable[Claim]) -> None:
        """Beat for further jobs of this process."""
        self._claims = (*self._claims, *waiting)

    def watch(self, claim: Claim) -> None:
        """Watch this job for a requested stop, instead of the one watched before."""
        self.stop_requested = self.lost = False
        self._claims = tuple(c for c in self._claims if c != claim)
        self._watched = claim
        self._look()

    def _live(self) -> None:
        last_beat = -self._beat_seconds
        while not self._end.wait(self._look_seconds):
            try:
                if time.monotonic() - last_beat >= self._beat_seconds:
                    last_beat = time.monotonic()
                    self._store.jobs.beat(filter(None, (self._watched, *self._claims)))
                    self._at_beat()
                self._look()
            except (FedLensError, OSError):
                # A full disk or a long lock: the working thread meets the same error, and reports it.
                continue

    def _look(self) -> None:
        claim = self._watched
        if claim is None:
            return
        status = claim.status()
        if claim is self._watched:  # the next job may have begun while the status was read
            self.lost = status not in ("running", "stopping")
            self.stop_requested = status == "stopping"


class TerminationSignal:
    """Remembers that SIGTERM (or Ctrl-C at a keyboard) asked this process to end; a second one ends it."""

    def __init__(self, keyboard: bool = False) -> None:
        self._received = False
        self._numbers = (signal.SIGTERM, signal.SIGINT) if keyboard else (signal.SIGTERM,)

    def __enter__(self) -> TerminationSignal:
        self._before = [signal.signal(number, self._receive) for number in self._numbers]
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in zip(self._numbers, self._before, strict=True):
            signal.signal(number, before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received:
            raise KeyboardInterrupt
        self._received = True

    def __call__(self) -> bool:
        return self._received
