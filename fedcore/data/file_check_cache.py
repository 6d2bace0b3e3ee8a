"""A cache of the image files that cannot be used, so that not every start has to open all files.

An entry is valid for exactly these files with these sizes and modification times. Loading a data set checks
only the ends of each file. ``data check`` decodes every pixel and replaces the result of the quick check, so
that an image with damage in its middle is left out too, instead of stopping a run. The cache can be deleted
at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from fedcore.data import slow_work
from fedcore.data.image_files import unusable_reasons
from fedcore.progress import Progress, Work

MIN_CACHED = 500
"""Fewer files than this are checked every time, which is quick."""

MAX_UNDEFERRED = 5000
"""Checking more files than this is slow work: 50,000 small ones take 6 s from a warm disk."""


def folder() -> Path:
    """Return the folder of the cache."""
    return slow_work.cache_folder() / "verdicts"  # its first name, to find earlier results


def cached_reasons(files: Sequence[Path]) -> list[str | None]:
    """Return why each file cannot be used, or None, from the cache or else from a quick check.

    Raises:
        NotPrepared: within ``defer_slow_work``, for many files that have not been checked yet.
    """
    place = _place(files)
    reasons = _load(place, len(files))
    if reasons is None and len(files) > MAX_UNDEFERRED and slow_work.make_writable(folder()):
        parent = os.path.commonpath([file.parent for file in files])
        slow_work.require_slow_work(
            f"{len(files):,} images in {parent} have to be looked through", lambda: _check_all(files)
        )
        reasons = _load(place, len(files))
    if reasons is not None:
        return reasons
    reasons = list(unusable_reasons(files))
    if len(files) >= MIN_CACHED:
        save(files, reasons)
    return reasons


def save(files: Sequence[Path], reasons: Sequence[str | None]) -> None:
    """Store why each file cannot be used, or None, if the cache folder can be written."""
    place = _place(files)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        slow_work.write_result(place, {str(i): r for i, r in enumerate(reasons) if r})


def _load(place: Path, count: int) -> list[str | None] | None:
    reasons = slow_work.read_result(place)
    return None if reasons is None else [reasons.get(str(row)) for row in range(count)]


def _check_all(files: Sequence[Path]) -> Work[None]:
    reasons: list[str | None] = []
    for reason in unusable_reasons(files):
        if len(reasons) % MIN_CACHED == 0:
            yield Progress("looking through images", len(reasons), len(files))
        reasons.append(reason)
    save(files, reasons)


def _place(files: Sequence[Path]) -> Path:
    content = hashlib.sha256()
    for file in files:
        try:
            content.update(slow_work.version_line(file, str(file)))
        except OSError:
            content.update(f"{file}\0gone\n".encode(errors="surrogateescape"))
    return folder() / f"{content.hexdigest()[:32]}.json"
