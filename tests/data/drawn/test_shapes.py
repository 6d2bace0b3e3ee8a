"""Drawn data sets: the same pixels in every process, right labels, and the purpose of the large ones."""

import numpy as np
import pytest

from fedcore.data import catalog
from fedcore.data.drawn import drawing, shapes
from fedcore.data.splits import split
from fedcore.records.codes import TEST, TRAIN, VALIDATION

# Mean grey level of a drawing in each style: on another machine a last bit may round another way.
MEANS = {
    "photo": 73.83,
    "cartoon": 81.34,
    "clipart": 91.75,
    "silhouette": 113.64,
    "painting": 182.62,
    "neon": 44.05,
    "pixel": 180.03,
    "sketch": 226.87,
    "mosaic": 45.73,
    "night": 19.91,
    "halftone": 205.3,
}


def test_labels_domains_and_keys_agree():
    data = shapes.load(domains=("photo", "sketch+30"), per_class=3)
    assert len(data) == 2 * 10 * 3
    for i in range(len(data)):
        domain, name, _ = data.keys[i].split("/")
        assert data.domains[data.domain[i]] == domain
        assert data.classes[data.labels[i]] == name
    assert len(set(data.keys)) == len(data)


def test_a_key_is_its_image_whatever_else_is_loaded():
    few, many = (
        shapes.load(domains=("night",), per_class=2),
        shapes.load(domains=("photo", "night"), per_class=4),
    )
    key = few.keys[5]
    assert np.array_equal(few.read(5), many.read(many.keys.index(key)))


def test_drawings_are_as_they_were():
    drawn = {style: shapes.draw_key(f"{style}+30/fish/004").mean() for style in MEANS}
    assert drawn == pytest.approx(MEANS, abs=0.3)


def test_every_shape_is_visible_in_every_size_and_place():
    rng = np.random.default_rng(0)
    for name in drawing.SHAPES:
        for size in drawing.SIZES:
            for place in drawing.PLACES:
                what = drawing.Drawing(name, "clipart", "red", "white", size, place, 45.0)
                mask = drawing.mask_of(drawing.OUTLINES[name], drawing.placement(what, rng))
                assert mask.sum() > 60, (name, size, place)


def test_positive_angles_turn_counter_clockwise():
    rng = np.random.default_rng(0)
    up = drawing.Drawing("arrow", "clipart", "black", "white", "large", "in the middle", 90.0)
    mask = drawing.mask_of(drawing.OUTLINES["arrow"], drawing.placement(up, rng))
    widths = (mask > 0.5).sum(1)
    assert widths[:32].max() > 1.5 * widths[32:].max()  # the head, wider than the shaft, points up


def test_periodic_shapes_look_upright_again():
    assert drawing.visible_angle("circle", 50) == 0
    assert drawing.visible_angle("star", 72) == pytest.approx(0)
    assert drawing.visible_angle("square", 60) == pytest.approx(-30)
    assert drawing.visible_angle("cup", 60) == 60


@pytest.mark.parametrize("name", ["watercolour", "sketch+"])
def test_unknown_domain_says_what_can_stand_there(name):
    with pytest.raises(ValueError, match="photo, cartoon"):
        shapes.load(domains=(name,))


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
    assert np.array_equal(shapes.draw_key(key, one.swaps), shapes.draw_shape(key, "star", "sketch", 30))
    for kept in ("sketch+30/heart/003", "sketch+30-swapped/cup/003"):
        name = kept.split("/")[1]
        assert np.array_equal(shapes.draw_key(kept, one.swaps), shapes.draw_shape(kept, name, "sketch", 30))
    images = one.load()
    row = images.keys.index(key)
    assert images.classes[images.labels[row]] == "heart"
    assert np.array_equal(np.asarray(images.read(row)), shapes.draw_key(key, one.swaps))
