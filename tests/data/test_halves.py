"""Base and new classes: the halves, in both orders, and the partition of the base classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.data.assigners import PartitionSettings
from fedcore.data.halves import halves, labels_among, partition_base
from fedcore.data.images import ImageSet
from fedcore.data.partition import partition
from fedcore.data.splits import split
from fedcore.errors import FedLensError
from fedcore.records.codes import TEST


def image_set(classes: tuple[str, ...], each: int = 10) -> ImageSet:
    """Two domains with as many images of each class."""
    labels = np.tile(np.arange(len(classes)), 2 * each)
    domain = np.arange(len(labels)) % 2
    keys = tuple(f"{i}" for i in range(len(labels)))
    domains = ("photo", "sketch")
    return ImageSet("trees", classes, domains, "a {}.", labels, domain, keys, "made up", lambda i: None)


def test_the_base_classes_are_the_larger_half_in_label_or_name_order():
    images = image_set(classes=("yew", "ash", "elm", "oak", "fir"))
    marks = split(images, "60/20/20", seed=1)
    by_label, by_name = (halves(images, marks, order) for order in ("label", "name"))
    assert by_label.base == ("yew", "ash", "elm") and by_label.new == ("oak", "fir")
    assert by_name.base == ("ash", "elm", "fir") and by_name.new == ("yew", "oak"), "in the data set's order"
    for found in (by_label, by_name):
        assert set(found.base) | set(found.new) == set(images.classes) and not set(found.base) & set(
            found.new
        )
        for names, rows in ((found.base, found.base_test), (found.new, found.new_test)):
            wanted = [
                i for i, c in enumerate(images.labels) if images.classes[c] in names and marks[i] == TEST
            ]
            assert rows.tolist() == wanted
        assert labels_among(images, found.new)[found.new_test].min() >= 0


def test_one_class_has_no_halves():
    images = image_set(classes=("yew",))
    with pytest.raises(FedLensError, match="has one class") as caught:
        halves(images, split(images, "60/20/20", seed=1), "label")
    assert caught.value.field == "data.training_classes"


@pytest.mark.parametrize("kind", ["domain", "iid", "dirichlet", "pathological"])
def test_clients_hold_base_classes_only_and_as_if_there_were_no_others(kind):
    images = image_set(classes=("yew", "ash", "elm", "oak", "fir"), each=12)
    marks = split(images, "60/20/20", seed=1)
    found = halves(images, marks, "name")
    settings = PartitionSettings(
        kind=kind,
        clients=None if kind == "domain" else 2,
        alpha=1.0 if kind == "dirichlet" else None,
        classes_per_client=1,
        seed=3,
    )
    made = partition_base(images, marks, found.base, settings)
    rows = np.flatnonzero(np.isin(images.labels, [images.classes.index(n) for n in found.base]))
    alone = partition(
        replace(images.subset(rows), classes=found.base, labels=labels_among(images, found.base)[rows]),
        marks[rows],
        settings,
    )
    for part in ("train", "validation", "test", "domain_test"):
        pairs = zip(getattr(made, part), getattr(alone, part), strict=True)
        assert all(np.array_equal(ours, rows[theirs]) for ours, theirs in pairs)
    held = np.concatenate([*made.train, *made.validation, *made.test])
    assert (labels_among(images, found.base)[held] >= 0).all()
    assert made.counts.shape == (len(made.clients), 3) and made.counts.sum() == sum(map(len, made.train))
