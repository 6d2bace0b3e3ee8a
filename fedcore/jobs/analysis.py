"""Analyses as background tasks: what is asked about which model of a run, and where the answer lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fedcore.errors import FedLensError
from fedcore.jobs import tasks
from fedcore.jobs.handlers import Job
from fedcore.progress import Work
from fedcore.store import Store

if TYPE_CHECKING:
    from pathlib import Path

What = Literal["predictions", "feature_space", "evidence", "nearest_words"]
KIND = "analyse"


def ask(
    db: str | Path, run_id: int, what: What, model: int = 0, test_set: int = 0, *, again: bool = False
) -> int:
    """Queue an analysis of a run's newest round; one that is there already is not made twice.

    Args:
        model, test_set: entity codes; ``predictions`` needs neither, ``nearest_words`` no test set.
    """
    args = {"run": run_id, "what": what, "model": model, "test_set": test_set}
    return tasks.submit(db, KIND, key(db, run_id, what, model, test_set), args, run_id, again=again)


def answer(
    db: str | Path, run_id: int, what: What, model: int = 0, test_set: int = 0
) -> tasks.TaskRow | None:
    """The analysis as far as it is, None where nobody has asked for it."""
    return tasks.find(db, KIND, key(db, run_id, what, model, test_set))


def key(db: str | Path, run_id: int, what: What, model: int, test_set: int) -> str:
    """All that an analysis depends on; a run that has gone on since is asked anew."""
    return f"run {run_id} round {Store(db).runs.get([run_id])[0].rounds_done} {what} {model} {test_set}"


def analyse(job: Job) -> Work[dict[str, Any]]:
    """The handler: restores the run from its checkpoint, then looks. Arrays are written beside the result.

    Raises:
        FedLensError: when the run has no checkpoint, or there is nothing of that kind to see.
    """
    from fedcore.engine import inspect

    run_id, runs = job.args["run"], Store(job.db).runs
    checkpoint = runs.newest_checkpoint(run_id)
    if checkpoint is None:
        raise FedLensError(
            f"run {run_id} has no checkpoint to look into: it was deleted, or the run was trained elsewhere; "
            "run it again to look into it"
        )
    _, path = checkpoint
    config, environment = runs.config(run_id), runs.environment(run_id)
    snapshot = yield from inspect.restore(config, path, job.artifacts, job.device, environment)
    result = {"round": snapshot.round, "classes": list(snapshot.federation.problem.classes)}
    what, model, test_set = (job.args[name] for name in ("what", "model", "test_set"))
    if what == "nearest_words":
        return result | {"rows": inspect.nearest_words(snapshot, model)}
    analyses = {
        "predictions": lambda: inspect.predictions(snapshot),
        "feature_space": lambda: inspect.feature_space(snapshot, model, test_set),
        "evidence": lambda: inspect.evidence(snapshot, model, test_set),
    }
    job.write_arrays(**(yield from analyses[what]()))
    return result
