"""Encodings: every image passes the frozen tower once per backbone, data set and depth; runs map the result.

A method reads images in one of five encodings: ``embedding``, ``regions``, ``patches``, ``layer:<k>`` or
``pixels``. Sizes and limits are known before anything is loaded, without torch.
"""

import copy
import hashlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedcore.base.devices import fitting, tf32, usable_cpus
from fedcore.base.errors import FedLensError, disk_usage
from fedcore.base.lazy import Tensor, torch
from fedcore.base.progress import Pace, Progress, Work
from fedcore.clip.backbone import Backbone
from fedcore.clip.specs import BackboneSpec
from fedcore.data import arrays, integrity
from fedcore.data.arrays import HEADER_BYTES
from fedcore.data.images import ImageSet

LIMIT = "FEDLENS_ENCODING_LIMIT_GB"
"""Environment variable: the most that one encoding may take on disk, GB."""
DEFAULT_LIMIT_GB = 50.0
_HALF_ABOVE = 2 * 2**30
"""Bytes of float32 activations above which they are stored in half precision (embeddings never are)."""
_SPARE = 10**9
"""Bytes that an encoding leaves free on the disk, which the database and checkpoints share."""
_POLL_SECONDS = 0.3
"""Pause between two checks of an encoding that another process is writing."""


def layer_of(reads: str) -> int | None:
    """Return the k of ``layer:<k>``, and None for the other encodings; anything else is refused."""
    if reads in ("embedding", "regions", "patches", "pixels"):
        return None
    kind, _, layer = reads.partition(":")
    if kind != "layer" or not layer.isdigit():
        raise FedLensError(
            f"a method reads '{reads}'; it must be 'embedding', 'regions', 'patches', 'layer:<k>' or 'pixels'"
        )
    return int(layer)


def row_shape(spec: BackboneSpec, reads: str) -> tuple[int, ...]:
    """Return the shape of one encoded image; refuse an encoding that the image tower cannot give."""
    if reads.startswith(("patches", "layer:")) and spec.vision != "vit":
        raise FedLensError(
            f"{spec.name} has no ViT tokens to encode; choose a ViT such as ViT-B-32", "backbone.name"
        )
    layer = layer_of(reads)
    if reads == "embedding":
        return (spec.embed_dim,)
    if reads == "pixels" and spec.image_size:
        return (3, spec.image_size, spec.image_size)
    if reads == "regions" and spec.patches:
        return (spec.patches, spec.embed_dim)
    if reads == "regions":
        raise FedLensError(
            f"{spec.name} gives no embeddings of image regions; choose CLIP's own ViT or ResNet, such as "
            "ViT-B-32",
            "backbone.name",
        )
    if reads == "pixels":
        raise FedLensError(f"{spec.name} came without images; choose another data set", "data.name")
    return (spec.patches + (layer is not None), spec.vision_width)


def stored_dtype(images: int, row: tuple[int, ...], reads: str) -> np.dtype[Any]:
    """Return half precision for large activations, else float32."""
    half = reads != "embedding" and images * math.prod(row) * 4 > _HALF_ABOVE
    return np.dtype(np.float16 if half else np.float32)


def to_stored(values: np.ndarray, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """Convert encoded images to the precision of their file; refuse values that are too large for it."""
    with np.errstate(over="ignore"):  # checked in the next line
        stored = values.astype(dtype, copy=False)
    if dtype == np.float16 and not np.isfinite(stored).all():
        raise FedLensError(
            f"{name}: an activation is too large for half precision; use fewer images, so that "
            "they are stored in single precision, or another start layer",
            "backbone.name",
        )
    return stored


def estimate(spec: BackboneSpec, images: int, reads: str) -> int:
    """Return exactly the bytes that an encoding will take on disk."""
    row = row_shape(spec, reads)
    return HEADER_BYTES + images * math.prod(row) * stored_dtype(images, row, reads).itemsize


def limit() -> float:
    """Return the maximum size of an encoding in bytes, which an environment variable may set."""
    given = os.environ.get(LIMIT, "")
    try:
        gigabytes = float(given) if given else DEFAULT_LIMIT_GB
    except ValueError:
        gigabytes = math.nan
    if not gigabytes > 0:
        raise FedLensError(f"{LIMIT} is '{given}'; give a number of GB, e.g. 50")
    return gigabytes * 1e9


def check_limit(size: int, what: str) -> None:
    """Refuse an encoding that is over the limit."""
    if size > limit():
        raise FedLensError(
            f"encoding {what} takes {size / 1e9:.1f} GB, the limit is {limit() / 1e9:g} GB; choose a later "
            f"start layer, fewer domains or a smaller backbone, or set {LIMIT} higher",
            "backbone.name",
        )


def check_disk_space(size: int, what: str, folder: Path, on_disk: int = 0) -> None:
    """Refuse an encoding that is over the limit or does not fit on the disk.

    Args:
        size: bytes of the whole encoding.
        on_disk: bytes of it that an interrupted writer has left on the disk.
    """
    check_limit(size, what)
    free = disk_usage(folder)[1]
    if size - on_disk + _SPARE > free:
        raise FedLensError(
            f"encoding {what} takes {(size - on_disk) / 1e9:.1f} GB more, and {folder} has "
            f"{free / 1e9:.1f} GB free ({_SPARE / 1e9:g} GB of it stays free); delete encodings on the page "
            "Data & models, or keep the database on a larger disk",
            "backbone.name",
        )


def parse_reads(reads: str) -> Callable[[Backbone, Tensor], Tensor]:
    """Return the frozen pass (backbone, pixels) -> encoded samples of an encoding's name."""
    layer = layer_of(reads)
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
    # Device and number of threads are in the key because they decide in which order a sum is taken, and with
    # it the last bits: a run that is resumed must find the very values that it started with.
    threads = torch.get_num_threads() if backbone.device.type == "cpu" else 0
    parts = [backbone.fingerprint, str(backbone.device), threads, images.fingerprint, reads]
    parts += [backbone.tag_content] if backbone.tag_content else []
    parts += ["cast"] if _casts_tower(backbone, reads) else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read(path: Path) -> Tensor:
    """Memory-map a finished encoding; it cannot be deleted while the tensor lives.

    Shape: -> (samples, d) for ``embedding``, (samples, patches, d) for ``regions``, (samples, patches, width)
    for ``patches``, (samples, tokens, width) for ``layer:k``, (samples, 3, side, side) for ``pixels``; on the
    CPU.
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
    """Encode a data set unless its encoding is cached intact, and return the file.

    A cache file appears under its name only when it is complete; an interrupted call leaves finished rows to
    the next one. If several processes want the same encoding, one makes it and the others' calls yield its
    progress. Close the iterator when you leave it early: it holds a lock.

    Args:
        workers: decoding threads, see ``batches``. They do not change a bit.
        note: called with a sentence if the cached file is damaged, or if a GPU's memory is used up.
    """
    if not len(images):
        raise FedLensError(f"{images.name} has no images to encode", "data.name")
    path, pace = cache_path(folder, backbone, images, reads), Pace()

    def progress(done: int) -> Progress:
        speed = pace.text(done, len(images))
        return Progress(f"encoding {images.name}" + (f" ({speed})" if speed else ""), done, len(images))

    folder.mkdir(parents=True, exist_ok=True)
    row = row_shape(backbone.spec, reads)
    expected = {
        "key": _key(backbone, images, reads),
        "shape": [len(images), *row],
        "dtype": stored_dtype(len(images), row, reads).name,
        "weights_digest": backbone.files.digest,
    }
    made = False
    while True:
        # The file is read before the lock is taken, since others may need the lock meanwhile. If the file has
        # changed by the time that the lock is ours, it is read again.
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
                if checked.state == "damaged":
                    note(f"the encoding {path.stem} was damaged ({checked.damage}) and is made again")
                    path.unlink()
                yield from map(progress, _write(backbone, images, reads, path, workers, note))
                made = True
                continue
        yield progress(arrays.rows_on_disk(path))
        time.sleep(_POLL_SECONDS)


def _write(
    backbone: Backbone,
    images: ImageSet,
    reads: str,
    path: Path,
    workers: int | None,
    note: Callable[[str], None],
) -> Iterator[int]:
    """Write an encoding whose lock is held; yields the number of finished images after every batch."""
    encode_pixels, total = _encoder(backbone, reads), len(images)
    row = row_shape(backbone.spec, reads)
    size = estimate(backbone.spec, total, reads)
    what = f"{total:,} images of {images.name} with {backbone.spec.name} ('{reads}')"
    check_disk_space(size, what, path.parent, arrays.unfinished_bytes(path))
    dtype = stored_dtype(total, row, reads)
    description: dict[str, object] = {"key": _key(backbone, images, reads)}
    description |= _describe(backbone, images, reads)
    writer = arrays.ArrayWriter(path, total, row, dtype, description)
    try:
        if writer.done:
            yield writer.done
        if images.given is not None:
            rows = images.given.rows()
            while writer.done < total:
                writer.write(rows[writer.done : writer.done + _GIVEN_AT_ONCE])
                yield writer.done
            return
        at_once = BATCH if backbone.device.type == "cpu" else GPU_BATCH
        for count, pixels in _decoded(backbone, images, writer.done, workers):

            def compute(size: int, pixels: Tensor = pixels) -> Tensor:
                with torch.no_grad():
                    there = pixels.to(backbone.device, non_blocking=True)
                    parts = [encode_pixels(part) for part in there.split(size)]
                return torch.cat(parts) if len(parts) > 1 else parts[0]

            values, fitted = fitting(compute, at_once)
            if fitted < at_once:
                note(f"out of memory: now {fitted} images are encoded at once")
            at_once = fitted
            writer.write(to_stored(values[:count].cpu().numpy(), dtype, path.name))
            yield writer.done
    finally:
        writer.close()


_GIVEN_AT_ONCE = 2**12
_KEPT_BYTES = 2**26
"""Bytes of decoded pixels that a process keeps, of the last data set that has no more than these."""
_decoded_before: dict[tuple[object, ...], list[tuple[int, Tensor]]] = {}


def _decoded(
    backbone: Backbone, images: ImageSet, first: int, workers: int | None
) -> Iterator[tuple[int, Tensor]]:
    """Yield what ``batches`` does; a small data set is decoded once for all encodings of a process."""
    key = images.fingerprint, len(images), backbone.preprocess, backbone.device
    if not first and (batches_before := _decoded_before.get(key)):
        yield from batches_before
        return
    found: list[tuple[int, Tensor]] = []
    size = BATCH if backbone.device.type == "cpu" else GPU_BATCH
    for count, pixels in batches(images.read, backbone.preprocess, len(images), first, workers, size):
        if not first and len(images) * pixels[0].nbytes <= _KEPT_BYTES:
            found.append((count, pixels.clone()))
        yield count, pixels
    if found:
        _decoded_before.clear()
        _decoded_before[key] = found


def _describe(backbone: Backbone, images: ImageSet, reads: str) -> dict[str, str]:
    """Return the parts of the key in words, so that a user can tell two encodings of one data set apart."""
    name = backbone.spec.name
    weights = backbone.fingerprint.removeprefix(f"{name}:").partition(":")[0]  # a tag, or a hash of the file
    threads = f", {torch.get_num_threads()} threads" if backbone.device.type == "cpu" else ""
    return {
        "data": images.name,
        "folder": images.root,
        "backbone": name,
        "reads": reads,
        "domains": ", ".join(images.domains),
        "precision": backbone.precision,
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
        cast = nullcontext() if dtype == torch.float32 else torch.autocast(backbone.device.type, dtype=dtype)
        with cast, tf32(wanted=backbone.precision == "tf32"):
            return frozen_pass(backbone, pixels).float()

    return encode_pixels


BATCH = 64
"""Images in every batch; the last one is filled up with zeros. Kernels choose their order of summation by the
shape of a batch, so one shape gives an image the same bits at every position, also after a resumed start."""
GPU_BATCH = 256
"""The same on a GPU, whose batches are pinned and copied aside; it takes fewer at once if they do not fit."""

_AHEAD = 2
"""Batches that are decoded while one is encoded."""
_PIECE = 8
"""Images that a thread decodes at a time."""


def batches(
    read: Callable[[int], Image.Image],
    preprocess: Callable[[Image.Image], Tensor],
    images: int,
    first: int = 0,
    workers: int | None = None,
    size: int = BATCH,
) -> Iterator[tuple[int, Tensor]]:
    """Yield preprocessed pixels of rows ``first`` to ``images``, in order.

    A batch's memory is used again for a later one: copy it before the next one is requested. Threads work
    ahead of the image tower instead of processes: decoders and tensor operations release Python's lock, a
    data set's reader (a closure, an open archive) needs no pickling, and no process is forked while torch's
    threads run. Only a few batches are decoded ahead, which bounds memory for any number of images.

    Args:
        read: safe to be called from several threads.
        workers: decoding threads, at least one; None: one per core.

    Shape: -> (number of images in the batch, (size, 3, side, side)).
    """
    if first >= images:
        return
    sample = preprocess(read(first).convert("RGB"))
    waiting: deque[tuple[int, Tensor, list[Future[None]]]] = deque()

    def decode(buffer: Tensor, slots: range, row: int) -> None:
        for slot in slots:
            buffer[slot] = preprocess(read(row + slot).convert("RGB"))

    def begin(start: int, pixels: Tensor) -> None:
        count = min(size, images - start)
        pixels[count:] = 0
        pieces = [range(i, min(i + _PIECE, count)) for i in range(0, count, _PIECE)]
        waiting.append((count, pixels, [pool.submit(decode, pixels, piece, start) for piece in pieces]))

    threads = usable_cpus() if workers is None else max(1, workers)
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        left = iter(range(first, images, size))
        try:
            for _, start in zip(range(_AHEAD + 1), left, strict=False):
                pinned = size > BATCH and torch.cuda.is_available()
                begin(start, torch.zeros((size, *sample.shape), dtype=sample.dtype, pin_memory=pinned))
            while waiting:
                count, pixels, pieces = waiting.popleft()
                for piece in pieces:
                    piece.result()
                yield count, pixels
                following = next(left, None)
                if following is not None:
                    begin(following, pixels)
        finally:
            pool.shutdown(cancel_futures=True)
