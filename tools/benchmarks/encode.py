"""Compare the rate of encoding with the rates of decoding and of the image tower on this machine.

python -m tools.benchmarks.encode                                    # 10,000 images, mini-vit
python -m tools.benchmarks.encode --backbone ViT-B-32 --images 1000  # random weights, the same speed

The script draws JPEG files of PACS' size and measures decoding alone and the image tower alone, before and
after the whole pipeline (another process may start or end between). It prints the pipeline's rate as a
share of 1 / (1/decode + 1/encode), the rate of doing the two one after the other, each with all cores.
"""

from __future__ import annotations

import io
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in jobs; it has no effect once torch is loaded

import numpy as np
import psutil
import typer
from PIL import Image

if TYPE_CHECKING:
    from fedcore.clip.backbone import Backbone
    from fedcore.data.images import ImageSet

DISTINCT = 200
"""Number of different pictures; the rest are copies, which take the decoder as long."""


def main(
    images: int = 10_000,
    backbone: str = "mini-vit",
    reads: str = "embedding",
    workers: int | None = None,
    folder: Path | None = None,
) -> None:
    """Compare the rate of encoding with the rates of decoding and of the image tower.

    Args:
        images: how many; PACS has 9,991.
        backbone: any model of open_clip.
        reads: 'embedding', 'layer:k' or 'patches'.
        workers: decoding threads; one per core unless given.
        folder: where the pictures go; a temporary folder unless given.
    """
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-", dir=folder) as made:
        measure(Path(made), images, backbone, reads, workers)


def measure(folder: Path, count: int, name: str, reads: str, workers: int | None) -> None:
    """Draw the pictures, then measure the parts, the pipeline and a second run."""
    import torch

    from fedcore.base.devices import usable_cpus
    from fedcore.base.progress import result_of
    from fedcore.clip import encodings
    from fedcore.data import catalog, integrity

    draw(folder / "set", count)
    begun = time.perf_counter()
    images = catalog.load("folder", str(folder / "set"))[0]
    listing = time.perf_counter() - begun
    backbone = load(name, folder)
    workers = usable_cpus() if workers is None else workers
    size = encodings.estimate(backbone.spec, len(images), reads)
    cores, threads = psutil.cpu_count(), torch.get_num_threads()
    print(f"{cores} cores, torch {torch.__version__} with {threads} threads, {workers} decoding threads")
    print(
        f"{len(images):,} JPEG files of 227 x 227 found and checked in {listing:.1f} s, "
        f"{size / 1e6:.1f} MB to write"
    )

    alone = [(decode_rate(images, backbone, workers), encode_rate(backbone, reads, len(images)))]
    with memory() as peak:
        begun = time.perf_counter()
        for _ in encodings.encode(backbone, images, reads, folder / "cache", workers):
            pass
        rate = len(images) / (time.perf_counter() - begun)
    alone.append((decode_rate(images, backbone, workers), encode_rate(backbone, reads, len(images))))
    decode, encode = (statistics.harmonic_mean(rates) for rates in zip(*alone, strict=True))
    possible = 1 / (1 / decode + 1 / encode)
    for part, rates in zip(("decoding", "encoding"), zip(*alone, strict=True), strict=True):
        print(f"{part} alone: {rates[0]:.0f} images/s before the pipeline, {rates[1]:.0f} after")
    print(
        f"pipeline: {rate:.0f} images/s, {100 * rate / possible:.0f} % of "
        f"1/(1/decode + 1/encode) = {possible:.0f}"
    )
    print(f"memory: {peak['start'] / 1e6:.0f} MB before, at most {peak['most'] / 1e6:.0f} MB while encoding")

    begun = time.perf_counter()
    again = catalog.load("folder", str(folder / "set"))[0]
    listing = time.perf_counter() - begun
    path = result_of(encodings.encode(backbone, again, reads, folder / "cache"))
    cached = time.perf_counter() - begun - listing
    print(f"second run: files found again in {listing:.2f} s, their encoding in the cache in {cached:.3f} s")
    begun = time.process_time()
    integrity.file_digest(path)
    seconds = (time.process_time() - begun) / path.stat().st_size * 1e9
    print(f"digest of the encoding, once per process: {seconds:.2f} CPU-seconds for 1 GB")


def draw(root: Path, count: int) -> None:
    """Draw ``count`` JPEG files of 227 x 227 in four domains of seven classes, as in PACS."""
    contents = []
    for i in range(min(count, DISTINCT)):
        rough = np.random.default_rng(i).integers(0, 256, (29, 29, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(rough).resize((227, 227), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        contents.append(file.getvalue())
    for i in range(count):
        path = root / f"domain{i % 4}" / f"class{i // 4 % 7}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[i % len(contents)])


def load(name: str, folder: Path) -> Backbone:
    """Load a backbone, with random weights unless it is an embedded one."""
    from fedcore.clip import backbone
    from fedcore.clip.specs import MINI_MODELS

    if name in MINI_MODELS:
        return backbone.load(name)
    import open_clip
    import torch

    torch.save(open_clip.create_model(name).state_dict(), folder / "random.pt")
    return backbone.load(name, str(folder / "random.pt"))


def decode_rate(images: ImageSet, backbone: Backbone, workers: int) -> float:
    """Return images per second that the pipeline's threads decode and preprocess."""
    from fedcore.clip.encodings import batches

    begun = time.perf_counter()
    for _ in batches(images.read, backbone.preprocess, len(images), workers=workers):
        pass
    return len(images) / (time.perf_counter() - begun)


def encode_rate(backbone: Backbone, reads: str, count: int) -> float:
    """Return images per second through the image tower, from pixels in memory."""
    import torch

    from fedcore.clip.encodings import BATCH, parse_reads

    side, frozen_pass = backbone.spec.image_size, parse_reads(reads)
    pixels = torch.rand(BATCH, 3, side, side)
    begun, done = time.perf_counter(), 0
    with torch.no_grad():
        while done < count and (done < 2 * BATCH or time.perf_counter() - begun < 30):
            frozen_pass(backbone, pixels)
            done += BATCH
    return done / (time.perf_counter() - begun)


@contextmanager
def memory() -> Iterator[dict[str, int]]:
    """Resident bytes of this process: at the start, and the maximum while the block runs."""
    process, stop = psutil.Process(), threading.Event()
    now = process.memory_info().rss
    resident = {"start": now, "most": now}

    def watch() -> None:
        while not stop.wait(0.05):
            resident["most"] = max(resident["most"], process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield resident
    finally:
        stop.set()
        watcher.join()


if __name__ == "__main__":
    typer.run(main)
