"""Image files of every kind become the pixels that are meant, also as drafts and as rows of features."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.config import DataConfig, Experiment, expand
from fedcore.config.identity import group_hash
from fedcore.data import image_files
from fedcore.data.image_files import decode
from fedcore.data.images import with_draft_decoding
from fedcore.engine.prepare import load_images
from tests.support.data.layouts import read_folder
from tests.support.data.loading import loaded


def noise(size: int = 64, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path):
    grey = np.array([[0, 256, 257], [257 * 100, 257 * 200, 65535]], dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    pixels = np.asarray(image_files.decode(tmp_path / "deep.png"))
    assert pixels[..., 0].tolist() == [[0, 1, 1], [100, 200, 255]]
    assert (pixels == pixels[..., :1]).all()
    assert image_files.check_file(tmp_path / "deep.png").sixteen_bit


def test_sixteen_bits_of_colour_are_seen_and_scaled(tmp_path: Path):
    row = b"\0" + b"".join(struct.pack(">HHH", 65535, 257 * 100, 0) for _ in range(2))
    content = b"\x89PNG\r\n\x1a\n"
    for kind, body in (
        (b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row)),
        (b"IEND", b""),
    ):
        content += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    (tmp_path / "deep.png").write_bytes(content)
    assert image_files.check_file(tmp_path / "deep.png").sixteen_bit
    assert image_files.decode(tmp_path / "deep.png").getpixel((0, 0)) == (255, 100, 0)


@pytest.mark.parametrize(
    ("ink", "colour"),
    [((0, 255, 255, 0), (255, 0, 0)), ((255, 0, 0, 0), (0, 255, 255)), ((0, 0, 0, 255), (0, 0, 0))],
)
def test_cmyk_keeps_its_colours(tmp_path: Path, ink: tuple[int, ...], colour: tuple[int, ...]):
    Image.new("CMYK", (16, 16), ink).save(tmp_path / "a.jpg", quality=95)
    assert image_files.check_file(tmp_path / "a.jpg").mode == "CMYK"
    got = np.array(image_files.decode(tmp_path / "a.jpg").getpixel((8, 8)), dtype=int)
    assert np.abs(got - colour).max() <= 4


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_every_exif_orientation_is_turned_upright(tmp_path: Path, orientation: int):
    """The red corner is upper left once upright, wherever it is stored."""
    image = Image.new("RGB", (32, 16))
    image.paste((255, 0, 0), (0, 0, 8, 8))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose that undoes each
    stored = image if orientation == 1 else image.transpose(back[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95)
    upright = image_files.decode(tmp_path / "a.jpg")
    assert upright.size == (32, 16)
    assert upright.getpixel((3, 3))[0] > 200 and upright.getpixel((28, 12))[0] < 50
    assert image_files.check_file(tmp_path / "a.jpg").rotated == (orientation != 1)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_of_an_animation_the_first_frame_is_used(tmp_path: Path, kind: str):
    frames = [Image.new("RGB", (8, 8), c) for c in ((255, 0, 0), (0, 0, 255))]
    path = tmp_path / f"a.{kind.lower()}"
    options = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(path, kind, save_all=True, append_images=frames[1:], **options)
    assert image_files.check_file(path).frames == 2
    assert image_files.decode(path).getpixel((4, 4)) == (255, 0, 0)


def test_a_jpeg_that_is_broken_in_its_middle_is_found_by_the_thorough_check_only():
    content = bytearray(encoded(noise(), "JPEG"))
    content[len(content) // 2] = 0xFF
    assert list(image_files.unusable_reasons([bytes(content)])) == [None]
    check = image_files.check_file(bytes(content))
    assert check.kind == "unreadable" and "broken data stream" in (check.reason or "")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about damaged TIFF tags
@pytest.mark.parametrize(
    "kind",
    ["PNG", "JPEG", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("WEBP", "GIF", "BMP", "TIFF"))],
)
def test_whatever_bytes_are_damaged_nothing_but_a_reason_comes_out(kind: str, tmp_path: Path):
    """And what passes the thorough check can be decoded."""
    whole = encoded(noise(24), kind)
    rng = np.random.default_rng(1)
    reasons = 0
    for trial in range(60):
        content = bytearray(whole)
        for place in rng.integers(0, len(content), 1 + trial % 8):
            content[place] = rng.integers(0, 256)
        if trial % 3 == 0:
            content = content[: rng.integers(1, len(content))]
        (tmp_path / "a").write_bytes(content)
        check = image_files.check_file(bytes(content))
        reasons += check.reason is not None
        if check.reason is None:
            image_files.decode(tmp_path / "a")
    assert reasons > 10


def test_a_file_that_is_gone_is_unreadable_when_checked_and_named_when_decoded(tmp_path: Path):
    assert "No such file" in (next(image_files.unusable_reasons([tmp_path / "gone.jpg"])) or "")
    with pytest.raises(FedLensError, match=r"gone\.jpg: can no longer be decoded .*; restore or remove it"):
        image_files.decode(tmp_path / "gone.jpg")


def test_threads_keep_the_order_and_hold_few_results():
    taken = []

    def source():
        for i in range(5000):
            taken.append(i)
            yield i

    results = image_files.map_in_threads(lambda i: i * 2, source())
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert len(taken) < 500
    assert list(results)[-1] == 9998


@pytest.fixture
def root(tmp_path):
    """A photo domain with a large and a small JPEG and a PNG, for each of two classes."""
    for name in ("cat", "dog"):
        folder = tmp_path / "set" / "photo" / name
        folder.mkdir(parents=True)
        noise = np.random.default_rng(len(name)).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).resize((800, 600))
        picture.save(folder / "large.jpg")
        picture.resize((80, 60)).save(folder / "small.jpg")
        picture.save(folder / "whole.png")
    return tmp_path / "set"


def test_large_jpegs_shrink_no_further_than_asked(root):
    folder = root / "photo" / "cat"
    assert decode(folder / "large.jpg").size == (800, 600)
    assert decode(folder / "large.jpg", 224).size == (400, 300)  # 1/4 would be 150 high
    assert decode(folder / "large.jpg", 64).size == (100, 75)
    assert decode(folder / "small.jpg", 224).size == (80, 60)
    assert decode(folder / "whole.png", 64).size == (800, 600)


def test_drafts_have_a_key_of_their_own(root):
    images, _ = read_folder(root)
    quick = with_draft_decoding(images, 224)
    assert images.read(0).size == (800, 600) and quick.read(0).size == (400, 300)
    assert len({images.fingerprint, quick.fingerprint, with_draft_decoding(images, 64).fingerprint}) == 3
    assert quick.keys == images.keys and quick.labels.tolist() == images.labels.tolist()


def test_what_has_no_files_stays_as_it_is():
    images = loaded("shapes")
    assert with_draft_decoding(images, 224) is images


def test_the_config_chooses_and_the_backbone_sets_the_size(root):
    experiment = Experiment(methods=[{"name": "zero-shot"}], data=DataConfig(name="folder", root=str(root)))
    run = expand(experiment)[0]
    quick = run.model_copy(update={"data": run.data.model_copy(update={"decode": "draft"})})
    assert load_images(run)[0].read(0).size == (800, 600)
    assert load_images(quick)[0].read(0).size == (100, 75)  # mini-vit reads 64 pixels or fewer
    assert group_hash(quick) != group_hash(run)
