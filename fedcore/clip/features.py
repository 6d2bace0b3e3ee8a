"""Every image is encoded once per backbone, data set and depth; later runs memory-map the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedcore.data.images import ImageSet
from fedcore.errors import FedLensError
from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.clip.backbone import Backbone

_BATCH = 64
_HALF_ABOVE = 2 * 2**30
"""Bytes of float32 activations above which they are stored in half precision (embeddings never are)."""


def parse_reads(reads: str) -> Callable[[Backbone, Tensor], Tensor]:
    """The frozen pass of ``embedding``, ``patches`` or ``layer:<k>``: (backbone, pixels) -> encoded samples.

    Raises:
        FedLensError: for anything else.
    """
    if reads == "embedding":
        return lambda backbone, pixels: backbone.embed_images(pixels)
    if reads == "patches":
        return lambda backbone, pixels: backbone.image.patches(pixels)
    kind, _, layer = reads.partition(":")
    if kind != "layer" or not layer.isdigit():
        raise FedLensError(f"a method reads '{reads}'; it must be 'embedding', 'patches' or 'layer:<k>'")
    return lambda backbone, pixels: backbone.image.activations(pixels, int(layer))


def cache_path(folder: Path, backbone: Backbone, images: ImageSet, reads: str) -> Path:
    """Where the encoding of a data set lives: named by everything that its values depend on."""
    threads = torch.get_num_threads() if backbone.device.type == "cpu" else 0  # they decide the last bits
    key = json.dumps([backbone.fingerprint, str(backbone.device), threads, images.fingerprint, reads])
    return folder / f"{images.name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npy"


def encode(
    backbone: Backbone,
    images: ImageSet,
    reads: str,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """The encoded samples of a data set, from the cache or made now.

    Shape: -> (samples, d) for ``embedding``, (samples, patches, width) for ``patches``, (samples, tokens,
    width) for ``layer:k``; a memory-mapped CPU tensor.
    """
    for done, total in fill(backbone, images, reads, folder):
        progress(done, total)
    return read(cache_path(folder, backbone, images, reads))


def read(path: Path) -> Tensor:
    """A finished encoding, memory-mapped copy-on-write: torch wants writable memory, the file stays."""
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def fill(backbone: Backbone, images: ImageSet, reads: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Make the encoding of a data set where it is not cached; yields (done, total) after every batch.

    A cache file appears under its name only when it is complete, so that a crash leaves nothing half-written;
    a lock lets concurrent runs share one encoding.
    """
    path = cache_path(folder, backbone, images, reads)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if not path.exists():
            yield from _write(backbone, images, reads, path)


def _write(backbone: Backbone, images: ImageSet, reads: str, path: Path) -> Iterator[tuple[int, int]]:
    frozen_pass = parse_reads(reads)
    part = path.with_suffix(f".part-{os.getpid()}")
    out: np.memmap | None = None
    try:
        for first in range(0, len(images), _BATCH):
            rows = range(first, min(first + _BATCH, len(images)))
            values = _encode_batch(backbone, images, rows, frozen_pass)
            if out is None:
                size = len(images) * values[0].numel() * 4
                dtype = np.float16 if reads != "embedding" and size > _HALF_ABOVE else np.float32
                shape = (len(images), *values.shape[1:])
                out = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=shape)
            out[rows.start : rows.stop] = values.cpu().numpy()
            yield rows.stop, len(images)
        if out is None:
            raise FedLensError(f"{images.name} has no images to encode", "data.name")
        out.flush()
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _encode_batch(
    backbone: Backbone, images: ImageSet, rows: range, frozen_pass: Callable[[Backbone, Tensor], Tensor]
) -> Tensor:
    pixels = torch.stack([backbone.preprocess(images.read(i).convert("RGB")) for i in rows]).to(
        backbone.device
    )
    with torch.no_grad(), _precision(backbone):
        return frozen_pass(backbone, pixels).float()


@contextmanager
def _precision(backbone: Backbone) -> Iterator[None]:
    if backbone.encode_dtype == torch.float32:
        yield
    else:
        with torch.autocast(backbone.device.type, dtype=backbone.encode_dtype):
            yield


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an OS lock on a file; it is released by the system when the process dies."""
    with path.open("a+b") as file:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
