"""What corresponds to what papers print: methods with their config, domains, and columns of comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from fedcore.config import Experiment, MethodEntry, RunConfig, expand, sweeps
from fedcore.methods import class_texts, hyperparameters, registry
from fedcore.methods.hyperparameters import LeftOpen
from fedcore.papers import library
from fedcore.papers.experiments import LocalPerformance, PrintedMethod, domain_names, published, runs
from fedcore.papers.library import RUNS_FILE
from fedcore.papers.published import PublishedValue, computed, values_of
from fedcore.results.metrics import Metric
from fedcore.results.rows import SeedAndDomain
from fedcore.results.settings import row_key

MEASURED: dict[str, Metric | None] = {
    "accuracy": "personal",
    "mean client accuracy": "personal",
    "global": "whole",
    "local": "classes",
    "generalization": "generalisation",
    "personalization": "personalisation",
    "comprehensive": "comprehensive",
    "condition number": None,
    "pseudo-gradient cosine": None,
    "Infer. Time (s/batch)": None,
    "time (ms)": None,
}
"""Printed metric that runs measure -> the column of a comparison with the same quantity, if there is one."""
TIMES = ("time (ms)", "Infer. Time (s/batch)")
"""Metrics that are times on the machine of the runs."""


@dataclass(frozen=True)
class NoEquivalent:
    """The reason why no run of FedLens can measure a published value.

    Either the method, or a variant or setting of it, is not implemented, or the value is not the result of
    one run.
    """

    status: Literal["not implemented", "no single run"]
    reason: str


def parts_of_mean(value: PublishedValue) -> tuple[PublishedValue, ...]:
    """Return what a mean over data sets averages, a value for each of them; empty for any other value."""
    rules = runs(library.find(value.paper).work).means
    rule = next((rule for rule in rules if rule.is_about(value)), None)
    if rule is None:
        return ()
    setting, metric = rule.parts.get("setting", value.setting), rule.parts.get("metric", value.metric)
    return tuple(replace(value, dataset=name, setting=setting, metric=metric) for name in rule.over)


@library.cached
def equivalent(value: PublishedValue) -> PrintedMethod | NoEquivalent:
    """Return the method and fields that measure a published value, or the reason why none do."""
    if value.dataset.startswith("avg") or parts_of_mean(value):
        return NoEquivalent("no single run", "a mean over several data sets")
    if computed(value) is not None:
        return NoEquivalent("no single run", "counted without a run; the page Papers has the count")
    paper = library.find(value.paper)
    rules = runs(paper.work).methods
    if not rules:
        return NoEquivalent("not implemented", paper.why_not(value.table))
    rule = next((rule for rule in rules if rule.is_about(value)), PrintedMethod())
    if registry.find(rule.name) is None:
        return NoEquivalent("not implemented", rule.reason or f"{value.method} is not implemented")
    if value.metric not in MEASURED:
        return NoEquivalent("no single run", f"FedLens measures no '{value.metric}'")
    domain = value.held_out or value.target
    if not {domain, value.target} <= {"avg", *domains_of(value)}:
        reason = f"no domain of {value.dataset} is called '{domain}' in a {RUNS_FILE}"
        return NoEquivalent("no single run", reason)
    return rule


@library.cached
def presets_of_values() -> dict[PublishedValue, list[str]]:
    """Return the presets whose experiments name each value, tables before figures."""
    found: dict[PublishedValue, list[str]] = {}
    for name, experiment in published().items():
        if experiment.reproduces and not experiment.sweep:
            for value in values_of(experiment):
                found.setdefault(value, []).append(name)
    return found


@library.cached
def left_open(value: PublishedValue) -> list[LeftOpen]:
    """Return what the method of a published value declares that its paper leaves open about this value."""
    value = next(iter(parts_of_mean(value)), value)
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return []
    experiment = next((published()[name] for name in presets_of_values().get(value, ())), None)
    federation: dict[str, Any] = {}
    if experiment is not None:
        by_domain = experiment.partition.kind == "domain" and experiment.partition.clients_per_domain == 1
        federation = {
            "participation": experiment.participation,
            "held_out": bool(experiment.held_out),
            "client_per_domain": by_domain,
        }
    return hyperparameters.left_open(registry.get(ours.name).Config, ours.fields | federation)


Changes = tuple[tuple[str, object], ...]
"""Paths of an experiment's fields, as in a sweep, with their values."""


@dataclass(frozen=True)
class RunSource:
    """A variant of an experiment (``sweeps.Variant``): the runs whose mean is compared with a value.

    Two of presets are equal if they have the same preset, method, rehearsal and changes. Those of other
    experiments cannot be told apart by ``==``: compare their ``key``.

    Attributes:
        experiment: that of the runs: a preset, its rehearsal, or a reading of one of them.
        config: that of all runs, with the first seed and nothing held out.
        fields: its hyper-parameters, defaults included.
        index: of its method in the preset, also under a reading; without a preset, in the experiment.
        preset: empty for an experiment that is not one.
        held_out: the domains that the paper's experiment holds out in turn.
        domains: of a rehearsal, the paper's domains -> the runs' domains.
        changes: of one of several readings, the fields that have another value than in the preset. Its
            experiment has this method alone, and as many seeds as a rehearsal. None: the preset itself.
    """

    experiment: Experiment = field(compare=False)
    config: RunConfig = field(compare=False)
    fields: dict[str, Any] = field(compare=False)
    index: int
    preset: str = ""
    held_out: tuple[str, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict, compare=False)
    rehearsal: bool = False
    changes: Changes | None = None

    @cached_property
    def key(self) -> str:
        return content_key(self.config)

    @property
    def title(self) -> str:
        """The method's name in its experiment."""
        return self.config.method.label or registry.title(self.config.method.name)

    def held_out_for(self, value: PublishedValue) -> list[str | None]:
        """Return the held-out domains of the runs that a value averages, as the runs name them."""
        if not self.held_out:
            return [None]
        domain = value.held_out or value.target
        domains = self.held_out if domain == "avg" else (domains_of(value)[domain],)
        return [self.domains.get(name, name) for name in domains]

    def parts(self, value: PublishedValue) -> tuple[SeedAndDomain, ...]:
        """Return the runs whose mean is compared with a value."""
        domains = self.held_out_for(value)
        return tuple((seed, domain) for seed in self.experiment.seeds for domain in domains)


def variant_runs(experiment: Experiment) -> list[RunSource]:
    """Return the runs of each variant of an experiment, in the order of ``sweeps.variants``."""
    runs = expand(experiment.model_copy(update={"held_out": (), "seeds": experiment.seeds[:1]}))
    found = []
    for variant, run in zip(sweeps.variants(experiment), runs, strict=True):
        place, held_out = f"methods.{variant.index}.config", experiment.held_out
        fields = registry.build_config(run.method.name, run.method.config, place).model_dump(mode="json")
        found.append(RunSource(experiment, run, fields, variant.index, held_out=held_out))
    return found


def find_variant(among: Sequence[RunSource], value: PublishedValue) -> RunSource | NoEquivalent | None:
    """Return the variant that measures a published value, why no run can, or None without such a method.

    If several variants have its method and fields, it is the first: printed values come first in a sweep.
    """
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return ours
    for variant in among:
        named = variant.config.method.name == ours.name
        if named and all(variant.fields[n] == wanted for n, wanted in ours.fields.items()):
            return variant
    return None


def content_key(config: RunConfig) -> str:
    """Return a key that is equal for all runs of one variant.

    It is their ``row_key``, but neither the texts that describe the classes count nor the search that found
    the hyper-parameters.
    """
    method, texts = config.method, class_texts.fields(registry.get(config.method.name).Config)
    given = {name: value for name, value in method.config.items() if name not in texts}
    entry = MethodEntry(name=method.name, config=given)
    return row_key(config.model_copy(update={"method": entry}))


def domains_of(published: PublishedValue) -> dict[str, str]:
    """Return the domains of a value's data set as papers print them -> as the catalog names them."""
    names = domain_names(library.find(published.paper).work)
    return names.get(published.dataset) or names.get(
        published.dataset.replace("OfficeHome", "Office-Home"), {}
    )


def local_performance(published: PublishedValue) -> LocalPerformance:
    """Return the meaning of the metric ``local`` in a value, by the ``runs.toml`` of its paper."""
    rules = runs(library.find(published.paper).work).local
    return next((rule for rule in rules if rule.is_about(published)), LocalPerformance())
