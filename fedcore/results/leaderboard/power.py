"""How many seeds would separate two rows: the power of a paired t-test at the measured spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.results.statistics import LEVEL, MIN_PAIRS

POWER = 0.8
"""The chance of finding a difference of the measured size that is asked for."""
MOST_SEEDS = 100
"""Beyond this many seeds a difference is not worth separating."""
SPREAD_CONFIDENCE = 0.8
"""Confidence of the upper limit of the spread."""
CERTAIN = 30.0
"""Noncentrality from which on the power is 1 to many digits; scipy's noncentral t loses its digits there."""


@dataclass(frozen=True)
class Separation:
    """The seeds that two rows need in common to be told apart; None: more than ``MOST_SEEDS``.

    Attributes:
        have: seeds in common now.
        total: seeds in common that give the asked power if difference and spread stay as measured.
        cautious: the same at the upper limit of the spread, which few seeds tell badly.
        difference: mean of the differences by seed, points.
        spread: their sample standard deviation, points.
    """

    have: int
    total: int | None
    cautious: int | None
    difference: float
    spread: float

    @property
    def more(self) -> int | None:
        """The seeds that are missing; None if there would be too many."""
        return None if self.total is None else self.total - self.have


def power(effect: float, n: int, level: float = LEVEL) -> float:
    """Return the power of a two-sided paired t-test.

    Args:
        effect: mean difference over its standard deviation (Cohen's d of differences).
        n: pairs, at least two.
    """
    from scipy import stats  # here: the import takes longer than a page may

    shift = abs(effect) * math.sqrt(n)
    critical = float(stats.t.ppf(1 - level / 2, n - 1))
    if shift > CERTAIN + critical:
        return 1.0
    wrong_side = float(stats.nct.cdf(-critical, n - 1, shift))  # scipy gives nan where it is next to nothing
    return float(stats.nct.sf(critical, n - 1, shift)) + (0.0 if math.isnan(wrong_side) else wrong_side)


def seeds_for_power(effect: float, level: float = LEVEL, least: int = MIN_PAIRS) -> int | None:
    """Return the smallest number of pairs that gives ``POWER``; None above ``MOST_SEEDS``."""
    if effect == 0 or power(effect, MOST_SEEDS, level) < POWER:
        return None
    low, high = least, MOST_SEEDS  # power grows with n
    while low < high:
        middle = (low + high) // 2
        if power(effect, middle, level) >= POWER:
            high = middle
        else:
            low = middle + 1
    return low


def separation(differences: Sequence[float], pairs: int) -> Separation | None:
    """Return the seeds that would separate two rows; None with fewer than two seeds in common.

    The level is 5 % divided by the number of pairs in the table, which Holm's correction never exceeds. The
    cautious number takes the upper 80 % limit of the standard deviation, after Browne, "On the use of a
    pilot sample for sample size determination", Statistics in Medicine 14 (1995).

    Args:
        differences: by common seed, points.
        pairs: pairs of rows that are tested together.
    """
    from scipy import stats

    n = len(differences)
    if n < 2:
        return None
    mean, spread = float(np.mean(differences)), float(np.std(differences, ddof=1))
    level, least = LEVEL / max(1, pairs), max(MIN_PAIRS, n + 1)
    if spread <= 1e-9 * max(1.0, abs(mean)):  # no test divides by a spread that is rounding error
        return Separation(n, None, None, mean, spread)
    upper = spread * math.sqrt((n - 1) / float(stats.chi2.ppf(1 - SPREAD_CONFIDENCE, n - 1)))
    return Separation(
        n,
        seeds_for_power(mean / spread, level, least),
        seeds_for_power(mean / upper, level, least),
        mean,
        spread,
    )
