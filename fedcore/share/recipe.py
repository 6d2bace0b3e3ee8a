"""The recipe of a comparison: everything that ``fedlens rerun`` needs to train its runs again.

A report holds it, and that of a bundle follows from its database. It names the runs behind the numbers, with
their configs and environments, the user's own methods with their text, and a digest of what each round
recorded, to which new runs are compared.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.events import SPLITS, STAGES
from fedcore.base.files import new_digest
from fedcore.config import BackboneConfig, DataConfig, Experiment, MethodEntry, RunConfig, TransferConfig
from fedcore.results.comparison import Comparison
from fedcore.share.checked import CheckedComparison, ComparisonChoices
from fedcore.store import Store

METHODS = "methods"
"""Folder of the user's own methods and encoders."""
_PLACE = re.compile(rf"{METHODS}/[A-Za-z0-9_][A-Za-z0-9_. -]*[.]py")
ConfigOfEither = TypeVar("ConfigOfEither", RunConfig, Experiment)


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
    """The text of a method or an encoder of the user's own."""

    sha256: str
    text: str


class Recipe(FilePart):
    """The runs of a comparison, to be trained again.

    Attributes:
        methods: by the path that the configs name.
        missing: names of such files that have changed since, or are gone; their runs cannot be trained.
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
    environments = {i: store.runs.environment(i) for i in ids}
    own = _OwnFiles()

    def portable(config: ConfigOfEither, weights: object = "") -> ConfigOfEither:
        if methods is not None:  # a bundle names nothing of a machine
            return config
        return relocated(config, _folder_name, own.place, str(weights))

    experiments = []
    for experiment in comparison.experiments:
        of_it = [i for i in ids if averaged[i].experiment_id == experiment.id]
        if not of_it:
            continue
        runs = tuple(
            RunRecipe(
                number=ids.index(i) + 1,
                label=averaged[i].label,
                origin=averaged[i].origin,
                config=portable(configs[i], environments[i].get("weights_digest", "")),
                environment=environments[i],
                rounds=round_digests(store, i),
            )
            for i in of_it
        )
        config = portable(experiment.config).model_copy(update={"notes": ""})
        experiments.append(ExperimentRecipe(name=experiment.name, config=config, runs=runs))
    return Recipe(
        format="fedlens-recipe-1",
        title=title or ", ".join(comparison.names.values()),
        choices=replace(choice, metric=checked.summary.metric, where="", unfinished=False),
        experiments=tuple(experiments),
        methods=own.files if methods is None else dict(methods),
        missing=tuple(own.missing),
    )


def numbered(comparison: Comparison) -> list[int]:
    """Return the runs behind a comparison's rows by experiment, then id; a recipe numbers them from 1."""
    order = list(comparison.names)
    runs = {result.run.id: result.run for row in comparison.rows for result in row.runs}
    return sorted(runs, key=lambda i: (order.index(runs[i].experiment_id), i))


class _OwnFiles:
    """The user's methods and encoders that configs name, by their places in the recipe."""

    def __init__(self) -> None:
        self.files: dict[str, MethodFile] = {}
        self.missing: dict[str, None] = {}
        self._places: dict[str, str] = {}

    def place(self, path: str, *digests: str | None) -> str:
        """Return the place of a file; one that has changed since it ran is missing.

        Args:
            digests: of the content that ran, by any function; without one it is that of the runs before.
        """
        name, known = PurePath(path).name, set(filter(None, digests))
        if not known and path in self._places:
            return self._places[path]
        with suppress(FedLensError, UnicodeDecodeError):
            content = consent.read(path)[1]
            found = MethodFile(sha256=consent.digest(content), text=content.decode())
            if not known or {found.sha256, new_digest(content).hexdigest()} & known:
                place = _place(name)
                if self.files.get(place, found) != found:  # two files of one name
                    place = _place(f"{found.sha256[:8]}-{name}")
                self.files[place], self._places[path] = found, place
                return place
        self.missing[name] = None
        return self._places.setdefault(path, f"{METHODS}/lost/{name}")


def _place(name: str) -> str:
    """Return the place of a method file, whose name an archive accepts too."""
    plain = re.sub(r"^[^A-Za-z0-9]|[^A-Za-z0-9_. -]|[.](?=[.])", "_", name)
    return f"{METHODS}/{plain.removesuffix('.py')}.py"


def _folder_name(data: DataConfig) -> str | None:
    """Return the name of a data set's folder, whose place says something about this machine only."""
    return None if data.root is None else PurePath(data.root).name


def relocated(
    config: ConfigOfEither,
    folder: Callable[[DataConfig], str | None],
    place: Callable[..., str],
    weights: str = "",
) -> ConfigOfEither:
    """Return a config that names its data, methods and encoders at other places.

    Args:
        folder: data set -> its other folder.
        place: (path, digests of the content that ran) -> the other path of a method or an encoder.
        weights: digests of the encoders that ran, as an environment has them.
    """

    def moved(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(moved, part))
        if not isinstance(part, BaseModel):
            return part
        changes = {name: moved(value) for name, value in part if isinstance(value, tuple | BaseModel)}
        if isinstance(part, DataConfig | TransferConfig):
            changes["root"] = folder(part.data if isinstance(part, TransferConfig) else part)
        elif isinstance(part, MethodEntry) and part.file is not None:
            changes["file"] = place(part.file, part.sha256)
        elif isinstance(part, BackboneConfig) and part.name == consent.CALLABLE and part.pretrained:
            changes["pretrained"] = place(part.pretrained, *weights.split("+"))
        return part.model_copy(update=changes)

    copy: ConfigOfEither = moved(config)
    return copy


def round_digests(store: Store, run_id: int) -> dict[int, str]:
    """Return a digest of all accuracies of each evaluated round: counts and losses, to the last bit."""
    rows: dict[int, list[Sequence[object]]] = {}
    for split, split_name in enumerate(SPLITS):
        for stage, stage_name in enumerate(STAGES):
            for round_ in store.rounds.evaluated(
                run_id, split, stage
            ):  # one at a time: many clients are many cells
                for c in store.cells.at_rounds({run_id: [round_]}, split, stage):
                    cell = (c.model_kind, c.model, c.test_set_kind, c.test_set, c.correct, c.total, c.loss)
                    rows.setdefault(c.round, []).append((split_name, stage_name, *cell))
    return {
        number: hashlib.sha256(json.dumps(cells, ensure_ascii=False).encode()).hexdigest()[:32]
        for number, cells in sorted(rows.items())
    }
