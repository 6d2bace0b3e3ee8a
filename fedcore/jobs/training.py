"""Training as a job: the handler that runs the engine with a run's config, and the checkpoints it keeps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from fedcore.config.models import KeepCheckpoints
from fedcore.engine.checkpoint import newest_intact, prune
from fedcore.engine.clients.local import Stopped
from fedcore.errors import FedLensError
from fedcore.jobs.handlers import Job
from fedcore.records.events import Event, Finished, Notice, RoundFinished, Started
from fedcore.store.run_rows import RunRow
from fedcore.store.runs import Runs
from fedcore.store.writer import RunWriter

Engine = Callable[..., Iterator[Event]]
"""The engine, with the arguments of ``fedcore.engine.train.train``, which is the real one."""


def load_engine() -> Engine:
    """Import the real engine, and torch with it."""
    from fedcore.engine.train import train

    return train


def train(job: Job, engine: Engine | None = None) -> Generator[Event, None, dict[str, Any]]:
    """Train a run, from its newest intact checkpoint if it has recorded rounds.

    Args:
        engine: default: ``load_engine()``.

    Returns: an empty result, since the results of a run are its rounds.

    Raises:
        Stopped: when the job was asked to stop; the current round is discarded.
        FedLensError: when there are recorded rounds and no checkpoint to continue from.
    """
    run = RunWriter(job.claim)
    runs = job.store.runs
    config = runs.config(job.id)
    if runs.last_round(job.id) == config.rounds:  # its process died after the last round, before ``finish``
        prune(job.folder, kept_rounds(runs.get([job.id])[0], config.keep_checkpoints))
        return {}
    checkpoint, remarks = _find_checkpoint(runs, job.id)
    resuming = f", resuming after round {checkpoint[0]}" if checkpoint else ""
    job.log(f"attempt {job.claim.attempt}{resuming}")
    finished = False
    for event in (engine or load_engine())(
        config,
        artifacts=job.store.artifacts,
        folder=job.folder,
        device=job.device,
        resume_from=str(checkpoint[1]) if checkpoint else None,
        environment=runs.environment(job.id) or None,
        should_stop=job.should_stop,
    ):
        if isinstance(event, Started):
            # Only now has the engine accepted the checkpoint, the config, the data and the weights. If rounds
            # were deleted earlier and it refused one of them, such as another run's checkpoint, they would be
            # lost.
            run.rewind(None if checkpoint is None else checkpoint[0])
            yield from remarks
        yield event
        finished = finished or isinstance(event, Finished)
        # `yield` returns once the event is recorded. Only then may older checkpoints be deleted: a process
        # that is killed in between resumes from the newest checkpoint that belongs to a recorded round.
        if isinstance(event, RoundFinished | Finished):
            prune(job.folder, kept_rounds(runs.get([job.id])[0], config.keep_checkpoints, done=finished))
    if not finished:
        if job.should_stop():
            raise Stopped
        raise RuntimeError("the engine ended before its last round")
    return {}


def kept_rounds(run: RunRow, keep: KeepCheckpoints, done: bool = True) -> set[int] | None:
    """Return the rounds whose checkpoints a run keeps; None: all of them.

    During training it also keeps the checkpoint before the newest, in case the newest is damaged. Without
    validation samples, ``best`` is the last round.
    """
    if keep == "all":
        return None
    last = run.rounds_done
    best = {last if run.best_round is None else run.best_round}
    if not done:
        return {last - 1, last} | (best if keep == "best" else set())
    return {"best": best, "last": {last}, "none": set[int]()}[keep]


def _find_checkpoint(runs: Runs, run_id: int) -> tuple[tuple[int, Path] | None, list[Notice]]:
    """Find the checkpoint from which a run continues (None: it begins), and the notices to record with it.

    A run with only round 0 begins again, since nothing has been trained. Otherwise recorded rounds are never
    deleted without a checkpoint from which they can be trained again.
    """
    last = runs.last_round(run_id)
    newest, damaged = newest_intact(runs.checkpoints(run_id))
    if last is None:
        return None, []
    why = "; ".join(damaged) or "the checkpoints of its last rounds are gone"
    if newest is None and last == 0:
        return None, [Notice(f"{why}; only round 0 was recorded, so the run begins again")]
    if newest is None:
        raise FedLensError(
            f"the {last} recorded rounds of run {run_id} cannot be continued: {why} "
            f"({runs.folder(run_id)}); put its checkpoints back and resume it, or train it from the "
            f"beginning with `fedlens resume {run_id} --restart`, which deletes the recorded rounds"
        )
    remarks = []
    if newest[0] < last:
        again = f"round {last} is" if newest[0] + 1 == last else f"rounds {newest[0] + 1} to {last} are"
        remarks.append(Notice(f"{why}; the run continues after round {newest[0]}, and {again} trained again"))
    return newest, remarks
