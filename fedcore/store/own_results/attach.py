"""Results from elsewhere join an experiment in its setting, or make a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.config import BackboneConfig, DataConfig, Experiment, MethodEntry, PartitionConfig, RunConfig
from fedcore.config.experiment import named_errors
from fedcore.config.values import LARGEST_INTEGER
from fedcore.errors import FedLensError, reading_stored
from fedcore.store.writer import Created, insert_experiment, insert_runs

if TYPE_CHECKING:
    from sqlite_utils import Database

OWN_DATA = "own data"
"""The data set of results that name none; where they join an experiment, they take the experiment's."""
OWN_BACKBONE = "own backbone"
MAX_ROUND = 100_000
MAX_COUNT = 10**12
"""Highest count of samples: sums over all cells of a database stay within 64 bits."""
MAX_NAME = 1000
"""Characters of the name of a method, a model or a test set."""


@dataclass(frozen=True, kw_only=True)
class OwnRun:
    """A run that was trained elsewhere.

    Attributes:
        rounds: None if that is not known; then the joined experiment's, or 0.
        dataset, backbone: names; None (or ``OWN_DATA``) where the user names none.
    """

    method: MethodEntry
    seed: int
    rounds: int | None = None
    dataset: str | None = None
    backbone: str | None = None
    held_out: str | None = None


@dataclass(frozen=True)
class ExistingExperiment:
    """An experiment of the store; runs that join it take the setting of ``model``, its first run."""

    id: int
    name: str
    model: RunConfig


def find_experiment(database: Database, experiment: str | int | None) -> ExistingExperiment | None:
    """Return the experiment of a name (the newest of several) or an id, which may be given as text.

    Raises:
        FedLensError: field ``experiment``, for a number that is no experiment's id.
    """
    if experiment is None:
        return None
    row = _find_by(database, "e.name", experiment) if isinstance(experiment, str) else None
    if row is None and (isinstance(experiment, int) or experiment.isdecimal()):
        row = _find_by(database, "e.id", min(int(experiment), LARGEST_INTEGER))
    if row is None and isinstance(experiment, int):
        raise FedLensError(f"no experiment {experiment}; `fedlens list` shows them", "experiment")
    return row


def _find_by(database: Database, column: str, value: str | int) -> ExistingExperiment | None:
    row = database.execute(
        "SELECT e.id, e.name, r.config FROM experiments e JOIN runs r ON r.experiment_id = e.id "
        f"WHERE {column}=? ORDER BY e.id DESC, r.id LIMIT 1",
        [value],
    ).fetchone()
    if row is None:
        return None
    with reading_stored(f"experiment {row['id']}"):
        return ExistingExperiment(row["id"], row["name"], RunConfig.model_validate_json(row["config"]))


def insert_own_runs(
    database: Database,
    existing: ExistingExperiment | None,
    runs: Sequence[OwnRun],
    *,
    name: str | None,
    origin: Literal["recorder", "import"],
    identity: str | None = None,
) -> Created:
    """Insert runs into an existing experiment, or into a new one.

    Args:
        name, identity: name and uuid of the new experiment.

    Raises:
        FedLensError: fields ``dataset``, ``backbone``, where the existing experiment has another one.
    """
    with named_errors():
        configs = [_run_config(existing, run) for run in runs]
        if existing is None:
            experiment_id = insert_experiment(database, _new_experiment(name, configs), identity)
        else:
            experiment_id = existing.id
    return Created(experiment_id, insert_runs(database, experiment_id, configs, origin=origin))


def _run_config(existing: ExistingExperiment | None, run: OwnRun) -> RunConfig:
    if existing is None:
        return RunConfig(
            data=DataConfig(name=run.dataset or OWN_DATA),
            partition=PartitionConfig(),
            backbone=BackboneConfig(name=run.backbone or OWN_BACKBONE),
            method=run.method,
            rounds=run.rounds or 0,
            participation=1.0,
            held_out=run.held_out,
            seed=run.seed,
        )
    model = existing.model
    _require_same(existing, "dataset", run.dataset, model.data.name, OWN_DATA)
    _require_same(existing, "backbone", run.backbone, model.backbone.name, OWN_BACKBONE)
    changed = {
        "method": run.method,
        "seed": run.seed,
        "rounds": model.rounds if run.rounds is None else run.rounds,
        "held_out": run.held_out,
    }
    return RunConfig.model_validate({**dict(model), **changed})


def _require_same(
    existing: ExistingExperiment, field: str, given: str | None, needed: str, default: str
) -> None:
    if given not in (None, default, needed):
        raise FedLensError(
            f"'{given}', but experiment '{existing.name}' is on '{needed}': they would not compare; "
            "leave it out, or name another experiment",
            field,
        )


def _new_experiment(name: str | None, runs: Sequence[RunConfig]) -> Experiment:
    """Return the experiment that holds these runs; all of them have the first one's setting."""
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
