"""The specification curve, the effects of choices and the survival of ranks, against numbers made by hand."""

import pytest

from fedcore.results.specification import (
    Effect,
    chance,
    curve,
    differences,
    effects,
    order,
    survival,
    weight_text,
)

MEANS = {
    (0, 0): {"ours": 80.0, "a": 78.0, "b": 70.0},
    (1, 0): {"ours": 77.0, "a": 78.0, "b": 70.0},
    (0, 1): {"ours": 82.0, "a": 81.0, "b": 70.0},
    (1, 1): {"ours": 81.0, "a": 81.0, "b": 70.0},
    (0, 2): {"ours": 60.0, "a": 78.0, "b": 70.0},
}
OURS = {reading: means["ours"] for reading, means in MEANS.items()}


def test_a_curve_is_sorted_and_has_the_interval_over_seeds() -> None:
    found = curve({(0,): {1: 10.0, 2: 12.0, 3: 14.0}, (1,): {1: 9.0}, (2,): {}, (3,): {1: 7.0, 2: 7.0}})
    assert [spec.reading for spec in found] == [(3,), (1,), (0,)]
    assert [spec.stat.mean for spec in found] == [7.0, 9.0, 12.0]
    assert found[2].half == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-6), "t(0.975, 2) std / sqrt(3)"
    assert found[1].half is None, "one seed has no interval"
    (even,) = curve({(0,): {1: 0.1, 2: 0.2, 3: -0.3}})
    assert even.stat.mean == 0, "the last bits put nothing ahead"


def test_differences_are_paired_by_seed() -> None:
    assert differences({(0,): {1: 5.0, 2: 9.0}}, {(0,): {2: 4.0, 3: 1.0}}) == {(0,): {2: 5.0}}


def test_an_effect_is_the_mean_difference_with_the_rest_equal() -> None:
    found = effects(OURS, MEANS)
    assert found[0] == Effect(0, 1, mean=(-3.0 - 1.0) / 2, largest=3.0, pairs=2, reordered=2)
    assert found[1] == Effect(1, 1, mean=(2.0 + 4.0) / 2, largest=4.0, pairs=2, reordered=1)
    assert found[2] == Effect(1, 2, mean=-20.0, largest=20.0, pairs=1, reordered=1)
    assert len(found) == 3


def test_ranks_survive_where_the_order_is_the_same() -> None:
    lasting = survival(MEANS, "ours")
    assert (lasting.readings, lasting.first, lasting.same_order) == (5, 2, 2)
    others = {reading: of for reading, of in MEANS.items() if any(reading)}
    assert survival(others, "ours").same_order is None, "as what, the reading of FedLens has no runs"
    assert order({"a": 1.0, "b": 1.0}) == frozenset(), "a tie puts neither ahead"


def test_the_weight_of_a_caveat_is_said_in_words() -> None:
    assert weight_text([Effect(0, 1, -0.2, 0.4, 3)]) == "up to 0.4 points, no rank changes"
    both = weight_text([Effect(0, 1, -0.2, 0.4, 3, 1), Effect(0, 2, 1.0, 1.25, 1, 1)])
    assert both == "up to 1.2 points, the order of methods changes in 2 of 4 pairs of readings"


def test_chance_is_the_share_of_other_seeds_that_turn_the_sign() -> None:
    # two seeds: resampled means 1, 2, 2, 3 lie sqrt(4) times as far from 2, at 0, 2, 2, 4; 0 is not ahead
    assert chance({1: 1.0, 2: 3.0}) == 1 / 4
    assert chance({1: 5.0, 2: 5.5, 3: 6.0}) == 0
    assert chance({1: -1.0, 2: 1.0, 3: 0.1}) == pytest.approx(chance({1: 1.0, 2: -1.0, 3: -0.1}))
    assert chance({1: 2.0}) is None
