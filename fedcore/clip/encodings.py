"""Sizes of encodings on disk and the limits on them, known before anything is loaded (no torch).

A method reads images in one of five encodings: ``embedding``, ``regions``, ``patches``, ``layer:<k>`` or
``pixels``.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.cache.arrays import HEADER_BYTES
from fedcore.clip.specs import BackboneSpec
from fedcore.errors import FedLensError

LIMIT = "FEDLENS_ENCODING_LIMIT_GB"
"""Environment variable: the most that one encoding may take on disk, GB."""
DEFAULT_LIMIT_GB = 50.0
_HALF_ABOVE = 2 * 2**30
"""Bytes of float32 activations above which they are stored in half precision (embeddings never are)."""
_SPARE = 10**9
"""Bytes that an encoding leaves free on the disk, which the database and checkpoints share."""


def layer_of(reads: str) -> int | None:
    """Return the k of ``layer:<k>``; None for the other encodings.

    Raises:
        FedLensError: for anything else.
    """
    if reads in ("embedding", "regions", "patches", "pixels"):
        return None
    kind, _, layer = reads.partition(":")
    if kind != "layer" or not layer.isdigit():
        raise FedLensError(
            f"a method reads '{reads}'; it must be 'embedding', 'regions', 'patches', 'layer:<k>' or 'pixels'"
        )
    return int(layer)


def row_shape(spec: BackboneSpec, reads: str) -> tuple[int, ...]:
    """Return the shape of one encoded image.

    Raises:
        FedLensError: for tokens of an image tower that is no CLIP ViT, regions of one that is no CLIP tower,
            or an unknown encoding.
    """
    layer = layer_of(reads)
    if reads == "embedding":
        return (spec.embed_dim,)
    if reads == "pixels":
        return (3, spec.image_size, spec.image_size)
    if reads == "regions" and spec.patches:
        return (spec.patches, spec.embed_dim)
    if reads == "regions":
        raise FedLensError(
            f"{spec.name} gives no embeddings of image regions; choose CLIP's own ViT or ResNet, such as "
            "ViT-B-32",
            "backbone.name",
        )
    if spec.vision != "vit":
        raise FedLensError(
            f"{spec.name} has no ViT tokens to encode; choose a ViT such as ViT-B-32", "backbone.name"
        )
    return (spec.patches + (layer is not None), spec.vision_width)


def stored_dtype(images: int, row: tuple[int, ...], reads: str) -> np.dtype[Any]:
    """Return half precision for large activations, else float32."""
    half = reads != "embedding" and images * math.prod(row) * 4 > _HALF_ABOVE
    return np.dtype(np.float16 if half else np.float32)


def to_stored(values: np.ndarray, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """Convert encoded images to the precision of their file.

    Raises:
        FedLensError: when half precision cannot hold a value.
    """
    with np.errstate(over="ignore"):  # looked at in the next line
        stored = values.astype(dtype, copy=False)
    if dtype == np.float16 and not np.isfinite(stored).all():
        raise FedLensError(
            f"{name}: an activation is too large for half precision; use fewer images, so that "
            "they are stored in single precision, or another start layer",
            "backbone.name",
        )
    return stored


def estimate(spec: BackboneSpec, images: int, reads: str) -> int:
    """Return exactly the bytes that an encoding will take on disk, before anything is loaded.

    Raises:
        FedLensError: as ``row_shape``.
    """
    row = row_shape(spec, reads)
    return HEADER_BYTES + images * math.prod(row) * stored_dtype(images, row, reads).itemsize


def limit() -> float:
    """Return the most bytes that one encoding may take.

    Raises:
        FedLensError: when the environment variable is no positive number.
    """
    given = os.environ.get(LIMIT, "")
    try:
        gigabytes = float(given) if given else DEFAULT_LIMIT_GB
    except ValueError:
        gigabytes = math.nan
    if not gigabytes > 0:
        raise FedLensError(f"{LIMIT} is '{given}'; give a number of GB, e.g. 50")
    return gigabytes * 1e9


def check_limit(size: int, what: str) -> None:
    """Refuse an encoding that is over the limit.

    Raises:
        FedLensError: with the size, the limit and the remedy.
    """
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
        on_disk: bytes of it that are on the disk already.

    Raises:
        FedLensError: with the size, the free space and the remedy.
    """
    check_limit(size, what)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if size - on_disk + _SPARE > free:
        raise FedLensError(
            f"encoding {what} takes {(size - on_disk) / 1e9:.1f} GB more, and {folder} has "
            f"{free / 1e9:.1f} GB free ({_SPARE / 1e9:g} GB of it stays free); delete encodings on the page "
            "Data & models, or keep the database on a larger disk",
            "backbone.name",
        )
