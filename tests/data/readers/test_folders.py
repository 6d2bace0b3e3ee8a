"""Folders: the two layouts, what is refused, what is left out, and that pixels and labels stay together."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.data import image_files
from fedcore.data.readers.layout import folder_layout
from fedcore.errors import FedLensError
from tests.support.data.layouts import read_folder


def save(path: Path, colour: tuple[int, int, int] = (200, 30, 30), **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 12), colour).save(path, **options)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two domains, two classes, two images each."""
    for d, domain in enumerate(("sketch", "photo")):
        for c, name in enumerate(("dog", "snow_owl")):
            for i in range(2):
                save(tmp_path / "pets" / domain / name / f"{i}.png", (100 * d, 100 * c, i))
    return tmp_path / "pets"


def test_domain_class_image(pets: Path):
    images, report = read_folder(pets, name="pets")
    assert images.domains == ("photo", "sketch")
    assert images.classes == ("dog", "snow owl")
    assert images.keys[:2] == ("photo/dog/0.png", "photo/dog/1.png")
    assert np.bincount(images.domain * 2 + images.labels).tolist() == [2, 2, 2, 2]
    assert report.images == 8
    assert report.warnings() == []


def test_labels_and_domains_are_those_of_the_pixels(pets: Path):
    images, _ = read_folder(pets)
    for i in range(len(images)):
        red, green, _ = images.read(i).getpixel((0, 0))
        assert images.domains[images.domain[i]] == ("sketch", "photo")[red // 100]
        assert images.classes[images.labels[i]] == ("dog", "snow owl")[green // 100]


def test_class_image_is_one_domain(pets: Path):
    images, _ = read_folder(pets / "photo")
    assert images.domains == ("all",)
    assert images.classes == ("dog", "snow owl")
    assert folder_layout(pets / "photo", ["all"]).classes == ("dog", "snow_owl")


@pytest.mark.parametrize("name", ["a.jpg", "a.JPG", "a.jpeg", "a.JPEG", "a.png", "a.PNG", "a.webp"])
def test_suffixes_in_any_case(pets: Path, name: str):
    save(pets / "photo" / "dog" / name, format={"j": "JPEG", "p": "PNG", "w": "WEBP"}[name[2].lower()])
    assert f"photo/dog/{name}" in read_folder(pets)[0].keys


def test_hidden_files_and_other_types_are_not_images(pets: Path):
    save(pets / "photo" / "dog" / ".hidden.png")
    (pets / "photo" / "dog" / "Thumbs.db").write_bytes(b"x")
    (pets / "photo" / "dog" / "notes.txt").write_text("x")
    (pets / ".git").mkdir()
    save(pets / "__MACOSX" / "dog" / "a.png")
    images, report = read_folder(pets)
    assert len(images) == 8
    assert report.left_out == ()


def test_some_domains_only(pets: Path):
    images, _ = read_folder(pets, domains=["sketch"])
    assert images.domains == ("sketch",)
    assert all(key.startswith("sketch/") for key in images.keys)


def test_other_folders_do_not_matter_when_domains_are_named(pets: Path):
    (pets / "splits").mkdir()
    assert folder_layout(pets, ["photo", "sketch"]).domains == ("photo", "sketch")


def truncated(path: Path, keep: float, **options: object) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def bomb(path: Path) -> None:
    """A PNG of a few bytes that claims 60,000 x 60,000 pixels."""
    content = b"\x89PNG\r\n\x1a\n"
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(100))),
    )
    for kind, body in chunks:
        content += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    path.write_bytes(content)


def test_unusable_images_are_listed_left_out_and_counted(pets: Path):
    dog = pets / "photo" / "dog"
    (dog / "empty.jpg").touch()
    (dog / "text.png").write_text("this is no image")
    truncated(dog / "cut.jpg", 0.5)
    truncated(dog / "cut.png", 0.5)
    truncated(dog / "cut.webp", 0.5, lossless=True)
    bomb(dog / "huge.png")
    images, report = read_folder(pets)
    assert len(images) == 8
    reasons = {x.path.removeprefix("photo/dog/"): x.reason for x in report.left_out}
    assert set(reasons) == {"empty.jpg", "text.png", "cut.jpg", "cut.png", "cut.webp", "huge.png"}
    assert reasons["empty.jpg"] == "empty file"
    assert reasons["text.png"] == "not an image"
    assert "truncated" in reasons["cut.jpg"]
    assert "89,478,485 pixels" in reasons["huge.png"]
    (line,) = report.warnings()
    assert "6 images left out" in line
    assert "photo/dog/cut.jpg" in line


def test_a_jpeg_with_padding_after_its_end_is_fine(pets: Path):
    path = save(pets / "photo" / "dog" / "padded.jpg")
    path.write_bytes(path.read_bytes() + bytes(500))
    assert "photo/dog/padded.jpg" in read_folder(pets)[0].keys


def test_a_cut_jpeg_is_found_although_its_thumbnail_has_an_end(pets: Path):
    truncated(pets / "photo" / "dog" / "cut.jpg", 0.5, comment=b"thumbnail \xff\xd9")
    (left_out,) = read_folder(pets)[1].left_out
    assert left_out.path == "photo/dog/cut.jpg"


def test_exif_orientation_is_applied(pets: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    path = save(pets / "photo" / "dog" / "turned.jpg", exif=exif)
    assert Image.open(path).size == (16, 12)
    assert image_files.decode(path).size == (12, 16)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode).save(path)
    image = image_files.decode(path)
    assert image.mode == "RGB"
    assert image.getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bit_grey_keeps_its_greys(tmp_path: Path):
    grey = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    assert np.asarray(image_files.decode(tmp_path / "deep.png"))[..., 0].tolist() == [[0, 100], [200, 255]]


def test_a_file_that_breaks_after_the_check_is_named(pets: Path):
    images, _ = read_folder(pets)
    (pets / "photo" / "dog" / "0.png").write_bytes(b"gone")
    with pytest.raises(FedLensError, match=r"photo/dog/0\.png: can no longer be decoded"):
        images.read(0)


def test_the_fingerprint_follows_the_files(pets: Path):
    first = read_folder(pets)[0].fingerprint
    assert read_folder(pets)[0].fingerprint == first
    path = pets / "photo" / "dog" / "0.png"
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    touched = read_folder(pets)[0].fingerprint
    assert touched != first
    path.rename(path.with_name("2.png"))
    assert read_folder(pets)[0].fingerprint not in (first, touched)


def test_a_class_without_images_in_one_domain_is_a_warning(pets: Path):
    for path in (pets / "photo" / "dog").iterdir():
        path.unlink()
    images, report = read_folder(pets)
    assert images.classes == ("dog", "snow owl")
    assert report.empty == (("photo", "dog"),)
    assert "no images of photo/dog" in report.warnings()[0]


def test_links_within_the_folder_are_followed(pets: Path):
    (pets / "photo" / "dog" / "again.png").symlink_to(pets / "photo" / "dog" / "0.png")
    assert "photo/dog/again.png" in read_folder(pets)[0].keys


def test_a_root_that_is_itself_a_link_is_fine(pets: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(pets)
    assert read_folder(tmp_path / "link")[0].fingerprint == read_folder(pets)[0].fingerprint


def remove(path: Path) -> None:
    for child in path.iterdir():
        child.unlink()
    path.rmdir()


def _missing(p: Path) -> Path:
    return p / "nowhere"


def _file(p: Path) -> Path:
    return p / "photo" / "dog" / "0.png"


def _no_folders(p: Path) -> Path:
    return p / "photo" / "dog"


def _no_images(p: Path) -> Path:
    for path in p.rglob("*.png"):
        path.unlink()
    return p


def _all_unreadable(p: Path) -> Path:
    for path in p.rglob("*.png"):
        path.write_bytes(b"")
    return p


def _missing_class(p: Path) -> Path:
    save(p / "art" / "dog" / "0.png")
    save(p / "art" / "snow_owl" / "0.png")
    remove(p / "sketch" / "dog")
    return p


def _extra_class(p: Path) -> Path:
    save(p / "art" / "dog" / "0.png")
    save(p / "art" / "snow_owl" / "0.png")
    save(p / "sketch" / "snow_owls" / "0.png")
    return p


def _mixed_levels(p: Path) -> Path:
    save(p / "stray" / "0.png")
    return p


def _bare_folder(p: Path) -> Path:
    (p / "lists").mkdir()
    (p / "lists" / "train.txt").write_text("x")
    return p


def _same_names(p: Path) -> Path:
    for domain in ("photo", "sketch"):
        save(p / domain / "snow owl" / "0.png")
    return p


def _link_out(p: Path) -> Path:
    save(p.parent / "outside.png")
    (p / "photo" / "dog" / "link.png").symlink_to(p.parent / "outside.png")
    return p


def _folder_link_out(p: Path) -> Path:
    save(p.parent / "elsewhere" / "dog" / "0.png")
    (p / "other").symlink_to(p.parent / "elsewhere")
    return p


def _link_upwards(p: Path) -> Path:
    (p / "again").symlink_to(p)
    return p


BAD = {
    "missing": (_missing, "no folder .*nowhere; give"),
    "a file": (_file, "is a file; unpack"),
    "images at the top": (_no_folders, "no folders in it; expected domain/class/image"),
    "no images": (_no_images, "no readable image of type .jpg"),
    "nothing readable": (_all_unreadable, r"no readable image .*photo/dog/0.png: empty file"),
    "a class missing": (
        _missing_class,
        "domain 'sketch' has no class folder 'dog' that the other domains have; add",
    ),
    "a class too many": (
        _extra_class,
        "domain 'sketch' has a class folder 'snow_owls' .*rename it .*snow_owl",
    ),
    "images beside class folders": (_mixed_levels, "folder 'stray' holds images, but"),
    "a folder of something else": (_bare_folder, "folder 'lists' holds neither"),
    "two classes of one name": (_same_names, "'snow owl' and 'snow_owl' read the same"),
    "a link to a file outside": (_link_out, "link.png is a link that leaves the folder"),
    "a link to a folder outside": (_folder_link_out, "other is a link that leaves the folder"),
    "a link to the folder itself": (_link_upwards, "again is a link to a folder that it lies in; remove"),
}


@pytest.mark.parametrize(("spoil", "text"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_used_says_where_and_what_to_do(pets: Path, spoil, text: str):
    with pytest.raises(FedLensError, match=text) as caught:
        read_folder(spoil(pets))
    assert caught.value.field == "data.root"
    assert "\n" not in str(caught.value)


def test_an_unknown_domain_names_the_nearest(pets: Path):
    with pytest.raises(FedLensError, match="no domain folder 'photos'; did you mean 'photo'") as caught:
        read_folder(pets, domains=["photos"])
    assert caught.value.field == "data.domains"
