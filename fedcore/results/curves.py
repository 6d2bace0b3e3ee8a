"""Curves over rounds, seconds or traffic, their bands, and the costs of the rows of a comparison."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.base.events import AFTER_AGGREGATION, TEST
from fedcore.config import Tuned
from fedcore.results.comparison import Comparison
from fedcore.results.frames import FURTHER, cell_frame, round_metrics, with_harmonic_means
from fedcore.results.metrics import METRICS, SCORE_COLUMNS, Metric, complete_seeds, score_frame
from fedcore.results.progress import MEGABYTE
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import config_for_display, distinguishing_texts
from fedcore.results.statistics import Stat, group_by, mean_or_none, spread
from fedcore.store import RunRow, Store
from fedcore.store.rounds import RoundRow

CurveAxis = Literal["round", "seconds", "megabytes"]
AXES: dict[CurveAxis, str] = {
    "round": "Round",
    "seconds": "Seconds of training and aggregation",
    "megabytes": "Traffic of all clients, up and down (MB)",
}
CostAxis = Literal["megabytes", "seconds"]
MAX_RANGES = 2
"""Up to this many lines of one colour may have bands from minimum to maximum and remain readable."""
Until = Mapping[int, int]
"""Run -> the last round to be shown."""
ByRound = dict[int, dict[int, float]]
"""Run -> round -> value."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        std: spread over seeds at each x; None if there is one seed.
        n: number of seeds.
        low, high: minimum and maximum over clients if y is a mean over clients; else empty.
        counts: number of seeds at each x where it differs from ``n``; empty: n everywhere.
        smooth: y smoothed, drawn before the faint raw line; empty: not smoothed.
    """

    label: str
    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    std: tuple[float | None, ...]
    n: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    smooth: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def show_ranges(series: Sequence[Series]) -> bool:
    """Return whether to draw bands from minimum to maximum; many of one colour would hide each other."""
    methods = [s.method for s in series if s.low]
    return max(map(methods.count, methods), default=0) <= MAX_RANGES


def run_labels(store: Store, runs: Iterable[RunRow]) -> dict[int, str]:
    """Return a label per run: with the held-out domain if runs of one method hold out different ones.

    Runs of one label that differ in more than seed and held-out domain, such as runs of a script with other
    hyper-parameters, are named by what differs; they are not further seeds.
    """
    labels: dict[int, str] = {}
    for label, of_label in group_by(runs, lambda r: r.label).items():
        of_group = group_by(of_label, lambda r: r.group_hash)
        several = len({r.held_out for r in of_label}) > 1
        for (_, members), text in zip(of_group.items(), _what_differs(store, of_group), strict=True):
            name = f"{label} ({text})" if text else label
            labels |= {r.id: f"{name}, without {r.held_out}" if several else name for r in members}
    return labels


def _what_differs(store: Store, groups: Mapping[str, Sequence[RunRow]]) -> list[str]:
    """Return a unique text per group of runs; an empty one if there is only one group."""
    if len(groups) == 1:
        return [""]
    firsts = [members[0] for members in groups.values()]
    configs = store.runs.configs((r.id for r in firsts), skip_damaged=True)
    fields = [
        config_for_display(configs[r.id], r.origin == "engine") if r.id in configs else {} for r in firsts
    ]
    texts = distinguishing_texts(fields)
    if len(set(texts)) == len(texts):
        return texts
    return [f"{text}, run {r.id}".removeprefix(", ") for text, r in zip(texts, firsts, strict=True)]


def accuracy_by_round(
    store: Store, until: Until, metric: Metric = "personal", split: int = TEST, stage: int = AFTER_AGGREGATION
) -> list[Series]:
    """Return the accuracy of some runs by round, per cent."""
    return _series_per_run(store, until, scores_by_round(store, until, metric, split, stage))


def loss_by_round(store: Store, until: Until) -> list[Series]:
    """Return the training loss of some runs by round."""
    return _series_per_run(store, until, _losses(store, until))


def _losses(store: Store, run_ids: Iterable[int]) -> ByRound:
    ids = list(run_ids)
    values: ByRound = {i: {} for i in ids}
    for row in store.rounds.of_runs(ids):
        if row.train_loss is not None:
            values[row.run_id][row.round] = row.train_loss
    return values


def traffic_by_round(store: Store, until: Until) -> list[Series]:
    """Return the traffic of all clients up to each round in MB, for the runs that measured it."""
    lines = _series_per_run(store, until, cumulative_cost(store, until, "megabytes"))
    return [line for line in lines if any(line.y)]


def scores_by_round(
    store: Store, run_ids: Iterable[int], metric: Metric, split: int = TEST, stage: int = AFTER_AGGREGATION
) -> ByRound:
    """Return the accuracies of some runs by round, in per cent; none for a metric without a curve."""
    import pandas as pd

    ids = list(run_ids)
    if metric == "dual" or metric in SCORE_COLUMNS:
        table = score_frame(store.rounds.mean_accuracy(ids, split, stage))
    else:
        evaluated = store.rounds.evaluated_of_runs(ids)
        cells = (
            store.cells.own_and_global(evaluated, split, stage)
            if metric == "local"
            else store.cells.on_kinds(evaluated, FURTHER, split, stage)
        )
        table = round_metrics(cell_frame(cells, store.runs.get(ids)))
    shares = with_harmonic_means(table).get(metric, pd.Series(dtype=float)).dropna()
    scores: ByRound = {i: {} for i in ids}
    for (run, round_), share in zip(shares.index.tolist(), shares.tolist(), strict=True):
        scores[run][round_] = 100 * share
    return scores


def _series_per_run(store: Store, until: Until, values: ByRound) -> list[Series]:
    """Return a line for every run that has values up to its last round."""
    runs = store.runs.get(until)
    labels = run_labels(store, runs)
    lines = []
    for run in runs:
        shown = [(r, value) for r, value in values[run.id].items() if r <= until[run.id]]
        if shown:
            x, y = zip(*shown, strict=True)
            unknown = (None,) * len(x)
            lines.append(Series(labels[run.id], run.method, tuple(x), tuple(y), unknown, 1))
    return lines


def lines_over_seeds(lines: Sequence[Series]) -> list[Series]:
    """Return a line per label: the mean at each x over the seeds that have reached it, and their spread.

    ``mean_curves`` averages where all seeds have values; while runs train, that would be the first rounds.
    """
    means = []
    for (label, method), of_label in group_by(lines, lambda s: (s.label, s.method)).items():
        if len(of_label) == 1:
            means += of_label
            continue
        values = group_by(
            (pair for s in of_label for pair in zip(s.x, s.y, strict=True)), lambda pair: pair[0]
        )
        found = [(x, stat) for x in sorted(values) if (stat := spread(y for _, y in values[x])) is not None]
        counts = tuple(stat.n for _, stat in found)
        means.append(
            Series(
                label,
                method,
                tuple(x for x, _ in found),
                tuple(stat.mean for _, stat in found),
                tuple(stat.std for _, stat in found),
                len(of_label),
                counts=counts if set(counts) != {len(of_label)} else (),
            )
        )
    return means


def mean_curves(
    store: Store, comparison: Comparison, setting: str, metric: Metric, axis: CurveAxis = "round"
) -> list[Series]:
    """Return mean and spread over complete seeds, at the rounds that every run of a row has."""
    scores = scores_by_round(store, comparison.run_ids(setting), metric)
    return mean_series(store, comparison, setting, scores, axis)


def mean_loss(store: Store, comparison: Comparison, setting: str, axis: CurveAxis = "round") -> list[Series]:
    """Return the training loss as ``mean_curves`` returns an accuracy."""
    return mean_series(store, comparison, setting, _losses(store, comparison.run_ids(setting)), axis)


def mean_series(
    store: Store, comparison: Comparison, setting: str, values: ByRound, axis: CurveAxis = "round"
) -> list[Series]:
    """Return mean and spread over complete seeds of any value by run and round."""
    costs = cumulative_cost(store, comparison.run_ids(setting), axis)
    return [s for g in comparison.rows_in(setting) if (s := _mean_series(g, values, costs)).x]


def _mean_series(group: ComparisonRow, scores: ByRound, costs: ByRound) -> Series:
    runs = [r.run for r in complete_seeds(group.runs)]
    seeds = group_by(runs, lambda r: r.seed)
    rounds = [set(scores.get(r.id, {})) & set(costs[r.id]) for r in runs]
    common = set.intersection(*rounds) if rounds else set[int]()
    x, y, std = [], [], []
    for round_ in sorted(common):
        stat = spread(mean_or_none(scores[r.id][round_] for r in of_seed) for of_seed in seeds.values())
        assert stat is not None, group.label
        x.append(float(np.mean([costs[r.id][round_] for r in runs])))
        y.append(stat.mean)
        std.append(stat.std)
    return Series(group.drawn_label, group.method, tuple(x), tuple(y), tuple(std), len(seeds))


def cumulative_cost(store: Store, run_ids: Iterable[int], axis: CurveAxis) -> ByRound:
    """Return the rounds, seconds or megabytes up to and including each round, as far as they are known.

    From a round on that was not measured, or that a script has left out, the sums are unknown, except for
    round 0, which comes before training. Seconds leave out evaluation.
    """
    ids = list(run_ids)
    costs: ByRound = {i: {} for i in ids}
    sums: dict[int, float | None] = dict.fromkeys(ids, 0.0)
    summed = dict.fromkeys(ids, 0)  # the last round of each sum
    for row in store.rounds.of_runs(ids):
        if axis == "round":
            costs[row.run_id][row.round] = row.round
            continue
        if axis == "seconds":
            cost = _sum_or_none(row.seconds_train, row.seconds_aggregate)
        else:
            traffic = _sum_of_both(row.bytes_up, row.bytes_down)
            cost = None if traffic is None else traffic / MEGABYTE
        so_far = sums[row.run_id] if row.round <= summed[row.run_id] + 1 else None
        if cost is not None and so_far is not None:
            sums[row.run_id] = costs[row.run_id][row.round] = so_far + cost
            summed[row.run_id] = row.round
        elif row.round > 0:
            sums[row.run_id] = None
    return costs


@dataclass(frozen=True)
class Cost:
    """Traffic and time of a row of a comparison, mean over its runs; None if they were not measured.

    Attributes:
        accuracy: per cent; None if the row lacks the metric.
        comparable: whether it was evaluated on the test sets of the other rows.
        tuned: the search that selected its hyper-parameters, whose cost comes on top of a run's.
    """

    label: str
    method: str
    accuracy: float | None
    megabytes_up: float | None
    megabytes_down: float | None
    seconds_train: float | None
    seconds_aggregate: float | None
    seconds_evaluate: float | None
    comparable: bool = True
    tuned: Tuned | None = None

    @property
    def megabytes_with_search(self) -> float | None:
        """The traffic of one run and of the whole search; None without a search."""
        if self.tuned is None or self.tuned.bytes is None:
            return None
        return _sum_of_both(self.megabytes, self.tuned.bytes / MEGABYTE)

    @property
    def seconds_with_search(self) -> float | None:
        """The time of one run and of the whole search; None without a search."""
        if self.tuned is None or self.tuned.seconds is None:
            return None
        return _sum_of_both(self.seconds, self.tuned.seconds)

    @property
    def megabytes(self) -> float | None:
        """The traffic up and down; None if a script recorded one direction only."""
        return _sum_of_both(self.megabytes_up, self.megabytes_down)

    @property
    def seconds(self) -> float | None:
        return _sum_or_none(self.seconds_train, self.seconds_aggregate)


def _sum_of_both(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _sum_or_none(*values: float | None) -> float | None:
    present = [v for v in values if v is not None]
    return sum(present) if present else None


def _total(rows: Sequence[RoundRow], name: str) -> float | None:
    """Return the sum over a run's rounds; None if one of them but round 0 was not measured or is missing."""
    trained = [row for row in rows if row.round > 0]
    values = [getattr(row, name) for row in rows if row.round > 0 or getattr(row, name) is not None]
    is_whole = None not in values and (not trained or trained[-1].round == len(trained))
    return _sum_or_none(*values) if is_whole else None


def row_costs(store: Store, comparison: Comparison, setting: str, metric: Metric = "personal") -> list[Cost]:
    """Return the traffic and time of whole runs, with the accuracy that they reached."""
    rounds = group_by(store.rounds.of_runs(comparison.run_ids(setting)), lambda r: r.run_id)
    costs = []
    for g in comparison.rows_in(setting):
        recorded = [rounds.get(r.run.id, []) for r in g.runs]
        means = [
            mean_or_none(_total(rows, name) for rows in recorded)
            for name in ("bytes_up", "bytes_down", "seconds_train", "seconds_aggregate", "seconds_evaluate")
        ]
        up, down = (None if sent is None else sent / MEGABYTE for sent in means[:2])
        train, aggregate, evaluate = means[2:]
        stat = g.stats.get(metric)
        mean = None if stat is None else stat.mean
        costs.append(
            Cost(
                g.drawn_label,
                g.method,
                mean,
                up,
                down,
                train,
                aggregate,
                evaluate,
                not g.other_tests,
                g.config.method.tuned,
            )
        )
    return costs


def pareto_front(costs: Sequence[Cost], against: CostAxis) -> list[Cost]:
    """Return the rows that no other beats in accuracy without costing more, cheapest first.

    Equal rows all belong to the front; rows without accuracy or cost and incomparable rows do not.
    """
    points: list[tuple[float, float, Cost]] = []
    for cost in costs:
        x = cost.megabytes if against == "megabytes" else cost.seconds
        if x is not None and cost.accuracy is not None and cost.comparable:
            points.append((x, cost.accuracy, cost))

    def beaten(x: float, y: float) -> bool:
        return any(v >= y and u <= x and (v > y or u < x) for u, v, _ in points)

    front = [point for point in points if not beaten(point[0], point[1])]
    return [cost for _, _, cost in sorted(front, key=lambda point: (point[0], -point[1]))]


Band = Literal["std", "se", "ci95"]
BANDS: dict[Band, str] = {
    "std": "Standard deviation",
    "se": "Standard error",
    "ci95": "95 % interval of the mean",
}
"""The distance that a band reaches to both sides of a mean over seeds."""


def with_band(series: Series, band: Band) -> Series:
    """Return a line whose band is the standard deviation, the standard error, or Student's 95 % interval."""
    if band == "std" or series.n < 2:
        return series
    factor = 1 / math.sqrt(series.n)
    if band == "ci95":
        from scipy.special import stdtrit  # here: the import takes longer than a page may

        factor *= float(stdtrit(series.n - 1, 0.975))
    return replace(series, std=tuple(None if d is None else factor * d for d in series.std))


def smoothed(series: Series, weight: float) -> Series:
    """Return a line with an exponential moving average beside its raw values, as in TensorBoard.

    The average is divided by the sum of its weights, so that it begins at the first value.

    Args:
        weight: of the past, from 0 (not smoothed) to below 1.
    """
    if not 0 < weight < 1:
        return series
    total, norm, averages = 0.0, 0.0, []
    for value in series.y:
        total, norm = weight * total + value, weight * norm + 1
        averages.append(total / norm)
    return replace(series, smooth=tuple(averages))


SHARES = (80, 90, 95, 99)
"""Shares of the best accuracy, per cent."""
USUAL_SHARE = 95
ReachCost = Literal["rounds", "megabytes", "seconds"]


@dataclass(frozen=True)
class SeedReach:
    """The cost of one seed until it reached the target, mean over its runs; None if it never did.

    Attributes:
        rounds: the first evaluated round that reached it; 0 is before training.
        megabytes: traffic of all clients, up and down; also None if it was not measured.
        seconds: of training and aggregation; also None if they were not measured.
    """

    seed: int
    runs: tuple[int, ...]
    rounds: int | None
    megabytes: float | None
    seconds: float | None


@dataclass(frozen=True)
class Reach:
    """The cost at which a row of a comparison reached the target, seed by seed."""

    row: ComparisonRow
    seeds: tuple[SeedReach, ...]

    @property
    def reached(self) -> int:
        return sum(seed.rounds is not None for seed in self.seeds)

    def stat(self, cost: ReachCost) -> Stat | None:
        return spread(getattr(seed, cost) for seed in self.seeds)

    @property
    def text(self) -> str:
        """The number of seeds that reached it: ``3 of 5``, ``never``."""
        return f"{self.reached} of {len(self.seeds)}" if self.reached else "never"


@dataclass(frozen=True)
class Reaching:
    """The costs at which the rows of a setting reached a share of its best accuracy.

    Attributes:
        best: the label of the row with the highest mean.
        target: accuracy to reach, per cent.
    """

    metric: Metric
    share: int
    best: str
    target: float
    rows: tuple[Reach, ...]

    @property
    def title(self) -> str:
        best = 100 * self.target / self.share
        return (
            f"Cost to reach {self.share} % of the best: {METRICS[self.metric].title} {self.target:.1f} % "
            f"({self.best} has {best:.1f} %)"
        )


def reaching(
    store: Store, comparison: Comparison, setting: str, metric: Metric, shares: Sequence[int]
) -> list[Reaching]:
    """Return the cost of each row of a setting to reach shares of its best mean; empty without curves.

    Args:
        shares: per cent of the best. Rows that were evaluated on other test sets are left out.
    """
    rows = [row for row in comparison.rows_in(setting) if not row.other_tests and metric in row.stats]
    ids = [result.run.id for row in rows for result in row.runs]
    scores = scores_by_round(store, ids, metric)
    if not any(scores.values()):
        return []
    best = max(rows, key=lambda row: row.stats[metric].mean)
    traffic, time = cumulative_cost(store, ids, "megabytes"), cumulative_cost(store, ids, "seconds")
    found = []
    for share in shares:
        target = best.stats[metric].mean * share / 100
        reached = (_reach(row, scores, traffic, time, target) for row in rows)
        found.append(Reaching(metric, share, best.label, target, tuple(r for r in reached if r.seeds)))
    return [each for each in found if each.rows]


def _reach(row: ComparisonRow, scores: ByRound, megabytes: ByRound, seconds: ByRound, target: float) -> Reach:
    seeds = group_by((result.run for result in complete_seeds(row.runs)), lambda run: run.seed)
    found = []
    for seed, runs in sorted(seeds.items()):
        common = sorted(set.intersection(*(set(scores[run.id]) for run in runs)))
        if not common or common[0] > 1:
            continue
        means = ((r, mean_or_none(scores[run.id][r] for run in runs)) for r in common)
        # rounding of the mean must not make the best row miss 100 % of itself
        at = next((r for r, mean in means if mean is not None and mean >= target - 1e-9), None)
        spent: list[float | None] = [None, None]
        if at is not None:  # 0 before training, None if it was not measured
            before = 0.0 if at == 0 else None
            for i, costs in enumerate((megabytes, seconds)):
                spent[i] = mean_or_none(costs[run.id].get(at, before) for run in runs)
        found.append(SeedReach(seed, tuple(run.id for run in runs), at, *spent))
    return Reach(row, tuple(found))
