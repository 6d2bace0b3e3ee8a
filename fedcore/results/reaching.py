"""The cost to reach a share of the best accuracy of a setting: rounds, traffic and time.

The best is the highest mean of the setting's rows in the reported round. A seed has reached a share of it in
the first evaluated round in which its test accuracy is at least that high; with held-out domains the accuracy
is the mean over the seed's runs. A seed whose curve begins after the first round is left out, since it does
not show when the target was reached; a bundle, for example, holds the reported round only. All this describes
the curves: it does not select the reported round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.results.comparison import Comparison
from fedcore.results.curves import ByRound, cumulative_cost, scores_by_round
from fedcore.results.metrics import METRICS, Metric, complete_seeds
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import Stat, group_by, mean_or_none, spread
from fedcore.store import Store

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
