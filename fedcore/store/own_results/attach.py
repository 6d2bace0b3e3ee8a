"""Runs that were trained elsewhere join an experiment and take its setting, or make a new one."""

import operator
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig, RunConfig
from fedcore.config.experiment import named_errors
from fedcore.config.values import LARGEST_INTEGER
from fedcore.data import catalog
from fedcore.errors import FedLensError, did_you_mean, reading_stored
from fedcore.progress import first_few
from fedcore.store.writer import Created, insert_experiment, insert_runs

OWN_DATA = "own data"
"""The data set of results without one; if they join an experiment, they take that of the experiment."""
OWN_BACKBONE = "own backbone"
MAX_ROUND = 100_000
GLOBAL_NAME = "global"
"""Name of the global model in a script and in a CSV file."""
NAMED = 5
"""Names that a sentence repeats."""
MAX_COUNT = 10**12
"""Highest count of samples: sums over all cells of a database stay within 64 bits."""
MAX_NAME = 1000
"""Maximum length of the name of a method, a model or a test set, in characters."""


@dataclass(frozen=True)
class ExistingExperiment:
    """An experiment of the store; runs that join it take the setting of ``model``, its first run.

    Attributes:
        namesakes: ids of older experiments with the same name, if it was found by name.
    """

    id: int
    name: str
    model: RunConfig
    namesakes: tuple[int, ...] = ()


def find_experiment(database: sqlite3.Connection, experiment: str | int | None) -> ExistingExperiment | None:
    """Return the experiment with a name (the newest of several) or an id, which may be given as text."""
    if experiment is None:
        return None
    row = _find_by(database, "e.name", experiment) if isinstance(experiment, str) else None
    if row is None and (isinstance(experiment, int) or experiment.isdecimal()):
        row = _find_by(database, "e.id", min(int(experiment), LARGEST_INTEGER))
    if row is None and isinstance(experiment, int):
        raise FedLensError(f"no experiment {experiment}; `fedlens list` shows them", "experiment")
    return row


def _find_by(database: sqlite3.Connection, column: str, value: str | int) -> ExistingExperiment | None:
    rows = database.execute(
        "SELECT e.id, e.name, r.config FROM experiments e JOIN runs r ON r.id = "
        f"(SELECT min(id) FROM runs WHERE experiment_id = e.id) WHERE {column}=? ORDER BY e.id DESC",
        [value],
    ).fetchall()
    if not rows:
        return None
    row, older = rows[0], tuple(other["id"] for other in rows[1:])
    with reading_stored(f"experiment {row['id']}"):
        return ExistingExperiment(row["id"], row["name"], RunConfig.model_validate_json(row["config"]), older)


def whole_number(name: str, value: Any, most: int) -> int:
    """Convert a whole number from 0 to ``most`` to a Python integer; it may be of numpy or a tensor.

    Raises:
        ValueError: for any other value, also for a float such as 93.0, which may be a percentage.
    """
    number = -1
    if str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.") != "bool":
        with suppress(TypeError, ValueError):
            number = operator.index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} is '{value}'; give a whole number from 0 to {most:,}")
    return number


def checked_counts(correct: Any, total: Any) -> tuple[int, int]:
    """Return counts of correct samples and all samples as whole numbers.

    Raises:
        ValueError: unless 0 <= correct <= total and 1 <= total.
    """
    right = whole_number("correct", correct, MAX_COUNT)
    of = whole_number("total", total, MAX_COUNT)
    if of < 1 or right > of:
        raise ValueError(f"{right} correct of {of}; total is at least 1, and correct from 0 to total")
    return right, of


def doubts(existing: ExistingExperiment | None, dataset: str | None) -> list[str]:
    """Return a sentence for each name that may not be the one that the user meant.

    An unknown data set is not refused, because FedLens cannot know the names of the user's own data sets.
    """
    found = []
    if existing is None and dataset is not None and dataset not in (OWN_DATA, *catalog.names()):
        hint = did_you_mean(dataset, catalog.names(), "`fedlens data list` shows those that it knows")
        found.append(
            f"FedLens knows no data set '{dataset}', so these results compare only with others under this "
            f"name; {hint}"
        )
    if existing is not None and existing.namesakes:
        found.append(
            f"{len(existing.namesakes) + 1} experiments are called '{existing.name}'; the newest was chosen, "
            f"number {existing.id} (the others: {', '.join(map(str, existing.namesakes))}). Give a number "
            "instead of the name to choose another one"
        )
    return found


def without_own_accuracy(models: Iterable[str], test_sets: Iterable[str]) -> str | None:
    """Return a sentence if no model can have an accuracy on its own test set; None if one can."""
    of_models, of_sets = (sorted(set(names)) for names in (models, test_sets))
    if {GLOBAL_NAME, *of_sets} & set(of_models):
        return None
    return (
        "no model has the name of a test set, so there is no personal accuracy: the models were "
        f"{first_few(of_models, NAMED)}, the test sets {first_few(of_sets, NAMED)}; '{GLOBAL_NAME}' is the "
        "name of the global model"
    )


def unequal_totals(cells: Iterable[tuple[str, str, int]]) -> str | None:
    """Return a sentence if two models were tested on different numbers of samples of one test set.

    Args:
        cells: model, test set and total of an evaluation.
    """
    seen: dict[str, tuple[str, int]] = {}
    for model, test_set, total in cells:
        first, samples = seen.setdefault(test_set, (model, total))
        if samples != total:
            return (
                f"test set '{test_set}' has {samples} samples for model '{first}' and {total} for '{model}', "
                "so their accuracies are of different samples"
            )
    return None


def insert_own_runs(
    database: sqlite3.Connection,
    existing: ExistingExperiment | None,
    configs: Sequence[RunConfig],
    *,
    name: str | None,
    origin: Literal["recorder", "import"],
    identity: str | None = None,
    tag: str | None = None,
) -> Created:
    """Insert runs into an existing experiment, or into a new one.

    Args:
        configs: see ``own_config``.
        name, identity, tag: name, uuid and tag of the new experiment.
    """
    with named_errors():
        if existing is None:  # all of its runs have the first one's setting
            first = configs[0]
            experiment = Experiment(
                name=name or f"{first.method.name} on {first.data.name}",
                data=first.data,
                partition=first.partition,
                backbone=first.backbone,
                methods=tuple({run.method.name: run.method for run in configs}.values()),
                rounds=max(run.rounds for run in configs),
                seeds=tuple(dict.fromkeys(run.seed for run in configs)),
                tags=(tag,) if tag else (),
            )
            experiment_id = insert_experiment(database, experiment, identity)
        else:
            experiment_id = existing.id
    return Created(experiment_id, insert_runs(database, experiment_id, configs, origin=origin))


def own_config(
    existing: ExistingExperiment | None,
    dataset: str | None = None,
    backbone: str | None = None,
    **given: object,
) -> RunConfig:
    """Return the config of a run that was trained elsewhere, with the setting of an existing experiment.

    Args:
        dataset, backbone: names; None (or ``OWN_DATA``) if the user gave none.
        given: method, seed, rounds (the last one, or their number) and held-out domain.
    """
    if existing is None:
        data, model = DataConfig(name=dataset or OWN_DATA), BackboneConfig(name=backbone or OWN_BACKBONE)
        setting = {"data": data, "partition": PartitionConfig(), "backbone": model, "participation": 1.0}
    else:
        setting = dict(existing.model)
        for field, name, default in (("dataset", dataset, OWN_DATA), ("backbone", backbone, OWN_BACKBONE)):
            needed = existing.model.data.name if field == "dataset" else existing.model.backbone.name
            if name not in (None, default, needed):
                raise FedLensError(
                    f"'{name}', but experiment '{existing.name}' is on '{needed}': they would not compare; "
                    "leave it out, or name another experiment",
                    field,
                )
    with named_errors():
        return RunConfig.model_validate({**setting, **given})
