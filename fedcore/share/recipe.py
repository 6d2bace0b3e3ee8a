"""The recipe of a comparison: everything that ``fedlens rerun`` needs to train its runs again.

A report holds it, and that of a bundle follows from its database. It names the runs behind the numbers, with
their configs and environments, the user's own methods with their text, and a digest of what each round
recorded, to which new runs are compared.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.events import SPLITS, STAGES
from fedcore.config import Experiment, MethodEntry, RunConfig
from fedcore.results.comparison import Comparison
from fedcore.share.checked import CheckedComparison, ComparisonChoices
from fedcore.store import Store

FORMAT: Literal["fedlens-recipe-1"] = "fedlens-recipe-1"
METHODS = "methods"
"""Folder of the user's own methods."""
_PLACE = re.compile(rf"{METHODS}/[A-Za-z0-9_][A-Za-z0-9_. -]*[.]py")


class FilePart(BaseModel):
    """A part of a file for others, in which nothing is accepted that FedLens does not write."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunRecipe(FilePart):
    """One run behind the numbers.

    Attributes:
        number: within the recipe, from 1.
        rounds: digest of the accuracies of each evaluated round, see ``round_digests``.
    """

    number: int
    label: str
    origin: Literal["engine", "recorder", "import"]
    config: RunConfig
    environment: dict[str, Any]
    rounds: dict[int, str]

    @property
    def name(self) -> str:
        """Its number, label and seed, as messages name it."""
        return f"run {self.number} ({self.label}, seed {self.config.seed})"


class ExperimentRecipe(FilePart):
    """An experiment with those of its runs that are behind the numbers."""

    name: str
    config: Experiment
    runs: tuple[RunRecipe, ...]


class MethodFile(FilePart):
    """The text of a method of the user's own."""

    sha256: str
    text: str


class Recipe(FilePart):
    """The runs of a comparison, to be trained again.

    Attributes:
        methods: by the path that the configs name.
        missing: names of method files that have changed since, or are gone; their runs cannot be trained.
    """

    format: Literal["fedlens-recipe-1"]
    title: str
    choices: ComparisonChoices
    experiments: tuple[ExperimentRecipe, ...]
    methods: dict[str, MethodFile]
    missing: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecipe, ...]:
        """All runs, in the order of their numbers."""
        return tuple(run for experiment in self.experiments for run in experiment.runs)

    @model_validator(mode="after")
    def _methods_as_recorded(self) -> Self:
        """Check what comes from a stranger's file, since ``fedlens rerun`` writes these files."""
        for place, method in self.methods.items():
            if not _PLACE.fullmatch(place) or consent.digest(method.text.encode()) != method.sha256:
                raise ValueError(f"{place[:100]!r} is not the method file that was recorded")
        return self


def recipe_of(
    checked: CheckedComparison, title: str = "", methods: Mapping[str, MethodFile] | None = None
) -> Recipe:
    """Return the recipe of the runs behind a comparison's rows.

    Args:
        title: default: the experiments' names.
        methods: the files that a bundle holds; default: those on this machine.
    """
    store, comparison, choice = checked.store, checked.comparison, checked.choice
    averaged = {result.run.id: result.run for row in comparison.rows for result in row.runs}
    ids = numbered(comparison)
    configs = store.runs.configs(ids)
    found = _own_methods(configs[i].method for i in ids) if methods is None else (dict(methods), [])
    files, missing = found
    places = {method.sha256: place for place, method in files.items()}
    experiments = []
    for experiment in comparison.experiments:
        of_it = [i for i in ids if averaged[i].experiment_id == experiment.id]
        if not of_it:
            continue
        entries = tuple(_portable(entry, places) for entry in experiment.config.methods)
        runs = tuple(
            RunRecipe(
                number=ids.index(i) + 1,
                label=averaged[i].label,
                origin=averaged[i].origin,
                config=configs[i].model_copy(
                    update={"method": _portable(configs[i].method, places), **_without_folders(configs[i])}
                ),
                environment=store.runs.environment(i),
                rounds=round_digests(store, i),
            )
            for i in of_it
        )
        changed = {"methods": entries, "notes": "", **_without_folders(experiment.config)}
        config = experiment.config.model_copy(update=changed)
        experiments.append(ExperimentRecipe(name=experiment.name, config=config, runs=runs))
    return Recipe(
        format=FORMAT,
        title=title or ", ".join(comparison.names.values()),
        choices=replace(choice, metric=checked.summary.metric, where="", unfinished=False),
        experiments=tuple(experiments),
        methods=files,
        missing=tuple(missing),
    )


def numbered(comparison: Comparison) -> list[int]:
    """Return the runs behind a comparison's rows by experiment, then id; a recipe numbers them from 1."""
    order = list(comparison.names)
    runs = {result.run.id: result.run for row in comparison.rows for result in row.runs}
    return sorted(runs, key=lambda i: (order.index(runs[i].experiment_id), i))


def _own_methods(entries: Iterable[MethodEntry]) -> tuple[dict[str, MethodFile], list[str]]:
    """Return the user's method files by their place in the recipe, and the names of those that are lost.

    A file that has changed since its runs were planned would not repeat them.
    """
    files: dict[str, MethodFile] = {}
    missing = []
    for path, digest in dict.fromkeys((m.file, m.sha256) for m in entries if m.file):
        name = PurePath(path).name
        try:
            text = consent.read(path)[1].decode()
        except (FedLensError, UnicodeDecodeError):
            missing.append(name)
            continue
        found = MethodFile(sha256=consent.digest(text.encode()), text=text)
        if digest not in (None, found.sha256):
            missing.append(name)
            continue
        place = _place(name)
        if files.get(place, found) != found:  # two files of one name
            place = _place(f"{found.sha256[:8]}-{name}")
        files[place] = found
    return files, missing


def _place(name: str) -> str:
    """Return the place of a method file, whose name an archive accepts too."""
    plain = re.sub(r"^[^A-Za-z0-9]|[^A-Za-z0-9_. -]|[.](?=[.])", "_", name)
    return f"{METHODS}/{plain.removesuffix('.py')}.py"


def _portable(entry: MethodEntry, places: Mapping[str, str]) -> MethodEntry:
    """Return a method that names its file by its place in the recipe."""
    if entry.file is None:
        return entry
    place = places.get(entry.sha256 or "", _place(PurePath(entry.file).name))
    return entry.model_copy(update={"file": place})


def _without_folders(config: RunConfig | Experiment) -> dict[str, Any]:
    return {
        "data": _without_folder(config.data),
        "further_data": tuple(map(_without_folder, config.further_data)),
        "transfer": tuple(map(_without_folder, config.transfer)),
    }


def _without_folder(data: Any) -> Any:
    """Return a data set by the name of its folder, whose place says something about this machine only."""
    return data if data.root is None else data.model_copy(update={"root": PurePath(data.root).name})


def round_digests(store: Store, run_id: int) -> dict[int, str]:
    """Return a digest of all accuracies of each evaluated round: counts and losses, to the last bit."""
    rows: dict[int, list[Sequence[object]]] = {}
    for split, split_name in enumerate(SPLITS):
        for stage, stage_name in enumerate(STAGES):
            for c in store.cells.of_runs([run_id], split, stage):
                row = [
                    split_name,
                    stage_name,
                    c.model_kind,
                    c.model,
                    c.test_set_kind,
                    c.test_set,
                    c.correct,
                    c.total,
                    c.loss,
                ]
                rows.setdefault(c.round, []).append(row)
    return {
        number: hashlib.sha256(json.dumps(cells, ensure_ascii=False).encode()).hexdigest()[:32]
        for number, cells in sorted(rows.items())
    }
