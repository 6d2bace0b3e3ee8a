"""Ranks as intervals: a row may take every rank that the measured seeds do not rule out.

Every pair of rows is tested over the seeds that both have, and Holm's correction (1979) over all pairs keeps
the chance of a single false separation below 5 %. A row then cannot rank above the rows that are
significantly better, nor below those that are significantly worse. Confidence sets for ranks from
simultaneous pairwise tests: Mogstad, Romano, Shaikh and Wilhelm, "Inference for Ranks with Applications to
Mobility across Neighbourhoods and Academic Achievement across Countries", Review of Economic Studies 91,
2024.

Mean ranks with Nemenyi's critical difference are not used: whether two rows differ would then depend on which
other rows are in the table (Benavoli, Corani and Mangili, JMLR 17, 2016), and rows with unequal seeds would
lose those that they do not share with all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from fedcore.results.statistics import PairedTest, Test, holm, mean_known, paired_test

ValuesBySeed = Mapping[int, float]
Pair = tuple[str, str]
"""Keys of two rows, in the order of the table."""


@dataclass(frozen=True)
class RankInterval:
    """The best and the worst rank that the measured seeds leave open; 1 is the best."""

    best: int
    worst: int

    @property
    def text(self) -> str:
        """The interval as ``1`` or ``2 to 4``."""
        return str(self.best) if self.best == self.worst else f"{self.best} to {self.worst}"


def pairwise_tests(values: Mapping[str, ValuesBySeed], test: Test = "t") -> dict[Pair, PairedTest]:
    """Test every pair of rows over the seeds that both have, with Holm's correction over all pairs.

    Args:
        values: row -> seed -> accuracy; of a pair, ``difference`` is the first row's minus the second's.
    """
    pairs = list(combinations(values, 2))
    tests = [paired_test(values[a], values[b], test) for a, b in pairs]
    return dict(zip(pairs, holm(tests), strict=True))


def rank_intervals(keys: list[str], tests: Mapping[Pair, PairedTest]) -> dict[str, RankInterval]:
    """Return the ranks that each row may have: from 1 + better rows to all rows - worse rows."""
    better, worse = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    for (a, b), test in tests.items():
        if not test.significant or test.difference is None:
            continue
        winner, loser = (a, b) if test.difference > 0 else (b, a)
        better[loser] += 1
        worse[winner] += 1
    return {key: RankInterval(1 + better[key], len(keys) - worse[key]) for key in keys}


def mean_order(values: Mapping[str, ValuesBySeed]) -> list[str]:
    """Return the rows by their mean over seeds, the highest first."""
    means = {key: mean_known(by_seed.values()) for key, by_seed in values.items()}
    return sorted(values, key=lambda key: -(means[key] or 0.0))
