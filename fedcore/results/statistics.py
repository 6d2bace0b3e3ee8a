"""Means, spreads and paired tests over seeds: plain numbers in, plain numbers out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeVar

import numpy as np

Item = TypeVar("Item")
Key = TypeVar("Key")

ValuesBySeed = Mapping[int, float]
KeyPair = tuple[str, str]
"""Keys of two rows, in the order of the table."""
Test = Literal["t", "wilcoxon"]
TESTS: dict[Test, str] = {"t": "paired t-test", "wilcoxon": "Wilcoxon signed-rank test"}
LEVEL = 0.05
MIN_PAIRS = 3
"""With fewer common seeds no test is made."""


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in the order in which the keys first appear."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    present = [v for v in values if v is not None]
    if len(present) == 1:  # most means over the runs of a seed, at a tenth of the time
        return float(present[0])
    return float(np.mean(present)) if present else None


@dataclass(frozen=True)
class Stat:
    """A mean over n seeds; ``std`` is the sample standard deviation (ddof = 1), None for a single seed."""

    mean: float
    std: float | None
    n: int

    def text(self, digits: int = 1) -> str:
        """Return the mean and the spread as ``85.3 ± 0.4``, for one seed only the mean."""
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def spread(values: Iterable[float | None]) -> Stat | None:
    """Return mean and sample standard deviation of the known values; None if there are none."""
    present = np.array([v for v in values if v is not None and not math.isnan(v)], dtype=np.float64)
    if present.size == 0:
        return None
    std = float(present.std(ddof=1)) if present.size > 1 else None
    return Stat(float(present.mean()), std, int(present.size))


def rounded(value: float | None, digits: int) -> float | None:
    """Round a value of a table, which is None where there is none, or NaN."""
    return None if value is None or math.isnan(value) else round(value, digits)


def mean_interval(stat: Stat) -> float | None:
    """Return half the width of the mean's 95 % confidence interval (Student's t); None for a single seed."""
    if stat.std is None:
        return None
    from scipy.special import stdtrit  # here: the import takes longer than a page may

    return float(stdtrit(stat.n - 1, 1 - LEVEL / 2)) * stat.std / math.sqrt(stat.n)


def signed(points: float, digits: int = 1) -> str:
    """Format a difference with its sign, ``+0.4``; a difference that is printed as 0 has no sign."""
    text = f"{points:+.{digits}f}"
    return text if float(text) else text[1:]


@dataclass(frozen=True)
class PairedTest:
    """A test of a row against the baseline, paired by seed.

    Attributes:
        n: number of seeds that both rows have.
        difference: mean of the n differences; None without a seed in common.
        p: two-sided, of this row alone; None if no test was made.
        adjusted: ``p`` after Holm's correction for all rows that are compared with this baseline.
        remark: why no test was made, or a limitation of the test.
    """

    test: Test
    n: int
    difference: float | None
    p: float | None = None
    adjusted: float | None = None
    remark: str = ""

    @property
    def significant(self) -> bool:
        """Return whether the difference is significant at the 5 % level after the correction."""
        return self.adjusted is not None and self.adjusted < LEVEL

    @property
    def better(self) -> bool:
        """Return whether the row is significantly better than the other one."""
        return self.significant and (self.difference or 0) > 0

    @property
    def text(self) -> str:
        """The adjusted p as ``p = 0.012``, or the reason why no test was made."""
        if self.adjusted is None:
            return self.remark
        shown = "p < 0.001" if self.adjusted < 0.001 else f"p = {self.adjusted:.3f}"
        return f"{shown} ({self.remark})" if self.remark else shown


def paired_test(ours: Mapping[int, float], theirs: Mapping[int, float], test: Test = "t") -> PairedTest:
    """Test the differences of equal seeds against 0, two-sided; ``holm`` fills in ``adjusted``."""
    seeds = sorted(set(ours) & set(theirs))
    differences = np.array([ours[s] - theirs[s] for s in seeds])
    n = len(seeds)
    if not n:
        return PairedTest(test, 0, None, remark="no seed in common")
    mean = float(differences.mean())
    if n < MIN_PAIRS:
        return PairedTest(test, n, mean, remark=f"n = {n}: too few seeds")
    # equal up to rounding: a test would divide by a spread that is only rounding error
    if float(np.ptp(differences)) <= 1e-9 * max(1.0, float(np.abs(differences).max())):
        return PairedTest(test, n, mean, remark="every seed differs by the same: no test")
    if test == "t":
        from scipy.special import stdtr  # here: the import takes longer than a page may

        t = mean / (float(differences.std(ddof=1)) / math.sqrt(n))
        return PairedTest(test, n, mean, 2 * float(stdtr(n - 1, -abs(t))))
    # ranks see the last bits of means over domains or clients, in which equal differences differ
    differences = differences.round(9)
    untied = int(np.count_nonzero(differences))
    floor = 2 / 2**untied
    remark = f"n = {untied} cannot reach below {floor:.2g}" if floor >= LEVEL else ""
    return PairedTest(test, n, mean, _signed_rank_p(differences[differences != 0]), remark=remark)


def _signed_rank_p(differences: np.ndarray) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test, exact with ties too; no difference is 0.

    scipy approximates it with ties or zeros among more than 13 pairs, and then goes below the least p that so
    few differences can have. The distribution of the sum of ranks is counted, sign by sign.
    """
    sizes = np.abs(differences)
    in_order = np.sort(sizes)
    # twice the mean rank of equal sizes, which is a whole number
    ranks = np.searchsorted(in_order, sizes) + np.searchsorted(in_order, sizes, side="right") + 1
    shares = np.zeros(int(ranks.sum()) + 1)  # of the signs that give a sum of the positive ranks
    shares[0] = 1.0
    for rank in ranks:
        positive = np.zeros_like(shares)
        positive[rank:] = shares[:-rank]
        shares = (shares + positive) / 2
    smaller = min(int(ranks[differences > 0].sum()), int(ranks[differences < 0].sum()))
    return min(1.0, 2 * float(shares[: smaller + 1].sum()))


def holm(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """Adjust p for the number of tests that were made (Holm, 1979); the order stays."""
    tested = sorted((test.p, i) for i, test in enumerate(tests) if test.p is not None)
    adjusted, highest = list(tests), 0.0
    for rank, (p, i) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[i] = replace(tests[i], adjusted=highest)
    return adjusted


def nothing_differs(columns: Iterable[Sequence[ValuesBySeed]]) -> bool:
    """Return whether rows of some column can be paired by seed, and no two of a column differ.

    They differ by more than half the 95 % interval of the mean; with a single seed, any difference counts.
    """
    pairs = [pair for rows in columns for pair in combinations(rows, 2)]
    found = [spread(a[seed] - b[seed] for seed in a if seed in b) for a, b in pairs]
    known = [stat for stat in found if stat is not None]
    return bool(known) and all(abs(s.mean) <= (mean_interval(s) or 0) + 1e-9 for s in known)


def tests_made(tests: Iterable[PairedTest]) -> int:
    """Return the number of tests for which Holm's correction adjusts; a pair without a test is none."""
    return sum(test.p is not None for test in tests)


def pairwise_tests(values: Mapping[str, ValuesBySeed], test: Test = "t") -> dict[KeyPair, PairedTest]:
    """Test every pair of rows over the seeds that both have, with Holm's correction over all pairs.

    Args:
        values: row -> seed -> accuracy; of a pair, ``difference`` is the first row's minus the second's.
    """
    pairs = list(combinations(values, 2))
    tests = [paired_test(values[a], values[b], test) for a, b in pairs]
    return dict(zip(pairs, holm(tests), strict=True))
