"""Encodings: their size is known beforehand and limited; they are resumed, shared and deleted."""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.progress import result_of
from fedcore.clip import encodings
from fedcore.clip.backbone import Backbone, load
from fedcore.clip.specs import backbone_spec
from fedcore.data import arrays, integrity
from tests.support.clip import encoded, noise, pixel_backbone
from tests.support.jobs import wait_for
from tests.support.tiny import tiny_backbone

ABOUT = {"key": "k", "data": "d"}


def test_large_activations_are_halved_and_embeddings_never():
    vit = backbone_spec("ViT-B-32")
    assert encodings.row_shape(vit, "layer:6") == (50, 768) and encodings.row_shape(vit, "patches") == (
        49,
        768,
    )
    few, many = encodings.estimate(vit, 1_000, "layer:6"), encodings.estimate(vit, 100_000, "layer:6")
    assert few == 128 + 1_000 * 50 * 768 * 4 and many == 128 + 100_000 * 50 * 768 * 2
    assert encodings.estimate(vit, 10_000_000, "embedding") == 128 + 10_000_000 * 512 * 4


def test_activations_too_large_for_half_precision_are_refused():
    half, path = np.dtype(np.float16), "y.npy"
    assert encodings.to_stored(np.full((1, 3), 65_000, np.float32), half, path).dtype == half
    with pytest.raises(FedLensError, match="too large for half precision"):
        encodings.to_stored(np.full((1, 3), 70_000, np.float32), half, path)


@pytest.mark.parametrize(
    ("name", "reads", "message"),
    [
        ("RN50", "layer:0", "RN50 has no ViT tokens to encode"),
        ("ViT-B-16-SigLIP", "regions", "no embeddings of image regions; choose"),
    ],
)
def test_what_a_tower_does_not_give_is_refused(name, reads, message):
    with pytest.raises(FedLensError, match=message) as caught:
        encodings.estimate(backbone_spec(name), 10, reads)
    assert caught.value.field == "backbone.name"


def test_an_encoding_over_the_limit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv(encodings.LIMIT, "0.000001")
    with pytest.raises(
        FedLensError, match=r"takes 0\.0 GB, the limit is 1e-06 GB.*set FEDLENS_ENCODING_LIMIT_GB"
    ):
        encoded(pixel_backbone(), noise(), "layer:1", tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".lock"]
    monkeypatch.setenv(encodings.LIMIT, "a lot")
    with pytest.raises(FedLensError, match="is 'a lot'; give a number of GB"):
        encodings.limit()


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, 10**9))
    with pytest.raises(FedLensError, match=r"has 1\.0 GB free .*delete encodings"):
        encoded(pixel_backbone(), noise(), "embedding", tmp_path)
    assert not list(tmp_path.glob("*.part"))


def start(folder: Path, backbone: Backbone, pause: float) -> multiprocessing.Process:
    """A process of its own that encodes 300 images, forked: importing torch anew would take seconds."""

    def encode() -> None:
        arrays._FLUSH_SECONDS = 0
        plain = noise().read

        def slow(i: int) -> Image.Image:
            time.sleep(pause)
            with (folder / "decoded").open("a") as file:
                file.write(f"{i}\n")
            return plain(i)

        for _ in encodings.encode(backbone, noise(300, slow), "layer:1", folder, workers=0):
            pass

    child = multiprocessing.get_context("fork").Process(target=encode)
    child.start()
    return child


def test_an_encoding_killed_in_the_middle_goes_on_with_equal_bits(tmp_path):
    backbone, decoded = pixel_backbone(), []
    plain = noise().read
    images = noise(300, lambda i: (decoded.append(i), plain(i))[1])
    path = encodings.cache_path(tmp_path, backbone, images, "layer:1")
    child = start(tmp_path, backbone, 0.002)
    wait_for(lambda: arrays.rows_on_disk(path) >= 128)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL and not path.exists()
    steps = list(encodings.encode(backbone, images, "layer:1", tmp_path, workers=0))
    assert steps[0].done >= 128 and min(decoded) == steps[0].done
    encoded(backbone, noise(300), "layer:1", tmp_path / "whole")
    assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()


def test_two_processes_make_one_encoding(tmp_path):
    both = [start(tmp_path, pixel_backbone(), 0.001) for _ in range(2)]
    for child in both:
        child.join(60)
    assert [child.exitcode for child in both] == [0, 0]
    numbers = [int(line) for line in (tmp_path / "decoded").read_text().split()]
    assert set(numbers) == set(range(300)) and len(numbers) == 301  # the first also once for its shape
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_who_waits_for_another_process_sees_its_progress(tmp_path):
    backbone, images = pixel_backbone(), noise(300)
    path = encodings.cache_path(tmp_path, backbone, images, "embedding")
    with arrays.write_lock(path) as acquired:
        assert acquired
        other = arrays.ArrayWriter(path, 300, (16,), np.dtype(np.float32), ABOUT)
        other.write(np.zeros((64, 16), np.float32))
        other.flush()
        waiting = encodings.encode(backbone, images, "embedding", tmp_path)
        step = next(waiting)
        assert (step.done, step.total) == (64, 300)
        waiting.close()


def test_deleting_takes_all_of_its_files_and_refuses_what_is_in_use(tmp_path):
    backbone, images = pixel_backbone(), noise()
    path = encodings.cache_path(tmp_path, backbone, images, "embedding")
    mapped = encoded(backbone, images, "embedding", tmp_path)
    with pytest.raises(FedLensError, match="is in use by a run"):
        arrays.delete(path)
    assert path.exists()
    del mapped
    with arrays.write_lock(path), pytest.raises(FedLensError, match="is being written by a run"):
        arrays.delete(path)
    size = path.stat().st_size
    assert arrays.delete(path) > size
    assert [p.suffix for p in tmp_path.iterdir()] == [".lock"]
    with pytest.raises(FedLensError, match="was just deleted"):
        encodings.read(path)
    assert encoded(backbone, images, "embedding", tmp_path).shape == (70, 16)


@pytest.mark.parametrize("workers", [0, 3])
def test_bits_do_not_depend_on_workers_or_neighbours(tmp_path, workers):
    backbone, images = pixel_backbone(), noise(150)
    found = encoded(backbone, images, "layer:2", tmp_path / "a", workers=workers)
    for row in (0, 63, 64, 128, 149):  # alone in its batch instead of among others
        alone = noise(1, lambda _, row=row: images.read(row), fingerprint=f"alone {row}")
        assert torch.equal(encoded(backbone, alone, "layer:2", tmp_path / "b")[0], found[row])


@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_come_in_order_and_the_last_batch_is_filled_with_zeros(workers):
    images = noise(200)

    def preprocess(image):
        return torch.from_numpy(np.asarray(image)[0, 0].astype(np.float32))

    found = [(n, p.clone()) for n, p in encodings.batches(images.read, preprocess, 200, 64, workers)]
    assert [n for n, _ in found] == [64, 64, 8] and all(p.shape == (64, 3) for _, p in found)
    expected = torch.stack([preprocess(images.read(i)) for i in range(64, 200)])
    assert torch.equal(torch.cat([p[:n] for n, p in found]), expected) and not found[-1][1][8:].any()


def test_leaving_early_stops_the_decoding_threads():
    images = noise(1000, lambda i: (time.sleep(0.001), noise().read(i))[1])
    source = encodings.batches(images.read, lambda image: torch.zeros(1), 1000, workers=2)
    next(source)
    assert [t for t in threading.enumerate() if t.name.startswith("decode")]
    source.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("decode")]


def test_a_process_decodes_a_small_data_set_once_for_all_its_encodings(tmp_path, monkeypatch):
    backbone, decoded, plain = pixel_backbone(), [], noise().read

    def encode(folder: str, reads: str, fingerprint: str = "v1") -> torch.Tensor:
        images = noise(70, lambda i: (decoded.append(i), plain(i))[1], fingerprint)
        return encoded(backbone, images, reads, tmp_path / folder, workers=0)

    values = [encode("kept", reads) for reads in ("embedding", "layer:1", "pixels")]
    assert sorted(set(decoded)) == sorted(decoded[1:]) == list(range(70))  # the first is also a sample
    assert torch.equal(values[2][3], backbone.preprocess(plain(3)))
    encode("kept", "embedding", "v2")  # other content
    monkeypatch.setattr(encodings, "_KEPT_BYTES", 70 * 16 * 16 * 3 * 4 - 1)
    for reads, before in zip(("embedding", "layer:1"), values, strict=False):
        assert torch.equal(encode("decoded", reads), before)
    assert len(decoded) == 4 * 71


class Flat(torch.nn.Module):
    """An image tower whose embedding is the image: large rows."""

    def encode_image(self, pixels: torch.Tensor, normalize: bool) -> torch.Tensor:
        return pixels.flatten(1)


def most_memory(folder: Path, backbone: Backbone, count: int) -> int:
    """Most resident bytes of a process that encodes so many images of 48 kB."""
    ours, theirs = multiprocessing.Pipe()

    def encode() -> None:
        for _ in encodings.encode(backbone, noise(count), "embedding", folder, workers=2):
            pass
        theirs.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

    child = multiprocessing.get_context("fork").Process(target=encode)
    child.start()
    assert ours.poll(60)
    child.join()
    return ours.recv()


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    flat = replace(
        tiny_backbone(dtype=torch.float32),
        spec=replace(backbone_spec("mini-vit"), embed_dim=3 * 64 * 64),
        model=Flat(),
        preprocess=lambda image: torch.full((3, 64, 64), float(np.asarray(image)[0, 0, 0])),
    )
    few, many = (most_memory(tmp_path / str(n), flat, n) for n in (1500, 3000))  # too many to be kept
    assert many - few < 20e6  # the 1,500 images more are 74 MB, as pixels and as rows


def _without_digest(path: Path) -> None:
    about = {k: v for k, v in arrays.description(path).items() if not k.startswith("digest")}
    path.with_suffix(".json").write_text(json.dumps(about))


DAMAGE = {
    "a changed byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "no digest": _without_digest,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_encoding_is_made_again_and_says_so(tmp_path, damage):
    backbone, images, notes = pixel_backbone(), noise(), []
    whole = encoded(backbone, images, "embedding", tmp_path).clone()
    path = encodings.cache_path(tmp_path, backbone, images, "embedding")
    DAMAGE[damage](path)
    again = result_of(encodings.encode(backbone, images, "embedding", tmp_path, note=notes.append))
    assert torch.equal(encodings.read(again), whole)
    assert len(notes) == 1 and notes[0].startswith(f"the encoding {path.stem} was damaged (")
    assert integrity.verify(path) == []


def test_a_disk_that_does_not_keep_what_is_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "publish", lambda part, path: os.truncate(part, 200) or part.rename(path))
    with pytest.raises(FedLensError, match="does not keep what is written to it"):
        encoded(pixel_backbone(), noise(), "embedding", tmp_path)


@pytest.mark.parametrize("reads", ["embedding", "regions", "layer:2", "patches", "pixels"])
def test_rows_follow_their_images_fill_the_estimate_and_are_read_once(tmp_path, reads):
    backbone, images = pixel_backbone(), noise()
    first = encoded(backbone, images, reads, tmp_path)
    written = encodings.cache_path(tmp_path, backbone, images, reads).stat().st_size
    assert written == encodings.estimate(backbone.spec, len(images), reads)
    for row in (0, 63, 64, 69):  # both sides of a batch boundary
        pixels = backbone.preprocess(images.read(row))[None]
        one = {
            "embedding": backbone.embed_images(pixels),
            "layer:2": backbone.image.activations(pixels, 2),
            "regions": backbone.embed_regions(pixels),
            "patches": backbone.image.patches(pixels),
            "pixels": pixels,
        }[reads]
        torch.testing.assert_close(first[row], one[0], rtol=1e-5, atol=1e-5)

    def refuse(i: int) -> Image.Image:
        raise AssertionError("an image was read although its encoding is cached")

    again = encoded(backbone, noise(read=refuse), reads, tmp_path)
    assert torch.equal(first, again)


def test_a_crash_leaves_no_cache_file(tmp_path):
    calls = []

    def fail_late(i: int) -> Image.Image:
        calls.append(i)
        if i == 65:
            raise OSError("disk gone")
        return Image.new("RGB", (16, 16))

    backbone = pixel_backbone()
    with pytest.raises(OSError, match="disk gone"):
        encoded(backbone, noise(read=fail_late), "embedding", tmp_path)
    assert set(calls) == set(range(66))
    assert not list(tmp_path.glob("*.npy"))
    assert encoded(backbone, noise(), "embedding", tmp_path).shape == (70, 16)


def test_the_cache_tells_data_sets_backbones_and_depths_apart(tmp_path):
    backbone, images = pixel_backbone(), noise()
    paths = {
        encodings.cache_path(tmp_path, backbone, images, "embedding"),
        encodings.cache_path(tmp_path, backbone, images, "layer:1"),
        encodings.cache_path(tmp_path, backbone, images, "patches"),
        encodings.cache_path(tmp_path, replace(backbone, fingerprint="other"), images, "embedding"),
        encodings.cache_path(tmp_path, backbone, replace(images, fingerprint="v2"), "embedding"),
    }
    assert len(paths) == 5


def test_images_that_do_not_fit_together_are_encoded_in_fewer(monkeypatch, tmp_path):
    backbone, passes = pixel_backbone(), []

    def frozen_pass(backbone, pixels):
        passes.append(len(pixels))
        if len(pixels) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return backbone.embed_images(pixels)

    whole = encoded(backbone, noise(), "embedding", tmp_path / "whole")
    monkeypatch.setattr(encodings, "parse_reads", lambda reads: frozen_pass)
    notes: list[str] = []
    few = result_of(encodings.encode(backbone, noise(), "embedding", tmp_path / "few", note=notes.append))
    assert passes == [64, 32, *[16] * 8]
    assert notes == ["out of memory: now 16 images are encoded at once"]
    assert torch.allclose(encodings.read(few), whole, atol=1e-5)


def test_tf32_is_on_for_the_frozen_pass_alone_and_has_encodings_of_its_own(monkeypatch, tmp_path):
    """A CPU has no TF32, so that the numbers are those of fp32."""
    single = pixel_backbone()
    rounded, seen = replace(single, precision="tf32"), []

    def frozen_pass(backbone, pixels):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return backbone.embed_images(pixels)

    monkeypatch.setattr(encodings, "parse_reads", lambda reads: frozen_pass)
    values = [encoded(b, noise(), "embedding", tmp_path / b.precision) for b in (single, rounded)]
    assert set(seen[: len(seen) // 2]) == {False} and set(seen[len(seen) // 2 :]) == {True}
    assert torch.equal(*values) and not torch.backends.cuda.matmul.allow_tf32
    assert rounded.encode_dtype == torch.float32
    loaded = [load("mini-vit", precision=precision).fingerprint for precision in ("fp32", "tf32")]
    assert len(set(loaded)) == 2, "a file of encodings is named after the fingerprint"
