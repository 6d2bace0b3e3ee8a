"""What was found wrong with the files of a data set, kept so that they are not all opened at every start.

A verdict holds for exactly these files with these sizes and times. Loading looks at each file's ends; ``data
check`` decodes every pixel, and what it finds replaces the quick verdict: a picture that is broken in its
middle is then left out too, instead of stopping a run. Losing this cache costs time, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedcore.data.check.pictures import faults
from fedcore.data.readers import prepare
from fedcore.data.readers.archives import Step

WORTH_KEEPING = 500
"""Fewer files than this are looked at anew each time: it takes no time."""

AT_ONCE = 5000
"""More files than this are slow work, which a page puts off: 50,000 small ones take 6 s from a warm disk."""


def folder() -> Path:
    """Where verdicts are kept."""
    return prepare.cache() / "verdicts"


def of(files: Sequence[Path]) -> list[str | None]:
    """Why each file cannot be used, or None: as it was found last time, or found out now.

    Raises:
        NotPrepared: within ``put_off``, for many files that nobody has looked at.
    """
    place = _place(files)
    known = _kept(place, len(files))
    if known is None and len(files) > AT_ONCE and prepare.writable(folder()):
        above = os.path.commonpath([file.parent for file in files])
        prepare.do_first(
            f"{len(files):,} images in {above} have to be looked through", lambda: _look_through(files)
        )
        known = _kept(place, len(files))
    if known is not None:
        return known
    reasons = list(faults(files))
    if len(files) >= WORTH_KEEPING:
        keep(files, reasons)
    return reasons


def _kept(place: Path, count: int) -> list[str | None] | None:
    with contextlib.suppress(OSError, ValueError):  # not there, or written by something else
        found = json.loads(place.read_text(encoding="utf-8"))
        return [found.get(str(row)) for row in range(count)]
    return None


def _look_through(files: Sequence[Path]) -> Iterator[Step]:
    reasons: list[str | None] = []
    for reason in faults(files):
        if len(reasons) % WORTH_KEEPING == 0:
            yield Step("looking through images", len(reasons), len(files))
        reasons.append(reason)
    keep(files, reasons)


def keep(files: Sequence[Path], reasons: Sequence[str | None]) -> None:
    """Remember verdicts, where the cache folder can be written."""
    place = _place(files)
    part = place.with_suffix(f".part-{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({str(i): r for i, r in enumerate(reasons) if r}), encoding="utf-8")
        os.replace(part, place)


def _place(files: Sequence[Path]) -> Path:
    content = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
            line = f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        except OSError:
            line = f"{file}\0gone\n"
        content.update(line.encode(errors="surrogateescape"))
    return folder() / f"{content.hexdigest()[:32]}.json"
