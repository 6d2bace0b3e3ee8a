"""The data of the published experiments: names that the catalog has, and splits as the papers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.data import catalog
from fedcore.data.splits import split
from fedcore.papers.experiments import published
from fedcore.records.codes import TEST, TRAIN
from tests.support.data.layouts import WRITE, leaf_file, leaf_user


def many_writers(root: Path) -> Path:
    """Writers 0 to 33: FedOT's four have all digits twice, the others have written one."""
    four = (0, 25, 26, 33)
    users = {f"f{i:04d}": leaf_user([*range(10), *range(10)] if i in four else [7], i) for i in range(34)}
    leaf_file(root / "all_data_0.json", users)
    return root


def test_presets_name_domains_and_splits_that_their_data_sets_have():
    for name, experiment in published().items():
        data, entry = experiment.data, catalog.entry(experiment.data.name)
        assert set(data.domains or ()) <= set(entry.domains) or entry.loader == "leaf", name
        assert data.split not in ("official", "swapped") or entry.official_split, name


def test_flowers_are_cut_as_fedalign_says(tmp_path: Path):
    """Clients hold the official test and validation parts, the official training part is the test set."""
    images = catalog.load("flowers102", str(WRITE["flowers102"](tmp_path)))
    official, swapped = (split(images, scheme, seed=1) for scheme in ("official", "swapped"))
    assert np.bincount(official).tolist() == [102, 102, 204]
    assert ((swapped == TEST) == (official == TRAIN)).all()
    assert ((swapped == TRAIN) == (official != TRAIN)).all()
    splits = {e.data.split for e in published().values() if e.data.name == "flowers102"}
    assert splits == {"swapped"}


def test_fedots_writers_are_those_at_their_places(tmp_path: Path):
    images = catalog.load("femnist-digits", str(many_writers(tmp_path)), ["33", "0", "25", "26"])
    wrote = np.array([np.asarray(images.read(i))[0, 0, 0] - 1 for i in range(len(images))])
    assert wrote.tolist() == [int(images.domains[d]) for d in images.domain]
