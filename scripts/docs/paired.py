"""Differences of two variants paired by seed: their interval, and what they could have resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
POWER = 0.8
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
    """Return (t(0.975) + t(0.8)) s / sqrt(n), with n - 1 degrees of freedom."""
    return (quantile(1 - LEVEL / 2, n) + quantile(POWER, n)) * std / n**0.5


def seeds_needed(std: float, difference: float) -> int:
    """Return the fewest seeds that would resolve a difference with this spread, at most ``MOST_SEEDS``."""
    return next((n for n in range(2, MOST_SEEDS) if detectable(std, n) <= difference), MOST_SEEDS)
