"""Means over data sets, as papers print them in a headline table.

A mean is over all data sets of a group, each of which weighs equally: first over the data sets for each seed
that all of them have, then over seeds, so that its spread is one over seeds as elsewhere. A method that lacks
one of the data sets has no mean, and a note names what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcore.base.progress import listed
from fedcore.config import RunConfig
from fedcore.config.field_names import data_titles, seeds_text
from fedcore.results.comparison import Comparison
from fedcore.results.metrics import METRICS, RunResult, value_per_seed
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import NO_EVIDENCE, protocol_title
from fedcore.results.statistics import ValuesBySeed, group_by, spread


def mean_over(by_part: Iterable[ValuesBySeed]) -> dict[int, float]:
    """Return the mean over some data sets of each seed that all of them have."""
    parts = list(by_part)
    common = set(parts[0]).intersection(*parts[1:]) if parts else ()
    return {seed: float(np.mean([values[seed] for values in parts])) for seed in sorted(common)}


def groups_of_data(configs: Mapping[str, RunConfig]) -> dict[str, tuple[str, list[str]]]:
    """Group settings that differ in their data only, given a config of each: key -> title and settings.

    A group has several data sets, and none of them twice: which of two settings of one data set a mean should
    take, nobody has said.
    """

    def protocol(key: str) -> str:
        return protocol_title(configs[key]).replace(NO_EVIDENCE, "")  # which depends on the data

    found = {}
    for keys in group_by(sorted(configs), protocol).values():
        names = sorted(data_titles(configs[key]) for key in keys)
        if 1 < len(keys) == len(set(names)):
            found["+".join(keys)] = f"Mean over {len(keys)} data sets ({', '.join(names)})", keys
    return found


def over_data_sets(compared: Comparison) -> Comparison:
    """Return the means of a comparison over data sets: a setting for each group, a row for each method."""
    configs = {row.setting: row.config for row in compared.rows}
    rows: list[ComparisonRow] = []
    settings, notes = {}, []
    for setting, (title, keys) in groups_of_data(configs).items():
        in_group = [row for row in compared.rows if row.setting in keys]
        for (label, _), members in group_by(in_group, lambda row: (row.label, row.method)).items():
            having = {row.setting for row in members}
            lacking = [data_titles(configs[key]) for key in keys if key not in having]
            in_order = sorted(members, key=lambda row: row.setting)
            row = None if lacking else _mean_row(setting, in_order)
            if row is None:
                why = f"no run on {listed(lacking)}" if lacking else "no seed that all data sets have"
                notes.append(f"{label} has no mean over data sets: {why}")
                continue
            rows.append(row)
            # one part without evidence is enough to mark the mean
            protocol = max((protocol_title(configs[key]) for key in keys), key=len)
            settings[setting] = f"{title} · {protocol}"
            if unused := {seed for part in row.parts for seed in part.seeds} - set(row.seeds):
                left_out = f"{seeds_text(unused)} left out, which not all data sets have"
                notes.append(f"{label}, mean over data sets: {left_out}")
    return replace(compared, rows=tuple(rows), settings=settings, notes=tuple(dict.fromkeys(notes)))


def _mean_row(setting: str, members: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """Return the mean of a method's rows, one per data set; None without a seed that all of them have."""
    values = {
        metric: mean_over(value_per_seed(row.runs, metric) for row in members)
        for metric in METRICS
        if all(metric in row.stats for row in members)
    }
    first = {result.run.seed: result for result in members[0].runs}
    runs = tuple(
        RunResult(
            replace(first[s].run, held_out=None), first[s].rounds, {m: values[m].get(s) for m in values}
        )
        for s in sorted({seed for by_seed in values.values() for seed in by_seed})
    )
    stats = {metric: stat for metric, by_seed in values.items() if (stat := spread(by_seed.values()))}
    others = (f"{data_titles(row.config)}: {row.other_tests}" for row in members if row.other_tests)
    mean = replace(members[0], setting=setting, runs=runs, stats=stats, breakdowns={}, members=tuple(members))
    return replace(mean, other_tests="; ".join(others)) if runs else None
