"""Domain sets in the forms in which they are met: a folder more, parts, spellings, lists; DDR's rule."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.data import catalog
from fedcore.data.images import ImageSet
from fedcore.data.readers import ddr
from fedcore.data.splits import split
from tests.support.data import layouts
from tests.support.data.layouts import WRITE, domains, image, label_of
from tests.support.data.loading import loaded
from tests.support.data.spoilers import rename, sampled


def follow(images: ImageSet) -> None:
    """Every image is of the class and domain of its row."""
    for row in range(len(images)):
        assert label_of(images.read(row).getpixel((3, 3))) == (images.labels[row], images.domain[row])


HOME = ("Art", "Clipart", "Product")
VARIATIONS = {
    "pacs, as DomainBed has it": ("pacs", "{domain}/{cls}/{n}.png", {}),
    "pacs, with images/": ("pacs", "PACS/images/{domain}/{cls}/pic_{n}.JPEG", {}),
    "office-home, Real_World": ("office-home", "{domain}/{cls}/{n}.png", {"folders": [*HOME, "Real_World"]}),
    "office-home, real": ("office-home", "{domain}/{cls}/{n}.jpg", {"folders": [*HOME, "real"]}),
    "office-home, RealWorld and lower case": (
        "office-home", "{domain}/{cls}/{n}.jpg", {"folders": ["art", "clipart", "product", "RealWorld"]}),
    "vlcs, first release with class numbers": (
        "vlcs", "VLCS/{domain}/full/{label}/{n}.jpg", {"folders": ["CALTECH", "LABELME", "SUN", "PASCAL"]}),
    "terra, short names": (
        "terra-incognita", "{domain}/{cls}/{n}.jpg", {"folders": ["L100", "L38", "L43", "L46"]}),
    "office31, without images/": ("office31", "domain_adaptation_images/{domain}/{cls}/{n}.jpg", {}),
    "office31, other class spelling": (
        "office31", "{domain}/images/{cls}/{n}.jpg",
        {"classes": ["Backpack", *(c.title() for c in catalog.entry("office31").classes[1:])]}),
    "office-caltech10, Caltech256's classes": (
        "office-caltech10", "office_caltech_10/{domain}/{cls}/{n}.jpg",
        {"classes": ["003.backpack", "224.touring-bike", "027.calculator", "101.head-phones",
                     "045.computer-keyboard", "127.laptop-101", "046.computer-monitor", "047.computer-mouse",
                     "041.coffee-mug", "238.video-projector"]}),
    "domainnet, unzipped into folders of their own": ("domainnet-126", "{domain}/{domain}/{cls}/{n}.jpg", {}),
    "eurosat, its folders alone": ("eurosat", "{cls}/{cls}_{n}.jpg", {}),
    "caltech101, a folder more": ("caltech101", "caltech-101/101_ObjectCategories/{cls}/image_{n}.jpg", {}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "more"), sampled(VARIATIONS, lambda case: case[0]))
def test_upstream_variations_are_one_data_set(name: str, pattern: str, more: dict, tmp_path: Path):
    """The same names, rows and keys (which every draw goes by) as the usual form has."""
    images = loaded(name, str(domains(tmp_path, name, pattern, **more)))
    follow(images)
    entry = catalog.entry(name)
    assert images.domains == entry.domains
    assert len(images) == 2 * len(entry.classes) * len(entry.domains)
    above = "" if entry.domains == ("all",) else f"{entry.domains[0]}/"
    assert images.keys[0].startswith(f"{above}{entry.classes[0]}/")
    assert images.split is None


def test_parts_above_the_domains_are_pooled_and_are_the_official_split(tmp_path: Path):
    for d, domain in enumerate(catalog.entry("pacs").domains):
        for c, cls in enumerate(catalog.entry("pacs").classes):
            for part, count in (("train", 3), ("val", 1), ("test", 2)):
                for n in range(count):
                    image(tmp_path / part / domain / cls / f"{n}.png", c, d)
    images = loaded("pacs", str(tmp_path))
    follow(images)
    assert np.bincount(split(images, "official", seed=1)).tolist() == [3 * 28, 28, 2 * 28]
    assert len(images.keys) == len(set(images.keys)) == 6 * 28
    assert images.keys[0] == "train/art_painting/dog/0.png"


def test_parts_below_the_domains_without_the_copies_in_full(tmp_path: Path):
    for d, domain in enumerate(("CALTECH", "LABELME", "SUN", "PASCAL")):
        for c in range(5):
            for part, n in (("train", 0), ("crossval", 1), ("test", 2), ("full", 0), ("full", 2)):
                image(tmp_path / domain / part / str(c) / f"{n}.jpg", c, d)
    images = loaded("vlcs", str(tmp_path))
    follow(images)
    assert images.classes == ("bird", "car", "chair", "dog", "person")
    assert np.bincount(split(images, "official", seed=1)).tolist() == [20, 20, 20]


def test_a_folder_of_ones_own_with_parts_and_a_folder_more(tmp_path: Path):
    for part, n in (("train", 3), ("test", 1)):
        for c, cls in enumerate(("b", "a")):
            for i in range(n):
                image(tmp_path / "flat" / part / cls / f"{i}.png", c)
                image(tmp_path / "deep" / "release-2" / part / "photo" / cls / f"{i}.png", c)
                image(tmp_path / "below" / "photo" / part / cls / f"{i}.png", c)
                image(tmp_path / "domains" / part / cls / f"{i}.png", c)
    for name, found in (("flat", ("all",)), ("deep", ("photo",)), ("below", ("all",))):
        images = loaded("folder", str(tmp_path / name))
        assert (images.domains, images.classes) == (found, ("a", "b"))
        assert np.bincount(split(images, "official", seed=1)).tolist() == [6, 0, 2]
    as_domains = loaded("folder", str(tmp_path / "domains"), ["train", "test"])
    assert as_domains.domains == ("test", "train") and as_domains.split is None


def test_domains_are_in_the_sets_order_and_unknown_ones_are_refused(tmp_path: Path):
    root = str(WRITE["office-home"](tmp_path))
    images = loaded("office-home", root, ["Real World", "Art"])
    assert images.domains == ("Art", "Real World")
    for chosen, text in ((["Reel World"], "did you mean 'Real World'"), ([], "no domain chosen")):
        with pytest.raises(FedLensError, match=text) as caught:
            loaded("office-home", root, chosen)
        assert caught.value.field == "data.domains"


def test_counts_that_the_literature_gives_are_compared(tmp_path: Path):
    root = str(WRITE["pacs"](tmp_path))
    (line,) = catalog.load("pacs", root)[1]
    assert line == (
        "PACS: 9,991 images expected, 56 found (art_painting 14 of 2,048, cartoon 14 of 2,344, "
        "photo 14 of 1,670, sketch 14 of 3,929)"
    )
    (line,) = catalog.load("pacs", root, ["sketch"])[1]
    assert line == "PACS: 3,929 images expected, 14 found"
    lines = catalog.load("domainnet", str(WRITE["domainnet"](tmp_path / "d")))[1]
    assert "DomainNet: 345 classes expected, 3 found" in lines


def test_the_lists_of_domainnet_126_choose_the_images(tmp_path: Path):
    """One image of every domain is not listed, and the folder holds a class that is none of the 126."""
    root = WRITE["domainnet-126"](tmp_path)
    images = loaded("domainnet-126", str(root))
    assert not any(key.endswith("_000003.jpg") for key in images.keys) and images.split is None
    for path in root.glob("*_list.txt"):
        path.unlink()
    whole = loaded("domainnet-126", str(root))
    follow(whole)
    assert len(whole) == len(images) + 4 and whole.classes == images.classes
    assert set(images.keys) < set(whole.keys)


def line_of(file: str, number: int, text: str):
    def spoil(root: Path) -> None:
        path = root / file
        lines = path.read_text().splitlines()
        lines[number] = text
        path.write_text("\n".join(lines))

    return spoil


EIFFEL = "clipart/The_Eiffel_Tower/clipart_000_000001.jpg"
BAD = {
    "nothing of it is there": ("pacs", rename("kfold", ".kfold"), "'art_painting' (nothing found)"),
    "a line without number": ("domainnet", line_of("clipart_train.txt", 0, EIFFEL), "is not 'clipart/class"),
    "a line of another domain": (
        "domainnet", line_of("real_test.txt", 0, f"{EIFFEL} 0"), "is not 'real/class/image.jpg number'"),
    "a line that leads outside": (
        "domainnet", line_of("clipart_test.txt", 0, f"../../{EIFFEL} 0"), "is not 'clipart/class/image.jpg"),
    "two numbers of one class": ("domainnet", line_of("clipart_train.txt", 0, f"{EIFFEL} 7"), "7 and 0"),
    "a class that is none of the 126": (
        "domainnet-126", line_of("clipart_list.txt", 0, "clipart/zigzag/clipart_345_000001.jpg 0"),
        "an unknown class folder 'zigzag', which DomainNet-126 does not have"),
    "ddr: a grade that is none": (
        "ddr", line_of("DR_grading/train.txt", 3, "20170413000000003.jpg 6"), "with grades 0 to 5"),
    "ddr: a path": ("ddr", line_of("DR_grading/test.txt", 0, "../x.jpg 1"), "with grades 0 to 5"),
    "ddr: no list": ("ddr", rename("DR_grading/valid.txt", "DR_grading/val.txt"), "no folder with"),
    "ddr: no images": ("ddr", lambda r: [p.write_bytes(b"") for p in r.rglob("*.jpg")], "no image that its"),
    "ddr: one size": (
        "ddr", lambda r: [Image.new("L", (9, 9), 90).save(p) for p in r.rglob("*.jpg")], "the same reso"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "spoil", "message"), sampled(BAD, lambda bad: bad[0]))
def test_other_folders_are_named_with_path_and_remedy(name, spoil, message, tmp_path: Path):
    root = WRITE[name](tmp_path)
    spoil(root)
    with pytest.raises(FedLensError) as caught:
        loaded(name, str(root))
    assert message in str(caught.value) and str(root) in str(caught.value)
    assert caught.value.field == "data.root"


def test_ddr_domains_follow_resolution_and_brightness(tmp_path: Path):
    images = loaded("ddr", str(WRITE["ddr"](tmp_path)))
    for row in range(len(images)):
        photo = images.read(row)
        shade = photo.getpixel((photo.width // 2, photo.height // 2))[0]
        light = "B" if shade > 150 else "D"
        assert images.domains[images.domain[row]] == ("H" if photo.width == 32 else "L") + light
        assert (shade - layouts.DDR_SHADES[light] + 1) // 2 == images.labels[row]


def test_ungradable_photographs_are_a_class_of_their_own_where_they_are_asked_for(tmp_path: Path):
    root = str(WRITE["ddr"](tmp_path))
    graded = loaded("ddr", root)
    everything, warnings = catalog.load("ddr-all", root)
    added = np.flatnonzero(everything.labels == 5)
    assert len(everything) == len(graded) + len(added) == len(graded) + 3
    assert all(everything.keys[row].endswith("ungradable.jpg") for row in added)
    assert not any("left out" in line for line in warnings)
    assert everything.fingerprint != graded.fingerprint
    some, warnings = catalog.load("ddr", root, ["LD", "HB"])
    chosen = np.isin(graded.domain, [graded.domains.index(d) for d in some.domains])
    assert set(some.keys) == {k for k, used in zip(graded.keys, chosen, strict=True) if used}
    assert "3 images left out" in warnings[0] and "ungradable (grade 5)" in warnings[0]


def test_an_earlier_release_of_terra_incognita_is_recognised_by_its_counts():
    entry = catalog.entry("terra-incognita")
    ((name, counts),) = entry.releases.items()
    assert (sum(entry.counts.values()), sum(counts.values())) == (24_330, 24_788)
    domain = np.repeat(np.arange(4), [counts[d] for d in entry.domains])

    def warnings(domain: np.ndarray) -> list[str]:
        images = ImageSet(
            name=entry.name,
            classes=entry.classes,
            domains=entry.domains,
            template=entry.template,
            labels=np.zeros_like(domain),
            domain=domain,
            keys=tuple(map(str, range(len(domain)))),
            fingerprint="",
            read=lambda _: Image.new("RGB", (1, 1)),
        )
        return catalog.count_warnings(entry, images)

    (line,) = warnings(domain)
    assert line == f"TerraIncognita: 24,330 images expected, 24,788 found, as in {name}"
    assert name not in warnings(domain[1:])[0]
    assert warnings(np.repeat(np.arange(4), [entry.counts[d] for d in entry.domains])) == []


def test_ddr_measures_every_photograph_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = WRITE["ddr"](tmp_path)
    first = loaded("ddr", str(root))
    measured: list[str] = []
    real = ddr.measure
    monkeypatch.setattr(ddr, "measure", lambda path: (measured.append(path.name), real(path))[1])
    assert loaded("ddr", str(root)).keys == first.keys and measured == []
    changed = root / "DR_grading" / "test" / "20170413000000000.jpg"
    os.utime(changed, ns=(1, 1))
    loaded("ddr", str(root))
    assert measured == [changed.name]


@pytest.mark.parametrize(
    ("values", "line"),
    [([1, 2, 3, 4], 3), ([1, 1, 1, 2], 2), ([1, 2, 2, 2], 2), ([1, 2, 3], 2), ([5, 5], None), ([], None)],
)
def test_the_dividing_value_divides_as_evenly_as_possible(values: list[float], line: float | None):
    assert ddr.dividing_value(np.array(values)) == line


def test_brightness_is_of_the_eye_not_of_the_black_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    photo = Image.new("L", (40, 40), 0)
    photo.paste(120, (10, 10, 30, 30))
    photo.save(tmp_path / "a.png")
    assert ddr.measure(tmp_path / "a.png") == (1600, 120.0)
    Image.new("L", (40, 40), 0).save(tmp_path / "dark.png")
    assert ddr.measure(tmp_path / "dark.png") == (1600, 0.0)
    (tmp_path / "b.png").write_bytes(b"no image")
    assert ddr.measure(tmp_path / "b.png") is None
    monkeypatch.setattr(ddr.Image, "open", lambda path: [][0])
    assert ddr.measure(tmp_path / "a.png") is None, "one of ``BROKEN``, as of an image of any other data set"
