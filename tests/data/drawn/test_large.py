"""The large drawn sets: what each is made for, and that an image depends on its key alone."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.data import catalog, descriptions
from fedcore.data.drawn import shapes
from fedcore.data.splits import split
from fedcore.records.codes import TEST, TRAIN, VALIDATION


@pytest.mark.parametrize("name", shapes.LARGE_SETS)
def test_its_own_split_has_enough_tests_for_half_a_point(name):
    one, images = shapes.LARGE_SETS[name], catalog.load(name)
    marks = split(images, "official", seed=1)
    assert (marks == TEST).sum() >= 20_000
    cells = images.domain * len(images.classes) + images.labels
    for mark, expected in zip((TRAIN, VALIDATION, TEST), one.split, strict=True):
        assert set(np.bincount(cells[marks == mark])) == {expected}
    assert len(set(images.keys)) == len(images)
    assert catalog.load(name).fingerprint == images.fingerprint


def test_swapped_domains_show_one_class_under_the_name_of_another():
    one = shapes.LARGE_SETS["shapes-conflict"]
    key = "sketch+30-swapped/heart/003"
    assert np.array_equal(one.draw(key), shapes.draw_shape(key, "star", "sketch", 30))
    for kept in ("sketch+30/heart/003", "sketch+30-swapped/cup/003"):
        name = kept.split("/")[1]
        assert np.array_equal(one.draw(kept), shapes.draw_shape(kept, name, "sketch", 30))
    images = one.load()
    row = images.keys.index(key)
    assert images.classes[images.labels[row]] == "heart"
    assert np.array_equal(np.asarray(images.read(row)), one.draw(key))


def test_half_of_the_domains_conflict_and_the_common_ones_share_their_angle():
    conflict = shapes.LARGE_SETS["shapes-conflict"].domains
    plain = [name for name in conflict if not name.endswith(shapes.SWAPPED)]
    assert sorted(conflict) == sorted([*plain, *(name + shapes.SWAPPED for name in plain)])
    assert {shapes.parse_domain(name)[1] for name in shapes.LARGE_SETS["shapes-common"].domains} == {30}


def test_every_class_has_a_written_description():
    for name in shapes.LARGE_SETS:
        classes = catalog.facts(name).classes
        assert set(descriptions.of_classes(name, None, classes)) == set(classes)
