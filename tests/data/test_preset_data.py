"""The data of every published experiment: each loads from its upstream layout and can be cut as it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore.config import DataConfig
from fedcore.data import catalog
from fedcore.data.splits import split
from fedcore.papers.experiments import published
from fedcore.records.codes import TEST, TRAIN, VALIDATION
from tests.support.data.layouts import WRITE, leaf_file, leaf_user

DATA = {
    experiment.data.model_copy(update={"shots": None}).model_dump_json(): name
    for name, experiment in published().items()
}


def many_writers(root: Path) -> Path:
    """Writers 0 to 33: FedOT's four have all digits twice, the others have written one."""
    four = (0, 25, 26, 33)
    users = {f"f{i:04d}": leaf_user([*range(10), *range(10)] if i in four else [7], i) for i in range(34)}
    leaf_file(root / "all_data_0.json", users)
    return root


@pytest.mark.parametrize("text", DATA, ids=DATA.values())
def test_the_data_of_every_preset_load_and_split(text: str, tmp_path: Path):
    data = DataConfig.model_validate_json(text)
    write = many_writers if data.name == "femnist-digits" else WRITE[data.name]
    root = str(write(tmp_path))
    images = catalog.load(data.name, root, data.domains, data.template)
    assert images.template == data.template
    if data.domains:
        assert set(images.domains) == set(data.domains)
    marks = split(images, data.split, seed=1)
    assert set(np.unique(marks)) >= {TRAIN, TEST}
    if data.split == "official":
        assert (VALIDATION in marks) == (data.name == "dtd")


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
