"""Every data set of the catalog in its upstream layout: classes, counts, split, and each image's row."""

from collections import Counter
from importlib import import_module, resources
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import SPLITS
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.readers import label_files
from tests.support.data import layouts
from tests.support.data.layouts import WRITE, label_of
from tests.support.data.loading import loaded


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every data set, written when it is first asked for; tests only read them."""

    class Written(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            self[name] = WRITE[name](tmp_path_factory.mktemp(name) / "data")
            return self[name]

    return Written()


def parts(images: ImageSet) -> dict[str, int] | None:
    if images.split is None:
        return None
    return {SPLITS[mark]: n for mark, n in sorted(Counter(images.split.tolist()).items())}


EXPECTED = {
    e.name: (len(e.classes), len(e.domains) * len(e.classes) * 2, None)
    for e in catalog.entries()
    if e.name in WRITE and e.loader == "domains"
} | {
    # name: classes, images, the official split
    "pacs": (7, 4 * 7 * 2, None),
    "office-home": (65, 4 * 65 * 2, None),
    "vlcs": (5, 4 * 5 * 2, None),
    "terra-incognita": (10, 4 * 10 * 2, None),
    "domainnet": (3, 6 * 3 * 2, {"train": 18, "test": 18}),
    "domainnet-126": (126, 4 * 126 * 2, None),
    "office31": (31, 3 * 31 * 2, None),
    "office-caltech10": (10, 4 * 10 * 2, None),
    "ddr": (5, 3 * 4 * 5, {"train": 20, "validation": 20, "test": 20}),
    "ddr-all": (6, 3 * 4 * 6, {"train": 24, "validation": 24, "test": 24}),
    "femnist": (62, 3 * 22, None),
    "femnist-digits": (10, 3 * 20, None),
    "cifar10": (10, 70, {"train": 50, "test": 20}),
    "cifar100": (100, 300, {"train": 200, "test": 100}),
    "eurosat": (10, 20, None),
    "oxford-pets": (37, 74, {"train": 37, "test": 37}),
    "food101": (101, 202, {"train": 101, "test": 101}),
    "flowers102": (102, 408, {"train": 102, "validation": 102, "test": 204}),
    "dtd": (47, 141, {"train": 47, "validation": 47, "test": 47}),
    "caltech101": (101, 202, None),
    "stanford-cars": (3, 9, {"train": 6, "test": 3}),
    "fgvc-aircraft": (3, 9, {"train": 3, "validation": 3, "test": 3}),
    "ucf101": (3, 6, {"train": 3, "test": 3}),
    "sun397": (3, 6, {"train": 3, "test": 3}),
    "imagenet": (3, 9, {"train": 6, "test": 3}),
    **dict.fromkeys(("imagenet-v2", "imagenet-sketch", "imagenet-a", "imagenet-r"), (3, 6, {"test": 6})),
    "tiny-imagenet": (3, 9, {"train": 6, "test": 3}),
    "coop-split": (3, 12, {"train": 6, "validation": 3, "test": 3}),
}


def test_every_entry_has_a_layout():
    on_disk = {e.name for e in catalog.entries() if not e.embedded}
    assert on_disk - {"folder", "manifest", "hf-dataset", "embeddings"} == set(WRITE) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_upstream_layout_loads_and_every_image_comes_to_its_row(name: str, roots: dict[str, Path]):
    classes, count, split = EXPECTED[name]
    entry = catalog.entry(name)
    images, warnings = catalog.load(name, str(roots[name]))
    assert (len(images.classes), len(images), parts(images)) == (classes, count, split)
    assert images.domains == (entry.domains or ("all",))
    assert images.template == entry.template and images.name == name
    assert len(set(images.keys)) == len(images) and len(set(images.classes)) == classes
    assert catalog.class_names(name, str(roots[name])) == images.classes
    per_class = np.bincount(images.labels, minlength=classes)
    assert name.startswith("femnist") or len(set(per_class.tolist())) == 1
    for line in warnings:
        assert any(text in line for text in ("expected", "ungradable", "no images of all/capital B")), line
    if not name.startswith(("ddr", "femnist")):  # their images have no colour; their own tests follow them
        for row in range(len(images)):
            assert label_of(images.read(row).getpixel((3, 3))) == (images.labels[row], images.domain[row])


def test_class_names_stand_at_their_labels(roots: dict[str, Path]):
    """One name of each set, where the set's own order is not the alphabet's or its spelling is changed."""
    for name, label, expected in (
        ("office-home", 0, "Alarm Clock"),
        ("domainnet-126", 114, "teapot"),
        ("eurosat", 9, "Sea Lake"),
        ("cifar100", 1, "aquarium fish"),
        ("oxford-pets", 1, "American Bulldog"),
        ("flowers102", 0, "pink primrose"),
        ("food101", 1, "baby back ribs"),
        ("caltech101", 0, "Faces"),
        ("ddr", 4, "proliferative diabetic retinopathy"),
        ("ddr-all", 5, "ungradable"),
        ("femnist", 61, "small z"),
        ("stanford-cars", 2, "Ram C/V Cargo Van Minivan 2012"),
        ("fgvc-aircraft", 1, "Eurofighter Typhoon"),
        ("ucf101", 2, "Yo Yo"),
        ("sun397", 1, "outdoor apartment building"),
        ("imagenet", 1, "crane bird"),
        ("imagenet-v2", 2, "projectile"),
        ("imagenet-r", 0, "tench"),
        ("tiny-imagenet", 1, "crane"),
        ("coop-split", 2, "cougar body"),
    ):
        assert catalog.class_names(name, str(roots[name]))[label] == expected


def test_the_names_of_imagenet_are_those_of_clip_for_the_ids_of_timm():
    """The classes of ImageNet-A and -R are among them, 200 each."""
    data = import_module("timm.data").ImageNetInfo
    ids = data("imagenet-1k").label_names()
    names = import_module("open_clip.zero_shot_metadata").IMAGENET_CLASSNAMES
    ours = label_files.class_names()
    assert list(ours) == ids and len(set(ours.values())) == 1000
    other = {wnid: name for (wnid, name), theirs in zip(ours.items(), names, strict=True) if name != theirs}
    assert other == {"n04008634": "projectile", "n04355933": "sunglass"}
    assert list(names).count("missile") == list(names).count("sunglasses") == 2
    for subset in ("a", "r"):
        listed = (resources.files("timm.data") / "_info" / f"imagenet_{subset}_synsets.txt").read_text()
        assert len(set(listed.split())) == 200 and set(listed.split()) <= set(ours)


def coop_layout(root: Path) -> str:
    return str(layouts.coop_split(root))


def test_a_named_set_is_read_with_the_split_the_classes_or_the_prompt_of_coop(tmp_path: Path):
    split = catalog.load("caltech101", coop_layout(tmp_path), template="coop", coop_split=True)[0]
    listed = loaded("coop-split", str(tmp_path))
    assert (split.classes, split.keys, parts(split)) == (listed.classes, listed.keys, parts(listed))
    assert split.name == "caltech101" and split.template == "a photo of a {}."
    assert catalog.class_names("caltech101", str(tmp_path), coop_split=True) == listed.classes
    assert catalog.prompt("dtd", "coop") == "{} texture." and catalog.prompt("dtd", "a {}.") == "a {}."
    with pytest.raises(FedLensError, match="no folder with 'split_zhou_OxfordPets.json'"):
        catalog.load("oxford-pets", str(tmp_path), coop_split=True)
    for name, wanted, field in (
        ("shapes", {"coop_split": True}, "data.split"),
        ("oxford-pets", {"coop_classes": True}, "data.classes"),
        ("pacs", {"template": "coop"}, "data.template"),
    ):
        with pytest.raises(FedLensError, match="CoOp has no") as caught:
            catalog.load(name, str(tmp_path), **wanted)
        assert caught.value.field == field


def test_caltech_has_the_100_classes_of_coop_on_demand(roots: dict[str, Path]):
    root = str(roots["caltech101"])
    whole, coop = (
        loaded("caltech101", root),
        catalog.load("caltech101", root, coop_classes=True)[0],
    )
    assert len(whole.classes) == 101 and len(coop.classes) == 100 == len(set(coop.classes))
    assert catalog.class_names("caltech101", root, coop_classes=True) == coop.classes
    assert coop.classes[:5] == ("face", "leopard", "motorbike", "accordion", "airplane")
    assert coop.fingerprint != whole.fingerprint
    rows = [i for i in range(len(whole)) if whole.classes[whole.labels[i]] != "Faces easy"]
    assert coop.keys == tuple(whole.keys[i] for i in rows)
    for row, i in enumerate(rows):
        assert coop.read(row).tobytes() == whole.read(i).tobytes()
        label = int(whole.labels[i])
        assert coop.labels[row] == label - (label > 1)
    names = catalog.entry("eurosat").classes_coop
    assert set(names) < set(catalog.class_names("eurosat", str(roots["eurosat"])))


def test_class_folders_of_imagenet_may_be_links_within_the_data_set(tmp_path: Path):
    root = layouts.imagenet(tmp_path)
    folder = root / "imagenet" / "images" / "train" / "n01440764"
    folder.symlink_to(folder.rename(folder.parents[1] / "elsewhere"))
    assert len(loaded("imagenet", str(root))) == 9


def test_tiny_imagenet_takes_all_words_where_two_classes_share_the_first(tmp_path: Path):
    root = layouts.tiny_imagenet(tmp_path)
    path = root / "tiny-imagenet-200" / "words.txt"
    path.write_text(path.read_text().replace("Egyptian cat", "crane, machine"))
    assert loaded("tiny-imagenet", str(root)).classes == ("goldfish", "crane, bird", "crane, machine")
