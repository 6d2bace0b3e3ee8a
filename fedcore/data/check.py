"""Check a data set before it is used: its content, its defects, and the images that will be left out.

The check changes nothing and does not stop at the first problem: an error that would refuse a run is part of
the report.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import Progress, Work, prepare_then
from fedcore.data import catalog, image_files
from fedcore.data.findings import SAMPLES, CheckReport, FindingCollector
from fedcore.data.image_files import FileCheck, check_file, map_in_threads
from fedcore.data.images import FolderError, ImageSet
from fedcore.data.readers import ddr, hf, loaders
from fedcore.data.readers.files import WHOLE_SYSTEMS
from fedcore.data.readers.listing import LeftOut, Listing, usable_images

_EVERY = 100
_Result = TypeVar("_Result")


def check_dataset(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Work[CheckReport]:
    """Check a data set of the catalog, or the user's own ``folder``, ``manifest`` or ``hf-dataset``.

    Every image is decoded once, in threads.
    """
    entry = catalog.entry(name)
    yield Progress("listing files", 0, 0)
    if entry.embedded:
        images, notes = catalog.load_checked(name, None, domains)
        return (yield from _check_pixels("", images, notes))
    if not root or not user_path(root, "data.root").exists():
        where = f"of {entry.title}" if entry.classes or entry.class_count else "or file of the data set"
        raise FolderError(f"no folder {root or ''}; give the folder {where}")
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
    checks = yield from _collect("reading images", map_in_threads(check_file, listing.files), listing.files)
    reasons = [check.reason for check in checks]
    image_files.save_reasons(listing.files, reasons)
    findings = FindingCollector(root)
    for file, reason in listing.left_out:
        findings.add("no grade" if reason == ddr.NO_GRADE else "missing", file)
    for file, check in zip(listing.files, checks, strict=True):
        findings.add_check(file, check)
    findings.add_folder(listing)
    try:
        images, _ = usable_images(listing, name=name, template="{}", reasons=reasons)
    except FedLensError as error:
        return CheckReport(name=name, root=str(root), error=str(error), findings=findings.findings())
    files = [file for file, reason in zip(listing.files, reasons, strict=True) if not reason]
    digests = yield from _file_hashes(files)
    notes = catalog.count_warnings(catalog.entry(name), images)
    return _report(str(root), images, list(map(findings.shown, files)), findings, digests, notes)


def _check_pixels(root: str, images: ImageSet, notes: Sequence[str]) -> Work[CheckReport]:
    """Check images that are not separate files: drawings, or rows of an array."""
    findings = FindingCollector(None)
    hashes = map_in_threads(lambda row: _pixel_hash(images, row), range(len(images)))
    digests = dict(enumerate((yield from _collect("reading images", hashes, images))))
    for row, digest in digests.items():
        if digest is None:
            findings.add("unreadable", images.keys[row])
    return _report(root, images, images.keys, findings, digests, notes)


def _check_hf(
    root: Path, images: ImageSet, left_out: Sequence[LeftOut], columns: Mapping[str, str] | None
) -> Work[CheckReport]:
    findings, digests = FindingCollector(None), {}
    row = {key: i for i, key in enumerate(images.keys)}
    for key, reason in left_out:
        if reason == "no label":
            findings.add("no label", key)
    results = map_in_threads(_check_and_hash, hf.contents(root, columns))
    rows = [*images.keys, *left_out]
    for key, check, digest in (yield from _collect("reading images", results, rows)):
        if key in row or check.reason:
            findings.add_check(key, check)
        if key in row:
            digests[row[key]] = digest
    return _report(str(root), images, images.keys, findings, digests, ())


def _collect(message: str, results: Iterable[_Result], items: Sized) -> Work[list[_Result]]:
    collected: list[_Result] = []
    for result in results:
        collected.append(result)
        if len(collected) % _EVERY == 0 or len(collected) == len(items):
            yield Progress(message, len(collected), len(items))
    return collected


def _check_and_hash(item: tuple[str, Path | bytes]) -> tuple[str, FileCheck, str]:
    key, content = item
    data = content if isinstance(content, bytes) else content.read_bytes()
    return key, check_file(data), hashlib.sha256(data).hexdigest()


def _pixel_hash(images: ImageSet, row: int) -> str | None:
    try:
        image = images.read(row)
    except FedLensError:
        return None
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()


def _file_hashes(files: Sequence[Path]) -> Work[dict[int, str]]:
    """Hash the files, except those of a unique size, which cannot be copies. Returns row -> hash."""
    sizes = [file.stat().st_size for file in files]
    count = Counter(sizes)
    candidates = [row for row, size in enumerate(sizes) if count[size] > 1]

    def file_hash(row: int) -> str:
        with files[row].open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()

    hashes = map_in_threads(file_hash, candidates)
    return dict(zip(candidates, (yield from _collect("comparing files", hashes, candidates)), strict=True))


def _report(
    root: str,
    images: ImageSet,
    paths: Sequence[str],
    findings: FindingCollector,
    digests: Mapping[int, str | None],
    notes: Sequence[str],
) -> CheckReport:
    """Complete the report; ``paths`` and the rows in ``digests`` are those of ``images``."""
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
