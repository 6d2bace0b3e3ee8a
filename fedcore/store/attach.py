"""Where results made elsewhere go: into an experiment that is there, in its setting, or into a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.config import BackboneConfig, DataConfig, Experiment, MethodEntry, PartitionConfig, RunConfig
from fedcore.errors import FedLensError

if TYPE_CHECKING:
    from sqlite_utils import Database

OWN_DATA = "own data"
"""The data set of results that name none; joining an experiment, they take the experiment's."""
OWN_BACKBONE = "own backbone"


@dataclass(frozen=True)
class Joined:
    """An experiment that is there. ``model``: its first run, whose setting those that join it take."""

    id: int
    name: str
    model: RunConfig


def find(database: Database, experiment: str | int | None) -> Joined | None:
    """The experiment of a name (the newest of several) or an id; an id may come as text.

    Raises:
        FedLensError: field ``experiment``, for a number that is no experiment's id.
    """
    if experiment is None:
        return None
    found = _look(database, "e.name", experiment) if isinstance(experiment, str) else None
    if found is None and (isinstance(experiment, int) or experiment.isdecimal()):
        found = _look(database, "e.id", int(experiment))
    if found is None and isinstance(experiment, int):
        raise FedLensError(f"no experiment {experiment}; `fedlens list` shows them", "experiment")
    return found


def _look(database: Database, column: str, value: str | int) -> Joined | None:
    row = database.execute(
        "SELECT e.id, e.name, r.config FROM experiments e JOIN runs r ON r.experiment_id = e.id "
        f"WHERE {column}=? ORDER BY e.id DESC, r.id LIMIT 1",
        [value],
    ).fetchone()
    return (
        None if row is None else Joined(row["id"], row["name"], RunConfig.model_validate_json(row["config"]))
    )


def run_config(
    joined: Joined | None,
    entry: MethodEntry,
    seed: int,
    rounds: int | None,
    *,
    dataset: str | None = None,
    backbone: str | None = None,
    held_out: str | None = None,
) -> RunConfig:
    """The config of a run made elsewhere: the joined experiment's setting, or one of its own.

    Args:
        rounds: None where that is not known; then the joined experiment's, or 0.
        dataset, backbone: names; None (or ``OWN_DATA``) where the user says nothing.

    Raises:
        FedLensError: fields ``dataset``, ``backbone``, where the joined experiment has another one.
    """
    if joined is None:
        return RunConfig(
            data=DataConfig(name=dataset or OWN_DATA),
            partition=PartitionConfig(),
            backbone=BackboneConfig(name=backbone or OWN_BACKBONE),
            method=entry,
            rounds=rounds or 0,
            participation=1.0,
            held_out=held_out,
            seed=seed,
        )
    _same(joined, "dataset", dataset, joined.model.data.name, OWN_DATA)
    _same(joined, "backbone", backbone, joined.model.backbone.name, OWN_BACKBONE)
    return joined.model.model_copy(
        update={
            "method": entry,
            "seed": seed,
            "rounds": joined.model.rounds if rounds is None else rounds,
            "held_out": held_out,
        }
    )


def _same(joined: Joined, field: str, given: str | None, there: str, unsaid: str) -> None:
    if given not in (None, unsaid, there):
        raise FedLensError(
            f"'{given}', but experiment '{joined.name}' is on '{there}': they would not compare; "
            "leave it out, or name another experiment",
            field,
        )


def new_experiment(name: str | None, runs: Sequence[RunConfig]) -> Experiment:
    """The experiment that holds runs which join none; all runs have the first one's setting."""
    first = runs[0]
    return Experiment(
        name=name or f"{first.method.name} on {first.data.name}",
        data=first.data,
        partition=first.partition,
        backbone=first.backbone,
        methods=tuple({run.method.name: run.method for run in runs}.values()),
        rounds=max(run.rounds for run in runs),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
    )
