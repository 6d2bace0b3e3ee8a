"""Check a data set before it is used: its content, its defects, and the images that will be left out.

The check changes nothing and does not stop at the first problem: an error that would refuse a run is part of
the report.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from pydantic import BaseModel

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN
from fedcore.base.files import user_path
from fedcore.base.progress import Progress, Work, prepare_then
from fedcore.data import catalog, image_files
from fedcore.data.image_files import FileCheck, check_file, map_in_threads
from fedcore.data.images import ONE_DOMAIN, FolderError, ImageSet, pixel_hash, squash
from fedcore.data.readers import ddr, hf, loaders
from fedcore.data.readers.files import (
    SUFFIXES,
    WHOLE_SYSTEMS,
    LeftOut,
    Listing,
    leaves,
    usable_images,
    within,
)
from fedcore.data.readers.layout import spellings

KINDS: Mapping[str, tuple[str, str]] = {
    "link": (
        "link{s} out of the folder",
        "refused: copy the files they point to, or give that folder",
    ),
    "missing": ("listed file{s} not in the folder", "left out"),
    "empty": ("file{s} of zero bytes", "left out"),
    "truncated": ("truncated image{s}", "left out"),
    "unreadable": ("unreadable image{s}", "left out"),
    "huge": ("image{s} beyond the limit on pixels", "left out"),
    "not an image": ("file{s} with an image's name but other content", "left out"),
    "no label": ("row{s} without a label", "left out"),
    "no grade": ("image{s} marked as ungradable by the data set", "left out"),
    "no images": (
        "class{es} without images in a domain",
        "kept: clients of that domain cannot learn them",
    ),
    "train and test": (
        "group{s} of identical images in train and in test",
        "used as they are: remove one of each",
    ),
    "labels": (
        "group{s} of identical images of different classes",
        "used as they are: decide on one class",
    ),
    "domains": (
        "group{s} of identical images in different domains",
        "used as they are: a held-out domain shares them with training",
    ),
    "copies": (
        "group{s} of identical images of one class",
        "used as they are: a seeded split may separate them",
    ),
    "animated": ("animated image{s}", "the first frame is used"),
    "CMYK": ("image{s} in CMYK", "converted to RGB"),
    "16 bit": ("image{s} of 16 bits per channel", "scaled to 8 bits"),
    "turned": ("image{s} with an EXIF rotation", "rotated upright"),
    "unused": ("image{s} outside the domains and classes in use", "ignored"),
    "other": ("file{s} other than images", "ignored"),
}
"""Kind of finding -> its description and treatment; the most serious first."""
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
        one = self.count == 1
        return KINDS[self.kind][0].format(s="" if one else "s", es="" if one else "es")

    @property
    def treatment(self) -> str:
        return KINDS[self.kind][1]


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


def recognised(report: CheckReport) -> str | None:
    """Return the data set of the catalog with the same domains, classes and numbers of images, if any."""
    for entry in catalog.entries():
        if entry.embedded or entry.is_own or not entry.counts:
            continue

        spelled = spellings(entry, entry.domains)
        domains = [spelled.get(squash(name), "") for name in report.domains]
        counts = dict(zip(domains, map(sum, report.counts), strict=True))
        same_counts = entry.counts in ({ONE_DOMAIN: report.images}, counts)
        same_domains = sorted(domains) == sorted(entry.domains)
        spelled = spellings(entry, entry.classes)
        classes = {spelled.get(squash(name), name) for name in report.classes}
        same_classes = classes == {*entry.classes} or (
            not entry.classes and len(classes) == entry.class_count
        )
        if same_counts and same_domains and same_classes:
            return entry.name
    return None


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

    def add_duplicates(self, images: ImageSet, paths: Sequence[str], digests: Sequence[str | None]) -> None:
        """Add groups of identical images, each only under its most serious kind."""
        groups: dict[str, list[int]] = defaultdict(list)
        for row, digest in enumerate(digests):
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


_EVERY = 100
_Key = TypeVar("_Key")
_Result = TypeVar("_Result")


def check_dataset(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Work[CheckReport]:
    """Check a data set of the catalog, or data of the user's own (``loaders.detect_format``).

    Every image is decoded once, in threads.
    """
    entry = catalog.entry(name)
    yield Progress("listing files", 0, 0)
    if entry.embedded:
        images, notes = catalog.load(name, None, domains)
        return (yield from _check_pixels("", images, notes))
    root, columns = catalog.place(entry, root, columns)
    if not user_path(root, "data.root").exists():
        where = "or file of the data set" if entry.is_own else f"of {entry.title}"
        raise FolderError(f"no folder {root}; give the folder {where}")
    path = user_path(root, "data.root").resolve()
    try:
        if entry.loader in ("hf", "femnist"):
            named = hf.FEMNIST_COLUMNS if entry.loader == "femnist" else columns
            saved = yield from prepare_then(lambda: loaders.read_saved(entry, path, domains, columns))
            return (yield from _check_hf(path, *saved, named))
        source = yield from prepare_then(lambda: loaders.read_source(entry, root, domains, columns))
    except FedLensError as error:
        findings = FindingCollector(path)
        files = [] if str(path) in WHOLE_SYSTEMS else findings.add_folder(None)
        checks = yield from _collect("reading images", map_in_threads(check_file, files), files)
        for file, check in zip(files, checks, strict=True):
            findings.add_check(file, check)
        return CheckReport(name=name, root=str(path), error=str(error), findings=findings.findings())
    if isinstance(source, Listing):
        return (yield from _check_listing(name, path if path.is_dir() else source.root, source))
    images, notes = source
    notes = [*notes, *catalog.count_warnings(entry, images)]
    return (yield from _check_pixels(str(path), images, notes))


def _check_listing(name: str, root: Path, listing: Listing) -> Work[CheckReport]:
    files = listing.files
    results = map_in_threads(_check_and_hash, zip(files, files, strict=True))
    checked = yield from _collect("reading images", results, files)
    reasons = [check.reason for _, check, _ in checked]
    image_files.save_reasons(files, reasons)
    findings = FindingCollector(root)
    for file, reason in listing.left_out:
        findings.add("no grade" if reason == ddr.NO_GRADE else "missing", file)
    for file, check, _ in checked:
        findings.add_check(file, check)
    findings.add_folder(listing)
    try:
        images, _ = usable_images(listing, name=name, template="{}", reasons=reasons)
    except FedLensError as error:
        return CheckReport(name=name, root=str(root), error=str(error), findings=findings.findings())
    paths = [findings.shown(file) for file, check, _ in checked if not check.reason]
    digests = [digest for _, check, digest in checked if not check.reason]
    notes = catalog.count_warnings(catalog.entry(name), images)
    return _report(str(root), images, paths, findings, digests, notes)


def _check_pixels(root: str, images: ImageSet, notes: Sequence[str]) -> Work[CheckReport]:
    """Check images that are not separate files: drawings, or rows of an array."""
    findings = FindingCollector(None)
    hashes = map_in_threads(lambda row: _pixel_hash(images, row), range(len(images)))
    digests = yield from _collect("reading images", hashes, images)
    for key, digest in zip(images.keys, digests, strict=True):
        if digest is None:
            findings.add("unreadable", key)
    return _report(root, images, images.keys, findings, digests, notes)


def _check_hf(
    root: Path, images: ImageSet, left_out: Sequence[LeftOut], columns: Mapping[str, str] | None
) -> Work[CheckReport]:
    findings = FindingCollector(None)
    digests = []
    used = {*images.keys}
    for key, reason in left_out:
        if reason == "no label":
            findings.add("no label", key)
    results = map_in_threads(_check_and_hash, hf.contents(root, columns))
    for key, check, digest in (yield from _collect("reading images", results, [*images.keys, *left_out])):
        if key in used or check.reason:
            findings.add_check(key, check)
        if key in used:
            digests.append(digest)
    return _report(str(root), images, images.keys, findings, digests, ())


def _collect(message: str, results: Iterable[_Result], items: Sized) -> Work[list[_Result]]:
    collected: list[_Result] = []
    for result in results:
        collected.append(result)
        if len(collected) % _EVERY == 0 or len(collected) == len(items):
            yield Progress(message, len(collected), len(items))
    return collected


def _check_and_hash(item: tuple[_Key, Path | bytes]) -> tuple[_Key, FileCheck, str | None]:
    key, content = item
    try:
        data = content if isinstance(content, bytes) else content.read_bytes()
    except OSError:
        return key, check_file(content), None
    return key, check_file(data), hashlib.sha256(data).hexdigest()


def _pixel_hash(images: ImageSet, row: int) -> str | None:
    try:
        return pixel_hash(images, row)
    except FedLensError:
        return None


def _report(
    root: str,
    images: ImageSet,
    paths: Sequence[str],
    findings: FindingCollector,
    digests: Sequence[str | None],
    notes: Sequence[str],
) -> CheckReport:
    """Complete the report; ``paths`` and ``digests`` (None: not readable) are those of the images."""
    findings.add_duplicates(images, paths, digests)
    for domain, name in images.empty_cells():
        findings.add("no images", f"{domain}/{name}")
    samples = {}
    for d, domain in enumerate(images.domains):
        rows = np.flatnonzero(images.domain == d)
        by_class = rows[np.argsort(images.labels[rows], kind="stable")]
        spread = np.unique(np.linspace(0, len(rows) - 1, min(SAMPLES, len(rows))).astype(int))
        samples[domain] = tuple(paths[row] for row in by_class[spread])
    return CheckReport(
        name=images.name,
        root=root,
        images=len(images),
        domains=images.domains,
        classes=images.classes,
        counts=tuple(map(tuple, images.class_counts().tolist())),
        samples=samples,
        findings=findings.findings(),
        notes=tuple(notes),
    )


SIDE = 56
"""Side of a thumbnail on a contact sheet, pixels."""
_COLUMNS, _ROWS = 10, 8
"""Largest number of classes and of domains on a contact sheet."""


def contact_sheet(images: ImageSet) -> Image.Image:
    """Draw the first image of each class (column) in each domain (row); grey if there is none."""
    domains, classes = images.domains[:_ROWS], images.classes[:_COLUMNS]
    sheet = Image.new("RGB", (len(classes) * SIDE, len(domains) * SIDE), (127, 127, 127))
    for i in range(len(domains)):
        for j in range(len(classes)):
            members = np.flatnonzero((np.asarray(images.domain) == i) & (np.asarray(images.labels) == j))
            if members.size:
                thumbnail = images.read(int(members[0])).convert("RGB").resize((SIDE - 2, SIDE - 2))
                sheet.paste(thumbnail, (j * SIDE + 1, i * SIDE + 1))
    return sheet
