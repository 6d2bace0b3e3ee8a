"""FEMNIST as Flower publishes it: writers by name and place, digits, and the conversion of LEAF's json."""

import json
import runpy
from pathlib import Path

import datasets
import numpy as np
import pytest

from fedcore.base.files import PROJECT
from fedcore.base.progress import NotPrepared, defer_slow_work, prepare_then
from fedcore.data import image_files
from fedcore.data.images import ImageSet
from tests.support.data.layouts import WRITERS, femnist, femnist_rows
from tests.support.data.loading import loaded
from tests.support.work import collect


def follow(images: ImageSet) -> list[str]:
    """Every image is of its row's class; hands back who wrote each."""
    found = []
    for row in range(len(images)):
        image = np.asarray(images.read(row))
        assert image.shape == (28, 28, 3) and (image[5, 5] == images.labels[row]).all()
        found.append(WRITERS[image[0, 0, 0] - 1])
    return found


def test_all_writers_own_their_images(tmp_path: Path):
    images = loaded("femnist", str(femnist(tmp_path)))
    assert images.domains == ("all",)
    assert tuple(follow(images)) == images.owner
    names, owner = images.owners()
    assert names == WRITERS and np.bincount(owner).tolist() == [22, 22, 22]


def test_named_writers_are_domains_in_the_order_asked_for(tmp_path: Path):
    root = str(femnist(tmp_path))
    images = loaded("femnist-digits", root, ["2", "f0000_14"])
    assert images.domains == ("2", "f0000_14")
    wrote = follow(images)
    assert {images.domains[d]: w for d, w in zip(images.domain, wrote, strict=True)} == {
        "2": WRITERS[2],
        "f0000_14": WRITERS[0],
    }
    assert images.owner is None and len(images) == 40


def test_parts_called_train_and_test_are_the_official_split(tmp_path: Path):
    parts = {"train": [3, 4, 5], "test": [6]}
    saved = {
        part: femnist_rows(tmp_path / part, [(writer, label) for writer in WRITERS for label in labels])
        for part, labels in parts.items()
    }
    opened = {part: datasets.load_from_disk(str(folder))["train"] for part, folder in saved.items()}
    datasets.DatasetDict(opened).save_to_disk(str(tmp_path / "both"))
    images = loaded("femnist", str(tmp_path / "both"))
    assert images.split is not None and np.bincount(images.split).tolist() == [9, 0, 3]
    assert set(images.labels[images.split == 2].tolist()) == {6}
    assert tuple(follow(images)) == images.owner


def test_images_without_a_writer_are_in_no_domain(tmp_path: Path):
    rows = [(writer, label) for writer in (*WRITERS, "") for label in (3, 4)]
    assert len(loaded("femnist", str(femnist_rows(tmp_path, rows)), ["f0002_12", "0"])) == 4


def test_the_keys_of_digits_do_not_change_with_what_else_is_used(tmp_path: Path):
    root = str(femnist(tmp_path))
    everything = loaded("femnist", root)
    row = {key: i for i, key in enumerate(everything.keys)}
    for name, chosen in (("femnist-digits", None), ("femnist-digits", ["1"]), ("femnist", ["2", "0"])):
        images = loaded(name, root, chosen)
        for i, key in enumerate(images.keys):
            assert everything.labels[row[key]] == images.labels[i]
            assert everything.read(row[key]).tobytes() == images.read(i).tobytes()


def test_many_images_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_files, "MAX_UNDEFERRED", 50)
    root = str(femnist(tmp_path / "set"))
    with defer_slow_work(), pytest.raises(NotPrepared, match=r"66 images in .*data check femnist --root"):
        loaded("femnist", root)
    steps, images = collect(prepare_then(lambda: loaded("femnist", root)))
    assert [step.message for step in steps] == ["checking images"]
    monkeypatch.setattr(image_files, "unusable_reasons", lambda _: pytest.fail("looked at again"))
    with defer_slow_work():
        assert loaded("femnist", root).fingerprint == images.fingerprint


def test_json_of_leaf_is_converted_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (PROJECT / "docs" / "data.md").read_text(encoding="utf-8")
    script = PROJECT / "examples" / "leaf_to_femnist.py"
    assert f"`examples/{script.name}`" in page
    users = {
        name: {"x": [[(i + 1) / 255] + [label / 255] * 783 for label in (3, 61)], "y": [3, 61]}
        for i, name in enumerate(WRITERS)
    }
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "all_data_0.json").write_text(json.dumps({"user_data": users}))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    images = loaded("femnist", "femnist")
    assert tuple(follow(images)) == images.owner and images.labels.tolist() == [3, 61] * 3
