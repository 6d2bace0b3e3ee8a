"""The runs whose mean is compared with a published value: a preset's method, its seeds and domains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import count, islice

from fedcore.config import Experiment, MethodEntry, RunConfig, sweeps
from fedcore.papers import library, mini
from fedcore.papers.equivalents import NoEquivalent, VariantRun, equivalent, find_variant, variant_runs
from fedcore.papers.experiments import published
from fedcore.papers.measures import held_out_of
from fedcore.papers.mini import COMPARED
from fedcore.papers.published import PublishedValue, load, values_of
from fedcore.papers.recorded import Part

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
        """The experiment that the method belongs to."""
        return self._made[0]

    @property
    def entry(self) -> MethodEntry:
        """The method as its experiment has it."""
        return self.experiment.methods[self._place]

    @property
    def _place(self) -> int:
        return self.index if self.changes is None else 0

    @property
    def _made(self) -> tuple[Experiment, list[VariantRun]]:
        if self.changes is None:
            return _experiment(self.preset, self.rehearsal)
        return _reading(self.preset, self.index, self.rehearsal, self.changes)

    @property
    def _variant(self) -> VariantRun:
        return self._made[1][self._place]

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
    def parts(self, value: PublishedValue) -> tuple[Part, ...]:
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
def _reading(name: str, index: int, rehearsal: bool, changes: Changes) -> tuple[Experiment, list[VariantRun]]:
    """Return the experiment of one method under one reading, which reproduces nothing as the preset does."""
    preset = published()[name]
    further = (seed for seed in count(1) if seed not in preset.seeds)
    seeds = (*preset.seeds, *islice(further, COMPARED.seeds))[: COMPARED.seeds]
    alone = {"methods": preset.methods[index : index + 1], "seeds": seeds, "reproduces": ()}
    experiment = sweeps.fixed(preset.model_copy(update=alone), dict(changes))
    if rehearsal:
        experiment = mini.rehearsal(experiment, COMPARED)
        if prompt := dict(changes).get("data.template"):  # the paper's own suits its classes alone
            data = experiment.data.model_copy(update={"template": prompt})
            experiment = experiment.model_copy(update={"data": data})
    return experiment, variant_runs(experiment)


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
