"""Doing claimed jobs: one way for training, checks, encodings, downloads and analyses.

A handler (``fedcore.jobs.handlers``) yields events and returns its result; ``execute`` records both. Handlers
know nothing of the store's rows, so a stream of events from elsewhere can be recorded in the same way.
"""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from fedcore.engine.events import Event, Notice, RoundFinished, Started
from fedcore.engine.local import Stopped
from fedcore.errors import FedLensError, first_line
from fedcore.jobs.devices import CPU, accepts, list_devices, peak_memory, torch_name
from fedcore.jobs.handlers import Handler, Job, load_handler
from fedcore.jobs.heartbeat import BEAT_SECONDS, Heartbeat
from fedcore.progress import Progress
from fedcore.store import Store
from fedcore.store.jobs import RUNS, Claim, LostClaim
from fedcore.store.run_writer import RunWriter
from fedcore.store.runs import LOG_NAME
from fedcore.store.tasks import ARRAYS_NAME

PROGRESS_SECONDS = 0.5
logger = logging.getLogger(__name__)


def execute(
    claim: Claim,
    heartbeat: Heartbeat,
    *,
    handler: Handler | None = None,
    device: str = CPU,
    terminated: Callable[[], bool] = lambda: False,
    ends_as: str = "interrupted",
    listen: Callable[[Event], None] = lambda event: None,
) -> str:
    """Do one claimed job and record it.

    Args:
        handler: default: the one that is registered for the job's kind.
        device: ``cpu`` or a GPU's UUID.
        terminated: called between steps; once true the job ends as ``ends_as``, and a run can be resumed.
        listen: called with every event after it was recorded (progress bars).

    Returns: how the job ended: ``done``, ``failed``, ``stopped``, ``interrupted``, or ``lost`` when it had
    been taken away from this process (nothing was written then).
    """
    folder = claim.folder
    log = JobLog(folder / LOG_NAME)

    def should_stop() -> bool:
        return heartbeat.stop_requested or heartbeat.lost or terminated()

    job = Job(claim, claim.arguments(), folder, torch_name(device), should_stop, log.write)
    try:
        claim.begin()
        heartbeat.watch(claim)
        (folder / ARRAYS_NAME).unlink(missing_ok=True)  # a result of an earlier attempt
        try:
            result = _record(job, handler or load_handler(claim.kind), EventWriter(job, device), listen)
        except Stopped:
            return _end_early(job, heartbeat, ends_as)
        claim.finish("done", result=result)
        log.write("done")
        return "done"
    except LostClaim as error:
        log.write(f"{error}; this process stops here")
        return "lost"
    except FedLensError as error:  # the user's to mend: one line is enough
        return _fail(job, error.line())
    except Exception as error:  # noqa: BLE001 - no job's error affects the others; the log has the traceback
        return _fail(job, first_line(error))


def _record(
    job: Job, handler: Handler, writer: EventWriter, listen: Callable[[Event], None]
) -> dict[str, Any]:
    """Record the events of a handler; returns its result.

    Raises:
        Stopped: when the job was asked to stop before its end.
    """
    if job.should_stop():
        raise Stopped
    with closing(handler(job)) as work:
        while True:
            try:
                event = next(work)
            except StopIteration as end:
                result: dict[str, Any] | None = end.value
                break
            writer.write(event)
            listen(event)
            if isinstance(event, Progress) and job.should_stop():
                raise Stopped
    if result is None:
        raise RuntimeError(f"the handler of '{job.claim.kind}' ended without a result")
    return result


def _end_early(job: Job, heartbeat: Heartbeat, ends_as: str) -> str:
    if heartbeat.lost:
        raise LostClaim(f"{job.claim.table.name} {job.id} was taken from this process")
    status = "stopped" if heartbeat.stop_requested else ends_as
    job.claim.finish(status, "stopped as asked" if status == "stopped" else "its process was asked to end")
    job.log(status)
    return status


def _fail(job: Job, reason: str) -> str:
    """Record a failure; if even that fails (a full disk), the row is reconciled to ``interrupted``."""
    text = traceback.format_exc()
    job.log(text)
    try:
        job.claim.finish("failed", reason, text)
    except LostClaim:
        return "lost"
    except FedLensError as error:
        logger.error("%s", error.line())
    return "failed"


class EventWriter:
    """Writes the events of a job to its row, to the tables of results and to its log."""

    def __init__(self, job: Job, device: str) -> None:
        self._claim, self._log, self._device = job.claim, job.log, device
        self._run = RunWriter(job.claim)
        self._last_progress = 0.0

    def write(self, event: Event) -> None:
        """Record one event.

        Raises:
            LostClaim: when the job is no longer this process'.
        """
        if isinstance(event, Progress):
            now = time.monotonic()
            if now - self._last_progress >= PROGRESS_SECONDS or event.done == event.total:
                self._last_progress = now
                self._claim.progress(event)
        elif isinstance(event, RoundFinished):
            self._run.write_round(event, peak_memory(self._device))
            loss = "" if event.train_loss is None else f", loss {event.train_loss:.4f}"
            self._log(f"round {event.round}{loss}")
        elif isinstance(event, Started):
            self._run.started(event)
            facts = ", ".join(f"{name} {value}" for name, value in event.environment.items())
            self._log(f"started: {facts}")
        elif isinstance(event, Notice):
            self._run.notice(event.message, event.repeats_exactly)
            self._log(event.message + event.detail)


class JobLog:
    """A job's log file, with a time before each entry; each entry is on disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Append one entry. A log that cannot be written (a full disk) must not end the job."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error.strerror)


class TerminationSignal:
    """Remembers that SIGTERM asked this process to end; a second one ends it at once.

    Args:
        keyboard: listen to Ctrl-C (SIGINT) as well.
    """

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
        """Return whether the signal has come."""
        return self._received


def work(
    first: Claim, device: str, *, handler: Handler | None = None, beat_seconds: float = BEAT_SECONDS
) -> str:
    """Do a claimed job in this process, and after a run the queued runs of its experiment.

    Torch and the encodings are then loaded once. A failing run does not affect the others.

    Returns: how the last job ended.
    """
    if first.table is not RUNS:  # training and pages come first
        psutil.Process().nice(getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", 10))  # the name is Windows'
    claim: Claim | None = first
    outcome = "lost"
    heartbeat = Heartbeat(Store(first.db), first.owner, beat_seconds)
    with TerminationSignal() as terminated, heartbeat:
        while claim is not None:
            outcome = execute(claim, heartbeat, handler=handler, device=device, terminated=terminated)
            logger.info("%s %d: %s", claim.table.name, claim.id, outcome)
            claim = None if terminated() or outcome == "lost" else _following(first, device)
    return outcome


def _following(first: Claim, device: str) -> Claim | None:
    """Claim the next queued run of the same experiment for the same device; a task has none to follow it."""
    if first.table is not RUNS:
        return None
    store = Store(first.db)
    (run,) = store.runs.get([first.id])
    gpu = next((d.id for d in list_devices() if d.id != CPU), None) if device == CPU else device
    return store.jobs.claim(
        first.owner, device, accepts=accepts(device, gpu), experiment_id=run.experiment_id
    )


def run_process(claim: Claim, device: str) -> int:
    """Be the process that a launcher starts for a claimed job; returns an exit status."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    try:
        work(claim, device)
    except (FedLensError, LostClaim) as error:
        logger.error("%s", error)
        return 1
    return 0
