"""The outcome of an experiment in words, once all of its runs have ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from fedcore.config import RunConfig
from fedcore.progress import counted, duration
from fedcore.results.comparison import Comparison, ComparisonRow, compare
from fedcore.results.metrics import Metric
from fedcore.results.statistics import MIN_PAIRS
from fedcore.store import ExperimentRow, Store

LEADS: tuple[tuple[Metric, str], ...] = (
    ("personal", "on personal accuracy"),
    ("generalisation", "on the held-out domain"),
    ("global", "with its global model"),
)
"""Metrics that a verdict names, and how it names them; an experiment has at most two of them."""


def verdict(store: Store, experiment: ExperimentRow) -> str | None:
    """Return who leads by which metric and what that is worth; None while runs train or none has finished.

    The leaders are those of the last round. Fewer than three seeds prove nothing, which the verdict says.
    """
    if any(not run.ended for run in experiment.runs):
        return None
    compared = compare(store, [experiment.id])
    if not compared.rows:
        return None
    parts = [_took(experiment)]
    parts += [_leaders(compared, setting, title) for setting, title in compared.settings.items()]
    parts.append(_worth(compared.rows))
    return " ".join(part for part in parts if part)


def more_seeds(store: Store, experiment: ExperimentRow) -> list[RunConfig]:
    """Return the runs that an experiment lacks for a test: each method on the next seeds, up to three in all.

    Empty if it has three seeds, or holds runs that were recorded elsewhere.
    """
    if any(run.origin != "engine" for run in experiment.runs):
        return []
    seeds = {run.seed for run in experiment.runs}
    further = islice((seed for seed in count(1) if seed not in seeds), max(0, MIN_PAIRS - len(seeds)))
    configs = store.runs.configs(run.id for run in experiment.runs).values()
    alike = {config.model_copy(update={"seed": 0}).model_dump_json(): config for config in configs}
    return [config.model_copy(update={"seed": seed}) for seed in further for config in alike.values()]


def _took(experiment: ExperimentRow) -> str:
    done = sum(run.state == "done" for run in experiment.runs)
    seconds = [s for run in experiment.runs if (s := run.elapsed()) is not None]
    time = f" after {duration(sum(seconds))} of training" if seconds else ""
    if done == len(experiment.runs):
        return f"Done{time}."
    return f"{done} of {counted(len(experiment.runs), 'run')} done{time}."


def _leaders(compared: Comparison, setting: str, title: str) -> str:
    """Return one sentence on the leaders of a setting; empty for fewer than two rows."""
    rows = [row for row in compared.rows_in(setting) if not row.other_tests]
    if len(rows) < 2:
        return ""
    found: list[str] = []
    for metric, words in LEADS:
        measured = [row for row in rows if metric in row.stats]
        if len(measured) > 1:
            best = max(measured, key=lambda row: row.stats[metric].mean)
            leads = "" if found else "leads "
            found.append(f"{best.label} {leads}{words} ({best.stats[metric].mean:.1f} %)")
    place = f"{title}: " if len(compared.settings) > 1 else ""
    return f"{place}{', '.join(found)}." if found else ""


def _worth(rows: Sequence[ComparisonRow]) -> str:
    fewest = min(row.stats["personal"].n if "personal" in row.stats else len(row.seeds) for row in rows)
    if fewest >= MIN_PAIRS:
        return "Whether the differences could be chance is tested on Compare."
    return f"{'One seed' if fewest == 1 else f'{fewest} seeds'}: no difference is proven."
