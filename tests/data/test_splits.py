"""Splits: the shares, the strata, and that neither order nor hashing moves a sample."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data.splits import apportion, few_shot, split
from tests.support.data.partitions import drawn, grid


def test_60_20_20_has_exact_shares_in_every_domain_and_class():
    images = grid(per_cell=10)
    marks = split(images, "60/20/20", seed=1)
    for d in range(2):
        for c in range(3):
            cell = marks[(images.domain == d) & (images.labels == c)]
            assert np.bincount(cell, minlength=3).tolist() == [6, 2, 2]


@pytest.mark.parametrize(
    ("sizes", "test"), [((772, 740, 753, 608, 816, 80, 160), 785), ((379, 255, 285, 184, 201, 295, 449), 409)]
)
def test_pacs_sizes_give_the_test_sets_that_the_printed_accuracies_are_multiples_of(sizes, test):
    """Sketch has 3,929 images and Art 2,048: floor(20 %) is 785 and 409 (FedOT's denominators)."""
    images = drawn([c for c, n in enumerate(sizes) for _ in range(n)], [0] * sum(sizes))
    marks = split(images, "60/20/20", seed=50)
    assert (marks == TEST).sum() == test == (marks == VALIDATION).sum()
    for c, n in enumerate(sizes):
        assert abs((marks[images.labels == c] == TEST).sum() - 0.2 * n) < 1


TESTED = {
    "pacs, art": ((379, 255, 285, 184, 201, 295, 449), 2048, 411),
    "pacs, sketch": ((772, 740, 753, 608, 816, 80, 160), 3929, 788),
    "office-caltech10, dslr": ((12, 21, 12, 13, 10, 24, 22, 12, 8, 23), 157, 36),
}
"""Data set and domain -> images of each class, of all, and the test images of FedDEAP's printed values."""


@pytest.mark.parametrize(("sizes", "images", "tested"), TESTED.values(), ids=TESTED.keys())
def test_rounding_by_class_gives_the_test_sets_of_feddeaps_printed_accuracies(sizes, images, tested):
    assert sum(sizes) == images
    drawn_set = drawn([c for c, n in enumerate(sizes) for _ in range(n)], [0] * images)
    marks = split(drawn_set, "80/20", seed=1, rounding="per_class")
    assert (marks == TEST).sum() == tested and (marks == VALIDATION).sum() == 0
    for c, n in enumerate(sizes):
        assert (marks[drawn_set.labels == c] == TRAIN).sum() == int(0.8 * n)


@pytest.mark.parametrize("n", [1, 4, 10])
def test_rounding_by_class_leaves_the_rest_to_the_test_set(n):
    marks = split(drawn([0] * n + [1] * 5, [0] * (n + 5)), "60/20/20", seed=3, rounding="per_class")
    assert np.bincount(marks[:n], minlength=3).tolist() == [3 * n // 5, n // 5, n - 3 * n // 5 - n // 5]


@pytest.mark.parametrize(("n", "expected"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [1, 1, 1]), (4, [2, 1, 1])])
def test_tiny_classes_keep_training_and_are_tested(n, expected):
    marks = split(drawn([0] * n, [0] * n), "60/20/20", seed=3)
    assert np.bincount(marks, minlength=3).tolist() == expected


def test_the_order_of_the_samples_changes_nothing():
    images = grid(per_cell=7)
    order = np.random.default_rng(0).permutation(len(images))
    shuffled = replace(
        images,
        labels=images.labels[order],
        domain=images.domain[order],
        keys=tuple(images.keys[i] for i in order),
    )
    by_key = dict(zip(images.keys, split(images, "60/20/20", 5), strict=True))
    assert all(by_key[k] == m for k, m in zip(shuffled.keys, split(shuffled, "60/20/20", 5), strict=True))


def test_official_is_the_data_sets_own():
    official = np.array([0, 2, 1, 0], dtype=np.int64)
    marks = split(drawn([0, 0, 1, 1], [0] * 4, split=official), "official", seed=9)
    assert marks.tolist() == official.tolist()
    assert marks.dtype == np.int8


def test_official_without_one_names_the_field_and_the_remedy():
    with pytest.raises(FedLensError, match="choose 60/20/20 or 80/20") as caught:
        split(grid(), "official", seed=1)
    assert caught.value.field == "data.split"


def test_apportion_is_largest_remainder_with_ties_in_the_given_order():
    assert apportion(10, np.array([0.55, 0.25, 0.2]), np.arange(3)).tolist() == [6, 2, 2]
    assert apportion(4, np.full(3, 1 / 3), np.array([2, 0, 1])).tolist() == [1, 2, 1]
    assert apportion(0, np.full(3, 1 / 3), np.arange(3)).tolist() == [0, 0, 0]
    assert apportion(7, np.array([0.0, 1.0]), np.arange(2)).tolist() == [0, 7]


def test_few_shot_takes_so_many_of_each_class_and_all_of_a_smaller_one():
    labels = np.array([0] * 5 + [1] * 5 + [2])
    keys = [f"k{i}" for i in range(11)]
    rows = np.array([0, 1, 2, 3, 5, 6, 10])
    chosen = few_shot(rows, labels, keys, 2, seed=1, client="a")
    assert np.bincount(labels[chosen]).tolist() == [2, 2, 1]
    assert set(chosen) <= set(rows)
    assert few_shot(rows[::-1], labels, keys, 2, seed=1, client="a").tolist() == chosen.tolist()
    assert few_shot(rows, labels, keys, None, seed=1, client="a").tolist() == rows.tolist()
    others = [few_shot(rows, labels, keys, 2, seed=s, client="a").tolist() for s in range(2, 12)]
    assert any(other != chosen.tolist() for other in others)
