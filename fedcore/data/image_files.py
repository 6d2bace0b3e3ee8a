"""Image files: decode one upright in RGB, check whether files can be used, and cache the results of checks.

Loading a data set checks only the ends of each file. ``data check`` decodes every pixel and replaces the
cached results of the quick check, so that an image with damage in its middle is left out too instead of
stopping a run. A cached result is valid for exactly these files with these sizes and modification times; the
cache can be deleted at any time.
"""

import contextlib
import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedcore.base.files import cache_folder, make_writable
from fedcore.base.progress import Progress, Work, require_slow_work
from fedcore.data import integrity
from fedcore.data.images import FolderError

MAX_PIXELS = 89_478_485
"""Larger images are left out (Pillow's own limit), because a small file can decode to gigabytes."""
THREADS = 8
"""More threads than cores, because they mostly wait for the disk, and Pillow decodes outside the GIL."""
BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, EOFError, struct.error,
    zlib.error,
)  # fmt: skip
"""Errors that Pillow's decoders raise on damaged files."""
_ORIENTATION = 0x0112
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one image file.

    Attributes:
        reason: why it cannot be used; None if it can.
        kind: kind of defect: ``empty``, ``truncated``, ``unreadable``, ``huge``, ``not an image``, or "".
        mode: Pillow's name of its pixel format, e.g. ``RGB`` or ``CMYK``.
        rotated: its EXIF orientation says that it is stored rotated or mirrored.
        frames: more than one if it is animated.
    """

    reason: str | None
    kind: str = ""
    mode: str = ""
    sixteen_bit: bool = False
    rotated: bool = False
    frames: int = 1


_HUGE = FileCheck(f"more than {MAX_PIXELS:,} pixels", "huge")


def decode(path: Path, side: int | None = None) -> Image.Image:
    """Decode the first frame of an image as a viewer shows it, with its EXIF orientation, in RGB.

    Args:
        side: decode a JPEG at the smallest scale (1, 1/2, 1/4, 1/8) at which no side is shorter than this.
    """
    try:
        return decode_content(path, side)
    except BROKEN as error:
        raise FolderError(
            f"{path}: can no longer be decoded ({error}); restore or remove it, "
            "or let `data check` leave it out"
        ) from error


def decode_content(source: Path | bytes, side: int | None) -> Image.Image:
    """Decode a file or its content as ``decode`` does, but raise Pillow's own errors (``BROKEN``)."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        if side is not None:
            image.draft(None, (side, side))
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits, which Pillow would clip to white
        grey = np.asarray(upright, dtype=np.float64)
        upright = Image.fromarray((grey / 257 + 0.5).clip(0, 255).astype(np.uint8))
    return upright.convert("RGB")


def unusable_reasons(files: Iterable[Path | bytes]) -> Iterator[str | None]:
    """Yield why each image cannot be used, or None, in order; of a JPEG only both ends are read."""
    return map_in_threads(lambda file: check_file(file, thorough=False).reason, files)


def map_in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Apply a function to every item in threads; results come in order, a small chunk at a time."""
    items = iter(items)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(items, 16 * THREADS)):
            with warnings.catch_warnings():  # Pillow's warning of many pixels: MAX_PIXELS handles them
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                results = list(pool.map(function, chunk))
            yield from results


def check_file(source: Path | bytes, *, thorough: bool = True) -> FileCheck:
    """Describe an image and its defects; never raises because of the file's content.

    Args:
        thorough: decode every pixel, a JPEG's at an eighth of its size.
    """
    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size == 0:
            return FileCheck("empty file", "empty")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > MAX_PIXELS:
                return _HUGE
            check = FileCheck(None)
            if thorough:
                deep = image.format == "PNG" and _read_end(source, 32)[24:25] == b"\x10"
                check = FileCheck(
                    reason=None,
                    mode=image.mode,
                    sixteen_bit=image.mode.startswith("I") or deep,
                    rotated=image.getexif().get(_ORIENTATION, 1) in range(2, 9),
                    frames=getattr(image, "n_frames", 1),
                )
            end = b"\xff\xd9"  # of a JPEG; cameras pad their files
            complete = image.format == "JPEG" and end in _read_end(source, -64)
            if complete and thorough:
                image.draft("RGB", (1, 1))
            if thorough or not complete:  # without such an end, only decoding shows that nothing is missing
                image.load()
            return check
    except Image.DecompressionBombError:
        return _HUGE
    except UnidentifiedImageError:
        return FileCheck("not an image", "not an image")
    except BROKEN as error:
        cut = "truncat" in str(error).lower()
        return FileCheck(f"unreadable: {error or type(error).__name__}", "truncated" if cut else "unreadable")


def _read_end(source: Path | bytes, size: int) -> bytes:
    """Return the first bytes of a file, or the last ones for a negative size."""
    if isinstance(source, bytes):
        return source[:size] if size > 0 else source[size:]
    with source.open("rb") as file:
        file.seek(0 if size > 0 else max(0, file.seek(0, io.SEEK_END) + size))
        return file.read(abs(size))


MIN_CACHED = 500
"""Results for fewer files than this are not cached, because checking them is quick."""
MAX_UNDEFERRED = 5000
"""Checking more files than this is slow work: 50,000 small ones take 6 s from a warm disk."""


def cached_reasons(files: Sequence[Path]) -> list[str | None]:
    """Return why each file cannot be used (None: it can), from the cache or else from a quick check.

    Raises:
        NotPrepared: within ``defer_slow_work``, for many files that have not been checked yet.
    """
    parent = os.path.commonpath([file.parent for file in files]) if files else ""
    return reasons_once(_version(files), len(files), parent, lambda: files)


def reasons_once(
    version: str, count: int, where: object, contents: Callable[[], Iterable[Path | bytes]]
) -> list[str | None]:
    """Return why each of some images cannot be used, as ``cached_reasons`` does.

    Args:
        version: identifies the images and changes with them.
        where: the folder, for the message.
    """
    path = _cache_file(version)
    if (reasons := _load(path, count)) is not None:
        return reasons

    def check_all() -> Work[None]:
        found: list[str | None] = []
        for reason in unusable_reasons(contents()):
            if len(found) % MIN_CACHED == 0:
                yield Progress("checking images", len(found), count)
            found.append(reason)
        _save(path, found)

    if count > MAX_UNDEFERRED and make_writable(path.parent):
        require_slow_work(f"{count:,} images in {where} have to be checked", check_all)
        if (reasons := _load(path, count)) is not None:
            return reasons
    reasons = list(unusable_reasons(contents()))
    if count >= MIN_CACHED:
        _save(path, reasons)
    return reasons


def save_reasons(files: Sequence[Path], reasons: Sequence[str | None]) -> None:
    """Store why each file cannot be used (None: it can), if the cache folder can be written."""
    _save(_cache_file(_version(files)), reasons)


def _save(path: Path, reasons: Sequence[str | None]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        integrity.write_result(path, {str(i): r for i, r in enumerate(reasons) if r})


def _load(path: Path, count: int) -> list[str | None] | None:
    reasons = integrity.read_result(path)
    return None if reasons is None else [reasons.get(str(row)) for row in range(count)]


def _version(files: Sequence[Path]) -> str:
    return integrity.hash_versions((file, str(file)) for file in files)


def _cache_file(version: str) -> Path:
    return cache_folder() / "verdicts" / f"{version[:32]}.json"
