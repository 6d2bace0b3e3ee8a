"""Published values beside ours: read from the runs of a store, or matched with the rows of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedcore.config import Experiment
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.papers.comparability import comparability, comparability_of_runs
from fedcore.papers.equivalents import (
    NoEquivalent,
    content,
    equivalent,
    find_variant,
    variant_configs,
    variant_contents,
)
from fedcore.papers.measures import RunReader, after_aggregation
from fedcore.papers.published import PAPERS, PublishedValue, values_of
from fedcore.results.comparison import Comparison, ComparisonRow, RowKey, compare
from fedcore.results.metrics import RULES, Metric, Rule, RunResult
from fedcore.results.printed import MARKS, STATES, Comparability, PrintedValue, PrintedValues
from fedcore.results.statistics import Stat, signed
from fedcore.store import Store

Status = Literal["measured", "not run", "not implemented", "no single run", "measured on another test set"]

OTHER_TEST_SET = (
    "the paper tests on all test samples of the classes that a client holds; these runs tested on the "
    "client's own share only"
)
"""The reason why a run that was recorded without class sets has no FedAlign local performance."""


@dataclass(frozen=True)
class Reproduction:
    """A published value with the value that our runs measured for it.

    Attributes:
        measured: mean over seeds, in the published value's unit; None if no run has measured it.
        label: our method's name in its experiment, empty if there is none.
        reason: why it was not measured; may be empty.
        comparability: whether ours measures the same quantity, or would; None if no run can give the value.
    """

    published: PublishedValue
    status: Status
    measured: Stat | None = None
    label: str = ""
    reason: str = ""
    comparability: Comparability | None = None

    @property
    def measured_text(self) -> str:
        """Our value, or the reason why it is missing; never empty."""
        if self.measured is None:
            return self.reason if self.status == "no single run" else self.status
        mark = self.comparability.mark if self.comparability else ""
        return f"{self.measured.text(self.published.digits)} {mark}".rstrip()

    @property
    def difference(self) -> str:
        """Our value minus the published one, with its sign; empty if the two must not be compared."""
        if self.measured is None or (self.comparability or Comparability()).state == "not comparable":
            return ""
        return signed(self.measured.mean - self.published.value, self.published.digits)


def reproductions(store: Store, experiment: Experiment) -> list[Reproduction]:
    """Return the published values that an experiment names, with our values if its runs are finished.

    A run counts if FedLens trained it with the config of one of the experiment's variants
    (``equivalents.content``), in any experiment of the store that is not archived. If a seed was repeated,
    its newest run counts. Runs that differ from their config (``Method.result_caveat``) count only if no
    others exist.

    Args:
        store: its file need not exist yet.

    Raises:
        FedLensError: when the experiment names no published value, or a method that FedLens does not have.
    """
    if not experiment.reproduces:
        raise FedLensError("this experiment names no published values; add [[reproduces]]", "reproduces")
    reader = RunReader(store)
    runs_of_variants = variant_configs(experiment)
    contents = variant_contents(experiment)
    finished: dict[Rule, dict[int, list[_FinishedRun]]] = {}
    rows = []
    for value in values_of(experiment):
        ours = equivalent(value)
        if isinstance(ours, NoEquivalent):
            status: Status = "not implemented" if ours.kind == "method" else "no single run"
            rows.append(Reproduction(value, status, reason=ours.reason))
            continue
        index = find_variant(contents, ours)
        if index is None:
            reason = "the experiment has no such method"
            rows.append(Reproduction(value, "not run", reason=reason, comparability=comparability(value)))
            continue
        if value.rule not in finished:
            finished[value.rule] = _finished_runs(store, experiment.data.name, contents, value.rule)
        method = runs_of_variants[index].method
        label = method.label or registry.get(method.name).about.title
        runs = finished[value.rule].get(index, [])
        rows.append(_reproduction(reader, value, runs, experiment.held_out, label))
    return rows


@dataclass(frozen=True)
class _FinishedRun:
    """A finished run, and in ``caveat`` how it departs from its config."""

    result: RunResult
    caveat: str

    @property
    def precedence(self) -> tuple[bool, int]:
        """Sort key of runs of one seed, of which the largest counts: without a caveat, then the newest."""
        return not self.caveat, self.result.run.id


def _finished_runs(
    store: Store, data: str, contents: Sequence[dict[str, Any]], rule: Rule
) -> dict[int, list[_FinishedRun]]:
    """Return the finished runs of each variant, one per seed and held-out domain."""
    if not Path(store.path).exists():
        return {}
    ids = [e.id for e in store.experiments.all() if e.config.data.name == data]
    best: dict[int, dict[tuple[int, str | None], _FinishedRun]] = {}
    groups = compare(store, ids, rule, partial_seeds=True).rows if ids else ()
    for group, indices in _variants_of(groups, contents):
        for index in indices:
            best_by_part = best.setdefault(index, {})
            for result in group.runs:
                part, run = (result.run.seed, result.run.held_out), _FinishedRun(result, group.caveat)
                if part not in best_by_part or best_by_part[part].precedence < run.precedence:
                    best_by_part[part] = run
    return {index: list(runs.values()) for index, runs in best.items()}


def _variants_of(
    groups: Iterable[ComparisonRow], contents: Sequence[dict[str, Any]]
) -> Iterator[tuple[ComparisonRow, list[int]]]:
    """Yield the groups that FedLens trained, each with the positions of the variants that have its config."""
    methods = {content["method"]["name"] for content in contents}
    for group in groups:
        if group.trained_by_fedlens and group.method in methods:
            found = content(group.config)
            yield group, [i for i, variant in enumerate(contents) if variant == found]


def status_counts(rows: Sequence[Reproduction]) -> dict[str, int]:
    """Count the values of each status and state, such as ``measured, with a caveat``."""
    states = [(row.status, row.comparability.state if row.comparability else "") for row in rows]
    order = [(status, state) for status in get_args(Status) for state in (*STATES, "")]
    return {", ".join(filter(None, key)): states.count(key) for key in order if key in states}


def reasons(rows: Iterable[Reproduction]) -> list[tuple[str, str, str]]:
    """Return mark, methods and text of each reason against comparing some values, every text once."""
    methods: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        for state, text in row.comparability.reasons if row.comparability else ():
            methods.setdefault((MARKS[state], text), {})[row.published.method] = None
    return [(mark, ", ".join(names), text) for (mark, text), names in methods.items()]


def _reproduction(
    reader: RunReader,
    value: PublishedValue,
    runs: Sequence[_FinishedRun],
    held_out: Sequence[str],
    label: str,
) -> Reproduction:
    """Return a published value with ours, preferably from finished runs without caveats."""
    exact = [run for run in runs if not run.caveat]
    for chosen in (exact, runs):
        measured = reader.statistic(value, [run.result for run in chosen], held_out)
        if measured is not None:
            return Reproduction(value, "measured", measured, label, comparability=_of_runs(value, chosen))
    if runs and value.metric == "local":
        return Reproduction(
            value, "measured on another test set", None, label, OTHER_TEST_SET, _of_runs(value, runs)
        )
    return Reproduction(value, "not run", label=label, comparability=comparability(value))


def _of_runs(value: PublishedValue, runs: Sequence[_FinishedRun]) -> Comparability:
    return comparability_of_runs(value, [run.result for run in runs], [run.caveat for run in runs])


_COLUMNS: dict[str, Metric] = {
    "generalization": "generalisation",
    "personalization": "personalisation",
    "comprehensive": "comprehensive",
    "accuracy": "personal",
    "mean client accuracy": "personal",
    "local": "classes",
    "global": "whole",
}
"""Metric as printed -> the column of a comparison with the same quantity."""


def column_of(value: PublishedValue) -> Metric | None:
    """Return the column of a published value; None for values of one domain and metrics without a column.

    Local performance before aggregation has none either, since the columns measure models after it.
    """
    if value.target != "avg" or value.setting.startswith("held out"):
        return None
    if value.metric == "local" and not after_aggregation(value):
        return None
    return _COLUMNS.get(value.metric)


def printed_values(comparison: Comparison, experiments: Iterable[Experiment]) -> PrintedValues:
    """Match the published values that experiments name with the rows that have the printed method's config.

    A row of any experiment counts if its config is that of a variant of an experiment that names published
    values (``equivalents.content``) and it holds out the same domains. An experiment that matches no
    published value or has an unknown method is skipped; the tab Published shows the reason.
    """
    values: dict[RowKey, dict[Metric, tuple[PrintedValue, ...]]] = {}
    missing: dict[str, str] = {}
    for experiment in experiments:
        if experiment.reproduces:
            try:
                _add(values, missing, comparison, experiment)
            except FedLensError:
                continue
    present = {v.method for by_metric in values.values() for vs in by_metric.values() for v in vs}
    return PrintedValues(values, {m: reason for m, reason in missing.items() if m not in present})


def _add(
    values: dict[RowKey, dict[Metric, tuple[PrintedValue, ...]]],
    missing: dict[str, str],
    comparison: Comparison,
    experiment: Experiment,
) -> None:
    """Add one experiment's published values to those of its rows, or its methods to the missing ones."""
    contents = variant_contents(experiment)
    rows_of_variants: dict[int, list[ComparisonRow]] = {}
    for group, indices in _variants_of(comparison.rows, contents):
        if {result.run.held_out for result in group.runs} - {None} == set(experiment.held_out):
            for i in indices:
                rows_of_variants.setdefault(i, []).append(group)
    for published in values_of(experiment):
        metric = column_of(published)
        if metric is None:
            continue
        ours = equivalent(published)
        index = None if isinstance(ours, NoEquivalent) else find_variant(contents, ours)
        rows = [] if index is None else rows_of_variants.get(index, [])
        for group in rows:
            by_metric = values.setdefault((group.setting, group.key), {})
            value = PrintedValue(
                published.value,
                published.std,
                published.method,
                PAPERS[published.paper].title,
                published.table,
                published.rule,
                _comparability_of_row(published, group, comparison.rule),
            )
            if value not in by_metric.get(metric, ()):
                by_metric[metric] = (*by_metric.get(metric, ()), value)
        if not rows:
            reason = "not implemented" if isinstance(ours, NoEquivalent) else "not run"
            missing.setdefault(published.method, reason)


def _comparability_of_row(value: PublishedValue, row: ComparisonRow, rule: Rule) -> Comparability:
    result = comparability_of_runs(value, row.runs, [row.caveat])
    if rule != value.rule and row.method != "zero-shot":
        reason = f"the paper reports {RULES[value.rule]}, this table {RULES[rule]}"
        result = result.with_reason("with a caveat", reason)
    return result
