"""Single image files: whether one can be used, what is odd about it, and its pixels upright in RGB."""

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
from PIL import Image, ImageOps

from fedcore.errors import FedLensError

MAX_PIXELS = 89_478_485
"""Larger images are left out (Pillow's own limit): a small file can unpack to more memory than there is."""

THREADS = 8
"""More than cores: most of the time is spent waiting for the disk, and Pillow decodes outside the GIL."""

BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, EOFError, struct.error,
    zlib.error,
)  # fmt: skip
"""What Pillow raises on damaged files; its decoders are not of one mind."""

_ORIENTATION = 0x0112
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Look:
    """What one image file is like. reason: why it cannot be used, or None.

    Attributes:
        kind: of the trouble: ``empty``, ``truncated``, ``unreadable``, ``huge``, ``not an image``, or "".
        size: width and height as stored; zeros where it could not be opened.
        deep: 16 bits per channel.
        turned: stored on its side or mirrored, with an EXIF mark that says so.
        frames: more than one where it is animated.
    """

    reason: str | None
    kind: str = ""
    size: tuple[int, int] = (0, 0)
    mode: str = ""
    deep: bool = False
    turned: bool = False
    frames: int = 1


def decode(path: Path, side: int | None = None) -> Image.Image:
    """An image as a viewer shows it: EXIF orientation applied, RGB, its first frame.

    Args:
        side: decode a JPEG at the smallest scale (1, 1/2, 1/4, 1/8) at which no side is shorter than this.

    Raises:
        FedLensError: naming the file, when it has become unreadable since it was checked.
    """
    try:
        with Image.open(path) as image:
            if side is not None:
                image.draft(None, (side, side))
            return upright(image)
    except BROKEN as error:
        raise FedLensError(
            f"{path}: cannot be decoded any more ({error}); restore or remove it, "
            "or let `data check` leave it out",
            "data.root",
        ) from error


def upright(image: Image.Image) -> Image.Image:
    """An opened image as a viewer shows it, RGB."""
    return to_rgb(ImageOps.exif_transpose(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB. 16-bit grey is scaled to 8 bits, where Pillow alone would clip it to white."""
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.float64)
        return Image.fromarray((grey / 257 + 0.5).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def fault(source: Path | bytes) -> str | None:
    """Why an image cannot be used, or None. A JPEG is read at both ends only, the rest is decoded."""
    return examine(source, thorough=False).reason


def faults(files: Iterable[Path | bytes]) -> Iterator[str | None]:
    """``fault`` of every file, in order; several are read at once."""
    return in_threads(fault, files)


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """A function of every item, in order, in threads; few results wait at a time, whatever their number."""
    items = iter(items)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(items, 16 * THREADS)):
            with warnings.catch_warnings():  # Pillow's about many pixels: a limit of our own answers it
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                results = list(pool.map(function, chunk))
            yield from results


def examine(source: Path | bytes, *, thorough: bool = True) -> Look:
    """Open an image and say what it is like. ``thorough`` decodes every pixel, JPEG's at an eighth.

    Never raises for what is in the file.
    """
    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size == 0:
            return Look("empty file", "empty")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > MAX_PIXELS:
                return _huge(image.size)
            look = _look(image, source) if thorough else Look(None)
            whole = image.format == "JPEG" and _ends_with(source, b"\xff\xd9")
            if not whole:
                image.load()
            elif thorough:
                image.draft("RGB", (1, 1))
                image.load()
            return look
    except Image.DecompressionBombError:
        return _huge((0, 0))
    except Image.UnidentifiedImageError:
        return Look("not an image", "not an image")
    except BROKEN as error:
        cut = "truncat" in str(error).lower()
        return Look(f"unreadable: {error or type(error).__name__}", "truncated" if cut else "unreadable")


def _huge(size: tuple[int, int]) -> Look:
    return Look(f"more than {MAX_PIXELS:,} pixels", "huge", size)


def _look(image: Image.Image, source: Path | bytes) -> Look:
    return Look(
        reason=None,
        size=image.size,
        mode=image.mode,
        deep=image.mode.startswith("I") or (image.format == "PNG" and _head(source)[24:25] == b"\x10"),
        turned=image.getexif().get(_ORIENTATION, 1) in range(2, 9),
        frames=getattr(image, "n_frames", 1),
    )


def _head(source: Path | bytes) -> bytes:
    """The first 32 bytes (of a PNG: through its IHDR chunk)."""
    if isinstance(source, bytes):
        return source[:32]
    with source.open("rb") as file:
        return file.read(32)


def _ends_with(source: Path | bytes, marker: bytes) -> bool:
    """Whether a marker stands in the last 64 bytes (cameras pad their files)."""
    if isinstance(source, bytes):
        return marker in source[-64:]
    with source.open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - 64))
        return marker in file.read()
