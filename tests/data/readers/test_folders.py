"""Folders: the two layouts, what is refused, what is left out, and that pixels and labels stay together."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.data import image_files
from fedcore.data.readers.files import warnings
from fedcore.data.readers.layout import folder_layout
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
    images, left_out = read_folder(pets, name="pets")
    assert images.domains == ("photo", "sketch")
    assert images.classes == ("dog", "snow owl")
    assert images.keys[:2] == ("photo/dog/0.png", "photo/dog/1.png")
    assert np.bincount(images.domain * 2 + images.labels).tolist() == [2, 2, 2, 2]
    assert len(images) == 8 and left_out == []


def test_class_image_is_one_domain(pets: Path):
    images, _ = read_folder(pets / "photo")
    assert images.domains == ("all",)
    assert images.classes == ("dog", "snow owl")
    assert folder_layout(pets / "photo", ["all"]).classes == ("dog", "snow_owl")


@pytest.mark.parametrize("name", ["a.JPG", "a.jpeg", "a.PNG", "a.webp"])
def test_suffixes_in_any_case(pets: Path, name: str):
    save(pets / "photo" / "dog" / name, format={"j": "JPEG", "p": "PNG", "w": "WEBP"}[name[2].lower()])
    assert f"photo/dog/{name}" in read_folder(pets)[0].keys


def test_hidden_files_and_other_types_are_not_images(pets: Path):
    save(pets / "photo" / "dog" / ".hidden.png")
    (pets / "photo" / "dog" / "Thumbs.db").write_bytes(b"x")
    (pets / "photo" / "dog" / "notes.txt").write_text("x")
    (pets / ".git").mkdir()
    save(pets / "__MACOSX" / "dog" / "a.png")
    images, left_out = read_folder(pets)
    assert len(images) == 8 and left_out == []


def test_other_folders_do_not_matter_when_domains_are_named(pets: Path):
    (pets / "splits").mkdir()
    assert folder_layout(pets, ["photo", "sketch"]).domains == ("photo", "sketch")


def test_a_jpeg_with_padding_after_its_end_is_fine(pets: Path):
    path = save(pets / "photo" / "dog" / "padded.jpg")
    path.write_bytes(path.read_bytes() + bytes(500))
    assert "photo/dog/padded.jpg" in read_folder(pets)[0].keys


def test_a_cut_jpeg_is_found_although_its_thumbnail_has_an_end(pets: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = pets / "photo" / "dog" / "cut.jpg"
    Image.fromarray(pixels).save(path, comment=b"thumbnail \xff\xd9")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (left_out,) = read_folder(pets)[1]
    assert left_out.path == "photo/dog/cut.jpg"


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode).save(path)
    image = image_files.decode(path)
    assert image.mode == "RGB"
    assert image.getpixel((1, 1)) == (255, 255, 255)


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
    images, left_out = read_folder(pets)
    assert images.classes == ("dog", "snow owl")
    assert images.empty_cells() == (("photo", "dog"),)
    assert warnings(pets, images, left_out) == [f"{pets}: no images of photo/dog"]


def test_a_root_that_is_itself_a_link_is_fine(pets: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(pets)
    assert read_folder(tmp_path / "link")[0].fingerprint == read_folder(pets)[0].fingerprint
