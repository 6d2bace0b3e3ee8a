"""``data check``: everything odd in a data set is found, nothing is lost, and loading heeds what it found."""

import os
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress
from fedcore.data import catalog, image_files
from fedcore.data.check import KINDS, CheckReport, DataFinding, check_dataset, recognised
from fedcore.data.readers.loaders import detect_format
from tests.support.data.layouts import WRITE, read_folder
from tests.support.data.loading import loaded
from tests.support.data.spoilers import bomb, cut, write
from tests.support.work import collect

DOMAINS, CLASSES = ("photo", "sketch"), ("dog", "owl")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def noise(seed: int, size: int = 24) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """domain/class/image, three images each, all different."""
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            folder = tmp_path / "pets" / domain / name
            folder.mkdir(parents=True)
            for i in range(3):
                noise(100 * d + 10 * c + i).save(folder / f"{i}.jpg")
    return tmp_path / "pets"


def finding(report: CheckReport, kind: str) -> DataFinding | None:
    return next((f for f in report.findings if f.kind == kind), None)


def report(name: str, root: Path | None = None, **options: object) -> CheckReport:
    steps, result = collect(check_dataset(name, str(root) if root else None, **options))
    assert all(isinstance(step, Progress) for step in steps)
    assert all(0 <= step.done <= step.total for step in steps if step.total)
    assert isinstance(result, CheckReport)
    assert CheckReport.model_validate_json(result.model_dump_json()) == result
    return result


def test_a_good_folder_has_nothing_odd(pets: Path):
    found = report("folder", pets)
    assert found.error is None and found.findings == () and found.left_out == 0
    assert (found.images, found.domains, found.classes) == (12, DOMAINS, CLASSES)
    assert found.counts == ((3, 3), (3, 3))
    assert found.samples["photo"] == tuple(f"photo/{c}/{i}.jpg" for c in CLASSES for i in range(3))


def _broken_middle(p: Path) -> None:
    noise(0, size=64).save(p / "photo/dog/x.jpg")
    content = bytearray((p / "photo/dog/x.jpg").read_bytes())
    content[len(content) // 2] = 0xFF
    (p / "photo/dog/x.jpg").write_bytes(content)


def _animated(p: Path) -> None:
    noise(7).save(p / "photo/dog/x.webp", save_all=True, append_images=[noise(8)])


def _cmyk(p: Path) -> None:
    noise(7).convert("CMYK").save(p / "photo/dog/x.jpg")


def _deep(p: Path) -> None:
    Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 257).save(p / "photo/dog/x.png")


def _turned(p: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(7).save(p / "photo/dog/x.jpg", exif=exif)


def _copy(p: Path) -> None:
    (p / "photo/dog/x.jpg").write_bytes((p / "photo/dog/0.jpg").read_bytes())


def _copy_of_other_class(p: Path) -> None:
    (p / "photo/owl/x.jpg").write_bytes((p / "photo/dog/0.jpg").read_bytes())


def _copy_of_other_domain(p: Path) -> None:
    (p / "sketch/dog/x.jpg").write_bytes((p / "photo/dog/0.jpg").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "kind", "images", "path"),
    [
        (write("photo/dog/x.jpg", b""), "empty", 12, "photo/dog/x.jpg"),
        (cut("photo/dog/x.png", "PNG"), "truncated", 12, "photo/dog/x.png"),
        (_broken_middle, "unreadable", 12, "photo/dog/x.jpg"),
        (write("photo/dog/x.jpg", "<html>404</html>"), "not an image", 12, "photo/dog/x.jpg"),
        (bomb, "huge", 12, "photo/dog/x.png"),
        (_animated, "animated", 13, "photo/dog/x.webp"),
        (_cmyk, "CMYK", 13, "photo/dog/x.jpg"),
        (_deep, "16 bit", 13, "photo/dog/x.png"),
        (_turned, "turned", 13, "photo/dog/x.jpg"),
        (write("photo/dog/x.txt", "notes"), "other", 12, "photo/dog/x.txt"),
        (_copy, "copies", 13, "photo/dog/0.jpg = photo/dog/x.jpg"),
        (_copy_of_other_class, "labels", 13, "photo/dog/0.jpg = photo/owl/x.jpg"),
        (_copy_of_other_domain, "domains", 13, "photo/dog/0.jpg = sketch/dog/x.jpg"),
    ],
)
def test_each_kind_of_oddity_is_found_with_its_path(pets: Path, spoil, kind: str, images: int, path: str):
    spoil(pets)
    found = report("folder", pets)
    (finding,) = found.findings
    assert (finding.kind, finding.count, finding.paths) == (kind, 1, (path,))
    assert found.images == images == loaded("folder", str(pets)).labels.size
    assert found.left_out == 12 + (kind != "other") - images
    assert path in finding.line and finding.line.startswith(f"1 {finding.what} ({KINDS[kind][1]})")


def test_copies_in_train_and_test_are_found(tmp_path: Path):
    for d, part in enumerate(("train", "test")):
        for c, name in enumerate(CLASSES):
            folder = tmp_path / "set" / part / name
            folder.mkdir(parents=True)
            for i in range(3):
                noise(100 * d + 10 * c + i).save(folder / f"{i}.png")
    leaked = tmp_path / "set/test/dog/leak.png"
    leaked.write_bytes((tmp_path / "set/train/dog/1.png").read_bytes())
    found = report("folder", tmp_path / "set")
    (finding,) = found.findings
    assert finding.kind == "train and test"
    assert finding.paths == ("test/dog/leak.png = train/dog/1.png",)


def test_a_class_without_images_in_a_domain_is_found(pets: Path):
    for file in (pets / "sketch/owl").iterdir():
        file.unlink()
    found = report("folder", pets)
    assert finding(found, "no images").paths == ("sketch/owl",)
    assert found.counts == ((3, 3), (3, 0))


def test_links_to_themselves_lead_nowhere_and_the_rest_is_read(pets: Path):
    before = report("folder", pets).images
    for name in ("me", "photo/me", "photo/dog/me", "photo/dog/me.jpg"):
        (pets / name).symlink_to(Path(name).name)
    found = report("folder", pets)
    assert (found.error, found.images) == (None, before)
    assert finding(found, "unreadable").paths == ("photo/dog/me.jpg",)
    rows = ["path,label", *(f"photo/{c}/{n}.jpg,{c}" for c in ("dog", "owl") for n in (0, 1))]
    (pets / "list.csv").write_text("\n".join([*rows, "photo/dog/me.jpg,dog"]))
    found = report("manifest", pets / "list.csv")
    assert (found.error, finding(found, "missing").paths) == (None, ("photo/dog/me.jpg",))


def test_links_to_missing_files_are_left_out_and_named(pets: Path, tmp_path: Path):
    before = report("folder", pets).images
    for name, target in (
        ("far", tmp_path / "gone"),
        ("photo/dog/a.jpg", tmp_path / "gone.jpg"),
        ("photo/x", "gone"),
    ):
        (pets / name).symlink_to(target)
    found = report("folder", pets)
    assert (found.error, found.images) == (None, before)
    assert finding(found, "unreadable").paths == ("photo/dog/a.jpg",)
    rows = ["path,label", *(f"photo/{c}/{n}.jpg,{c}" for c in ("dog", "owl") for n in (0, 1))]
    (pets / "list.csv").write_text("\n".join([*rows, "photo/dog/a.jpg,dog"]))
    assert finding(report("manifest", pets / "list.csv"), "missing").paths == ("photo/dog/a.jpg",)


def test_links_that_leave_the_folder_are_listed_and_refused(pets: Path, tmp_path: Path):
    noise(7).save(tmp_path / "outside.jpg")
    (tmp_path / "elsewhere").mkdir()
    (pets / "photo/dog/link.jpg").symlink_to(tmp_path / "outside.jpg")
    (pets / "photo/dog/inside.jpg").symlink_to(pets / "photo/dog/0.jpg")
    (pets / "far").symlink_to(tmp_path / "elsewhere")
    (pets / "photo/owl/x.jpg").touch()
    found = report("folder", pets)
    assert found.error and "is a link that leaves the folder" in found.error
    assert found.images == 0
    assert finding(found, "link").paths == ("far", "photo/dog/link.jpg")
    assert finding(found, "empty").paths == ("photo/owl/x.jpg",), "the rest is looked at all the same"


def test_what_does_not_load_is_looked_at_all_the_same(pets: Path):
    for name in ("lists", "more"):
        (pets / name).mkdir()
        noise(7).save(pets / name / "stray.png")
    _cmyk(pets)
    found = report("folder", pets)
    assert found.error and "expected domain/class/image" in found.error
    assert finding(found, "CMYK").paths == ("photo/dog/x.jpg",)


def test_images_of_no_class_are_said(pets: Path):
    noise(7).save(pets / "photo/cover.png")
    found = report("folder", pets, domains=["sketch"])
    assert found.images == 6
    assert finding(found, "unused").count == 7


def test_long_lists_are_counted_and_cut(pets: Path):
    for i in range(120):
        (pets / f"photo/dog/e{i:03d}.jpg").touch()
    empty = finding(report("folder", pets), "empty")
    assert empty.count == 120 and len(empty.paths) == 50
    assert empty.line.endswith("; ...") and empty.line.startswith("120 files of zero bytes")


def test_what_the_check_finds_broken_is_left_out_by_loading(pets: Path):
    """The ends of the file are whole, so loading alone does not see it: a run would stop on it."""
    _broken_middle(pets)
    before = loaded("folder", str(pets))
    row = before.keys.index("photo/dog/x.jpg")
    message = r"photo/dog/x\.jpg: can no longer be decoded .*`data check` leave it out"
    with pytest.raises(FedLensError, match=message):
        before.read(row)
    report("folder", pets)
    after, warnings = catalog.load("folder", str(pets))
    assert len(after) == 12 and after.fingerprint != before.fingerprint
    assert "1 image left out (photo/dog/x.jpg: unreadable" in warnings[0]
    os.utime(pets / "photo/dog/x.jpg", ns=(0, 0))
    assert len(loaded("folder", str(pets))) == 13, "a changed file is judged anew"


def test_verdicts_that_cannot_be_kept_or_read_cost_nothing_but_time(pets: Path, cache: Path):
    cache.write_text("no folder")
    assert report("folder", pets).images == 12
    cache.unlink()
    report("folder", pets)
    (verdicts,) = (cache / "verdicts").iterdir()
    verdicts.write_text("{damaged")
    (pets / "photo/dog/x.jpg").touch()
    assert len(read_folder(pets)[0]) == 12


def test_no_flipped_bit_of_the_cache_admits_another_image(tmp_path: Path, cache: Path):
    """A changed row number left out a sound image and let a broken one in."""
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for i, file in enumerate(files):
        noise(i).save(file)
    files[1].write_bytes(b"")
    expected = image_files.cached_reasons(files)
    assert expected == [None, "empty file", None]
    image_files.save_reasons(files, expected)
    (verdicts,) = (cache / "verdicts").iterdir()
    content = verdicts.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        verdicts.write_bytes(bytes(damaged))
        assert image_files.cached_reasons(files) == expected, damaged


def test_a_manifest_is_checked_with_its_lines(pets: Path):
    rows = [f"{d}/{c}/{i}.jpg,{c},{d}" for d in DOMAINS for c in CLASSES for i in range(3)]
    path = pets / "list.csv"
    path.write_text("\n".join(["path,label,domain", *rows, "gone.jpg,dog,photo"]))
    assert detect_format(path) == "manifest" and detect_format(pets) == "folder"
    found = report("manifest", path)
    assert found.images == 12 and found.left_out == 1
    assert finding(found, "missing").paths == ("gone.jpg",)
    assert [f.kind for f in found.findings] == ["missing"]  # the manifest itself was looked at


def test_ungradable_photographs_are_called_so(tmp_path: Path):
    root = WRITE["ddr"](tmp_path)
    found = report("ddr", root)
    assert [(f.kind, f.count) for f in found.findings if f.kind in ("no grade", "unreadable")] == [
        ("no grade", 3)
    ]
    assert found.left_out == 3
    again = report("ddr", root)
    assert (tmp_path / "DR_grading" / "fedlens-brightness.json").is_file() and again == found


@pytest.mark.parametrize("name", ["ddr", "domainnet", "flowers102"])
def test_files_of_labels_are_not_called_unread(name: str, tmp_path: Path):
    root = WRITE[name](tmp_path / "set")
    (root / "notes.txt").write_text("mine")
    other = finding(report(name, root), "other")
    names = [p.rpartition("/")[2] for p in other.paths]
    unread = ("classes.txt", "labels.txt", "list.txt", "train.txt", "test.txt")  # upstream, and no loader's
    upstream = [n for n in names if n.endswith("_boxes.txt") or (n in unread and name not in ("ddr", "dtd"))]
    assert [n for n in names if n not in upstream] == ["notes.txt"]


def test_a_saved_data_set_is_checked_row_by_row(tmp_path: Path):
    datasets.disable_progress_bars()
    buffers = []
    for i, image in enumerate((noise(1), noise(2), noise(3).convert("CMYK"), noise(1))):
        image.save(tmp_path / f"{i}.jpg")
        buffers.append({"bytes": (tmp_path / f"{i}.jpg").read_bytes(), "path": None})
    buffers += [{"bytes": b"x", "path": None}, {"bytes": buffers[0]["bytes"][:99], "path": None}]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    content = {"image": [*buffers, buffers[1]], "label": [0, 1, 1, 1, 0, 0, -1]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(str(tmp_path / "saved"))
    assert detect_format(tmp_path / "saved") == "hf-dataset"
    found = report("hf-dataset", tmp_path / "saved")
    assert {f.kind: f.paths for f in found.findings} == {
        "truncated": ("row/0000005",),
        "not an image": ("row/0000004",),
        "no label": ("row/0000006",),
        "no images": ("all/c",),
        "labels": ("row/0000000 = row/0000003",),
        "CMYK": ("row/0000002",),
    }
    assert found.images == 4 and found.left_out == 3


def test_what_is_not_there_is_an_error():
    with pytest.raises(FedLensError, match="no folder /nowhere; give the folder of PACS") as caught:
        collect(check_dataset("pacs", "/nowhere"))
    assert caught.value.field == "data.root"


def test_the_folders_of_the_system_are_refused_without_a_search():
    found = report("folder", Path("/dev"))
    assert found.error == "/dev is not a data set; give the folder that holds one" and not found.findings


def test_the_documentation_lists_every_kind_of_finding():
    page = (Path(__file__).parents[3] / "docs" / "own-data.md").read_text(encoding="utf-8")
    for kind, (_, treatment) in KINDS.items():
        several = DataFinding(kind=kind, count=2, paths=())
        assert f"| {several.what} | {treatment} |" in page


def test_a_file_that_breaks_after_the_check_stops_the_encoding_with_its_path(pets: Path):
    from fedcore.clip.encodings import batches

    report("folder", pets)
    images = loaded("folder", str(pets))
    (pets / "sketch/dog/1.jpg").write_bytes(b"gone")
    pixels = batches(images.read, lambda i: torch.zeros(3, i.height, i.width), len(images), workers=2)
    with pytest.raises(
        FedLensError, match=r"sketch/dog/1\.jpg: can no longer be decoded .*restore or remove"
    ):
        list(pixels)
    assert len(loaded("folder", str(pets))) == 11, "the next start leaves it out"


def test_a_folder_with_the_domains_classes_and_counts_of_a_data_set_is_recognised() -> None:
    pacs = catalog.entry("pacs")
    counts = tuple((pacs.counts[d] - 6, *[1] * 6) for d in reversed(pacs.domains))
    report = CheckReport(
        name="folder",
        root="/x",
        images=sum(pacs.counts.values()),
        domains=("sketch", "Photo", "cartoon", "art painting"),
        classes=pacs.classes,
        counts=counts,
    )
    assert recognised(report) == "pacs"
    (first, *row), *rest = counts
    assert recognised(report.model_copy(update={"counts": ((first - 1, *row), *rest)})) is None
    assert recognised(report.model_copy(update={"classes": (*pacs.classes[1:], "cat")})) is None
