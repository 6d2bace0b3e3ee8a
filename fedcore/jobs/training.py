"""Training as a job: the handler that runs the engine on a run's config."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from fedcore.engine.events import Event, Finished
from fedcore.engine.local import Stopped
from fedcore.jobs.handlers import Job
from fedcore.store.run_writer import RunWriter

Engine = Callable[..., Iterator[Event]]
"""The engine, with the arguments of ``fedcore.engine.train.train``, which is the real one."""


def load_engine() -> Engine:
    """Import the real engine, and torch with it."""
    from fedcore.engine.train import train

    return train


def train(job: Job, engine: Engine | None = None) -> Generator[Event, None, dict[str, Any]]:
    """Train a run, from its newest checkpoint where it has one.

    Args:
        engine: default: ``load_engine()``.

    Returns: an empty result, since the results of a run are its rounds.

    Raises:
        Stopped: when the job was asked to stop; the current round is discarded.
    """
    run = RunWriter(job.claim)
    runs = job.store.runs
    checkpoint = runs.newest_checkpoint(job.id)
    run.rewind(None if checkpoint is None else checkpoint[0])
    resuming = f", resuming after round {checkpoint[0]}" if checkpoint else ""
    job.log(f"attempt {job.claim.attempt}{resuming}")
    finished = False
    for event in (engine or load_engine())(
        runs.config(job.id),
        artifacts=job.store.artifacts,
        folder=job.folder,
        device=job.device,
        resume_from=str(checkpoint[1]) if checkpoint else None,
        environment=runs.environment(job.id) or None,
        should_stop=job.should_stop,
    ):
        yield event
        finished = finished or isinstance(event, Finished)
    if not finished:
        if job.should_stop():
            raise Stopped
        raise RuntimeError("the engine ended before its last round")
    return {}
