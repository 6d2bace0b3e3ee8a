"""The process that trains: `python -m fedcore.jobs.job --db runs.db --run 7 --owner NAME --attempt 1`.

It trains the run it was started for, then goes on with queued runs of the same experiment and device, so that
torch and the encodings are loaded once. A run that fails, fails alone.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

from fedcore.config import RunConfig
from fedcore.engine.events import Event, Finished, Notice, RoundFinished, Started
from fedcore.errors import FedLensError
from fedcore.jobs import processes
from fedcore.jobs.devices import accepts, list_devices, torch_name
from fedcore.jobs.heartbeat import Heart
from fedcore.progress import Progress
from fedcore.store import Store
from fedcore.store.database import artifacts_folder
from fedcore.store.lease import Lease, LostRun, claim
from fedcore.store.runs import LOG_NAME

PROGRESS_SECONDS = 0.5
logger = logging.getLogger(__name__)


class Train(Protocol):
    """The engine as a job sees it; ``fedcore.engine.train.train`` is the real one."""

    def __call__(
        self,
        run: RunConfig,
        *,
        artifacts: Path,
        folder: Path,
        device: str,
        resume_from: str | None,
        environment: dict | None,
        should_stop: Callable[[], bool],
    ) -> Iterator[Event]: ...


def engine() -> Train:
    """The real engine; importing it is what loads torch."""
    from fedcore.engine.train import train

    return train


def stopped_exception() -> type[Exception]:
    """What the engine raises when ``should_stop`` says so."""
    from fedcore.engine.local import Stopped

    return Stopped


class Terminated:
    """Whether SIGTERM (Ctrl-C too if ``keyboard``) asked this process to end; the second ends it at once."""

    def __init__(self, keyboard: bool = False) -> None:
        self.asked = False
        self._numbers = (signal.SIGTERM, signal.SIGINT) if keyboard else (signal.SIGTERM,)

    def __enter__(self) -> Terminated:
        self._before = [signal.signal(number, self._ask) for number in self._numbers]
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in zip(self._numbers, self._before, strict=True):
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __call__(self) -> bool:
        """Asked between steps."""
        return self.asked


def execute(
    lease: Lease,
    heart: Heart,
    *,
    train: Train | None = None,
    device: str = "cpu",
    terminated: Callable[[], bool] = lambda: False,
    ends_as: str = "interrupted",
    listen: Callable[[Event], None] = lambda event: None,
) -> str:
    """Train one claimed run and record it.

    Args:
        device: ``cpu`` or a GPU's UUID.
        terminated: asked between steps; when true the run ends as ``ends_as``, resumable.
        listen: is told every event after it was recorded (progress bars).

    Returns: how the run ended: ``done``, ``failed``, ``stopped``, ``interrupted``, or ``lost`` when it had
    been taken away from this process (nothing was written then).
    """
    log = RunLog(lease.folder / LOG_NAME)
    try:
        lease.begin()
        heart.watch(lease.run_id, lease.attempt)
        return _train(lease, heart, log, train, device, terminated, ends_as, listen)
    except LostRun as error:
        log.write(f"{error}; this process stops here")
        return "lost"
    except FedLensError as error:  # the user's to mend: one line is enough
        return _failed(lease, log, error.line())
    except Exception as error:  # noqa: BLE001 - a run fails alone, whatever it raises; the log has the traceback
        return _failed(lease, log, f"{type(error).__name__}: {error}".splitlines()[0])


def _failed(lease: Lease, log: RunLog, reason: str) -> str:
    """Record a failure. Where even that fails (a full disk), the row is reconciled to ``interrupted``."""
    text = traceback.format_exc()
    log.write(text)
    try:
        lease.finish("failed", reason, text)
    except LostRun:
        return "lost"
    except FedLensError as error:
        logger.error("%s", error.line())
    return "failed"


def _train(
    lease: Lease,
    heart: Heart,
    log: RunLog,
    train: Train | None,
    device: str,
    terminated: Callable[[], bool],
    ends_as: str,
    listen: Callable[[Event], None],
) -> str:
    if heart.stop_asked or heart.lost or terminated():
        return _end_early(lease, heart, log, ends_as)
    config, earlier = lease.config(), lease.environment()
    checkpoint = Store(lease.db).runs.newest_checkpoint(lease.run_id)
    lease.rewind(None if checkpoint is None else checkpoint[0])
    log.write(f"attempt {lease.attempt}" + (f", resuming after round {checkpoint[0]}" if checkpoint else ""))
    events = (train or engine())(
        config,
        artifacts=artifacts_folder(lease.db),
        folder=lease.folder,
        device=torch_name(device),
        resume_from=str(checkpoint[1]) if checkpoint else None,
        environment=earlier,
        should_stop=lambda: heart.stop_asked or heart.lost or terminated(),
    )
    writer, finished = EventWriter(lease, log, device), False
    try:
        for event in events:
            writer.write(event)
            listen(event)
            finished = finished or isinstance(event, Finished)
    except stopped_exception():
        return _end_early(lease, heart, log, ends_as)
    if not finished:
        if heart.stop_asked or heart.lost or terminated():
            return _end_early(lease, heart, log, ends_as)
        raise RuntimeError("the engine ended before its last round")
    lease.finish("done")
    log.write("done")
    return "done"


def _end_early(lease: Lease, heart: Heart, log: RunLog, ends_as: str) -> str:
    if heart.lost:
        raise LostRun(f"run {lease.run_id} was taken from this process")
    status = "stopped" if heart.stop_asked else ends_as
    lease.finish(status, "stopped as asked" if status == "stopped" else "its process was asked to end")
    log.write(status)
    return status


class EventWriter:
    """Writes the engine's events to the run's row, tables and log."""

    def __init__(self, lease: Lease, log: RunLog, device: str) -> None:
        self._lease, self._log, self._device = lease, log, device
        self._said = 0.0

    def write(self, event: Event) -> None:
        """Record one event.

        Raises:
            LostRun: when the run is no longer this process'.
        """
        if isinstance(event, RoundFinished):
            self._lease.write_round(event, processes.peak_memory(self._device))
            loss = "" if event.train_loss is None else f", loss {event.train_loss:.4f}"
            self._log.write(f"round {event.round}{loss}")
        elif isinstance(event, Progress):
            if time.monotonic() - self._said >= PROGRESS_SECONDS or event.done == event.total:
                self._said = time.monotonic()
                self._lease.say(f"{event.message} {event.done}/{event.total}")
        elif isinstance(event, Started):
            self._lease.started(event)
            facts = ", ".join(f"{name} {value}" for name, value in event.environment.items())
            self._log.write(f"started: {facts}")
        elif isinstance(event, Notice):
            self._lease.notice(event.message, event.repeats_exactly)
            self._log.write(event.message + event.detail)


class RunLog:
    """The run's log file, a line per event with its time; each line is on disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Append one entry. A log that cannot be written (a full disk) must not end the training."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error.strerror)


def work(first: Lease, device: str, *, train: Train | None = None, beat_seconds: float = 5.0) -> int:
    """Train a claimed run, then queued runs of its experiment on the same device; returns an exit status."""

    experiment_id = Store(first.db).runs.get([first.run_id])[0].experiment_id
    gpu = next((d.id for d in list_devices() if d.id != "cpu"), None) if device == "cpu" else device
    lease: Lease | None = first
    with Terminated() as terminated, Heart(first.db, first.owner, beat_seconds) as heart:
        while lease is not None:
            outcome = execute(lease, heart, train=train, device=device, terminated=terminated)
            if terminated.asked or outcome == "lost":
                break
            lease = claim(
                first.db, first.owner, device, accepts=accepts(device, gpu), experiment_id=experiment_id
            )  # fmt: skip
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the child process that the supervisor starts."""
    parser = argparse.ArgumentParser(prog="python -m fedcore.jobs.job", description=__doc__)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    lease = Lease(options.db.resolve(), options.run, options.owner, options.attempt)
    try:
        return work(lease, options.device)
    except (FedLensError, LostRun) as error:
        logger.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
