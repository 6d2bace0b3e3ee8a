"""Paired tests against scipy's own two-sample calls, and against values worked out by hand."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedcore.results.statistics import PairedTest, holm, nothing_differs, paired_test, signed

OURS = {1: 81.0, 2: 83.5, 3: 80.0, 4: 84.0, 5: 82.0, 6: 85.5, 9: 10.0}
THEIRS = {1: 79.0, 2: 80.0, 3: 79.5, 4: 80.0, 5: 81.0, 6: 80.5, 7: 99.0}


def in_common() -> tuple[list[float], list[float]]:
    seeds = sorted(set(OURS) & set(THEIRS))
    return [OURS[s] for s in seeds], [THEIRS[s] for s in seeds]


def test_t_is_scipys_paired_t_over_the_seeds_in_common():
    found = paired_test(OURS, THEIRS)
    ours, theirs = in_common()
    assert (found.n, found.remark) == (6, "")
    assert found.difference == pytest.approx(np.mean(np.subtract(ours, theirs)))
    assert found.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


def test_wilcoxon_is_scipys():
    found = paired_test(OURS, THEIRS, "wilcoxon")
    assert found.p == pytest.approx(stats.wilcoxon(*in_common()).pvalue) == pytest.approx(2 / 64)
    assert found.remark == "", "six pairs can reach 0.03"


def test_wilcoxon_takes_differences_that_differ_in_their_last_bits_as_ties() -> None:
    """Five of these six means over three domains differ by 5.55..., for which floats have three values."""
    ours = [(30, 22, 30), (20, 24, 26), (25, 23, 25), (26, 20, 22), (21, 27, 25), (21, 28, 25)]
    theirs = [(26, 28, 23), (29, 21, 23), (21, 26, 21), (30, 28, 21), (28, 29, 21), (28, 21, 30)]
    means = [
        {seed: float(np.mean(100 * np.divide(n, 30))) for seed, n in enumerate(row)} for row in (ours, theirs)
    ]
    correct = np.sum(ours, axis=1) - np.sum(theirs, axis=1)
    assert correct.tolist() == [5, -3, 5, -11, -5, -5]
    assert paired_test(*means, "wilcoxon").p == pytest.approx(stats.wilcoxon(correct).pvalue)


@pytest.mark.parametrize(
    ("differences", "untied"),
    [
        ([1, 1, 2, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0], 5),  # scipy's approximation: 0.042, below the least p
        ([1, 0.5, 0.5, -1, 0.5, 1, 1, -1, -2, -2, -2, 0.5, -1, 3], 14),
        ([3, -1, 4, -1, 5, 9, -2, 6, 5, -3, 5, 8], 12),
    ],
)
def test_wilcoxon_is_exact_with_ties_and_zeros_for_any_number_of_seeds(
    differences: list[float], untied: int
) -> None:
    """Against every choice of signs, one by one."""
    of_rows = dict(enumerate(differences, 1)), dict.fromkeys(range(1, len(differences) + 1), 0.0)
    found = paired_test(*of_rows, "wilcoxon")
    ranked = np.array([d for d in differences if d])
    ranks = stats.rankdata(np.abs(ranked))
    sums = np.abs(np.array(list(product((1, -1), repeat=len(ranks)))) @ ranks)
    assert len(ranks) == untied
    assert found.p == pytest.approx(np.mean(sums >= abs(np.sign(ranked) @ ranks)))
    assert found.p >= 2 / 2**untied


def test_wilcoxon_without_ties_is_scipys_exact_test_for_many_seeds() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1.0, 60)
    found = paired_test(dict(enumerate(differences)), dict.fromkeys(range(60), 0.0), "wilcoxon")
    assert found.p == pytest.approx(stats.wilcoxon(differences.round(9), method="exact").pvalue)


def test_wilcoxon_with_five_pairs_says_that_it_cannot_reach_the_level():
    five = {s: float(s) for s in range(1, 6)}
    found = paired_test(five, dict.fromkeys(five, 0.0), "wilcoxon")
    assert found.p == pytest.approx(2 / 32)
    (adjusted,) = holm([found])
    assert not adjusted.significant
    assert adjusted.text == "p = 0.062 (n = 5 cannot reach below 0.062)"


@pytest.mark.parametrize("test", ["t", "wilcoxon"])
@pytest.mark.parametrize(
    ("ours", "theirs", "n", "why"),
    [
        ({1: 2.0}, {2: 1.0}, 0, "no seed in common"),
        ({1: 2.0, 2: 3.0}, {1: 1.0, 2: 1.0}, 2, "n = 2: too few seeds"),
        ({1: 2.1, 2: 3.1, 3: 4.1}, {1: 2.0, 2: 3.0, 3: 4.0}, 3, "every seed differs by the same: no test"),
        ({1: 2.0, 2: 3.0, 3: 4.0}, {1: 2.0, 2: 3.0, 3: 4.0}, 3, "every seed differs by the same: no test"),
    ],
)
def test_nothing_is_claimed_without_evidence(test, ours, theirs, n, why):
    (found,) = holm([paired_test(ours, theirs, test)])
    assert (found.n, found.p, found.adjusted, found.significant, found.text) == (n, None, None, False, why)


def test_holm_by_hand():
    """0.01 x 3, 0.04 x 2, 0.03 x 2 kept monotone; a row without a test counts for none."""
    tests = [PairedTest("t", 5, 1.0, p) for p in (0.04, 0.01, 0.03)]
    found = holm([*tests, PairedTest("t", 2, 1.0, remark="n = 2: too few seeds")])
    assert [f.adjusted for f in found] == [
        pytest.approx(0.06),
        pytest.approx(0.03),
        pytest.approx(0.06),
        None,
    ]
    assert [f.significant for f in found] == [False, True, False, False]
    assert holm([PairedTest("t", 5, 1.0, 0.9), PairedTest("t", 5, 1.0, 0.8)])[0].adjusted == 1.0


def test_a_small_p_is_not_printed_as_nothing():
    assert PairedTest("t", 9, 1.0, 1e-7, 1e-7).text == "p < 0.001"


def test_a_difference_has_a_sign_unless_it_is_none() -> None:
    assert [signed(x) for x in (0.26, -0.26, 0.04, -0.04, 0.0)] == ["+0.3", "-0.3", "0.0", "0.0", "0.0"]
    assert [signed(x, 2) for x in (-0.04, -0.004)] == ["-0.04", "0.00"]


def test_rows_differ_if_one_pair_exceeds_its_interval():
    row = {1: 50.0, 2: 55.0, 3: 60.0}
    above = {1: 52.0, 2: 57.1, 3: 61.9}  # +2 with an interval of 0.25, whatever the seeds' spread
    unsure = {1: 60.0, 2: 51.0, 3: 64.0}
    assert not nothing_differs([[row, unsure, above]]) and not nothing_differs([[row], [row, above]])
    assert nothing_differs([[row, unsure, dict(row)]])
    assert nothing_differs([[{1: 50.0}, {1: 50.0}]]) and not nothing_differs([[{1: 50.0}, {1: 50.1}]])
    assert not nothing_differs([[row], [{1: 50.0}, {2: 70.0}]]), "no seed in common, so nothing is known"
