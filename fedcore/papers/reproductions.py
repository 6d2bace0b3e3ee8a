"""Published values beside ours: read from the runs of a store, or matched with the rows of a comparison."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from fedcore.base.errors import FedLensError
from fedcore.config import Experiment
from fedcore.papers import equivalents, library
from fedcore.papers.cells import TableCell
from fedcore.papers.comparability import comparability, comparability_of_runs
from fedcore.papers.equivalents import MEASURED, NoEquivalent, RunSource, local_performance
from fedcore.papers.experiments import followed_by
from fedcore.papers.published import PublishedValue, values_of
from fedcore.papers.recorded import RecordedRuns
from fedcore.results.comparison import Comparison, RowKey
from fedcore.results.metrics import RULES, Metric
from fedcore.results.rows import ComparisonRow
from fedcore.results.summary import MARKS, STATES, PrintedValue, PrintedValues
from fedcore.store import Store

OUTCOMES = ("measured", "not run", "not implemented", "no single run", "measured on another test set")


def reproductions(store: Store, experiment: Experiment) -> list[TableCell]:
    """Return the published values that an experiment names, with our values if its runs are finished.

    A run counts if it has the config of one of the experiment's variants (``equivalents.content_key``); see
    ``RecordedRuns``. The file of the store need not exist yet.
    """
    if not experiment.reproduces:
        raise FedLensError("this experiment names no published values; add [[reproduces]]", "reproduces")
    variants, recorded = equivalents.variant_runs(experiment), RecordedRuns(store, {experiment.data.name})
    found = {value: equivalents.find_variant(variants, value) for value in values_of(experiment)}
    recorded.read_results((v.key, value.rule) for value, v in found.items() if isinstance(v, RunSource))
    cells = []
    for value, variant in found.items():
        if isinstance(variant, NoEquivalent):
            cells.append(TableCell(value, variant.status, reason=variant.reason))
            continue
        ours = None if variant is None else recorded.measurement(value, variant)
        if ours is not None and (ours.stat or ours.reason):
            status = ours.comparability.state if ours.stat else "not run"
            against, reason = ours.comparability, ours.reason
            cells.append(TableCell(value, status, None, ours, reason=reason, comparability=against))
        else:
            reason = "the experiment has no such method" if variant is None else ""
            cells.append(TableCell(value, "not run", reason=reason, comparability=comparability(value)))
    return cells


def outcome_counts(cells: Sequence[TableCell]) -> dict[str, int]:
    """Count the values of each outcome and state, such as ``measured, with a caveat``."""
    found = [(cell.outcome, cell.judgement) for cell in cells]
    order = [(outcome, state) for outcome in OUTCOMES for state in (*STATES, None)]
    return {", ".join(filter(None, key)): found.count(key) for key in order if key in found}


def reasons(cells: Iterable[TableCell]) -> list[tuple[str, str, str]]:
    """Return mark, methods and text of each reason against comparing some values, every text once."""
    methods: dict[tuple[str, str], dict[str, None]] = {}
    for cell in cells:
        for state, text in cell.comparability.reasons:
            methods.setdefault((MARKS[state], text), {})[cell.value.method] = None
    return [(mark, ", ".join(names), text) for (mark, text), names in methods.items()]


def column_of(value: PublishedValue) -> Metric | None:
    """Return the column of a published value; None for values of one domain and metrics without a column.

    Local performance before aggregation has none either, since the columns measure models after it.
    """
    if value.target != "avg" or value.held_out:
        return None
    if value.metric == "local" and not local_performance(value).after_aggregation:
        return None
    return MEASURED.get(value.metric)


def printed_values(comparison: Comparison, experiments: Iterable[Experiment]) -> PrintedValues:
    """Match the published values that experiments name with the rows that have the printed method's config.

    A row of any experiment counts if its config is that of a variant of an experiment that names published
    values (``equivalents.content_key``) and it holds out the same domains. An experiment that matches no
    published value or has an unknown method is skipped; `fedlens published` shows the reason.
    """
    values: dict[RowKey, dict[Metric, tuple[PrintedValue, ...]]] = {}
    missing: dict[str, str] = {}
    for experiment in (e for e in experiments if e.reproduces):
        with suppress(FedLensError):
            _add(values, missing, comparison, experiment)
    present = {v.method for by_metric in values.values() for vs in by_metric.values() for v in vs}
    missing = {m: reason for m, reason in missing.items() if m not in present}
    configs, presets = {experiment.id: experiment.config for experiment in comparison.experiments}, {}
    followed = cache(lambda number, trained: followed_by(configs[number], trained))
    for row in comparison.rows:
        behind = dict.fromkeys(result.run.experiment_id for result in row.runs)
        names = dict.fromkeys(n for number in behind for n in followed(number, row.trained_by_fedlens))
        if names:
            presets[row.setting, row.key] = tuple(names)
    return PrintedValues(values, missing, presets)


def _add(
    values: dict[RowKey, dict[Metric, tuple[PrintedValue, ...]]],
    missing: dict[str, str],
    comparison: Comparison,
    experiment: Experiment,
) -> None:
    """Add one experiment's published values to those of its rows, or its methods to the missing ones."""
    variants = equivalents.variant_runs(experiment)
    methods = {variant.config.method.name for variant in variants}
    rows_of_variants: dict[str, list[ComparisonRow]] = {}
    for group in comparison.rows:
        held_out = {result.run.held_out for result in group.runs} - {None}
        if group.trained_by_fedlens and group.method in methods and held_out == set(experiment.held_out):
            key = equivalents.content_key(group.config)
            rows_of_variants.setdefault(key, []).append(group)
    for published in values_of(experiment):
        metric = column_of(published)
        if metric is None:
            continue
        variant = equivalents.find_variant(variants, published)
        rows = rows_of_variants.get(variant.key, []) if isinstance(variant, RunSource) else []
        for group in rows:
            by_metric = values.setdefault((group.setting, group.key), {})
            against = comparability_of_runs(published, group.runs, [group.caveat])
            if comparison.rule != published.rule and group.method != "zero-shot":
                reason = f"the paper reports {RULES[published.rule]}, this table {RULES[comparison.rule]}"
                against = against.with_reason("with a caveat", reason)
            value = PrintedValue(
                published.value,
                published.std,
                published.method,
                library.find(published.paper).title,
                published.table,
                published.rule,
                against,
            )
            if value not in by_metric.get(metric, ()):
                by_metric[metric] = (*by_metric.get(metric, ()), value)
        if not rows:
            reason = "not implemented" if isinstance(variant, NoEquivalent) else "not run"
            missing.setdefault(published.method, reason)
