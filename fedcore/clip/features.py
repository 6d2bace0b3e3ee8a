"""Every image is encoded once per backbone, data set and depth; later runs memory-map the result."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.cache import arrays, integrity
from fedcore.clip import encodings
from fedcore.clip.decoding import batches
from fedcore.data.images import ImageSet
from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.progress import Pace, Progress, Work

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.clip.backbone import Backbone

_PRECISIONS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
"""Torch's names of precisions -> the config's."""
_POLL_SECONDS = 0.3
"""Pause between two checks of an encoding that another process is writing."""


def parse_reads(reads: str) -> Callable[[Backbone, Tensor], Tensor]:
    """Return the frozen pass (backbone, pixels) -> encoded samples of an encoding's name.

    Raises:
        FedLensError: for anything else.
    """
    layer = encodings.layer_of(reads)
    if layer is not None:
        return lambda backbone, pixels: backbone.image.activations(pixels, layer)
    passes: dict[str, Callable[[Backbone, Tensor], Tensor]] = {
        "embedding": lambda backbone, pixels: backbone.embed_images(pixels),
        "regions": lambda backbone, pixels: backbone.embed_regions(pixels),
        "patches": lambda backbone, pixels: backbone.image.patches(pixels),
        "pixels": lambda backbone, pixels: pixels,
    }
    return passes[reads]


def cache_path(folder: Path, backbone: Backbone, images: ImageSet, reads: str) -> Path:
    """Return the file of an encoding, named by everything that its values depend on."""
    return folder / f"{images.name}-{_key(backbone, images, reads)[:20]}.npy"


def _key(backbone: Backbone, images: ImageSet, reads: str) -> str:
    threads = torch.get_num_threads() if backbone.device.type == "cpu" else 0  # they decide the last bits
    parts = [backbone.fingerprint, str(backbone.device), threads, images.fingerprint, reads]
    parts += [backbone.tag_content] * bool(backbone.tag_content) + ["cast"] * _casts_tower(backbone, reads)
    key = json.dumps(parts)
    return hashlib.sha256(key.encode()).hexdigest()


def read(path: Path) -> Tensor:
    """Memory-map a finished encoding; it cannot be deleted while the tensor lives.

    Shape: -> (samples, d) for ``embedding``, (samples, patches, d) for ``regions``, (samples, patches, width)
    for ``patches``, (samples, tokens, width) for ``layer:k``, (samples, 3, side, side) for ``pixels``; on the
    CPU.

    Raises:
        FedLensError: when it was deleted just now.
    """
    return torch.from_numpy(arrays.open_mapped(path))


def encode(
    backbone: Backbone,
    images: ImageSet,
    reads: str,
    folder: Path,
    workers: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Work[Path]:
    """Encode a data set unless its encoding is cached intact; the progress shows speed and time left.

    A cache file appears under its name only when it is complete; what an interrupted call has finished is
    taken up by the next. Of several processes that want the same encoding one makes it, and the others' calls
    yield its progress. Close the iterator when you leave it early: it holds a lock.

    Args:
        workers: decoding threads, 0 for none; None: one a core for larger sets. They do not change a bit.
        note: called with a sentence if the cached file is damaged, or could not be checked.

    Returns:
        the encoding's file.

    Raises:
        FedLensError: when there are no images, one cannot be decoded, or the result is too large.
    """
    if not len(images):
        raise FedLensError(f"{images.name} has no images to encode", "data.name")
    path, pace = cache_path(folder, backbone, images, reads), Pace()

    def progress(done: int) -> Progress:
        speed = pace.text(done, len(images))
        return Progress(f"encoding {images.name}" + (f" ({speed})" if speed else ""), done, len(images))

    folder.mkdir(parents=True, exist_ok=True)
    expected = _expected(backbone, images, reads)
    made = False
    while True:
        checked = yield from integrity.check(path, expected)
        if checked.state == "intact":
            return path
        with arrays.write_lock(path) as acquired:
            if acquired and checked.seen == integrity.identity(path):
                if made:
                    raise FedLensError(
                        f"{path} does not keep what is written to it: {checked.damage}; check the disk, or "
                        "keep the database on another one"
                    )
                else:
                    if checked.state == "damaged":
                        note(f"the encoding {path.stem} was damaged ({checked.damage}) and is made again")
                        path.unlink()
                    yield from map(progress, _write(backbone, images, reads, path, workers))
                    made = True
                continue
        yield progress(arrays.rows_on_disk(path))
        time.sleep(_POLL_SECONDS)


def _expected(backbone: Backbone, images: ImageSet, reads: str) -> dict[str, object]:
    """Return what an encoding's file and description must say."""
    row = encodings.row_shape(backbone.spec, reads)
    dtype = encodings.stored_dtype(len(images), row, reads)
    return {
        "key": _key(backbone, images, reads),
        "shape": [len(images), *row],
        "dtype": dtype.name,
        "weights_digest": backbone.files.digest,
    }


def _write(
    backbone: Backbone, images: ImageSet, reads: str, path: Path, workers: int | None
) -> Iterator[int]:
    """Write an encoding whose lock is held; yields the number of finished images after every batch."""
    encode_pixels, total = _encoder(backbone, reads), len(images)
    row = encodings.row_shape(backbone.spec, reads)
    size = encodings.estimate(backbone.spec, total, reads)
    what = f"{total:,} images of {images.name} with {backbone.spec.name} ('{reads}')"
    encodings.check_disk_space(size, what, path.parent, arrays.unfinished_bytes(path))
    dtype = encodings.stored_dtype(total, row, reads)
    description: dict[str, object] = {"key": _key(backbone, images, reads)}
    description |= _describe(backbone, images, reads)
    writer = arrays.ArrayWriter(path, total, row, dtype, description)
    try:
        if writer.done:
            yield writer.done
        for count, pixels in batches(images.read, backbone.preprocess, total, writer.done, workers):
            with torch.no_grad():
                values = encode_pixels(pixels.to(backbone.device))
            writer.write(encodings.to_stored(values[:count].cpu().numpy(), dtype, path.name))
            yield writer.done
    finally:
        writer.close()


def _describe(backbone: Backbone, images: ImageSet, reads: str) -> dict[str, str]:
    """Return the parts of the key in words, so that a user can tell two encodings of one data set apart."""
    weights = backbone.fingerprint.partition(":")[2].partition(":")[0]  # a tag, or a hash of the file
    threads = f", {torch.get_num_threads()} threads" if backbone.device.type == "cpu" else ""
    return {
        "data": images.name,
        "folder": images.root,
        "backbone": backbone.spec.name,
        "reads": reads,
        "domains": ", ".join(images.domains),
        "precision": _PRECISIONS.get(str(backbone.encode_dtype), str(backbone.encode_dtype)),
        "decode": images.decode,
        "weights": f"{weights} {backbone.tag_content[:8]}".strip(),
        "device": f"{backbone.device}{threads}",
        "content": images.fingerprint[:8],
        "weights_digest": backbone.files.digest,
    }


def _casts_tower(backbone: Backbone, reads: str) -> bool:
    """Return whether the weights are cast once; autocast would cast them again for every batch."""
    on_cpu = backbone.device.type == "cpu"
    return on_cpu and backbone.encode_dtype == torch.bfloat16 and reads != "pixels"


def _encoder(backbone: Backbone, reads: str) -> Callable[[Tensor], Tensor]:
    """Return the frozen pass in the backbone's precision, float32 out. Shape: pixels -> encoded samples."""
    frozen_pass, dtype = parse_reads(reads), backbone.encode_dtype
    if _casts_tower(backbone, reads):
        backbone = replace(backbone, model=copy.deepcopy(backbone.model).to(dtype))
        return lambda pixels: frozen_pass(backbone, pixels.to(dtype)).float()

    def encode_pixels(pixels: Tensor) -> Tensor:
        with torch.autocast(backbone.device.type, dtype=dtype, enabled=dtype != torch.float32):
            return frozen_pass(backbone, pixels).float()

    return encode_pixels
