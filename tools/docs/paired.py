"""Differences of two variants paired by seed: their interval, and what they could have resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedcore.results.leaderboard import POWER, power
from fedcore.results.statistics import LEVEL

MOST_SEEDS = 999


@dataclass(frozen=True)
class Paired:
    """The differences of n seeds.

    Attributes:
        low, high: 95 % interval of the mean difference, by Student's t.
        detectable: smallest true difference that a two-sided test at 5 % would find in 80 % of
            repetitions with as many seeds and this spread.
    """

    n: int
    mean: float
    std: float
    low: float
    high: float
    detectable: float


def paired(differences: Sequence[float]) -> Paired | None:
    """Summarise the differences of at least two seeds; None for fewer."""
    n = len(differences)
    if n < 2:
        return None
    mean, std = float(np.mean(differences)), float(np.std(differences, ddof=1))
    half = quantile(1 - LEVEL / 2, n) * std / n**0.5
    return Paired(n, mean, std, mean - half, mean + half, detectable(std, n))


def quantile(probability: float, n: int) -> float:
    """Return the quantile of Student's t for n paired differences."""
    from scipy import stats  # here: the import takes a second, and a page without tables needs none

    return float(stats.t.ppf(probability, n - 1))


def detectable(std: float, n: int) -> float:
    """Return the smallest true difference that a paired t-test finds with the power of 80 %."""
    return detectable_effect(n) * std


@cache
def detectable_effect(n: int) -> float:
    """Return ``detectable`` in standard deviations of the differences, from the noncentral t distribution.

    The usual (t(0.975) + t(0.8)) / sqrt(n) is 14 % too small for two seeds and 5 % for three.
    """
    from scipy import optimize

    # the usual formula is close enough to bracket it
    near = (quantile(1 - LEVEL / 2, n) + quantile(POWER, n)) / n**0.5
    return float(optimize.brentq(lambda effect: power(effect, n) - POWER, near / 2, 2 * near))


def seeds_needed(std: float, difference: float) -> int:
    """Return the fewest seeds that would resolve a difference with this spread, at most ``MOST_SEEDS``."""
    low, high = 2, MOST_SEEDS
    while low < high:  # what can be detected falls with n
        middle = (low + high) // 2
        if detectable(std, middle) <= difference:
            high = middle
        else:
            low = middle + 1
    return low
