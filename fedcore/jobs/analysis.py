"""Analyses of a trained run as tasks: predictions, feature space, evidence, nearest words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedcore.base.errors import FedLensError
from fedcore.base.events import CROSS_CLASS_NOT_ANALYSED
from fedcore.base.progress import Work
from fedcore.engine.checkpoint import newest_intact
from fedcore.jobs.handlers import Job
from fedcore.store import Store, TaskRow

if TYPE_CHECKING:
    from fedcore.engine.inspect import RunSnapshot

AnalysisKind = Literal["predictions", "feature_space", "evidence", "nearest_words"]
RoundPair = tuple[int | None, int | None]
"""The wanted rounds of two runs; None: the newest checkpoint."""


@dataclass(frozen=True)
class Against:
    """The other run of a search for images that only one run's model classifies correctly, and both rounds.

    The newest checkpoint stands in for a round that has none.
    """

    run_id: int
    rounds: RoundPair = (None, None)


def submit(
    store: Store,
    run_id: int,
    what: AnalysisKind | Against,
    model: int | None = 0,
    test_set: int = 0,
    *,
    again: bool = False,
) -> int:
    """Queue an analysis of a run's newest round, unless its result exists; return the task's id.

    Args:
        model, test_set: entity codes; ``predictions`` needs neither, ``nearest_words`` no test set, nor
            ``feature_space`` of all clients' models (None).
        again: compute it even if its result exists.
    """
    args: dict[str, Any] = {"run": run_id, "what": what, "model": model, "test_set": test_set}
    if isinstance(what, Against):
        args |= {"what": "disagreement", "against": what.run_id, "rounds": list(what.rounds)}
    return store.tasks.submit("analyse", key(store, run_id, what, model, test_set), args, run_id, again=again)


def find(
    store: Store, run_id: int, what: AnalysisKind | Against, model: int | None = 0, test_set: int = 0
) -> TaskRow | None:
    """Return the task of an analysis, None if it was never submitted."""
    return store.tasks.find("analyse", key(store, run_id, what, model, test_set))


def key(store: Store, run_id: int, what: AnalysisKind | Against, model: int | None, test_set: int) -> str:
    """Return a key of everything on which an analysis depends; it changes when the run has new rounds."""
    if not isinstance(what, Against):
        (run,) = store.runs.get([run_id])
        return f"run {run_id} round {run.rounds_done} {what} {model} {test_set}"
    done = {run.id: run.rounds_done for run in store.runs.get([run_id, what.run_id])}
    first, second = (
        f"run {i} round {done[i]}" + ("" if wanted in (None, done[i]) else f" at {wanted}")
        for i, wanted in zip((run_id, what.run_id), what.rounds, strict=True)
    )
    return f"{first} against {second} disagreement with probabilities {model} {test_set}"


def obstacle(store: Store, run_id: int, named: str = "This run") -> str:
    """Return why a run cannot be analysed, in sentences about ``named``; empty if it can be."""
    if store.runs.config(run_id).data.training_classes == "own":
        return CROSS_CLASS_NOT_ANALYSED
    if not store.rounds.evaluated(run_id):
        return "Analyses need at least one evaluated round."
    if store.runs.checkpoints(run_id):
        return ""
    why = why_no_checkpoint(store, run_id)
    return f"{named} has no checkpoint here: {why}. Clone it and run it again to analyse it."


def why_no_checkpoint(store: Store, run_id: int) -> str:
    """Return why a run has no checkpoint on this machine."""
    if store.runs.config(run_id).keep_checkpoints == "none":
        return "its experiment keeps none (keep_checkpoints = none)"
    return "it was trained elsewhere, or its checkpoints were deleted"


def analyse(job: Job) -> Work[dict[str, Any]]:
    """Restore a run from its checkpoint and analyse it; arrays are written beside the result."""
    from fedcore.engine import inspect
    from fedcore.engine.inspect import disagreement

    wanted, other_wanted = job.args.get("rounds", (None, None))
    snapshot = yield from _restored(job, job.args["run"], wanted)
    result = {"round": snapshot.round, "classes": list(snapshot.federation.problem.classes)}
    what, model, test_set = (job.args[name] for name in ("what", "model", "test_set"))
    if what == "nearest_words":
        return result | {"rows": inspect.nearest_words(snapshot, model)}
    if what == "disagreement":
        other = yield from _restored(job, job.args["against"], other_wanted)
        job.write_arrays(**(yield from disagreement(snapshot, other, model, test_set)))
        return result | {"other_round": other.round}
    analyses = {
        "predictions": lambda: inspect.predictions(snapshot),
        "feature_space": lambda: inspect.feature_space(snapshot, model, test_set),
        "evidence": lambda: inspect.evidence(
            snapshot, model, snapshot.test_rows(test_set)[0, : inspect.EXAMPLES]
        ),
    }
    job.write_arrays(**(yield from analyses[what]()))
    return result


def _restored(job: Job, run_id: int, wanted: int | None = None) -> Work[RunSnapshot]:
    """Restore a run from a wanted intact checkpoint, else the newest; damaged ones are named in the log."""
    from fedcore.engine import inspect

    runs = job.store.runs
    checkpoints = runs.checkpoints(run_id)
    preferred_first = sorted(checkpoints, key=lambda file: (file[0] == wanted, file[0]), reverse=True)
    checkpoint, damaged = newest_intact(preferred_first)
    if checkpoint is None:
        why = "; ".join(damaged) or why_no_checkpoint(job.store, run_id)
        raise FedLensError(
            f"run {run_id} has no checkpoint to analyse: {why}; clone the run and train it again"
        )
    for finding in damaged:
        job.log(finding)
    _, path = checkpoint
    config, environment = runs.config(run_id), runs.environment(run_id)
    return (yield from inspect.restore(config, path, job.store.artifacts, job.device, environment))
