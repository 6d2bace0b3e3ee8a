"""Data sets from a folder: ``domain/class/image`` or ``class/image``, checked before anything trains."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.data.check import verdicts
from fedcore.data.check.pictures import decode
from fedcore.data.images import ImageSet
from fedcore.data.readers.layout import layout, prompt_names
from fedcore.data.readers.listing import Listing, listing
from fedcore.data.readers.walk import SUFFIXES
from fedcore.errors import FedLensError


@dataclass(frozen=True)
class LeftOut:
    """A file that is not used. path: relative to the folder; reason: e.g. ``empty file``."""

    path: str
    reason: str


@dataclass(frozen=True)
class FolderReport:
    """What was found. left_out: unusable images; empty: (domain, class) pairs without images."""

    root: str
    images: int
    left_out: tuple[LeftOut, ...]
    empty: tuple[tuple[str, str], ...]

    def warnings(self) -> list[str]:
        """One line per kind of trouble, none where all is well."""
        lines = []
        if self.left_out:
            first = "; ".join(f"{x.path}: {x.reason}" for x in self.left_out[:3])
            more = "; ..." if len(self.left_out) > 3 else ""
            lines.append(f"{self.root}: {len(self.left_out)} images left out ({first}{more})")
        if self.empty:
            pairs = ", ".join(f"{d}/{c}" for d, c in self.empty[:5]) + (
                ", ..." if len(self.empty) > 5 else ""
            )
            lines.append(f"{self.root}: no images of {pairs}")
        return lines


def read(
    root: str | Path,
    *,
    name: str = "folder",
    template: str = "a picture of a {}.",
    domains: Iterable[str] | None = None,
) -> tuple[ImageSet, FolderReport]:
    """The images of a folder of one's own, and what was left out of them.

    Raises:
        FedLensError: as ``layout``; also for links that leave the folder, and where no image is readable.
    """
    found = layout(root, domains)
    return collect(listing(found, prompt_names(found.root, found.classes)), name=name, template=template)


def collect(
    found: Listing, *, name: str, template: str, reasons: Sequence[str | None] | None = None
) -> tuple[ImageSet, FolderReport]:
    """The usable images of a listing, and what was left out of them.

    Files are opened once: empty, unreadable, truncated and huge ones are listed in the report, so that none
    stops a run in its middle. Pixels are decoded later, by ``ImageSet.read``: upright (EXIF), RGB.

    Args:
        reasons: why each file cannot be used, where that is known already.

    Raises:
        FedLensError: ``data.root``, where no image is readable.
    """
    left_out = [LeftOut(_within(found.root, path), reason) for path, reason in found.left_out]
    rows = []
    for row, reason in enumerate(verdicts.of(found.files) if reasons is None else reasons):
        if reason:
            left_out.append(LeftOut(_within(found.root, found.files[row]), reason))
        else:
            rows.append(row)
    labels = np.array(found.labels, dtype=np.int64)[rows]
    domain = np.array(found.domain, dtype=np.int64)[rows]
    present = set(zip(domain.tolist(), labels.tolist(), strict=True))
    empty = tuple(
        (d, c)
        for i, d in enumerate(found.domains)
        for k, c in enumerate(found.classes)
        if (i, k) not in present
    )
    report = FolderReport(str(found.root), len(rows), tuple(left_out), empty)
    if not rows:
        reasons = f" ({left_out[0].path}: {left_out[0].reason})" if left_out else ""
        raise FedLensError(
            f"{found.root}: no readable image of type {', '.join(SUFFIXES)}{reasons}", "data.root"
        )
    files = [found.files[row] for row in rows]
    keys = tuple(found.keys[row] for row in rows)
    images = ImageSet(
        name=name,
        classes=found.classes,
        domains=found.domains,
        template=template,
        labels=labels,
        domain=domain,
        keys=keys,
        fingerprint=_fingerprint(keys, files),
        read=lambda index: decode(files[index]),
        draft=lambda index, side: decode(files[index], side),
        split=None if found.split is None else np.array(found.split, dtype=np.int8)[rows],
        owner=None if found.owner is None else tuple(found.owner[row] for row in rows),
    )
    return images, report


def _within(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _fingerprint(keys: tuple[str, ...], files: list[Path]) -> str:
    """From relative paths, sizes and modification times: cheap, and it changes when a file does."""
    content = hashlib.sha256()
    for key, path in zip(keys, files, strict=True):
        stat = path.stat()
        line = f"{key}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        content.update(line.encode(errors="surrogateescape"))  # names that are not UTF-8 exist on disks
    return content.hexdigest()[:16]
