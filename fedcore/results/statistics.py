"""Means, spreads and paired tests over seeds: plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Test = Literal["t", "wilcoxon"]
TESTS: dict[Test, str] = {"t": "paired t-test", "wilcoxon": "Wilcoxon signed-rank test"}
LEVEL = 0.05
MIN_PAIRS = 3
"""With fewer seeds nothing is claimed."""


@dataclass(frozen=True)
class Stat:
    """Mean over seeds. ``std`` is the sample standard deviation (ddof = 1), None for a single seed."""

    mean: float
    std: float | None
    n: int

    def text(self, digits: int = 1) -> str:
        """``85.3 ± 0.4``; without the spread for one seed."""
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def spread(values: Iterable[float | None]) -> Stat | None:
    """Mean and sample standard deviation of the values that are there; None where there are none."""
    known = np.array([v for v in values if v is not None and not math.isnan(v)], dtype=np.float64)
    if known.size == 0:
        return None
    std = float(known.std(ddof=1)) if known.size > 1 else None
    return Stat(float(known.mean()), std, int(known.size))


def signed(points: float, digits: int = 1) -> str:
    """A difference with its sign, ``+0.4``; what is 0 as printed has none."""
    text = f"{points:+.{digits}f}"
    return text if float(text) else text[1:]


@dataclass(frozen=True)
class PairedTest:
    """A row against the baseline, seed by seed.

    Attributes:
        n: seeds that both have; the others say nothing here.
        difference: mean of the n differences; None without a seed in common.
        p: two-sided, of this row alone; None where no test is made, and ``why`` says why.
        adjusted: ``p`` after Holm's correction for all rows that are compared with this baseline.
        why: also what limits a test that was made.
    """

    test: Test
    n: int
    difference: float | None
    p: float | None = None
    adjusted: float | None = None
    remark: str = ""

    @property
    def significant(self) -> bool:
        """Whether the difference stands at the 5 % level after the correction."""
        return self.adjusted is not None and self.adjusted < LEVEL

    @property
    def text(self) -> str:
        """``p = 0.012``, or why there is none."""
        if self.adjusted is None:
            return self.remark
        shown = "p < 0.001" if self.adjusted < 0.001 else f"p = {self.adjusted:.3f}"
        return f"{shown} ({self.remark})" if self.remark else shown


def paired_test(ours: Mapping[int, float], theirs: Mapping[int, float], test: Test = "t") -> PairedTest:
    """Two-sided test of the differences of equal seeds; ``adjusted`` is left to ``holm``."""
    from scipy import stats  # here: the import takes longer than a page may, and few pages test anything

    seeds = sorted(set(ours) & set(theirs))
    gaps = np.array([ours[s] - theirs[s] for s in seeds])
    n = len(seeds)
    if not n:
        return PairedTest(test, 0, None, remark="no seed in common")
    mean = float(gaps.mean())
    if n < MIN_PAIRS:
        return PairedTest(test, n, mean, remark=f"n = {n}: too few seeds")
    # equal up to rounding: a test would divide by a spread that is only rounding error
    if float(np.ptp(gaps)) <= 1e-9 * max(1.0, float(np.abs(gaps).max())):
        return PairedTest(test, n, mean, remark="every seed differs by the same: no test")
    if test == "t":
        return PairedTest(test, n, mean, float(stats.ttest_1samp(gaps, 0.0).pvalue))
    untied = int(np.count_nonzero(gaps))
    floor = 2 / 2**untied
    remark = f"n = {untied} cannot reach below {floor:.2g}" if floor >= LEVEL else ""
    return PairedTest(test, n, mean, float(stats.wilcoxon(gaps).pvalue), remark=why)


def holm(found: Sequence[PairedTest]) -> list[PairedTest]:
    """The same with p adjusted for as many tests as were made (Holm, 1979), in the given order."""
    order = sorted((i for i, f in enumerate(found) if f.p is not None), key=lambda i: found[i].p)
    result, highest = list(found), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * found[i].p))
        result[i] = replace(found[i], adjusted=highest)
    return result
