"""Single image files: check whether one can be used, and decode it upright in RGB."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedcore.errors import FedLensError

MAX_PIXELS = 89_478_485
"""Larger images are left out (Pillow's own limit): a small file can decode to more memory than there is."""

THREADS = 8
"""More than cores: most of the time is spent waiting for the disk, and Pillow decodes outside the GIL."""

BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, EOFError, struct.error,
    zlib.error,
)  # fmt: skip
"""Errors that Pillow raises on damaged files; its decoders do not agree on one."""

_ORIENTATION = 0x0112
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one image file.

    Attributes:
        reason: why it cannot be used; None if it can.
        kind: kind of defect: ``empty``, ``truncated``, ``unreadable``, ``huge``, ``not an image``, or "".
        size: width and height as stored, pixels; zeros where it could not be opened.
        mode: Pillow's name of its pixel format, e.g. ``RGB`` or ``CMYK``.
        sixteen_bit: it has 16 bits per channel.
        rotated: it is stored rotated or mirrored, with an EXIF orientation that says so.
        frames: number of frames; more than one where it is animated.
    """

    reason: str | None
    kind: str = ""
    size: tuple[int, int] = (0, 0)
    mode: str = ""
    sixteen_bit: bool = False
    rotated: bool = False
    frames: int = 1


def decode(path: Path, side: int | None = None) -> Image.Image:
    """Decode an image as a viewer shows it: EXIF orientation applied, RGB, its first frame.

    Args:
        side: decode a JPEG at the smallest scale (1, 1/2, 1/4, 1/8) at which no side is shorter than this.

    Raises:
        FedLensError: naming the file, when it has become unreadable since it was checked.
    """
    try:
        return decode_content(path, side)
    except BROKEN as error:
        raise FedLensError(
            f"{path}: cannot be decoded any more ({error}); restore or remove it, "
            "or let `data check` leave it out",
            "data.root",
        ) from error


def decode_content(source: Path | bytes, side: int | None = None) -> Image.Image:
    """Decode a file or its content as ``decode`` does, but raise Pillow's own errors (``BROKEN``)."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        if side is not None:
            image.draft(None, (side, side))
        return to_rgb(ImageOps.exif_transpose(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB; 16-bit grey is scaled to 8 bits, where Pillow alone would clip it to white."""
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.float64)
        return Image.fromarray((grey / 257 + 0.5).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def unusable_reasons(files: Iterable[Path | bytes]) -> Iterator[str | None]:
    """Yield why each image cannot be used, or None, in order; of a JPEG only both ends are read."""
    return map_in_threads(lambda file: check_file(file, thorough=False).reason, files)


def map_in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Apply a function to every item in threads; results come in order, and few of them wait at a time."""
    items = iter(items)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(items, 16 * THREADS)):
            with warnings.catch_warnings():  # Pillow's warning of many pixels: MAX_PIXELS handles them
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                results = list(pool.map(function, chunk))
            yield from results


def check_file(source: Path | bytes, *, thorough: bool = True) -> FileCheck:
    """Open an image and say what it is like; never raises because of the file's content.

    Args:
        thorough: decode every pixel, a JPEG's at an eighth of its size.
    """
    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size == 0:
            return FileCheck("empty file", "empty")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > MAX_PIXELS:
                return _huge(image.size)
            check = _properties(image, source) if thorough else FileCheck(None)
            whole = image.format == "JPEG" and _ends_with(source, b"\xff\xd9")
            if not whole:
                image.load()
            elif thorough:
                image.draft("RGB", (1, 1))
                image.load()
            return check
    except Image.DecompressionBombError:
        return _huge((0, 0))
    except UnidentifiedImageError:
        return FileCheck("not an image", "not an image")
    except BROKEN as error:
        cut = "truncat" in str(error).lower()
        return FileCheck(f"unreadable: {error or type(error).__name__}", "truncated" if cut else "unreadable")


def _huge(size: tuple[int, int]) -> FileCheck:
    return FileCheck(f"more than {MAX_PIXELS:,} pixels", "huge", size)


def _properties(image: Image.Image, source: Path | bytes) -> FileCheck:
    return FileCheck(
        reason=None,
        size=image.size,
        mode=image.mode,
        sixteen_bit=image.mode.startswith("I") or (image.format == "PNG" and _head(source)[24:25] == b"\x10"),
        rotated=image.getexif().get(_ORIENTATION, 1) in range(2, 9),
        frames=getattr(image, "n_frames", 1),
    )


def _head(source: Path | bytes) -> bytes:
    """Return the first 32 bytes (of a PNG: through its IHDR chunk)."""
    if isinstance(source, bytes):
        return source[:32]
    with source.open("rb") as file:
        return file.read(32)


def _ends_with(source: Path | bytes, marker: bytes) -> bool:
    """Return whether a marker is among the last 64 bytes (cameras pad their files)."""
    if isinstance(source, bytes):
        return marker in source[-64:]
    with source.open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - 64))
        return marker in file.read()
