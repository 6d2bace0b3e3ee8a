"""The runs whose mean is compared with a published value: a preset's method, its seeds and domains."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property

from fedcore.config import Experiment, RunConfig
from fedcore.methods import registry
from fedcore.papers import mini, variants
from fedcore.papers.equivalents import Equivalent, NoEquivalent, equivalent
from fedcore.papers.experiments import published
from fedcore.papers.measures import held_out_of
from fedcore.papers.published import PublishedValue, values_of

Part = tuple[int, str | None]
"""A run of a source: its seed and held-out domain, None if nothing is held out."""


@dataclass(frozen=True)
class Source:
    """A method of a preset, or of the preset's rehearsal."""

    preset: str
    index: int
    rehearsal: bool = False

    @property
    def experiment(self) -> Experiment:
        """The experiment that the method belongs to."""
        return _experiment(self.preset, self.rehearsal)

    @property
    def config(self) -> RunConfig:
        """The config that all runs of the source share, with the first seed and nothing held out."""
        return _configs(self.preset, self.rehearsal)[self.index]

    @property
    def key(self) -> str:
        """Identifies the configs of all runs of the source (``content_key``)."""
        return _key(self)

    @property
    def title(self) -> str:
        """The method's name in its experiment."""
        entry = self.experiment.methods[self.index]
        return entry.label or registry.get(entry.name).about.title

    @property
    def domains(self) -> dict[str, str]:
        """The paper's domains -> the runs' domains, if they differ, as in rehearsals."""
        return mini.stand_ins(published()[self.preset]) if self.rehearsal else {}

    @property
    def held_out(self) -> tuple[str, ...]:
        """The domains that the paper's experiment holds out in turn."""
        return published()[self.preset].held_out

    def parts(self, value: PublishedValue) -> list[Part]:
        """Return the runs whose mean is compared with a value."""
        return list(_parts(self, value))


@cache
def _experiment(preset: str, rehearsal: bool) -> Experiment:
    experiment = published()[preset]
    return mini.rehearsal(experiment) if rehearsal else experiment


@cache
def _configs(preset: str, rehearsal: bool) -> list[RunConfig]:
    return variants.variants(_experiment(preset, rehearsal))


@cache
def _parts(source: Source, value: PublishedValue) -> tuple[Part, ...]:
    names = source.domains
    domains = held_out_of(value, source.held_out) if source.held_out else []
    wanted: list[str | None] = [names.get(domain, domain) for domain in domains]
    return tuple((seed, domain) for seed in source.experiment.seeds for domain in wanted or [None])


@cache
def _key(source: Source) -> str:
    return content_key(source.config)


def content_key(config: RunConfig) -> str:
    """Return a text that is equal for runs of one method, whatever their seed and held-out domain.

    Raises:
        FedLensError: for a method or hyper-parameter that FedLens does not have.
    """
    return json.dumps(variants.content(config), sort_keys=True)


class _Index:
    """The methods of the papers' tables by published value."""

    @cached_property
    def places(self) -> dict[PublishedValue, list[str]]:
        """The presets whose experiments name a value, tables before figures."""
        found: dict[PublishedValue, list[str]] = {}
        for name, experiment in published().items():
            if experiment.reproduces and not experiment.sweep:
                for value in values_of(experiment):
                    found.setdefault(value, []).append(name)
        return found

    @cache  # noqa: B019 - there is one index, and it lives as long as the process
    def methods(self, preset: str) -> list[dict[str, dict[str, object]]]:
        """Return name and full config of a preset's methods, as ``variants.find_variant`` reads them."""
        return [
            {
                "method": {
                    "name": entry.name,
                    "config": registry.build_config(entry.name, entry.config).model_dump(mode="json"),
                }
            }
            for entry in published()[preset].methods
        ]

    @cache  # noqa: B019
    def find(self, value: PublishedValue) -> Source | NoEquivalent:
        """Return the first source of a value, or the reason why there is none."""
        own = equivalent(value)
        if isinstance(own, NoEquivalent):
            return own
        return self._source(value, own)

    def _source(self, value: PublishedValue, own: Equivalent) -> Source | NoEquivalent:
        for preset in self.places.get(value, ()):
            index = variants.find_variant(self.methods(preset), own)
            if index is not None:
                return Source(preset, index)
        return NoEquivalent("no run", "no preset has this method in this setting")


_INDEX = _Index()


def source_of(value: PublishedValue, rehearsal: bool = False) -> Source | NoEquivalent:
    """Return the runs that give a value, or the reason why none can.

    Args:
        rehearsal: whether to return the runs of the rehearsal.
    """
    found = _INDEX.find(value)
    if isinstance(found, Source) and rehearsal:
        return Source(found.preset, found.index, rehearsal=True)
    return found
