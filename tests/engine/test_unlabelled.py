"""Images of the held-out domain that a method may read without their labels."""

from __future__ import annotations

import numpy as np

from fedcore.data import catalog
from fedcore.data.partition import partition
from fedcore.data.splits import split
from fedcore.engine.setup import unlabelled_rows


def test_unlabelled_images_are_the_held_out_domains_outside_its_test_set():
    images = catalog.load("shapes", domains=["photo", "sketch"])
    marks = split(images, "60/20/20", 1)
    held = partition(images, marks, held_out="sketch", seed=1)
    rows = unlabelled_rows(images, held).numpy()
    assert set(images.domain[rows]) == {1} and len(rows) == (images.domain == 1).sum() * 4 // 5
    assert not np.isin(rows, np.concatenate([*held.domain_test, *held.train, *held.validation])).any()
    assert unlabelled_rows(images, partition(images, marks, seed=1)) is None
