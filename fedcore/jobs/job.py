"""Executes claimed jobs: training, checks, encodings, downloads and analyses.

A handler (``fedcore.jobs.handlers``) yields events and returns its result; ``execute`` records both. Handlers
do not write to the store themselves, so events that another machine sends are recorded in the same way.
"""

from __future__ import annotations

import logging
import math
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from fedcore.devices import CPU, accepts, list_devices, peak_memory, torch_name
from fedcore.engine.clients.local import Stopped
from fedcore.errors import FedLensError, first_line
from fedcore.jobs.handlers import Handler, Job, load_handler
from fedcore.jobs.heartbeat import BEAT_SECONDS, Heartbeat
from fedcore.jobs.launcher import UNRECORDED_STATUS
from fedcore.jobs.locks import SupervisorLock
from fedcore.jobs.supervisor import ensure_worker
from fedcore.lazy import is_half_imported
from fedcore.methods.base import FedLensMethodError
from fedcore.progress import Progress
from fedcore.records.events import Event, Notice, RoundFinished, Started
from fedcore.store import Store
from fedcore.store.database import BUSY_SECONDS
from fedcore.store.jobs import RUNS, Claim, LostClaim
from fedcore.store.liveness import give_up_reserve, let_go
from fedcore.store.run_writer import RunWriter
from fedcore.store.runs import LOG_NAME
from fedcore.store.tasks import ARRAYS_NAME
from fedcore.system_errors import DiskFull, Locked, SystemFault, Transient, check_room, explain

PROGRESS_SECONDS = 0.5
RETRY_SECONDS = (2.0, 10.0, 60.0)
"""Pauses before a job is tried again after a transient failure, such as a network error."""
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
    remote_memory: Callable[[], int] | None = None,
) -> str:
    """Execute one claimed job and record its events and its end.

    A transient failure is retried a few times, each time after a pause and from the last checkpoint. A full
    disk stops the job, and so does the run's time limit.

    Args:
        handler: default: the one that is registered for the job's kind.
        device: ``cpu`` or a GPU's UUID.
        terminated: called between steps; once true the job ends as ``ends_as``, and a run can be resumed.
        listen: called with every event after it was recorded (progress bars).
        remote_memory: given for a job that another machine executes and this process only records; returns
            the peak memory there in bytes.

    Returns: how the job ended: ``done``, ``failed``, ``stopped``, ``interrupted``; ``lost`` when it had been
    taken from this process (nothing was written then), or ``unrecorded`` when its end could not be written.
    After ``unrecorded`` the process has to exit: that frees its lock, and other processes then mark the row.
    """
    folder = claim.folder
    log = JobLog(folder / LOG_NAME)
    deadline = Deadline(claim)

    def should_stop() -> bool:
        return heartbeat.stop_requested or heartbeat.lost or terminated() or deadline.has_passed()

    job = Job(claim, claim.arguments(), folder, torch_name(device), should_stop, log.write)
    memory = remote_memory or partial(peak_memory, device)
    try:
        claim.begin(elsewhere=remote_memory is not None)
        heartbeat.watch(claim)
        (folder / ARRAYS_NAME).unlink(missing_ok=True)  # left by an earlier attempt
        check_room(folder)
        result = _until_done(job, handler or load_handler(claim.kind), EventWriter(job, memory), listen)
        claim.finish("done", result=result)
        log.write("done")
        return "done"
    except Stopped:
        if heartbeat.lost:
            return _lost(job, f"{claim.table.name} {claim.id} was taken from this process")
        if heartbeat.stop_requested:
            return _end(job, "stopped", "stopped as asked")
        if deadline.has_passed():
            reason = f"it reached its time limit of {deadline.minutes:g} minutes; {claim.table.remedy}"
            return _end(job, "stopped", reason)
        return _end(job, ends_as, "its process was asked to end")
    except LostClaim as error:
        return _lost(job, str(error))
    except Exception as error:  # noqa: BLE001 - one job must not end the others; its log has the traceback
        return _fail(job, error)


def _until_done(
    job: Job, handler: Handler, writer: EventWriter, listen: Callable[[Event], None]
) -> dict[str, Any]:
    """Run a handler to its end, with retries after transient failures; returns its result."""
    for number, pause in enumerate(RETRY_SECONDS, 1):
        try:
            return _record(job, handler, writer, listen)
        except (Stopped, LostClaim):
            raise
        except Exception as error:
            fault = explain(error, job.folder)
            # Python keeps a torch whose import failed half-way: every retry in this process would fail too
            if not isinstance(fault, Transient) or is_half_imported("torch"):
                raise
            job.log(traceback.format_exc())
            writer.write(Notice(f"{fault}. Tried again after {pause:g} s ({number} of {len(RETRY_SECONDS)})"))
        end = time.monotonic() + pause  # in short sleeps, so that a stop does not have to wait for the pause
        while time.monotonic() < end and not job.should_stop():
            time.sleep(min(pause, 0.1))
    return _record(job, handler, writer, listen)


def _record(
    job: Job, handler: Handler, writer: EventWriter, listen: Callable[[Event], None]
) -> dict[str, Any]:
    """Record the events of a handler; returns its result."""
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
            # not after other events: after a round the handler still prunes checkpoints, and a run that
            # reported its last round is done, not stopped
            if isinstance(event, Progress) and job.should_stop():
                raise Stopped
    if result is None:
        raise RuntimeError(f"the handler of '{job.claim.kind}' ended without a result")
    return result


def _lost(job: Job, why: str) -> str:
    job.log(f"{why}; this process stops here")
    return "lost"


def _fail(job: Job, error: Exception) -> str:
    """Record the end of a job that raised an error.

    After a fault of the machine, a run can be resumed. A fault of the method also stops the experiment's
    other runs of that method, since they would fail in the same way.
    """
    text = traceback.format_exc()
    job.log(text)
    fault = explain(error, job.folder)
    if isinstance(fault, DiskFull):
        give_up_reserve(job.claim.db, job.claim.owner)  # its bytes let SQLite write the end of this run
        return _end(job, "stopped", str(fault))
    if isinstance(fault, SystemFault):
        return _end(job, "interrupted", str(fault), patience=BUSY_SECONDS)
    if isinstance(error, FedLensMethodError):
        outcome = _end(job, "failed", error.line(), text)
        if outcome == "failed" and job.claim.table is RUNS:
            others = job.store.runs.stop_others_of_method(job.id, job.claim.owner)
            job.log(f"runs stopped because of this fault: {', '.join(map(str, others)) or 'none'}")
        return outcome
    if isinstance(error, FedLensError):  # a user error: one line explains it, the log has the traceback
        return _end(job, "failed", error.line())
    return _end(job, "failed", first_line(error), text)


def _end(job: Job, status: str, reason: str, text: str | None = None, patience: float | None = None) -> str:
    """Record why a job ended early; returns the outcome (see ``execute``)."""
    job.log(f"{status}: {reason}")
    try:
        job.claim.finish(status, reason, text, patience=patience)
    except LostClaim as error:
        return _lost(job, str(error))
    except FedLensError as error:
        job.log(f"its end could not be recorded: {error.line()}")
        logger.error("%s", error.line())
        return "unrecorded"
    return status


class Deadline:
    """The time limit of one attempt of a run; infinite for a run without one, and for a task."""

    def __init__(self, claim: Claim) -> None:
        limit = Store(claim.db).runs.config(claim.id).time_limit if claim.table is RUNS else None
        self.minutes = math.inf if limit is None else limit
        self._end = time.monotonic() + 60 * self.minutes

    def has_passed(self) -> bool:
        """Return whether the time limit was reached."""
        return time.monotonic() >= self._end


class EventWriter:
    """Writes the events of a job to its row, to the tables of results and to its log.

    Args:
        memory: returns the peak memory of the job so far, in bytes.
    """

    def __init__(self, job: Job, memory: Callable[[], int]) -> None:
        self._claim, self._log, self._memory = job.claim, job.log, memory
        self._run = RunWriter(job.claim)
        self._next_progress = 0.0

    def write(self, event: Event) -> None:
        """Record one event.

        Raises:
            LostClaim: when the job was taken from this process.
        """
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
            self._run.notice(event.message, event.repeats_exactly)
            self._log(event.message + event.detail)


class JobLog:
    """A job's log file, with a time before each entry; each entry is on disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Append one entry; a log that cannot be written (a full disk) does not end the job."""
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
    first: Claim,
    device: str,
    *,
    handler: Handler | None = None,
    goes_on: bool = True,
    beat_seconds: float = BEAT_SECONDS,
    revive: Callable[[Store], object] = ensure_worker,
) -> str:
    """Execute a claimed job in this process, and after a run the queued runs of its experiment.

    Torch and the encodings are then loaded only once. A failing run does not affect the others. During a run
    a supervisor that died is started again, so that the queue goes on although no page is open.

    Args:
        goes_on: whether the experiment's other runs follow.
        revive: starts the supervisor if it is needed.

    Returns: how the last job ended.
    """
    if first.table is not RUNS:  # tasks yield to training and to the pages
        psutil.Process().nice(getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", 10))  # a constant of Windows
    claim: Claim | None = first
    outcome = "lost"
    store = Store(first.db)
    terminated = TerminationSignal()

    def keep_supervisor() -> None:
        if first.table is RUNS and not terminated():  # the supervisor would inherit a task's low priority
            revive(store)

    try:
        with terminated, Heartbeat(store, (), beat_seconds, at_beat=keep_supervisor) as heartbeat:
            while claim is not None:
                outcome = "unrecorded"  # if execute raises, the lock file stays, so others can mark the row
                outcome = execute(claim, heartbeat, handler=handler, device=device, terminated=terminated)
                logger.info("%s %d: %s", claim.table.name, claim.id, outcome)
                ends = terminated() or outcome in ("lost", "unrecorded") or is_half_imported("torch")
                claim = None if ends or not goes_on else _following(store, first, device)
    finally:
        let_go(first.db, first.owner, keep_file=outcome == "unrecorded")
    return outcome


def _following(store: Store, first: Claim, device: str) -> Claim | None:
    """Claim the next queued run of the same experiment for the same device.

    On a full disk the runs stay queued, and the supervisor reports why. They also stay queued if another
    supervisor waits to take over, because it may use other devices.
    """
    if first.table is not RUNS or SupervisorLock(first.db).is_awaited():
        return None
    try:
        check_room(first.db)
    except DiskFull:
        return None
    (run,) = store.runs.get([first.id])
    gpu = next((d.id for d in list_devices() if d.id != CPU), None) if device == CPU else device
    return store.jobs.claim(
        first.owner, device, accepts=accepts(device, gpu), experiment_id=run.experiment_id
    )


def run_process(
    claim: Claim, device: str, handler: Handler | None = None, worker_options: Sequence[str] = ()
) -> int:
    """Execute a claimed job as the process that a launcher started; returns an exit status.

    Args:
        handler: given for a run that is spread over devices. The process then ends after this run, because
            only the supervisor knows whether the devices and their data are available for the next one.
        worker_options: options of the supervisor, for the one that replaces it if it dies.
    """
    revive = partial(ensure_worker, command=("fedcore", "worker", *worker_options, "--db"))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    try:
        outcome = work(claim, device, handler=handler, goes_on=handler is None, revive=revive)
    except (FedLensError, LostClaim) as error:
        logger.error("%s", error)
        return 1
    return UNRECORDED_STATUS if outcome == "unrecorded" else 0
