"""The runs whose mean is compared with a published value: a preset's method, its seeds and domains."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedcore.config import Experiment, RunConfig
from fedcore.methods import registry
from fedcore.papers import mini
from fedcore.papers.equivalents import (
    NoEquivalent,
    content,
    equivalent,
    find_variant,
    variant_configs,
    variant_contents,
)
from fedcore.papers.experiments import published
from fedcore.papers.measures import held_out_of
from fedcore.papers.published import PublishedValue, values_of

Part = tuple[int, str | None]
"""A run of a source: its seed and held-out domain, None if nothing is held out."""


@dataclass(frozen=True)
class RunSource:
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
    return variant_configs(_experiment(preset, rehearsal))


@cache
def _contents(preset: str, rehearsal: bool) -> list[dict[str, Any]]:
    return variant_contents(_experiment(preset, rehearsal))


@cache
def _key(source: RunSource) -> str:
    return json.dumps(_contents(source.preset, source.rehearsal)[source.index], sort_keys=True)


@cache
def _parts(source: RunSource, value: PublishedValue) -> tuple[Part, ...]:
    names = source.domains
    domains = held_out_of(value, source.held_out) if source.held_out else []
    wanted: list[str | None] = [names.get(domain, domain) for domain in domains]
    return tuple((seed, domain) for seed in source.experiment.seeds for domain in wanted or [None])


def content_key(config: RunConfig) -> str:
    """Return a text that is equal for runs of one method, whatever their seed and held-out domain."""
    return json.dumps(content(config), sort_keys=True)


@cache
def _presets_of_values() -> dict[PublishedValue, list[str]]:
    """Return the presets whose experiments name each value, tables before figures."""
    found: dict[PublishedValue, list[str]] = {}
    for name, experiment in published().items():
        if experiment.reproduces and not experiment.sweep:
            for value in values_of(experiment):
                found.setdefault(value, []).append(name)
    return found


@cache
def source_of(value: PublishedValue, rehearsal: bool = False) -> RunSource | NoEquivalent:
    """Return the runs that give a value, or the reason why none can."""
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return ours
    for preset in _presets_of_values().get(value, ()):
        index = find_variant(_contents(preset, False), ours)
        if index is not None:
            return RunSource(preset, index, rehearsal)
    return NoEquivalent("no run", "no preset has this method in this setting")
