"""Check a data set before it is used: its content, its defects, and the images that will be left out.

Nothing is changed, and the check does not stop at the first problem: an error that would refuse a run is part
of the report.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedcore.data import catalog, file_check_cache
from fedcore.data.check.findings import SAMPLES, CheckReport, FindingCollector
from fedcore.data.image_files import FileCheck, check_file, map_in_threads
from fedcore.data.images import ImageSet
from fedcore.data.readers import ddr, hf, loaders
from fedcore.data.readers.listing import Listing, ReadReport, usable_images
from fedcore.data.slow_work import prepare_then
from fedcore.errors import FedLensError
from fedcore.progress import Progress, Work

_EVERY = 100


def check_dataset(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Work[CheckReport]:
    """Check a data set of the catalog, or the user's own ``folder``, ``manifest`` or ``hf-dataset``.

    Every image is decoded once, in threads.

    Raises:
        FedLensError: ``data.name`` for an unknown name, ``data.root`` if the folder does not exist.
    """
    entry = catalog.entry(name)
    yield Progress("listing files", 0, 0)
    if entry.embedded:
        images, notes = catalog.load_checked(name, None, domains)
        return (yield from _check_pixels(name, "", images, notes))
    if not root or not Path(root).expanduser().exists():
        where = f"of {entry.title}" if entry.classes or entry.class_count else "or file of the data set"
        raise FedLensError(f"no folder {root or ''}; give the folder {where}", "data.root")
    path = Path(root).expanduser().resolve()
    try:
        if entry.loader == "hf":
            images, report = hf.read(path, domains=domains, columns=columns)
            return (yield from _check_hf(name, path, images, report, columns))
        source = yield from prepare_then(lambda: loaders.read_source(entry, root, domains, columns))
    except FedLensError as error:
        return (yield from _check_unusable(name, path, error))
    if isinstance(source, Listing):
        return (yield from _check_listing(name, path if path.is_dir() else source.root, source))
    images, notes = source
    notes = [*notes, *catalog.count_warnings(entry, images)]
    return (yield from _check_pixels(name, str(path), images, notes))


def _check_listing(name: str, root: Path, listing: Listing) -> Work[CheckReport]:
    """Check image files with labels."""
    checks = yield from _check_files(listing.files)
    reasons = [check.reason for check in checks]
    file_check_cache.save(listing.files, reasons)
    findings = FindingCollector(root)
    for file, reason in listing.left_out:
        findings.add("no grade" if reason == ddr.NO_GRADE else "missing", file)
    for file, check in zip(listing.files, checks, strict=True):
        findings.add_check(file, check)
    findings.add_folder(root, listing)
    usable = [row for row, reason in enumerate(reasons) if not reason]
    digests = yield from _file_hashes(listing.files, usable)
    paths = {row: findings.shown(listing.files[row]) for row in usable}
    findings.add_duplicates(digests, paths, listing.labels, listing.domain, listing.split)
    try:
        images, report = usable_images(listing, name=name, template="{}", reasons=reasons)
    except FedLensError as error:
        return _unusable_report(name, str(root), findings, error)
    findings.add_empty_cells(report.empty)
    notes = catalog.count_warnings(catalog.entry(name), images)
    return _report(name, str(root), images, [paths[row] for row in usable], findings, notes)


def _check_pixels(name: str, root: str, images: ImageSet, notes: Sequence[str]) -> Work[CheckReport]:
    """Check images that are not files of their own: drawings, or rows of an array."""
    findings, digests = FindingCollector(None), {}
    for row, digest in enumerate(map_in_threads(lambda r: _pixel_hash(images, r), range(len(images)))):
        if digest is None:
            findings.add("unreadable", images.keys[row])
        else:
            digests[row] = digest
        if (row + 1) % _EVERY == 0 or row + 1 == len(images):
            yield Progress("reading images", row + 1, len(images))
    return _report_by_keys(name, root, images, findings, digests, notes)


def _check_hf(
    name: str, root: Path, images: ImageSet, report: ReadReport, columns: Mapping[str, str] | None
) -> Work[CheckReport]:
    """Check the rows of a Hugging Face data set, as they are stored."""
    findings, digests = FindingCollector(None), {}
    row = {key: i for i, key in enumerate(images.keys)}
    for left in report.left_out:
        if left.reason == "no label":
            findings.add("no label", left.path)
    total = len(images) + len(report.left_out)
    results = map_in_threads(_check_and_hash, hf.contents(root, columns))
    for done, (key, check, digest) in enumerate(results, 1):
        if key in row or check.reason:
            findings.add_check(key, check)
        if key in row:
            digests[row[key]] = digest
        if done % _EVERY == 0 or done == total:
            yield Progress("reading images", done, total)
    return _report_by_keys(name, str(root), images, findings, digests, ())


def _check_unusable(name: str, root: Path, error: FedLensError) -> Work[CheckReport]:
    """Check the image files of a folder that cannot be loaded."""
    findings = FindingCollector(root)
    files = findings.add_folder(root, None) if root.is_dir() else []
    checks = yield from _check_files(files)
    for file, check in zip(files, checks, strict=True):
        findings.add_check(file, check)
    return _unusable_report(name, str(root), findings, error)


def _check_files(files: Sequence[Path]) -> Work[list[FileCheck]]:
    checks: list[FileCheck] = []
    for check in map_in_threads(check_file, files):
        checks.append(check)
        if len(checks) % _EVERY == 0 or len(checks) == len(files):
            yield Progress("reading images", len(checks), len(files))
    return checks


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


def _file_hashes(files: Sequence[Path], rows: Iterable[int]) -> Work[dict[int, str]]:
    """Hash the content of the files in some rows that have the size of another; others cannot be copies."""
    sizes = {row: files[row].stat().st_size for row in rows}
    repeated = {size for size, count in Counter(sizes.values()).items() if count > 1}
    candidates = [row for row, size in sizes.items() if size in repeated]
    digests: dict[int, str] = {}
    for row, digest in zip(
        candidates, map_in_threads(lambda r: _file_hash(files[r]), candidates), strict=True
    ):
        digests[row] = digest
        if len(digests) % _EVERY == 0 or len(digests) == len(candidates):
            yield Progress("comparing files", len(digests), len(candidates))
    return digests


def _file_hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _report_by_keys(
    name: str,
    root: str,
    images: ImageSet,
    findings: FindingCollector,
    digests: Mapping[int, str],
    notes: Sequence[str],
) -> CheckReport:
    """Complete the report of a data set whose samples are identified by their keys."""
    split = None if images.split is None else images.split.tolist()
    findings.add_duplicates(digests, images.keys, images.labels.tolist(), images.domain.tolist(), split)
    findings.add_empty_cells(images.empty_cells())
    return _report(name, root, images, images.keys, findings, notes)


def _report(
    name: str,
    root: str,
    images: ImageSet,
    paths: Sequence[str],
    findings: FindingCollector,
    notes: Sequence[str],
) -> CheckReport:
    samples = {}
    for d, domain in enumerate(images.domains):
        rows = np.flatnonzero(images.domain == d)
        by_class = rows[np.argsort(images.labels[rows], kind="stable")]
        spread = np.unique(np.linspace(0, len(rows) - 1, min(SAMPLES, len(rows))).astype(int))
        samples[domain] = tuple(paths[row] for row in by_class[spread])
    return CheckReport(
        name=name,
        root=root,
        error=None,
        images=len(images),
        domains=images.domains,
        classes=images.classes,
        counts=tuple(tuple(row) for row in images.class_counts().tolist()),
        samples=samples,
        findings=findings.findings(),
        notes=tuple(notes),
    )


def _unusable_report(name: str, root: str, findings: FindingCollector, error: FedLensError) -> CheckReport:
    return CheckReport(
        name=name,
        root=root,
        error=str(error),
        images=0,
        domains=(),
        classes=(),
        counts=(),
        findings=findings.findings(),
    )
