"""The catalog of data sets: its entries, their page in the documentation, and the presets that name them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN
from fedcore.clip.specs import count_tokens
from fedcore.data import catalog, descriptions
from fedcore.data.images import squash
from fedcore.data.splits import split
from fedcore.papers.experiments import published
from tests.support.data.layouts import WRITE, femnist_rows
from tests.support.data.loading import loaded
from tools.docs import data as data_doc

EMBEDDED = ("rotated-digits", "shapes", "shapes-conflict", "shapes-common", "shapes-39")


def make(root: Path, domains: tuple[str, ...], classes: tuple[str, ...]) -> Path:
    for d, domain in enumerate(domains):
        for c, name in enumerate(classes):
            (root / domain / name).mkdir(parents=True)
            Image.new("RGB", (2, 2), (20 * d, 10 * c, 0)).save(root / domain / name / "0.png")
    return root


def test_entries_are_complete_and_named_once():
    entries = catalog.entries()
    assert [e.name for e in entries[:6]] == [*EMBEDDED, "folder"]
    assert len({e.name for e in entries}) == len(entries)
    of_user = {"folder", "manifest", "hf-dataset", "embeddings"}
    for e in entries:
        for field in ("title", "source", "licence", "how_to_get"):
            assert getattr(e, field), f"{e.name}: {field}"
        assert e.citation or e.name in of_user or e.name.startswith("shapes"), f"{e.name}: citation"
        assert e.template.count("{}") == 1, f"{e.name}: template"
        assert e.embedded or list(e.domains) == sorted(e.domains), f"{e.name}: domains"
        assert len({squash(c) for c in e.classes}) == len(e.classes), f"{e.name}: classes"
        assert set(e.counts) <= {*e.domains, "all"}, f"{e.name}: counts"
        assert set(e.aliases.values()) <= {*e.domains, *e.classes}, f"{e.name}: aliases"
        assert e.class_count is None or not e.classes, f"{e.name}: class_count"


def test_an_entry_without_a_required_field_or_with_an_unknown_one_names_it():
    given = {"title": "T", "source": "s", "licence": "l", "how_to_get": "h", "splt_coop": "x"}
    with pytest.raises(
        FedLensError, match=r"^catalog\.toml: \[new\]: 'template' is missing, 'splt_coop' is not a field; "
    ):
        catalog.read_entry("new", given)


SIZES = {
    "pacs": (9_991, 7), "office-home": (15_588, 65), "vlcs": (10_729, 5), "office31": (4_110, 31),
    "office-caltech10": (2_533, 10), "domainnet": (586_575, 345), "domainnet-126": (0, 126),
    "terra-incognita": (24_330, 10), "ddr": (12_522, 5), "cifar10": (60_000, 10), "cifar100": (60_000, 100),
    "eurosat": (27_000, 10), "oxford-pets": (7_349, 37), "food101": (101_000, 101),
    "flowers102": (8_189, 102), "dtd": (5_640, 47), "caltech101": (8_677, 101),
    "tiny-imagenet": (110_000, 200), "stanford-cars": (16_185, 196), "fgvc-aircraft": (10_000, 100),
    "ucf101": (13_320, 101), "sun397": (39_700, 397), "imagenet": (1_281_167 + 50_000, 1000),
    "imagenet-v2": (10_000, 1000), "imagenet-sketch": (50_889, 1000), "imagenet-a": (7_500, 200),
    "imagenet-r": (30_000, 200),
}  # fmt: skip
"""Data set -> images and classes."""


def test_sizes_are_those_of_the_literature():
    found = {name: catalog.entry(name) for name in SIZES}
    assert {
        name: (sum(e.counts.values()), e.class_count or len(e.classes)) for name, e in found.items()
    } == SIZES


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_entry_is_about_the_loaded_set(name: str):
    images, entry = loaded(name), catalog.entry(name)
    assert (images.classes, images.domains, images.template) == (entry.classes, entry.domains, entry.template)
    assert images.name == name and catalog.class_names(name) == entry.classes
    present = np.unique(images.domain * len(images.classes) + images.labels)
    assert len(present) == len(images.domains) * len(images.classes)


def test_embedded_domains_can_be_chosen_and_images_stay_with_their_labels():
    name = "shapes"
    whole = loaded(name)
    chosen = (whole.domains[3], whole.domains[1])
    part = loaded(name, domains=chosen)
    assert part.domains == (whole.domains[1], whole.domains[3])
    assert part.fingerprint != whole.fingerprint
    row_of = {key: row for row, key in enumerate(whole.keys)}
    assert len(part) == np.isin(whole.domain, [1, 3]).sum()
    for i in range(0, len(part), 97):
        row = row_of[part.keys[i]]
        assert part.labels[i] == whole.labels[row]
        assert part.domains[part.domain[i]] == whole.domains[whole.domain[row]]
        assert part.read(i).tobytes() == whole.read(row).tobytes()


BAD = {
    "near name": (("PACSS",), "data.name", "did you mean 'pacs"),
    "no such name": (("zzzzzz",), "data.name", "choose one of rotated-digits, shapes"),
    "no root": (("pacs",), "data.root", "PACS is not on this machine"),
    "missing root": (("folder", "/no/such/folder"), "data.root", "no folder"),
    "unknown domain": (("shapes", None, ["moon"]), "data.domains", "choose from photo"),
    "no domain": (("shapes", None, []), "data.domains", "no domain chosen"),
}


@pytest.mark.parametrize(("arguments", "field", "text"), BAD.values(), ids=BAD.keys())
def test_bad_names_say_what_to_do(arguments, field, text):
    with pytest.raises(FedLensError, match=text) as caught:
        loaded(*arguments)
    assert caught.value.field == field


def test_a_named_data_set_with_other_classes_is_refused(tmp_path: Path):
    pacs = catalog.entry("pacs")
    root = make(tmp_path, pacs.domains, pacs.classes[:-1])
    with pytest.raises(FedLensError, match="no class folder 'person', which PACS has"):
        loaded("pacs", str(root))
    for domain in pacs.domains:
        for name in ("person", "unicorn"):
            (root / domain / name).mkdir()
    with pytest.raises(FedLensError, match="an unknown class folder 'unicorn', which PACS does not have"):
        loaded("pacs", str(root))


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_descriptions_name_every_class(name: str):
    written = descriptions.read(name)
    assert tuple(written) == catalog.class_names(name)
    for word, texts in written.items():
        assert len(set(texts)) == 3
        assert all(word in text for text in texts)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "eurosat", "oxford-pets", "food101", "flowers102"])
def test_every_class_of_fedalign_s_data_sets_has_three_texts_that_clip_reads_whole(name: str, tmp_path: Path):
    written = descriptions.read(name, str(tmp_path))
    assert tuple(written) == catalog.entry(name).classes
    assert len({text for texts in written.values() for text in texts}) == 3 * len(written)

    def letters(text: str) -> str:
        return re.sub("[^a-z]", "", text.lower().replace(" or ", ""))

    for word, texts in written.items():
        assert all(letters(word) in letters(text) for text in texts)
        assert all(count_tokens(text) + 2 <= 77 for text in texts)
    (tmp_path / "descriptions.json").write_text(json.dumps({"mine": ["my own"]}))
    assert descriptions.read(name, str(tmp_path)) == {"mine": ["my own"]}


def test_descriptions_of_a_folder(tmp_path: Path):
    root = make(tmp_path / "data", ("a",), ("x", "y"))
    assert descriptions.read("folder", str(root)) == {}
    content = {"x": ["an x"], "y": ["a y", "a letter y"]}
    (tmp_path / "descriptions.json").write_text(json.dumps(content))
    assert descriptions.read("folder", str(root)) == content
    (root / "descriptions.json").write_text(json.dumps({"x": ["the inner file wins"]}))
    assert descriptions.read("folder", str(root)) == {"x": ["the inner file wins"]}


def test_descriptions_name_classes_as_their_folders_do_or_as_prompts_do(tmp_path: Path):
    root = make(tmp_path, ("a",), ("fire_engine", "snow_owl", "cat"))
    content = {"fire engine": ["a red van."], "snow_owl": ["a white bird."], "dog": ["no class of these."]}
    (root / "descriptions.json").write_text(json.dumps(content))
    found = descriptions.of_classes("folder", str(root), ("cat", "fire_engine", "snow owl"))
    assert found == {"fire_engine": ["a red van."], "snow owl": ["a white bird."]}


def test_two_spellings_of_one_class_are_not_guessed_between(tmp_path: Path):
    (tmp_path / "descriptions.json").write_text('{"fire_engine": ["red."], "fire engine": ["blue."]}')
    with pytest.raises(FedLensError, match="'fire_engine' and 'fire engine' are one class") as caught:
        descriptions.of_classes("folder", str(tmp_path), ("fire engine",))
    assert caught.value.field == "data.root"


@pytest.mark.parametrize("text", ["{", "[]", '{"x": []}', '{"x": [""]}', '{"x": ["a"], "x": ["b"]}'])
def test_descriptions_of_another_form_are_refused(tmp_path: Path, text: str):
    root = make(tmp_path, ("a",), ("x",))
    (root / "descriptions.json").write_text(text)
    with pytest.raises(FedLensError, match=r"descriptions\.json") as caught:
        descriptions.read("folder", str(root))
    assert caught.value.field == "data.root"


def many_writers(root: Path) -> Path:
    """Writers 0 to 33: FedOT's four have all digits twice, the others have written one."""
    four = (0, 25, 26, 33)
    wrote = {f"f{i:04d}_00": [*range(10), *range(10)] if i in four else [7] for i in range(34)}
    return femnist_rows(root / "femnist", [(name, label) for name in wrote for label in wrote[name]])


def test_presets_name_domains_and_splits_that_their_data_sets_have():
    for name, experiment in published().items():
        data, entry = experiment.data, catalog.entry(experiment.data.name)
        assert set(data.domains or ()) <= set(entry.domains) or entry.loader == "femnist", name
        assert data.split not in ("official", "swapped") or entry.official_split, name


def test_flowers_are_cut_as_fedalign_says(tmp_path: Path):
    """Clients hold the official test and validation parts, the official training part is the test set."""
    images = loaded("flowers102", str(WRITE["flowers102"](tmp_path)))
    official, swapped = (split(images, scheme, seed=1) for scheme in ("official", "swapped"))
    assert np.bincount(official).tolist() == [102, 102, 204]
    assert ((swapped == TEST) == (official == TRAIN)).all()
    assert ((swapped == TRAIN) == (official != TRAIN)).all()
    splits = {e.data.split for e in published().values() if e.data.name == "flowers102"}
    assert splits == {"swapped"}


def test_fedots_writers_are_those_at_their_places(tmp_path: Path):
    images = loaded("femnist-digits", str(many_writers(tmp_path)), ["33", "0", "25", "26"])
    wrote = np.array([np.asarray(images.read(i))[0, 0, 0] - 1 for i in range(len(images))])
    assert wrote.tolist() == [int(images.domains[d]) for d in images.domain]


PAGE = data_doc.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert data_doc.render(PAGE) == PAGE, "out of date; run python -m tools.docs"
    assert data_doc.render(PAGE.replace("; 9,991 images.", "; 9,990 images.")) == PAGE


def test_every_data_set_has_its_row_and_its_layout():
    layouts = re.findall(r"^# ([\w-]+)$", PAGE.partition("### Layouts")[2].partition("### Notes")[0], re.M)
    for name in WRITE:
        entry = catalog.entry(name)
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {entry.title}: `{name}` |"))
        told = entry.how_to_get.partition("Or by hand: ")[2] or entry.how_to_get
        by_hand = data_doc.REPEATS_THE_LAYOUT.sub("", told).strip()
        assert by_hand == told or {name, name.partition("-all")[0]} & set(layouts), f"{name}: no layout"
        for said in (entry.citation, entry.licence, by_hand):
            assert said in PAGE, name
        for said in (entry.official_split, *entry.domains[1:]):
            assert said in row, name
