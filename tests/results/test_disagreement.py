"""Where two models disagree: counts, and McNemar's test against exact sums and a printed example."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from fedcore.results.disagreement import Disagreement, count_disagreement, mcnemar, shown_of

ARRAYS = {
    "label": np.array([0, 0, 1, 1, 2, 2]),
    "first": np.array([0, 0, 1, 0, 0, 2]),
    "second": np.array([0, 1, 0, 1, 1, 2]),
    "shown": np.array([1, 2, 3]),
}


def test_samples_are_counted_by_who_is_right() -> None:
    found = count_disagreement(ARRAYS)
    assert found == Disagreement(both_right=2, only_first=2, only_second=1, both_wrong=1)
    assert found.total == 6
    assert found.difference == pytest.approx(100 / 6)
    assert (shown_of(ARRAYS, "only_first"), shown_of(ARRAYS, "only_second")) == ([0, 1], [2])


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (3, 3), (1, 10), (40, 12)])
def test_mcnemar_is_twice_the_tail_of_a_fair_coin(b: int, c: int) -> None:
    tail = sum(comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail)) == mcnemar(c, b)


def test_mcnemar_of_a_printed_example() -> None:
    """Approval of the prime minister (Agresti, Categorical Data Analysis): 150 against 86, z = 4.17."""
    assert mcnemar(150, 86) == pytest.approx(3.7e-5, rel=0.1)
