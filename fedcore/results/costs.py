"""The costs of the rows of a comparison: of whole runs, and until they reach a share of the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.config import Tuned
from fedcore.results.comparison import Comparison
from fedcore.results.curves import cumulative_cost, sum_or_none, values_by_round
from fedcore.results.metrics import METRICS, Metric
from fedcore.results.progress import MEGABYTE
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import Stat, group_by, mean_or_none, spread
from fedcore.store import Store

CostAxis = Literal["megabytes", "seconds"]


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
    def megabytes(self) -> float | None:
        """The traffic up and down; None if a script recorded one direction only."""
        return _both(self.megabytes_up, self.megabytes_down)

    @property
    def megabytes_with_search(self) -> float | None:
        """The traffic of one run and of the whole search; None without a search."""
        sent = None if self.tuned is None else self.tuned.bytes
        return _both(self.megabytes, None if sent is None else sent / MEGABYTE)

    @property
    def seconds(self) -> float | None:
        return sum_or_none(self.seconds_train, self.seconds_aggregate)

    @property
    def seconds_with_search(self) -> float | None:
        """The time of one run and of the whole search; None without a search."""
        return _both(self.seconds, None if self.tuned is None else self.tuned.seconds)


def _both(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def row_costs(store: Store, comparison: Comparison, setting: str, metric: Metric = "personal") -> list[Cost]:
    """Return the traffic and time of whole runs, with the accuracy that they reached."""
    names = ("bytes_up", "bytes_down", "seconds_train", "seconds_aggregate", "seconds_evaluate")
    totals = store.rounds.totals(comparison.run_ids(setting), *names)
    unmeasured = (None,) * len(names)
    costs = []
    for g in comparison.rows_in(setting):
        of_runs = [totals.get(r.run.id, unmeasured) for part in g.parts for r in part.runs]
        up, down, train, aggregate, evaluate = map(mean_or_none, zip(*of_runs, strict=True))
        stat, comparable = g.stats.get(metric), not g.other_tests
        up, down = (None if sent is None else sent / MEGABYTE for sent in (up, down))
        times, mean = (train, aggregate, evaluate), None if stat is None else stat.mean
        costs.append(Cost(g.drawn_label, g.method, mean, up, down, *times, comparable, g.config.method.tuned))
    return costs


def pareto_front(costs: Sequence[Cost], against: CostAxis) -> list[Cost]:
    """Return the rows that no other beats in accuracy without costing more, cheapest first.

    Equal rows all belong to the front; rows without accuracy or cost and incomparable rows do not.
    """
    known = ((getattr(c, against), c.accuracy, c) for c in costs if c.comparable)
    points = [(x, y, cost) for x, y, cost in known if x is not None and y is not None]

    def beaten(x: float, y: float) -> bool:
        return any(v >= y and u <= x and (v > y or u < x) for u, v, _ in points)

    front = [point for point in points if not beaten(point[0], point[1])]
    return [cost for _, _, cost in sorted(front, key=lambda point: (point[0], -point[1]))]


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
    scores = values_by_round(store, ids, metric)
    if not any(scores.values()):
        return []
    best = max(rows, key=lambda row: row.stats[metric].mean)
    spent = cumulative_cost(store, ids, "megabytes"), cumulative_cost(store, ids, "seconds")

    def reach(row: ComparisonRow, target: float) -> Reach:
        seeds = group_by((result.run for result in row.runs), lambda run: run.seed)
        found = []
        for seed, runs in sorted(seeds.items()):
            common = sorted(set.intersection(*(set(scores[run.id]) for run in runs)))
            if not common or common[0] > 1:
                continue
            means = ((r, mean_or_none(scores[run.id][r] for run in runs)) for r in common)
            # rounding of the mean must not make the best row miss 100 % of itself
            at = next((r for r, mean in means if mean is not None and mean >= target - 1e-9), None)
            before = 0.0 if at == 0 else None  # 0 before training, None if it was not measured
            needed = (
                None if at is None else mean_or_none(costs[run.id].get(at, before) for run in runs)
                for costs in spent
            )
            found.append(SeedReach(seed, tuple(run.id for run in runs), at, *needed))
        return Reach(row, tuple(found))

    found = []
    for share in shares:
        target = best.stats[metric].mean * share / 100
        reached = tuple(r for r in (reach(row, target) for row in rows) if r.seeds)
        if reached:
            found.append(Reaching(metric, share, best.label, target, reached))
    return found
