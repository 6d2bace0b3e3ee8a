"""Curves over rounds, seconds or traffic, and what the rows of a comparison cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.data.split_codes import TEST
from fedcore.results.comparison import Comparison, Group
from fedcore.results.metrics import Metric, complete_seeds
from fedcore.results.statistics import spread
from fedcore.store import BROADCAST, RunRow, Store

Axis = Literal["round", "seconds", "megabytes"]
AXES: dict[Axis, str] = {
    "round": "Round",
    "seconds": "Seconds of training and aggregation",
    "megabytes": "Traffic of all clients, up and down (MB)",
}
CURVE_METRICS: dict[Metric, str] = {
    "personal": "personal_mean",
    "weighted": "personal_weighted",
    "worst": "personal_worst",
    "classes": "classes_mean",
    "global": "global_mean",
}
MEGABYTE = 1_000_000
MAX_RANGES = 2
"""Lines of one colour whose bands from smallest to largest can be told apart."""


@dataclass(frozen=True)
class Series:
    """One line. ``std`` per point, None where there is one seed; ``low`` to ``high``: the reach of a mean."""

    label: str
    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    std: tuple[float | None, ...]
    n: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def show_ranges(series: Sequence[Series]) -> bool:
    """Whether the reach of means is a band; of many lines of one colour it is under the pointer alone."""
    methods = [s.method for s in series if s.low]
    return max(map(methods.count, methods), default=0) <= MAX_RANGES


Until = Mapping[int, int]
"""Run -> the last round to be shown."""


def run_labels(runs: Iterable[RunRow]) -> dict[int, str]:
    """Names that tell runs of one method apart, where they hold different domains out."""
    runs = list(runs)
    held: dict[str, set[str | None]] = {}
    for run in runs:
        held.setdefault(run.label, set()).add(run.held_out)
    several = {label for label, domains in held.items() if len(domains) > 1}
    return {r.id: f"{r.label}, without {r.held_out}" if r.label in several else r.label for r in runs}


def accuracy_by_round(
    store: Store, until: Until, metric: Metric = "personal", split: int = TEST, point: int = BROADCAST
) -> list[Series]:
    """Accuracy per round of some runs, per cent."""
    values: dict[int, list[tuple[float, float]]] = {i: [] for i in until}
    for p in store.rounds.mean_accuracy(until, split, point):
        share = getattr(p, CURVE_METRICS[metric])
        if share is not None and p.round <= until[p.run_id]:
            values[p.run_id].append((p.round, 100 * share))
    return _series_per_run(store, values)


def loss_by_round(store: Store, until: Until) -> list[Series]:
    """Training loss per round of some runs."""
    values: dict[int, list[tuple[float, float]]] = {i: [] for i in until}
    for row in store.rounds.of_runs(until):
        if row.train_loss is not None and row.round <= until[row.run_id]:
            values[row.run_id].append((row.round, row.train_loss))
    return _series_per_run(store, values)


def traffic_by_round(store: Store, until: Until) -> list[Series]:
    """What all clients have sent and received up to each round of some runs, MB; runs that measured it."""
    spent = cumulative_cost(store, until, "megabytes")
    values = {i: [(r, mb) for r, mb in spent[i].items() if r <= last] for i, last in until.items()}
    found = _series_per_run(store, values)
    return [s for s in found if any(s.y)]


def _series_per_run(store: Store, values: Mapping[int, Sequence[tuple[float, float]]]) -> list[Series]:
    """A line for every run that has points."""
    runs = store.runs.get(values)
    names = run_labels(runs)
    found = []
    for run in runs:
        if values[run.id]:
            x, y = zip(*values[run.id], strict=True)
            found.append(Series(names[run.id], run.method, tuple(x), tuple(y), (None,) * len(x), 1))
    return found


def mean_curves(
    store: Store, comparison: Comparison, setting: str, metric: Metric, axis: Axis = "round"
) -> list[Series]:
    """Mean and spread over whole seeds, at the rounds that every run of a row has."""
    groups = comparison.groups_in(setting)
    ids = [v.run.id for g in groups for v in g.runs]
    scores: dict[int, dict[int, float]] = {i: {} for i in ids}
    for p in store.rounds.mean_accuracy(ids):
        share = getattr(p, CURVE_METRICS[metric])
        if share is not None:
            scores[p.run_id][p.round] = 100 * share
    costs = cumulative_cost(store, ids, axis)
    return [s for g in groups if (s := _mean_series(g, scores, costs)).x]


def _mean_series(
    group: Group, scores: dict[int, dict[int, float]], costs: dict[int, dict[int, float]]
) -> Series:
    runs = complete_seeds(group.runs)
    if not runs:
        return Series(group.label, group.method, (), (), (), 0)
    common = set.intersection(*(set(scores[v.run.id]) & set(costs[v.run.id]) for v in runs))
    x, y, std = [], [], []
    for round_ in sorted(common):
        by_seed: dict[int, list[float]] = {}
        for v in runs:
            by_seed.setdefault(v.run.seed, []).append(scores[v.run.id][round_])
        stat = spread(float(np.mean(values)) for values in by_seed.values())
        assert stat is not None, group.label
        x.append(float(np.mean([costs[v.run.id][round_] for v in runs])))
        y.append(stat.mean)
        std.append(stat.std)
    return Series(group.label, group.method, tuple(x), tuple(y), tuple(std), len({v.run.seed for v in runs}))


def cumulative_cost(store: Store, run_ids: Iterable[int], axis: Axis) -> dict[int, dict[int, float]]:
    """run -> round -> what it took up to and with that round, for runs in which it was measured.

    Seconds leave out evaluation.
    """
    ids = list(run_ids)
    found: dict[int, dict[int, float]] = {i: {} for i in ids}
    sums = dict.fromkeys(ids, 0.0)
    for row in store.rounds.of_runs(ids):
        parts = {
            "seconds": (row.seconds_train, row.seconds_aggregate),
            "megabytes": (row.bytes_up, row.bytes_down),
            "round": (row.round,),
        }[axis]
        spent = _sum_known(*parts)
        if spent is None:
            continue
        scale = MEGABYTE if axis == "megabytes" else 1
        sums[row.run_id] = row.round if axis == "round" else sums[row.run_id] + spent / scale
        found[row.run_id][row.round] = sums[row.run_id]
    return found


@dataclass(frozen=True)
class Cost:
    """What a row of a comparison cost, mean over its runs; None where nothing was measured."""

    label: str
    method: str
    accuracy: float | None
    megabytes_up: float | None
    megabytes_down: float | None
    seconds_train: float | None
    seconds_aggregate: float | None
    seconds_evaluate: float | None

    @property
    def megabytes(self) -> float | None:
        """Up and down together."""
        return _sum_known(self.megabytes_up, self.megabytes_down)

    @property
    def seconds(self) -> float | None:
        """Training and aggregation together."""
        return _sum_known(self.seconds_train, self.seconds_aggregate)


def _sum_known(*values: float | None) -> float | None:
    """Sum of what is known; None where nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def row_costs(store: Store, comparison: Comparison, setting: str, metric: Metric = "personal") -> list[Cost]:
    """Traffic and time of whole runs, beside the accuracy that they reached."""
    groups = comparison.groups_in(setting)
    totals: dict[int, list[float | None]] = {v.run.id: [None] * 5 for g in groups for v in g.runs}
    for r in store.rounds.of_runs(totals):
        up, down = (None if b is None else b / MEGABYTE for b in (r.bytes_up, r.bytes_down))
        row = (up, down, r.seconds_train, r.seconds_aggregate, r.seconds_evaluate)
        totals[r.run_id] = [_sum_known(a, b) for a, b in zip(totals[r.run_id], row, strict=True)]
    found = []
    for g in groups:
        columns = zip(*(totals[v.run.id] for v in g.runs), strict=True)
        means = [_mean_known(column) for column in columns] if g.runs else [None] * 5
        stat = g.stats.get(metric)
        found.append(Cost(g.label, g.method, None if stat is None else stat.mean, *means))
    return found


def _mean_known(values: Iterable[float | None]) -> float | None:
    """Mean over the runs that measured it; None where none did."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


CostAxis = Literal["megabytes", "seconds"]


def pareto_front(found: Sequence[Cost], against: CostAxis) -> list[Cost]:
    """The Pareto front: rows that no other beats in accuracy without costing more, cheapest first.

    Of two equal rows both belong to it; a row without accuracy or cost does not.
    """
    known = [(c.accuracy, getattr(c, against), c) for c in found]
    known = [(a, x, c) for a, x, c in known if a is not None and x is not None]
    kept = [
        (x, -a, i)
        for i, (a, x, _) in enumerate(known)
        if not any(b >= a and y <= x and (b > a or y < x) for b, y, _ in known)
    ]
    return [known[i][2] for _, _, i in sorted(kept)]
