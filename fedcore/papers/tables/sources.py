"""The runs whose mean is compared with a published value, and the data and weights that they lack here."""

from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from pathlib import Path

from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS
from fedcore.config import BackboneConfig, Experiment, MethodEntry, RunConfig, backbones, sweeps
from fedcore.data import catalog
from fedcore.papers import library, mini
from fedcore.papers.equivalents import NoEquivalent, VariantRun, equivalent, find_variant, variant_runs
from fedcore.papers.experiments import published
from fedcore.papers.measures import held_out_of
from fedcore.papers.mini import COMPARED
from fedcore.papers.published import PublishedValue, load, values_of
from fedcore.results.evaluated_on import SeedAndDomain
from fedcore.store import Store

Changes = tuple[tuple[str, object], ...]
"""Paths of an experiment's fields, as in a sweep, with their values."""


@dataclass(frozen=True)
class RunSource:
    """A method of a preset, or of the preset's rehearsal.

    Attributes:
        changes: of one of several readings, the fields that have another value than in the preset. Its
            experiment has this method alone, its rehearsal the size ``COMPARED``. None: the preset itself.
    """

    preset: str
    index: int
    rehearsal: bool = False
    changes: Changes | None = None

    @property
    def experiment(self) -> Experiment:
        return _made(self)[0]

    @property
    def entry(self) -> MethodEntry:
        return self.experiment.methods[self._variant.index]

    @property
    def _variant(self) -> VariantRun:
        return _made(self)[1]

    @property
    def config(self) -> RunConfig:
        """The config that all runs of the source share, with the first seed and nothing held out."""
        return self._variant.config

    @property
    def key(self) -> str:
        """Identifies the configs of all runs of the source (``content_key``)."""
        return self._variant.key

    @property
    def title(self) -> str:
        """The method's name in its experiment."""
        return self._variant.title

    @property
    def domains(self) -> dict[str, str]:
        """The paper's domains -> the runs' domains, if they differ, as in rehearsals."""
        return mini.stand_ins(published()[self.preset]) if self.rehearsal else {}

    @property
    def held_out(self) -> tuple[str, ...]:
        """The domains that the paper's experiment holds out in turn."""
        return published()[self.preset].held_out

    @cache  # noqa: B019 - sources are few, and live as long as the presets
    def parts(self, value: PublishedValue) -> tuple[SeedAndDomain, ...]:
        """Return the runs whose mean is compared with a value."""
        domains = held_out_of(value, self.held_out) if self.held_out else []
        wanted: list[str | None] = [self.domains.get(domain, domain) for domain in domains]
        return tuple((seed, domain) for seed in self.experiment.seeds for domain in wanted or [None])


@library.cached
def _experiment(preset: str, rehearsal: bool) -> tuple[Experiment, list[VariantRun]]:
    experiment = published()[preset]
    if rehearsal:
        experiment = mini.rehearsal(experiment)
    return experiment, variant_runs(experiment)


@library.cached
def _made(source: RunSource) -> tuple[Experiment, VariantRun]:
    """Return the experiment of a source and its method; under a reading it reproduces nothing."""
    preset, index, changes = published()[source.preset], source.index, source.changes
    if changes is None:
        experiment, variants = _experiment(source.preset, source.rehearsal)
        return experiment, variants[index]
    further = (seed for seed in count(1) if seed not in preset.seeds)
    seeds = (*preset.seeds, *islice(further, COMPARED.seeds))[: COMPARED.seeds]
    alone = {"methods": preset.methods[index : index + 1], "seeds": seeds, "reproduces": ()}
    experiment = sweeps.fixed(preset.model_copy(update=alone), dict(changes))
    if source.rehearsal:
        experiment = mini.rehearsal(experiment, COMPARED)
        if prompt := dict(changes).get("data.template"):  # the paper's own suits its classes alone
            data = experiment.data.model_copy(update={"template": prompt})
            experiment = experiment.model_copy(update={"data": data})
    return experiment, variant_runs(experiment)[0]


@library.cached
def _presets_of_values() -> dict[PublishedValue, list[str]]:
    """Return the presets whose experiments name each value, tables before figures."""
    found: dict[PublishedValue, list[str]] = {}
    for name, experiment in published().items():
        if experiment.reproduces and not experiment.sweep:
            for value in values_of(experiment):
                found.setdefault(value, []).append(name)
    return found


@library.cached
def source_of(value: PublishedValue, rehearsal: bool = False) -> RunSource | NoEquivalent:
    """Return the runs that give a value, or the reason why none can."""
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return ours
    for preset in _presets_of_values().get(value, ()):
        variant = find_variant(_experiment(preset, False)[1], value)
        if isinstance(variant, VariantRun):
            return RunSource(preset, variant.index, rehearsal)
    return NoEquivalent("no run", "no preset has this method in this setting")


@library.cached
def has_runs(paper: str, table: str) -> bool:
    """Return whether FedLens can run some values of a table.

    For a paper that does not say why it cannot run the others, any table will do.
    """
    if paper not in library.papers():  # a draft
        return False
    anywhere = not library.find(paper).why_not_run
    values = (value for value in load(paper) if anywhere or value.table == table)
    return any(isinstance(source_of(value), RunSource) for value in values)


CHECKS = 1000
"""Number of newest folder checks that are read."""


@dataclass(frozen=True)
class Lack:
    """Data or weights that runs need and this machine lacks; ``how`` says how to get them."""

    kind: str
    text: str
    how: str


@dataclass
class Availability:
    """The weights on this machine, and the data sets with their folders, preferably checked ones."""

    roots: dict[str, str]
    _weights: dict[BackboneConfig, bool] = field(default_factory=dict)

    def lacks(self, config: RunConfig | Experiment) -> tuple[Lack, ...]:
        """Return the data and weights that a config needs and this machine lacks."""
        lacks = []
        entry = catalog.entry(config.data.name)
        if not entry.embedded and entry.name not in self.roots:
            lacks.append(Lack("data", f"the data set {entry.title}", entry.how_to_get))
        for backbone in backbones(config):
            if backbone not in self._weights:
                tag, name = backbone.pretrained, backbone.name
                cached = name in MINI_MODELS or tag is None or tags.cached(name, tag) is not None
                self._weights[backbone] = cached
            if not self._weights[backbone]:
                how = "A run downloads them from huggingface.co, or the page Data & models does."
                lacks.append(Lack("weights", f"the weights '{backbone.pretrained}' of {backbone.name}", how))
        return tuple(lacks)


def find_available(store: Store) -> Availability:
    """Find the data sets that were checked or used on this machine and still have a folder."""

    @cache
    def exists(root: str) -> bool:
        try:
            return Path(root).expanduser().exists()
        except OSError:  # the system does not accept this path
            return False

    roots: dict[str, str] = {}
    for task in store.tasks.recent("check", CHECKS):
        name, report = (task.result or {}).get("name"), (task.result or {}).get("report", {})
        root = report.get("root")
        if task.status == "done" and name and root and not report.get("error") and exists(root):
            roots.setdefault(name, root)
    for experiment in store.experiments.all():
        data = experiment.config.data
        if data.root and exists(data.root):
            roots.setdefault(data.name, data.root)
    return Availability(roots)
