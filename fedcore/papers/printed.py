"""Published values matched with the rows of a comparison by config, without reading any run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedcore.config import Experiment
from fedcore.errors import FedLensError
from fedcore.papers import variants
from fedcore.papers.comparability import comparability_of_runs
from fedcore.papers.equivalents import NoEquivalent, equivalent
from fedcore.papers.measures import after_aggregation
from fedcore.papers.published import PAPERS, PublishedValue, values_of
from fedcore.results.comparison import Comparison, Group
from fedcore.results.metrics import RULES, Metric, Rule
from fedcore.results.printed import Comparability, PrintedValue, PrintedValues, Row

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
    values (``variants.content``) and it holds out the same domains. An experiment that matches no published
    value or has an unknown method is skipped; the tab Published shows the reason.
    """
    values: dict[Row, dict[Metric, tuple[PrintedValue, ...]]] = {}
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
    values: dict[Row, dict[Metric, tuple[PrintedValue, ...]]],
    missing: dict[str, str],
    comparison: Comparison,
    experiment: Experiment,
) -> None:
    """Add one experiment's published values to those of its rows, or its methods to the missing ones."""
    contents = variants.contents(experiment)
    rows_of_variants = _rows(comparison, experiment, contents)
    for published in values_of(experiment):
        metric = column_of(published)
        if metric is None:
            continue
        found = equivalent(published)
        index = None if isinstance(found, NoEquivalent) else variants.find_variant(contents, found)
        rows = [] if index is None else rows_of_variants.get(index, [])
        for group in rows:
            in_row = values.setdefault((group.setting, group.key), {})
            value = PrintedValue(
                published.value,
                published.std,
                published.method,
                PAPERS[published.paper].title,
                published.table,
                published.rule,
                _comparability(published, group, comparison.rule),
            )
            if value not in in_row.get(metric, ()):
                in_row[metric] = (*in_row.get(metric, ()), value)
        if not rows:
            reason = "not implemented" if isinstance(found, NoEquivalent) else "not run"
            missing.setdefault(published.method, reason)


def _comparability(value: PublishedValue, row: Group, rule: Rule) -> Comparability:
    result = comparability_of_runs(value, row.runs, [row.caveat])
    if rule != value.rule and row.method != "zero-shot":
        reason = f"the paper reports {RULES[value.rule]}, this table {RULES[rule]}"
        result = result.with_reason("with a caveat", reason)
    return result


def _rows(
    comparison: Comparison, experiment: Experiment, contents: list[dict[str, Any]]
) -> Mapping[int, list[Group]]:
    """Return the comparison's rows that are runs of each variant, by the variant's position."""
    methods = {entry.name for entry in experiment.methods}
    rows: dict[int, list[Group]] = {}
    for group in comparison.groups:
        held_out = {result.run.held_out for result in group.runs} - {None}
        own = group.trained_by_fedlens and group.method in methods
        if not own or held_out != set(experiment.held_out):
            continue
        content = variants.content(group.config)
        for i, known in enumerate(contents):
            if known == content:
                rows.setdefault(i, []).append(group)
    return rows
