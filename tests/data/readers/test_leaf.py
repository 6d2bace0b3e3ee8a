"""FEMNIST in LEAF's json: writers by name and place, digits, LEAF's split, and arrays kept from before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.progress import prepare_then
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.readers import leaf
from tests.support.data.layouts import WRITERS, femnist, leaf_file, leaf_user
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
    images = catalog.load("femnist", str(femnist(tmp_path)))
    assert images.domains == ("all",)
    assert tuple(follow(images)) == images.owner
    names, owner = images.owners()
    assert names == WRITERS and np.bincount(owner).tolist() == [22, 22, 22]
    assert images.keys[:2] == ("f0000_14/0000", "f0000_14/0001") and images.keys[22] == "f0001_41/0000"


def test_named_writers_are_domains_in_the_order_asked_for(tmp_path: Path):
    """By name or by place in LEAF's order, in which file 2 comes before file 10."""
    root = str(femnist(tmp_path))
    images = catalog.load("femnist-digits", root, ["2", "f0000_14"])
    assert (
        images.domains
        == ("2", "f0000_14")
        == catalog.facts("femnist-digits", root, ["2", "f0000_14"]).domains
    )
    wrote = follow(images)
    assert {images.domains[d]: w for d, w in zip(images.domain, wrote, strict=True)} == {
        "2": WRITERS[2],
        "f0000_14": WRITERS[0],
    }
    assert images.owner is None and len(images) == 40


@pytest.mark.parametrize("domains", [None, ["f0002_12", "0"], ["f9999_99"], ["0", "f0000_14"], []])
def test_facts_say_what_loading_will(domains, tmp_path: Path):
    root = str(femnist(tmp_path))

    def outcome(read) -> object:
        try:
            found = read("femnist", root, domains)
        except FedLensError as error:
            return str(error), error.field
        return found.classes, found.domains

    assert outcome(catalog.facts) == outcome(catalog.load)


def test_the_keys_of_digits_do_not_change_with_what_else_is_used(tmp_path: Path):
    root = str(femnist(tmp_path))
    everything = catalog.load("femnist", root)
    row = {key: i for i, key in enumerate(everything.keys)}
    for name, chosen in (("femnist-digits", None), ("femnist-digits", ["1"]), ("femnist", ["2", "0"])):
        images = catalog.load(name, root, chosen)
        for i, key in enumerate(images.keys):
            assert everything.labels[row[key]] == images.labels[i]
            assert everything.read(row[key]).tobytes() == images.read(i).tobytes()


def test_leafs_own_split(tmp_path: Path):
    for part, labels in (("train", [3, 4, 5]), ("test", [6])):
        users = {name: leaf_user(labels, i) for i, name in enumerate(WRITERS)}
        leaf_file(tmp_path / "data" / part / f"all_data_0_niid_1_keep_0_{part}_9.json", users)
    leaf_file(tmp_path / "data" / "all_data" / "all_data_0.json", {"x": leaf_user([0], 0)})
    images = catalog.load("femnist", str(tmp_path))
    assert np.bincount(images.split).tolist() == [9, 0, 3]
    assert set(images.labels[images.split == 2].tolist()) == {6}
    assert tuple(follow(images)) == images.owner
    assert images.keys[0] == "train/f0000_14/0000" and images.keys[9] == "test/f0000_14/0000"


def test_json_is_read_once_and_again_when_it_changes(tmp_path: Path):
    root = femnist(tmp_path)

    def load() -> tuple[set[str], ImageSet]:
        steps, images = collect(prepare_then(lambda: catalog.load("femnist", str(root))))
        return {step.message for step in steps}, images

    both = {"reading all_data_2.json", "reading all_data_10.json"}
    read, first = load()
    assert read == both
    read, again = load()
    assert read == set() and again.fingerprint == first.fingerprint and again.keys == first.keys
    samples = leaf._samples(leaf._files(catalog.entry("femnist"), [root]))
    assert isinstance(samples.pixels, np.memmap), "pixels are not held in memory"
    leaf_file(root / "femnist/data/all_data/all_data_2.json", {WRITERS[0]: leaf_user([1, 2], 0)})
    read, changed = load()
    assert read == both and len(changed) == 24 and changed.fingerprint != first.fingerprint


def flip_last_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip_last_bit(folder / "pixels.npy"),
        lambda folder: flip_last_bit(folder / "rows.npz"),
        lambda folder: flip_last_bit(folder / "pixels.json"),
        lambda folder: (folder / "pixels.json").unlink(),
        lambda folder: np.save(folder / "pixels.npy", np.zeros((66, 784), dtype=np.uint8)),
    ],
)
def test_damaged_arrays_are_converted_again(tmp_path: Path, damage: Callable[[Path], object]):
    """One flipped bit in the converted pixels was trained on."""
    root = femnist(tmp_path)
    expected = [np.asarray(image) for image in map(catalog.load("femnist", str(root)).read, range(66))]
    (folder,) = root.rglob("converted-*")
    damage(folder)
    images = catalog.load("femnist", str(root))
    assert all(np.array_equal(images.read(row), expected[row]) for row in range(66))
    assert [path.name for path in root.rglob("converted-*")] == [folder.name]
