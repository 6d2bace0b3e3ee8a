"""What corresponds to what papers print: methods with their config, and metrics of recorded runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedcore.base.codes import AFTER_AGGREGATION, BEFORE_AGGREGATION
from fedcore.config import Experiment, RunConfig, expand, sweeps
from fedcore.methods import class_texts, registry
from fedcore.papers import library
from fedcore.papers.experiments import LocalPerformance, PrintedMethod, domain_names, runs
from fedcore.papers.library import RUNS_FILE
from fedcore.papers.published import PublishedValue
from fedcore.results.frames import ROUND, cell_frame, client_shares, domain_shares, round_metrics
from fedcore.results.metrics import Metric, RunResult
from fedcore.results.settings import unused_fields
from fedcore.results.statistics import mean_or_none
from fedcore.store import Store

if TYPE_CHECKING:
    import pandas as pd

RoundShares = Mapping[tuple[int, int], Mapping[str, float]]
"""Run and round -> accuracies as shares of one, NaN without a value, see ``round_shares``."""


def round_shares(cells: pd.DataFrame) -> RoundShares:
    """Return the metrics of some rounds, and the means over clients that papers print.

    ``own`` is of own models on own test samples, ``own on art`` that of the domain art, and ``classes`` is of
    own models on all test samples of the client's classes.
    """
    table = round_metrics(cells).join(domain_shares(cells).unstack().add_prefix("own on "))
    table["own"] = client_shares(cells).groupby(ROUND).mean()
    table["classes"] = cells[cells.test_set_kind == "classes"].groupby(ROUND).share.mean()
    return dict(zip(table.index.tolist(), table.to_dict("records"), strict=True))


@dataclass(frozen=True)
class NoEquivalent:
    """The reason why no run of FedLens can measure a published value.

    Either the method, or a variant or setting of it, is not implemented, or the value is not the result of
    one run.
    """

    status: Literal["not implemented", "no single run"]
    reason: str


@library.cached
def equivalent(value: PublishedValue) -> PrintedMethod | NoEquivalent:
    """Return the method and fields that measure a published value, or the reason why none do."""
    if value.dataset.startswith("avg") or value.metric == "Performance (%)":
        return NoEquivalent("no single run", "a mean over several data sets")
    if "parameters" in value.metric:
        return NoEquivalent("no single run", "a count, not a run")
    if value.metric.startswith("Infer. Time"):
        return NoEquivalent("no single run", "a time on the authors' machine")
    paper = library.find(value.paper)
    rules = runs(paper.work).methods
    if not rules:
        return NoEquivalent("not implemented", paper.why_not(value.table))
    rule = next((rule for rule in rules if rule.is_about(value)), PrintedMethod())
    if registry.find(rule.name) is None:
        return NoEquivalent("not implemented", rule.reason or f"{value.method} is not implemented")
    if value.metric not in MEASURES:
        return NoEquivalent("no single run", f"FedLens measures no '{value.metric}'")
    domain = value.held_out or value.target
    if not {domain, value.target} <= {"avg", *domains_of(value)}:
        reason = f"no domain of {value.dataset} is called '{domain}' in a {RUNS_FILE}"
        return NoEquivalent("no single run", reason)
    return rule


@dataclass(frozen=True)
class VariantRun:
    """A run of a variant (``sweeps.Variant``) with the first seed and nothing held out.

    Attributes:
        index: of its method in the experiment.
        content: the fields that are equal in all runs of the variant (``content``).
    """

    index: int
    config: RunConfig
    content: dict[str, Any]

    @cached_property
    def key(self) -> str:
        """Identifies the content of the variant's runs."""
        return content_key(self.content)

    @property
    def title(self) -> str:
        """The method's name in its experiment."""
        return self.config.method.label or registry.title(self.config.method.name)


def variant_runs(experiment: Experiment) -> list[VariantRun]:
    """Return a run of each variant of an experiment, in the order of ``sweeps.variants``."""
    runs = expand(experiment.model_copy(update={"held_out": (), "seeds": experiment.seeds[:1]}))
    indices = (variant.index for variant in sweeps.variants(experiment))
    pairs = zip(indices, runs, strict=True)
    return [VariantRun(index, run, content(run, f"methods.{index}")) for index, run in pairs]


def find_variant(among: Sequence[VariantRun], value: PublishedValue) -> VariantRun | NoEquivalent | None:
    """Return the variant that measures a published value, why no run can, or None without such a method.

    If several variants have its method and fields, it is the first: printed values come first in a sweep.
    """
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return ours
    for variant in among:
        method = variant.content["method"]
        if method["name"] == ours.name and all(method["config"][n] == v for n, v in ours.fields.items()):
            return variant
    return None


def content(config: RunConfig, field: str = "methods") -> dict[str, Any]:
    """Return the fields that are equal in all runs of one variant, with the defaults of its method resolved.

    Runs of one variant may differ in seed, held-out domain, data folder, time limit, kept checkpoints and
    class descriptions. They may also differ in fields that their kind of partition does not use, because a
    sweep over kinds sets the fields of all of them.

    Args:
        field: where an error names an unknown method or hyper-parameter.
    """
    may_differ: dict[str, Any] = {
        "seed": True,
        "held_out": True,
        "time_limit": True,
        "keep_checkpoints": True,
        "data": {"root"},
        "partition": unused_fields(config.partition),
    }
    content = config.model_dump(mode="json", exclude=may_differ)
    method = config.method
    full = registry.build_config(method.name, method.config, f"{field}.config")
    descriptions = {*class_texts.fields(type(full))}
    content["method"] = {"name": method.name, "config": full.model_dump(mode="json", exclude=descriptions)}
    return content


def content_key(content: dict[str, Any]) -> str:
    """Return a text that is equal for runs with this content."""
    return json.dumps(content, sort_keys=True)


class RunReader:
    """Reads published metrics from the recorded runs of one store; the cells of a round are read once.

    Args:
        domains: the paper's domains as the catalog names them -> as the runs name them, if these differ.
        shares: of all rounds after aggregation, for all metrics except ``local``.
    """

    def __init__(
        self,
        store: Store,
        domains: Mapping[str, str],
        shares: RoundShares,
    ) -> None:
        self.store = store
        self.domains = domains
        self.shares = shares
        self.at_stage = cache(
            lambda run, round_, stage: round_shares(
                cell_frame(store.cells.at_rounds({run: [round_]}, stage=stage), store.runs.get([run]))
            )
        )

    def domain(self, published: PublishedValue) -> str:
        """Return the domain of a value as the runs name it."""
        name = domains_of(published)[published.target]
        return self.domains.get(name, name)

    def by_seed(
        self, published: PublishedValue, runs: Iterable[RunResult], held_out: Sequence[str]
    ) -> dict[int, float]:
        """Return a published metric's value for each seed that has all runs that it needs.

        ``held_out`` are the domains that the paper's experiment holds out in turn.
        """
        of_seed: dict[int, dict[str | None, RunResult]] = {}
        for result in runs:
            of_seed.setdefault(result.run.seed, {})[result.run.held_out] = result
        found = {seed: self._of_seed(published, results, held_out) for seed, results in of_seed.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def _of_seed(
        self, published: PublishedValue, results: dict[str | None, RunResult], held_out: Sequence[str]
    ) -> float | None:
        """Return one seed's value; ``results`` are by held-out domain, None if nothing is held out."""
        measure, _ = MEASURES[published.metric]
        if not held_out:
            return measure(self, published, results[None]) if None in results else None
        wanted = [self.domains.get(name, name) for name in held_out_of(published, held_out)]
        if (
            published.method == "Zero Shot"
            and published.metric == "comprehensive"
            and published.target != "avg"
        ):
            # Tables 9 and 10 print zero-shot CLIP by domain, the others by held-out domain
            measure = _mean_of("generalisation")
        values = [measure(self, published, results[domain]) for domain in wanted if domain in results]
        measured = [value for value in values if value is not None]
        return float(np.mean(measured)) if len(measured) == len(wanted) else None

    def mean_accuracy(self, result: RunResult, name: str, stage: int | None = None) -> float | None:
        """Return the mean of an accuracy over the selected rounds, in per cent; None if a round lacks it.

        Args:
            name: see ``round_shares``.
            stage: read all cells of a round at this stage; default: ``shares``.
        """
        run = result.run.id
        rounds = [
            (self.shares if stage is None else self.at_stage(run, r, stage)).get((run, r), {}).get(name)
            for r in result.rounds
        ]
        measured = [share for share in rounds if share is not None and not math.isnan(share)]
        return 100 * float(np.mean(measured)) if measured and len(measured) == len(rounds) else None


Measure = Callable[[RunReader, PublishedValue, RunResult], float | None]


def _mean_of(name: str) -> Measure:
    """Return the measure that is the mean of one accuracy of ``round_shares``."""
    return lambda reader, published, result: reader.mean_accuracy(result, name)


def held_out_of(published: PublishedValue, held_out: Sequence[str]) -> list[str]:
    """Return the held-out domains whose runs a value averages: the one in its setting or target, else all."""
    domain = published.held_out or published.target
    if domain == "avg":
        return list(held_out)
    return [domains_of(published)[domain]]


def domains_of(published: PublishedValue) -> dict[str, str]:
    """Return the domains of a value's data set as papers print them -> as the catalog names them."""
    names = domain_names(library.find(published.paper).work)
    return names.get(published.dataset) or names.get(
        published.dataset.replace("OfficeHome", "Office-Home"), {}
    )


def _accuracy(reader: RunReader, published: PublishedValue, result: RunResult) -> float | None:
    """Return the mean over clients (of the target's domain) of their own models on their own test samples."""
    name = "own" if published.target == "avg" else f"own on {reader.domain(published)}"
    return reader.mean_accuracy(result, name)


def _local_test(reader: RunReader, published: PublishedValue, result: RunResult) -> float | None:
    """Return local performance, on a client's own test samples or on all samples of its classes."""
    local = local_performance(published)
    stage = AFTER_AGGREGATION if local.after_aggregation else BEFORE_AGGREGATION
    return reader.mean_accuracy(result, "own" if local.own_samples else "classes", stage)


def local_performance(published: PublishedValue) -> LocalPerformance:
    """Return the meaning of the metric ``local`` in a value, by the ``runs.toml`` of its paper."""
    rules = runs(library.find(published.paper).work).local
    return next((rule for rule in rules if rule.is_about(published)), LocalPerformance())


def _personalization(reader: RunReader, published: PublishedValue, result: RunResult) -> float | None:
    """Return P: the clients' models on their own domains, for one printed target or the mean over all."""
    if published.held_out and published.target != "avg":
        return reader.mean_accuracy(result, f"own on {reader.domain(published)}")
    return reader.mean_accuracy(result, "personalisation")


def _condition_number(reader: RunReader, published: PublishedValue, result: RunResult) -> float | None:
    """Return the condition number of the clients' transforms in the last round, averaged over clients."""
    run = result.run
    rows = reader.store.diagnostics.at_round(run.id, "condition_number", run.rounds_total)
    return mean_or_none(r.value for r in rows)


def _gradient_cosine(reader: RunReader, published: PublishedValue, result: RunResult) -> float | None:
    """Return the mean pairwise cosine of the clients' pseudo-gradients, averaged over all rounds."""
    rows = reader.store.diagnostics.of_run(result.run.id, "gradient_conflict")
    return mean_or_none(r.value for r in rows)


def _traffic(reader: RunReader, published: PublishedValue, result: RunResult) -> float | None:
    """Return millions of scalars sent by a client in a round (the paper does not say what it counts)."""
    rounds = [r for r in reader.store.rounds.of_runs([result.run.id]) if r.round > 0]
    clients = sum(e.kind == "client" for e in reader.store.cells.entities(result.run.id))
    scalars = mean_or_none(r.scalars_up for r in rounds)
    return scalars / clients / 1e6 if scalars is not None and clients else None


MEASURES: dict[str, tuple[Measure, Metric | None]] = {
    "accuracy": (_accuracy, "personal"),
    "mean client accuracy": (_accuracy, "personal"),
    "global": (_mean_of("whole"), "whole"),
    "local": (_local_test, "classes"),
    "generalization": (_mean_of("generalisation"), "generalisation"),
    "personalization": (_personalization, "personalisation"),
    "comprehensive": (_mean_of("comprehensive"), "comprehensive"),
    "condition number": (_condition_number, None),
    "pseudo-gradient cosine": (_gradient_cosine, None),
    "Comm. (M/epoch)": (_traffic, None),
}
"""Metric as printed -> its measure, and the column of a comparison with the same quantity, if there is one.

Values of other metrics have no ``equivalent``."""
