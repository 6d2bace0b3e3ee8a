"""The embedded data sets, drawn shapes and rotated digits: labels, domains and keys of their images."""

import numpy as np
import pytest

from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data.drawn import digits, drawing, shapes
from fedcore.data.splits import split
from tests.support.data.loading import loaded

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
    one, images = shapes.LARGE_SETS[name], loaded(name)
    marks = split(images, "official", seed=1)
    assert (marks == TEST).sum() >= 20_000
    cells = images.domain * len(images.classes) + images.labels
    for mark, expected in zip((TRAIN, VALIDATION, TEST), one.split, strict=True):
        assert set(np.bincount(cells[marks == mark])) == {expected}
    assert len(set(images.keys)) == len(images)
    assert loaded(name).fingerprint == images.fingerprint


def test_swapped_domains_show_one_class_under_the_name_of_another():
    one = shapes.LARGE_SETS["shapes-conflict"]
    key = "sketch+30-swapped/heart/003"
    assert np.array_equal(shapes.draw_key(key, one.swaps), shapes.draw_shape(key, "star", "sketch", 30))
    for path in ("sketch+30/heart/003", "sketch+30-swapped/cup/003"):
        name = path.split("/")[1]
        assert np.array_equal(shapes.draw_key(path, one.swaps), shapes.draw_shape(path, name, "sketch", 30))
    images = one.load()
    row = images.keys.index(key)
    assert images.classes[images.labels[row]] == "heart"
    assert np.array_equal(np.asarray(images.read(row)), shapes.draw_key(key, one.swaps))


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
