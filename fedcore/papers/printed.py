"""Printed figures at the rows of a comparison, whose own numbers stand beside them: no run is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedcore.config import Experiment
from fedcore.errors import FedLensError
from fedcore.papers import beside, published
from fedcore.papers.published import PAPERS, Absent, Figure
from fedcore.results.comparison import Comparison
from fedcore.results.metrics import Metric
from fedcore.results.printed import PrintedValue, PrintedValues, Row

_METRICS: dict[str, Metric] = {
    "generalization": "generalisation",
    "personalization": "personalisation",
    "comprehensive": "comprehensive",
    "accuracy": "personal",
    "mean client accuracy": "personal",
    "local": "classes",
    "global": "whole",
}
"""Metrics as printed -> the column of a comparison that measures the same."""


def source(figure: Figure) -> str:
    """``FedOT, Table 1``."""
    return f"{PAPERS[figure.paper]}, Table {figure.table}"


def metric_of(figure: Figure) -> Metric | None:
    """The column that a printed figure belongs in; None for figures of single domains, and all others.

    A local performance of models before aggregation has none either: the columns are of those after it.
    """
    if figure.target != "avg" or figure.setting.startswith("held out"):
        return None
    if figure.metric == "local" and not beside.after_aggregation(figure):
        return None
    return _METRICS.get(figure.metric)


def printed_values(comparison: Comparison, experiments: Iterable[Experiment]) -> PrintedValues:
    """The figures that experiments name, at the rows whose whole config is the printed method's.

    A row of any experiment counts whose data, partition, backbone, rounds, hyper-parameters and held-out
    domains are those of an experiment that names figures. Experiments whose entries no figure fits, or whose
    methods FedLens has not, have none (the tab Published says why).
    """
    figures: dict[Row, dict[Metric, tuple[PrintedValue, ...]]] = {}
    absent: dict[str, str] = {}
    for experiment in experiments:
        if experiment.reproduces:
            try:
                _add(figures, absent, comparison, experiment)
            except FedLensError:  # said where the figures themselves are shown
                continue
    there = {f.method for by_metric in figures.values() for fs in by_metric.values() for f in fs}
    return PrintedValues(figures, {method: why for method, why in absent.items() if method not in there})


def _add(
    figures: dict[Row, dict[Metric, tuple[PrintedValue, ...]]],
    absent: dict[str, str],
    comparison: Comparison,
    experiment: Experiment,
) -> None:
    contents = beside.contents(experiment)
    rows = _rows(comparison, experiment, contents)
    for figure in published.named_by(experiment):
        metric = metric_of(figure)
        if metric is None:
            continue
        meant = published.ours(figure)
        entry = None if isinstance(meant, Absent) else beside.place(contents, meant)
        here = [] if entry is None else rows.get(entry, [])
        rule = beside.RULES[figure.paper]
        value = PrintedValue(
            figure.value, figure.std, figure.method, PAPERS[figure.paper], figure.table, rule
        )
        for row in here:
            known = figures.setdefault(row, {})
            if value not in known.get(metric, ()):
                known[metric] = (*known.get(metric, ()), value)
        if not here:
            absent.setdefault(figure.method, "not implemented" if isinstance(meant, Absent) else "not run")


def _rows(
    comparison: Comparison, experiment: Experiment, contents: list[dict[str, Any]]
) -> Mapping[int, list[Row]]:
    """Position among the experiment's variants -> the rows that are just that."""
    names = {entry.name for entry in experiment.methods}
    found: dict[int, list[Row]] = {}
    for group in comparison.groups:
        out = {v.run.held_out for v in group.runs} - {None}
        if not group.here or group.method not in names or out != set(experiment.held_out):
            continue
        own = beside.content_of(group.config)
        for i, content in enumerate(contents):
            if content == own:
                found.setdefault(i, []).append((group.setting, group.key))
    return found
