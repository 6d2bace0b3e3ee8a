"""Presets: the demonstration, protocols of generalisation, ablations, and papers' ``runs.toml``.

A ``runs.toml`` maps printed methods to methods and hyper-parameters of FedLens, printed data sets and domains
to its names, and gives the experiments that reproduce the tables.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, StringConstraints, ValidationError

from fedcore.base.errors import FedLensError, did_you_mean, first_line
from fedcore.base.files import ASSETS
from fedcore.config import CohortConfig, Experiment, backbone_names, load
from fedcore.papers import library
from fedcore.papers.library import RUNS_FILE, Paper


class PrintedRule(BaseModel, extra="forbid", frozen=True):
    """A rule about the values with certain printed names, which may contain ``*``; empty for all.

    ``edition`` is the key of the paper, or of another edition of it (``Paper.edition_of``).
    """

    edition: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()
    setting: tuple[str, ...] = ()
    backbone: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()

    @cached_property
    def _named(self) -> list[tuple[str, tuple[str, ...]]]:
        every = ((column, getattr(self, column)) for column in PrintedRule.model_fields)
        return [("paper" if column == "edition" else column, names) for column, names in every if names]

    def is_about(self, value: object) -> bool:
        """Return whether the rule is about a ``PublishedValue``, whose module imports this one."""
        return all(library.matches(getattr(value, column), names) for column, names in self._named)


class PrintedMethod(PrintedRule):
    """The method of FedLens that printed names stand for, or the reason why it has none.

    Attributes:
        name: the method of FedLens.
        config: the fields that distinguish this variant; ``unset`` names those without a value.
        reason: why FedLens does not implement it, instead of a name.
    """

    name: str = ""
    config: dict[str, Any] = {}
    unset: tuple[str, ...] = ()
    reason: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that a config of this variant has, with their values."""
        return self.config | dict.fromkeys(self.unset)


class LocalPerformance(PrintedRule):
    """The meaning of the metric ``local`` in some values of a source.

    Attributes:
        after_aggregation: of the models that clients receive, and not of those that they have trained.
        own_samples: on a client's own test samples, and not on all test samples of its classes.
    """

    after_aggregation: bool = False
    own_samples: bool = False


class MeanOverDataSets(PrintedRule):
    """The data sets that some values are means over.

    Attributes:
        over: data sets as printed.
        parts: fields of the value of one data set, where they differ from the mean's.
    """

    over: tuple[str, ...]
    parts: dict[Literal["setting", "metric"], str] = {}


class PresetFields(BaseModel, extra="allow", frozen=True):
    """The fields of an experiment; those that are completed before it is made are checked."""

    each: tuple[str, ...] = ()
    like: str | None = None
    notes: str = ""
    methods: tuple[str | dict[str, Any], ...] = ()
    reproduces: tuple[dict[str, Any], ...] = ()


class PrintedRuns(BaseModel, extra="forbid", frozen=True):
    """A ``runs.toml``.

    Attributes:
        data: data set as printed -> its name in experiments.
        domains: data set as printed -> domain as printed -> its name in the catalog.
        cohorts: backbones of mixed federations as printed -> the cohorts of clients.
        methods: rules of printed methods, of which the first that is about a value holds.
        local: rules of the metric ``local``, of which the first that is about a value holds.
        means: rules of values that are means over data sets, of which the first that is about a value holds.
        texts: parts of notes that experiments share, in place of ``{NAME}``; each may name those above it.
        entries: label -> the method that experiments name by its label.
        each: lists of words by name.
        presets: name -> the fields of an experiment. ``like`` names another one whose fields it takes where
            it gives none; ``methods`` may be labels of ``entries``; ``reproduces`` is of this paper where it
            names none. One with ``each`` stands for several, in which ``{word}`` is replaced in turn by the
            words of a list, or of several (``"one two"``), in all combinations with those of the next.
    """

    data: dict[str, str] = {}
    domains: dict[str, dict[str, str]] = {}
    cohorts: dict[str, tuple[CohortConfig, ...]] = {}
    methods: tuple[PrintedMethod, ...] = ()
    local: tuple[LocalPerformance, ...] = ()
    means: tuple[MeanOverDataSets, ...] = ()
    texts: dict[str, str] = {}
    entries: dict[str, dict[str, Any]] = {}
    each: dict[str, tuple[dict[str, Any], ...]] = {}
    presets: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9{][A-Za-z0-9._{}-]*$")], PresetFields
    ] = {}


@library.cached_by_key
def runs(paper: Paper) -> PrintedRuns:
    """Read the ``runs.toml`` of a paper; empty if its folder has none."""
    return library.read_optional(paper.folder / RUNS_FILE, PrintedRuns)


def experiments(paper: Paper) -> dict[str, Experiment]:
    """Return the experiments that reproduce a paper's tables, by name."""
    given = runs(paper)
    file = str(paper.folder / RUNS_FILE)
    found = {}
    presets = _written_out(given, file)
    for name, preset in presets.items():
        where = f"{file}, preset '{name}'"
        fields = dict(preset)
        seen = {name}
        while (parent := fields.pop("like", None)) is not None:
            if parent not in presets or parent in seen:
                raise FedLensError(
                    f"{where}: 'like' names '{parent}', which is not another preset; correct it", "like"
                )
            seen.add(parent)
            fields = _merged(presets[parent], fields)
        methods: Sequence[Any] = fields.get("methods", ())
        if unknown := [m for m in methods if isinstance(m, str) and m not in given.entries]:
            raise FedLensError(f"{where}: no method '{unknown[0]}' in [entries]; add it", "methods")
        fields["methods"] = [{"label": m, **given.entries[m]} if isinstance(m, str) else m for m in methods]
        fields["reproduces"] = [{"paper": paper.key, **entry} for entry in fields.get("reproduces", ())]
        try:
            found[name] = Experiment(**fields)
        except ValidationError as error:
            raise FedLensError(f"{where}: {first_line(error)}; mend it", "presets") from error
    return found


def _written_out(given: PrintedRuns, where: str) -> dict[str, dict[str, Any]]:
    """Return the fields of each preset; one with ``each`` is written out for every combination of words."""
    found: dict[str, dict[str, Any]] = {}
    texts = dict(reversed(given.texts.items()))  # each may name those above it
    for name, preset in given.presets.items():
        if unknown := [one for names in preset.each for one in names.split() if one not in given.each]:
            raise FedLensError(f"{where}, preset '{name}': no list '{unknown[0]}' in [each]; add it", "each")
        text = json.dumps({name: preset.model_dump(exclude_unset=True, exclude={"each"})})
        lists = ([row for one in names.split() for row in given.each[one]] for names in preset.each)
        for rows in itertools.product(*lists):
            made = text
            for word, value in (pair for row in (*rows, texts) for pair in row.items()):
                made = made.replace(f'"{{{word}}}"', json.dumps(value))
                made = made.replace(f"{{{word}}}", json.dumps(str(value))[1:-1])
            if left := re.search(r"\{\w+\}", made):
                raise FedLensError(
                    f"{where}, preset '{name}': {left[0]} is neither in [texts], above the text that names "
                    "it, nor a word of the lists in 'each'; correct it",
                    "each",
                )
            found |= json.loads(made)
    return found


def _merged(general: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(general[key], value)
        for key, value in special.items()
        if isinstance(value, dict) and isinstance(general.get(key), dict)
    }
    return {**general, **special, **both}


def _naming(work: str) -> list[PrintedRuns]:
    """Return the files that name data sets, domains and cohorts for a paper: those that ship, then its own.

    An added paper names nothing for others, whose numbers would change.
    """
    ships = [other for other in library.works() if library.find(other).ships and other != work]
    return [runs(name) for name in (*ships, *filter(None, [work]))]


@library.cached
def data_names(work: str = "") -> dict[str, str]:
    """Return the data sets as a paper or, where it does not say, the others print them -> in experiments."""
    return {printed: name for given in _naming(work) for printed, name in given.data.items()}


@library.cached
def data_sets() -> set[str]:
    """Return the data sets of all papers, as experiments name them."""
    return {name for work in library.works() for name in runs(work).data.values()}


@library.cached
def domain_names(work: str = "") -> dict[str, dict[str, str]]:
    """Return, by data set as printed, the domains as printed -> in the catalog, see ``data_names``."""
    found: dict[str, dict[str, str]] = {}
    for given in _naming(work):
        for dataset, domains in given.domains.items():
            found.setdefault(dataset, {}).update(domains)
    return found


def printed_backbone(experiment: Experiment, paper: Paper) -> str:
    """Return an experiment's backbone as a paper prints it, or the names of its cohorts' backbones."""
    of_paper = runs(paper.work if paper.key in library.papers() else paper)
    printed = {cohorts: text for given in (*_naming(""), of_paper) for text, cohorts in given.cohorts.items()}
    return printed.get(experiment.cohorts, backbone_names(experiment))


DEMO = "demo"
"""Name of the preset that compares the four methods on embedded data."""
DEMO_TIME = "one to two minutes on two CPU cores"
"""As pages and docs/ say it; docs/embedded.md has the measured CPU-seconds."""
DEMO_FILE = ASSETS / "demo.toml"
_PLACE = re.compile(r"/(table|figure)(\d+)")
_FREE: dict[str, Any] = {
    "name": True, "seeds": True, "notes": True, "tags": True, "reproduces": True, "time_limit": True,
    "keep_checkpoints": True, "order": True, "data": {"root"}, "transfer": {"__all__": {"root"}},
    "further_data": {"__all__": {"root"}}, "methods": {"__all__": {"label"}},
}  # fmt: skip
"""Fields in which the runs of a preset may differ from it."""


@cache
def protocols() -> dict[str, Experiment]:
    """Return the experiments on embedded data: protocols such as ``base-to-new``, and ``ablations/*``."""
    folder = ASSETS / "protocols"
    files = (*sorted(folder.glob("*.toml")), *sorted(folder.glob("ablations/*.toml")))
    return {path.relative_to(folder).with_suffix("").as_posix(): load(path) for path in files}


@library.cached
def published() -> dict[str, Experiment]:
    """Return the experiments that reproduce papers' tables by name, such as ``fedot/table1-pacs``."""
    return {
        f"{work}/{name}": experiment
        for work in library.works()
        for name, experiment in experiments(library.find(work)).items()
    }


def names() -> list[str]:
    """Return the names of all presets."""
    return [DEMO, *protocols(), *published()]


def preset(name: str) -> Experiment:
    """Return the preset of this name: ``demo``, a protocol or an experiment of a paper."""
    if name == DEMO:
        return load(DEMO_FILE)
    if name in protocols():
        return protocols()[name]
    if name not in published():
        meant = did_you_mean(name, names(), "`fedlens presets` lists them", number=3)
        raise FedLensError(f"unknown preset '{name}'; {meant}", "preset")
    return published()[name]


def title(name: str) -> str:
    """Return a preset in words, such as ``FedOT, Table 1: PACS`` for ``fedot/table1-pacs``."""
    if name not in published():
        return preset(name).name
    paper, _, rest = published()[name].name.partition(", ")
    place = _PLACE.search(name)
    return f"{paper}, {place[1].capitalize()} {place[2]}: {rest}" if place else f"{paper}: {rest}"


def followed_by(experiment: Experiment, trained_by_fedlens: bool) -> tuple[str, ...]:
    """Return the presets that runs of an experiment follow, because it has their config.

    Args:
        trained_by_fedlens: False for results of other code. Only their file says which preset they
            followed; its name is a tag of the experiment. A tag that a user gives to runs of FedLens says
            nothing.
    """
    if trained_by_fedlens:
        return _by_config().get(_config(experiment), ())
    return tuple(tag for tag in experiment.tags if tag in names())


@library.cached
def _by_config() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in names():
        content = _config(preset(name))
        found[content] = (*found.get(content, ()), name)
    return found


def _config(experiment: Experiment) -> str:
    content = experiment.model_dump(mode="json", exclude_defaults=True, exclude=_FREE)
    return json.dumps({n: v for n, v in content.items() if v != {}}, sort_keys=True)  # a root alone leaves {}
