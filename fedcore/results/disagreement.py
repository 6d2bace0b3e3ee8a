"""The test samples on which two models disagree, counted, and McNemar's test of their difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Disagreement:
    """How two models did on the same test samples.

    Attributes:
        both_right, only_first, only_second, both_wrong: numbers of samples; they add up to all.
    """

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int

    @property
    def total(self) -> int:
        """The number of test samples."""
        return self.both_right + self.only_first + self.only_second + self.both_wrong

    @property
    def difference(self) -> float:
        """The first model's accuracy minus the second's, in points."""
        return 100 * (self.only_first - self.only_second) / max(self.total, 1)

    @property
    def p(self) -> float:
        """Two-sided p of McNemar's exact test."""
        return mcnemar(self.only_first, self.only_second)


def count_disagreement(arrays: Mapping[str, np.ndarray]) -> Disagreement:
    """Count the samples by who is right. Shape: label, first and second (samples,), classes."""
    first, second = (arrays[name] == arrays["label"] for name in ("first", "second"))
    return Disagreement(
        int((first & second).sum()),
        int((first & ~second).sum()),
        int((~first & second).sum()),
        int((~first & ~second).sum()),
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of McNemar's test (1947), exact: of a fair coin that decides who is right.

    Samples on which both are right, or both wrong, say nothing about the difference. Exact numbers need no
    approximation for large counts, nor a rule for small ones.
    """
    from scipy.stats import binomtest  # here: the import takes longer than a page may

    decided = only_first + only_second
    return float(binomtest(only_first, decided).pvalue) if decided else 1.0


Kind = Literal["only_first", "only_second"]


def shown_of(arrays: Mapping[str, np.ndarray], kind: Kind) -> list[int]:
    """Return the places among the explained images of those on which only one of the models is right."""
    right = {"only_first": "first", "only_second": "second"}[kind]
    shown = arrays["shown"]
    return [k for k, i in enumerate(shown) if arrays[right][i] == arrays["label"][i]]
