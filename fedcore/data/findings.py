"""The findings of a check: the paths of each kind of problem, and how FedLens treats them."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from fedcore.base.codes import TEST, TRAIN
from fedcore.data.image_files import FileCheck
from fedcore.data.images import ImageSet
from fedcore.data.readers.files import SUFFIXES, leaves
from fedcore.data.readers.listing import Listing, within

KINDS: Mapping[str, tuple[str, str, str]] = {
    "link": (
        "link that leaves the folder",
        "links that leave the folder",
        "refused: copy the files they point to, or give that folder",
    ),
    "missing": ("file that is listed but missing", "files that are listed but missing", "left out"),
    "empty": ("file of zero bytes", "files of zero bytes", "left out"),
    "truncated": ("truncated image", "truncated images", "left out"),
    "unreadable": ("unreadable image", "unreadable images", "left out"),
    "huge": ("image beyond the limit on pixels", "images beyond the limit on pixels", "left out"),
    "not an image": (
        "file with an image's name that is not an image",
        "files with an image's name that are not images",
        "left out",
    ),
    "no label": ("row without a label", "rows without a label", "left out"),
    "no grade": (
        "image that the data set marks as ungradable",
        "images that the data set marks as ungradable",
        "left out",
    ),
    "no images": (
        "class without images in a domain",
        "classes without images in a domain",
        "kept: clients of that domain cannot learn them",
    ),
    "train and test": (
        "group of identical images in train and in test",
        "groups of identical images in train and in test",
        "used as they are: remove one of each",
    ),
    "labels": (
        "group of identical images of different classes",
        "groups of identical images of different classes",
        "used as they are: decide on one class",
    ),
    "domains": (
        "group of identical images in different domains",
        "groups of identical images in different domains",
        "used as they are: a held-out domain shares them with training",
    ),
    "copies": (
        "group of identical images of one class",
        "groups of identical images of one class",
        "used as they are: a seeded split may separate them",
    ),
    "animated": ("animated image", "animated images", "the first frame is used"),
    "CMYK": ("image in CMYK", "images in CMYK", "converted to RGB"),
    "16 bit": ("image of 16 bits per channel", "images of 16 bits per channel", "scaled to 8 bits"),
    "turned": ("image with an EXIF rotation", "images with an EXIF rotation", "rotated upright"),
    "unused": (
        "image outside the domains and classes in use",
        "images outside the domains and classes in use",
        "ignored",
    ),
    "other": ("file that is not an image", "files that are not images", "ignored"),
}
"""Kind of finding -> its description for one and for several, and its treatment; the most serious first."""
LEFT_OUT = ("missing", "empty", "truncated", "unreadable", "huge", "not an image", "no label", "no grade")
MAX_LISTED = 50
"""Maximum of paths (or groups of paths) that a finding lists; it counts all."""
SAMPLES = 6
"""Number of sample images of each domain in a report."""


class DataFinding(BaseModel, frozen=True):
    """One kind of problem, its number of occurrences and their paths.

    Attributes:
        kind: a key of ``KINDS``.
        paths: the first ``MAX_LISTED``, relative to the folder; identical files are joined by `` = ``.
    """

    kind: str
    count: int
    paths: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return the finding in one line: ``3 truncated images (left out): a.jpg; b.jpg; ...``."""
        more = "; ..." if self.count > 3 else ""
        return f"{self.count:,} {self.what} ({self.treatment}): {'; '.join(self.paths[:3])}{more}"

    @property
    def what(self) -> str:
        return KINDS[self.kind][self.count != 1]

    @property
    def treatment(self) -> str:
        return KINDS[self.kind][2]


class CheckReport(BaseModel, frozen=True):
    """The result of checking a data set.

    Attributes:
        error: why it cannot be used as it is, in one line; None if it can.
        images: number of usable images.
        counts: numbers of usable images. Shape: (domains, classes).
        samples: a few usable images of each domain: paths, or keys if they are not separate files.
        findings: in the order of ``KINDS``.
        notes: further warnings of the loader, e.g. that the data set should have more images.
    """

    name: str
    root: str
    error: str | None = None
    images: int = 0
    domains: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    samples: dict[str, tuple[str, ...]] = {}
    findings: tuple[DataFinding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def left_out(self) -> int:
        return sum(f.count for f in self.findings if f.kind in LEFT_OUT)


_HIDDEN = (".", "__MACOSX", "unpacked-", "fedlens-")


class FindingCollector:
    """Collects findings while a data set is checked; paths are shown relative to ``root``, if it is given."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._paths: dict[str, list[str]] = defaultdict(list)

    def shown(self, file: Path | str) -> str:
        return within(self._root, file) if isinstance(file, Path) and self._root is not None else str(file)

    def add(self, kind: str, file: Path | str) -> None:
        self._paths[kind].append(self.shown(file))

    def add_check(self, file: Path | str, check: FileCheck) -> None:
        applies = {
            check.kind: check.reason is not None,
            "animated": check.frames > 1,
            "CMYK": check.mode == "CMYK",
            "16 bit": check.sixteen_bit,
            "turned": check.rotated,
        }
        for kind, found in applies.items():
            if found:
                self.add(kind, file)

    def add_folder(self, listing: Listing | None) -> list[Path]:
        """Add links that leave the folder, files that are not images, and images that are not in use.

        Returns: the image files that are not in use, sorted.
        """
        root, used = self._root, set[Path]()
        if listing is not None:
            used = {*listing.files, *listing.label_files, *(file for file, _ in listing.left_out)}
        unused: list[Path] = []
        for file in _files(root) if root is not None else ():
            if root is not None and file.is_symlink() and leaves(root, file):
                self.add("link", file)
            elif file.is_dir() or file in used:
                continue
            elif file.suffix.lower() in SUFFIXES:
                unused.append(file)
                if listing is not None:
                    self.add("unused", file)
            else:
                self.add("other", file)
        return unused

    def add_duplicates(
        self, images: ImageSet, paths: Sequence[str], digests: Mapping[int, str | None]
    ) -> None:
        """Add groups of identical images, each only under its most serious kind.

        Args:
            paths: of the rows of ``images``.
            digests: row -> digest of the image, None if it could not be read.
        """
        groups: dict[str, list[int]] = defaultdict(list)
        for row, digest in digests.items():
            if digest is not None:
                groups[digest].append(row)
        for rows in groups.values():
            if len(rows) < 2:
                continue
            parts = set() if images.split is None else set(images.split[rows].tolist())
            if {TRAIN, TEST} <= parts:
                kind = "train and test"
            elif len(set(images.labels[rows].tolist())) > 1:
                kind = "labels"
            else:
                kind = "domains" if len(set(images.domain[rows].tolist())) > 1 else "copies"
            self._paths[kind].append(" = ".join(sorted(paths[row] for row in rows)))

    def findings(self) -> tuple[DataFinding, ...]:
        return tuple(
            DataFinding(kind=kind, count=len(paths), paths=tuple(sorted(paths)[:MAX_LISTED]))
            for kind in KINDS
            if (paths := self._paths[kind])
        )


def _files(root: Path) -> Iterator[Path]:
    """Yield the files and links in a folder, sorted, without hidden ones and those that FedLens wrote."""
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(n for n in inside if not n.startswith(_HIDDEN))
        links = [n for n in inside if Path(folder, n).is_symlink()]
        for name in sorted([*names, *links]):
            if not name.startswith(_HIDDEN):
                yield Path(folder, name)
