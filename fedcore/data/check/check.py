"""A data set looked through before it is used: what is in it, what is odd, what will be left out.

Nothing is changed and nothing stops at the first trouble: what a run would refuse is in the report as well.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.data import catalog
from fedcore.data.check import verdicts
from fedcore.data.check.findings import SAMPLES, CheckReport, Tally
from fedcore.data.check.pictures import Look, examine, in_threads
from fedcore.data.images import ImageSet
from fedcore.data.readers import ddr, folders, hf, loaders
from fedcore.data.readers.listing import Listing
from fedcore.data.readers.prepare import Prepared
from fedcore.errors import FedLensError

_EVERY = 100


@dataclass(frozen=True)
class Step:
    """How far the check is; ``total`` 0 where nobody knows."""

    message: str
    done: int
    total: int


def check(
    name: str,
    root: str | None = None,
    domains: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Step | CheckReport]:
    """Look through a data set of the catalog, ``folder``, ``manifest`` or ``hf-dataset``.

    Every image is decoded once, in threads. Yields steps, and the report last.

    Raises:
        FedLensError: ``data.name`` for a name that is not known, ``data.root`` where there is no such folder.
    """
    entry = catalog.entry(name)
    yield Step("listing files", 0, 0)
    if entry.embedded:
        images, notes = catalog.load_checked(name, None, domains)
        yield from _check_pixels(name, "", images, notes)
        return
    if not root or not Path(root).expanduser().exists():
        where = f"of {entry.title}" if entry.classes or entry.class_count else "or file of the data set"
        raise FedLensError(f"no folder {root or ''}; give the folder {where}", "data.root")
    path = Path(root).expanduser().resolve()
    try:
        if entry.loader == "hf":
            yield from _check_hf(name, path, *hf.read(path, domains=domains, columns=columns), columns)
            return
        work = Prepared(lambda: loaders.find(entry, root, domains, columns))
        for step in work:
            yield Step(step.message, step.done, step.total)
        found = work.result
    except FedLensError as error:
        yield from _check_loose(name, path, error)
        return
    if isinstance(found, Listing):
        yield from _check_listing(name, path if path.is_dir() else found.root, found)
    else:
        images, notes = found
        yield from _check_pixels(name, str(path), images, [*notes, *catalog.count_warnings(entry, images)])


def kind_of(path: str | Path) -> str:
    """Which data set of one's own lies at a path: ``folder``, ``manifest`` or ``hf-dataset``."""
    path = Path(path).expanduser()
    if path.suffix.lower() == ".csv" and path.is_file():
        return "manifest"
    return "hf-dataset" if path.is_dir() and hf.is_saved(path) else "folder"


def _check_listing(name: str, root: Path, found: Listing) -> Iterator[Step | CheckReport]:
    """Image files with labels."""
    looks: list[Look] = []
    for look in in_threads(examine, found.files):
        looks.append(look)
        if len(looks) % _EVERY == 0 or len(looks) == len(found.files):
            yield Step("reading images", len(looks), len(found.files))
    reasons = [look.reason for look in looks]
    verdicts.keep(found.files, reasons)
    tally = Tally(root)
    for file, reason in found.left_out:
        tally.add("no grade" if reason == ddr.NO_GRADE else "missing", file)
    for file, look in zip(found.files, looks, strict=True):
        tally.look(file, look)
    tally.walk(root, found)
    usable = [row for row, reason in enumerate(reasons) if not reason]
    digests: dict[int, str] = {}
    yield from _hashes([found.files[row] for row in usable], usable, digests)
    paths = {row: tally.shown(found.files[row]) for row in usable}
    tally.twins(digests, paths, found.labels, found.domain, found.split)
    images, error = None, None
    try:
        images, report = folders.collect(found, name=name, template="{}", reasons=reasons)
        tally.empty(report.empty)
    except FedLensError as nothing_left:
        error = str(nothing_left)
    entry = catalog.entry(name)
    notes = catalog.count_warnings(entry, images) if images is not None else []
    yield _report(name, str(root), images, [paths[row] for row in usable], tally, notes, error)


def _check_pixels(
    name: str, root: str, images: ImageSet, notes: Sequence[str]
) -> Iterator[Step | CheckReport]:
    """Images that are no files of their own: rows of an array or of a Hugging Face data set."""
    tally, digests = Tally(None), {}
    for row, digest in enumerate(in_threads(lambda r: _pixel_hash(images, r), range(len(images)))):
        if digest is None:
            tally.add("unreadable", images.keys[row])
        else:
            digests[row] = digest
        if (row + 1) % _EVERY == 0 or row + 1 == len(images):
            yield Step("reading images", row + 1, len(images))
    yield _with_twins(name, root, images, tally, digests, notes)


def _with_twins(
    name: str,
    root: str,
    images: ImageSet,
    tally: Tally,
    digests: Mapping[int, str],
    notes: Sequence[str],
) -> CheckReport:
    """The report of a data set whose samples are known by their keys."""
    split = None if images.split is None else images.split.tolist()
    tally.twins(digests, images.keys, images.labels.tolist(), images.domain.tolist(), split)
    tally.empty((images.domains[d], images.classes[c]) for d, c in np.argwhere(_counts(images) == 0))
    return _report(name, root, images, images.keys, tally, notes, None)


def _check_loose(name: str, root: Path, error: FedLensError) -> Iterator[Step | CheckReport]:
    """A folder that does not load: why, and what its images are like."""
    tally = Tally(root)
    files = tally.walk(root, None) if root.is_dir() else []
    for done, (file, look) in enumerate(zip(files, in_threads(examine, files), strict=True), 1):
        tally.look(file, look)
        if done % _EVERY == 0 or done == len(files):
            yield Step("reading images", done, len(files))
    yield _report(name, str(root), None, (), tally, (), str(error))


def _pixel_hash(images: ImageSet, row: int) -> str | None:
    try:
        image = images.read(row)
    except FedLensError:
        return None
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()


def _hashes(files: Sequence[Path], rows: Sequence[int], into: dict[int, str]) -> Iterator[Step]:
    """Content hashes of the files that have another's size; the others cannot be copies."""
    sizes = [file.stat().st_size for file in files]
    often = Counter(sizes)
    same = [i for i, size in enumerate(sizes) if often[size] > 1]
    for done, (i, digest) in enumerate(
        zip(same, in_threads(_file_hash, [files[i] for i in same]), strict=True), 1
    ):
        into[rows[i]] = digest
        if done % _EVERY == 0 or done == len(same):
            yield Step("comparing files", done, len(same))


def _file_hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _counts(images: ImageSet) -> np.ndarray:
    """Images of each class in each domain. Shape: -> (domains, classes)."""
    counts = np.zeros((len(images.domains), len(images.classes)), dtype=np.int64)
    np.add.at(counts, (images.domain, images.labels), 1)
    return counts


def _check_hf(
    name: str, root: Path, images: ImageSet, report: folders.FolderReport, columns: Mapping[str, str] | None
) -> Iterator[Step | CheckReport]:
    """Rows of a Hugging Face data set, as they are stored."""
    tally, digests = Tally(None), {}
    row = {key: i for i, key in enumerate(images.keys)}
    for left in report.left_out:
        if left.reason == "no label":
            tally.add("no label", left.path)
    total = len(images) + len(report.left_out)
    looked = in_threads(_look_and_hash, hf.contents(root, columns))
    for done, (key, look, digest) in enumerate(looked, 1):
        if key in row or look.reason:
            tally.look(key, look)
        if key in row:
            digests[row[key]] = digest
        if done % _EVERY == 0 or done == total:
            yield Step("reading images", done, total)
    yield _with_twins(name, str(root), images, tally, digests, ())


def _look_and_hash(item: tuple[str, Path | bytes]) -> tuple[str, Look, str]:
    key, content = item
    data = content if isinstance(content, bytes) else content.read_bytes()
    return key, examine(data), hashlib.sha256(data).hexdigest()


def _report(
    name: str,
    root: str,
    images: ImageSet | None,
    paths: Sequence[str],
    tally: Tally,
    notes: Sequence[str],
    error: str | None,
) -> CheckReport:
    findings = tally.findings()
    if images is None:
        return CheckReport(name, root, error, 0, (), (), (), {}, findings, tuple(notes))
    samples = {}
    for d, domain in enumerate(images.domains):
        rows = np.flatnonzero(images.domain == d)
        by_class = rows[np.argsort(images.labels[rows], kind="stable")]
        spread = np.unique(np.linspace(0, len(rows) - 1, SAMPLES).astype(int)) if len(rows) else []
        samples[domain] = tuple(paths[row] for row in by_class[spread])
    return CheckReport(
        name=name,
        root=root,
        error=error,
        images=len(images),
        domains=images.domains,
        classes=images.classes,
        counts=tuple(tuple(row) for row in _counts(images).tolist()),
        samples=samples,
        findings=findings,
        notes=tuple(notes),
    )
