"""A data set as a list of image files with labels, and its usable images as an ``ImageSet``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedcore.base.codes import SPLITS
from fedcore.base.progress import counted
from fedcore.data.image_files import cached_reasons, decode
from fedcore.data.images import ONE_DOMAIN, FolderError, ImageSet
from fedcore.data.integrity import hash_versions
from fedcore.data.readers.files import SUFFIXES, images_in
from fedcore.data.readers.layout import FolderLayout


@dataclass
class Listing:
    """The image files of a data set and their labels, before a file is opened.

    ``files``, ``keys``, ``labels``, ``domain``, ``split`` and ``owner`` are parallel lists.

    Attributes:
        classes: as they enter a prompt.
        split: the official split (values as in ``records.codes``), None without one.
        owner: the clients that the data set names ("" for none), None without clients.
        left_out: (path, reason) of files that cannot be used.
        label_files: the files that the labels and the split were read from.
    """

    root: Path
    classes: tuple[str, ...]
    domains: tuple[str, ...] = (ONE_DOMAIN,)
    files: list[Path] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    domain: list[int] = field(default_factory=list)
    split: list[int] | None = None
    owner: list[str] | None = None
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    label_files: list[Path] = field(default_factory=list)

    def add(self, path: Path, key: str, label: int, domain: int = 0, part: int | None = None) -> None:
        """Add an image; refuse a path in a label file that leads out of the folder."""
        if ".." in path.parts or not str(path).startswith(os.path.join(self.root, "")):
            raise FolderError(f"{self.root}: '{path}' is outside the folder; get the label files again")
        self.files.append(path)
        self.keys.append(key)
        self.labels.append(label)
        self.domain.append(domain)
        if part is not None:
            self.split = self.split if self.split is not None else []
            self.split.append(part)


class LeftOut(NamedTuple):
    """An image that is not used, with its path in the folder and a reason such as ``empty file``."""

    path: str
    reason: str


def warnings(root: Path, images: ImageSet, left_out: Sequence[LeftOut]) -> list[str]:
    """Return a line on images that are left out, and one on classes without images in a domain."""
    lines = []
    if left_out:
        first = "; ".join(f"{path}: {reason}" for path, reason in left_out[:3])
        more = "; ..." if len(left_out) > 3 else ""
        lines.append(f"{root}: {counted(len(left_out), 'image')} left out ({first}{more})")
    if empty := images.empty_cells():
        pairs = ", ".join(f"{d}/{c}" for d, c in empty[:5])
        lines.append(f"{root}: no images of {pairs}{', ...' if len(empty) > 5 else ''}")
    return lines


def list_images(layout: FolderLayout, classes: tuple[str, ...]) -> Listing:
    """List the images of a layout, sorted within each class; keys are ``[part/][domain/]class/file``.

    Keys use the data set's names instead of the folders', so that splits, which are keyed by them, are equal
    for all upstream forms of a data set.

    Args:
        classes: the class names as they enter a prompt.
    """
    listing = Listing(layout.root, classes, layout.domains)
    marked = all(s.part is not None for folders in layout.folders.values() for s in folders)
    for d, domain in enumerate(layout.domains):
        for c, name in enumerate(layout.classes):
            folders = layout.folders.get((domain, name), ())
            for folder in sorted(folders, key=lambda s: -1 if s.part is None else s.part):
                parts = () if folder.part is None else (SPLITS[folder.part],)
                above = () if domain == ONE_DOMAIN else (domain,)
                # sorted by name, since the order of a folder's entries differs between file systems
                for path in sorted(images_in(layout.root, folder.path), key=lambda p: p.name):
                    key = "/".join((*parts, *above, name, path.name))
                    listing.add(path, key, c, d, folder.part if marked else None)
    return listing


def usable_images(
    listing: Listing, *, name: str, template: str, reasons: Sequence[str | None] | None = None
) -> tuple[ImageSet, list[LeftOut]]:
    """Return the usable images of a listing, and those that are left out.

    Files are opened once here: empty, unreadable, truncated and huge ones are reported, so that they do not
    stop a run halfway. Pixels are decoded later, by ``ImageSet.read``.

    Args:
        reasons: why each file cannot be used (None: it can), if they have been checked already.
    """
    part_of: dict[str, int] = {}
    for key, part in zip(listing.keys, listing.split or (), strict=False):
        if part_of.setdefault(key, part) != part:
            raise FolderError(
                f"{listing.root}: '{key}' is listed for two parts of the split; get the label files again"
            )
    left_out = [LeftOut(within(listing.root, path), reason) for path, reason in listing.left_out]
    rows = []
    for row, reason in enumerate(cached_reasons(listing.files) if reasons is None else reasons):
        if reason:
            left_out.append(LeftOut(within(listing.root, listing.files[row]), reason))
        else:
            rows.append(row)
    if not rows:
        example = f" ({left_out[0].path}: {left_out[0].reason})" if left_out else ""
        raise FolderError(f"{listing.root}: no readable image of type {', '.join(SUFFIXES)}{example}")
    files = [listing.files[row] for row in rows]
    keys = tuple(listing.keys[row] for row in rows)
    images = ImageSet(
        name=name,
        classes=listing.classes,
        domains=listing.domains,
        template=template,
        labels=np.array(listing.labels, dtype=np.int64)[rows],
        domain=np.array(listing.domain, dtype=np.int64)[rows],
        keys=keys,
        fingerprint=hash_versions(zip(files, keys, strict=True)).hexdigest()[:16],
        read=lambda index: decode(files[index]),
        draft=lambda index, side: decode(files[index], side),
        split=None if listing.split is None else np.array(listing.split, dtype=np.int8)[rows],
        owner=None if listing.owner is None else tuple(listing.owner[row] for row in rows),
    )
    return images, left_out


def within(root: Path, path: Path) -> str:
    """Return a path relative to a folder if it lies in it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
