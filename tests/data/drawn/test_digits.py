"""Rotated digits: every real digit once, in one rotation, domains of equal make-up."""

import numpy as np
import pytest

from fedcore.data.drawn import digits


@pytest.fixture(scope="module")
def data():
    return digits.load()


def test_every_image_is_in_one_domain(data):
    assert len(data) == 1797 and len(set(data.keys)) == 1797
    counts = np.bincount(data.domain, minlength=6)
    assert counts.sum() == 1797 and counts.max() - counts.min() <= 6


def test_domains_are_stratified_by_class(data):
    table = np.zeros((6, 10), dtype=int)
    np.add.at(table, (data.domain, data.labels), 1)
    assert (table.max(0) - table.min(0)).max() <= 1


def test_enlarge_turns_counter_clockwise():
    bar = np.zeros((8, 8))
    bar[0:4, 3:5] = 16  # the upper half of an upright bar
    turned = np.asarray(digits.enlarge(bar, 90.0))[..., 0].astype(float)
    assert turned[:, :32].sum() > 5 * turned[:, 32:].sum()  # the top goes to the left


def test_the_file_holds_what_scikit_learn_loads():
    from sklearn.datasets import load_digits

    bunch, (pixels, labels) = load_digits(), digits._bundled()
    assert np.array_equal(pixels, bunch.images) and np.array_equal(labels, bunch.target)
    assert np.array_equal(digits.load().labels, labels)
