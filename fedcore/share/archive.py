"""The files of a bundle: a database of its runs, their samples and predictions, and the numbers that follow.

A bundle is a ZIP archive, written with equal bytes for equal content, and read as a stranger's file: sizes,
names and digests are checked before any content is parsed. SQLite, CSV and JSON can be read without FedLens;
``README`` explains them.
"""

import csv
import hashlib
import io
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field

import fedcore
from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import unguarded, user_path, zipped
from fedcore.base.progress import counted
from fedcore.share.checked import ComparisonChoices
from fedcore.share.recipe import FilePart
from fedcore.store.imports import parse_json

MANIFEST, RUNS, EVIDENCE = "bundle.json", "runs.db", "evidence.json"
SUMMARY, BREAKDOWNS, README_NAME = "summary.csv", "breakdowns.csv", "README.md"
CLASS_SETS = "classes"
"""Mark of the samples that belong to the class sets of all clients which train on their class."""
MOST_BYTES = 2**30
"""Largest content of a bundle, unpacked; predictions of a hundred runs have some tens of megabytes."""
MOST_FILES = 10_000
MOST_JSON = 2**28
"""Largest JSON or CSV file."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*(/[A-Za-z0-9_][A-Za-z0-9_. -]*)*")
_BROKEN = (
    zipfile.BadZipFile,  # no archive, contradictory entries, or a wrong checksum
    zlib.error,  # damaged content
    EOFError,  # content that ends too early
    RuntimeError,  # an encrypted file, or (NotImplementedError) a ZIP feature that is not supported
    ValueError,  # a place before the beginning of the file; a name that is not UTF-8
    OverflowError,  # a place beyond 2**63 bytes
)
"""Errors of ``zipfile`` for a damaged, encrypted or unusual archive."""


class BundleFault(FedLensError):
    """A file is not a bundle, or not as FedLens writes one."""


_Model = TypeVar("_Model", bound=BaseModel)


class LabelSpaceRecord(FilePart):
    """A label space: its class names, which predictions index, and the file of its samples."""

    classes: tuple[str, ...]
    samples: str


class RunEvidence(FilePart):
    """The evidence of one run.

    Attributes:
        spaces: that of training first; empty if the samples of the run are not known.
        space_of: the label space in which a test set is scored, by its code.
        counts_only: why a reported round has no file of predictions.
    """

    spaces: tuple[LabelSpaceRecord, ...]
    space_of: dict[int, int]
    counts_only: dict[int, str]


class Evidence(FilePart):
    """What makes numbers of the database's runs, and what is behind their counts.

    Attributes:
        metrics: those of the rows; a later FedLens may have more.
        runs: in the order of the database.
    """

    choices: ComparisonChoices
    metrics: tuple[str, ...]
    runs: tuple[RunEvidence, ...]


class PredictionRow(FilePart):
    """The classes that some models predict on the samples of some test sets.

    Attributes:
        predicted: a class index per sample of these test sets together, in the order of the samples' file.
    """

    models: tuple[int, ...] = Field(min_length=1)
    test_sets: tuple[int, ...] = Field(min_length=1)
    predicted: tuple[int, ...]


def prediction_file(number: int, round_: int) -> str:
    """Return the name of the file with the predictions of a run in one round."""
    return f"predictions/run-{number}-round-{round_}.json"


class PredictionFile(FilePart):
    """All predictions of one round of a run."""

    rows: tuple[PredictionRow, ...]


class BundleManifest(FilePart):
    """The first file of a bundle.

    Attributes:
        digest: of the names and SHA-256 of all other files; a paper prints it.
        files: SHA-256 of each other file.
    """

    format: Literal["fedlens-bundle-2"]
    title: str
    fedlens: str
    commit: str
    digest: str
    files: dict[str, str]


@dataclass(frozen=True)
class Archive:
    """The files of a bundle, whose bytes are those of its manifest."""

    name: str
    manifest: BundleManifest
    files: Mapping[str, bytes]

    def content(self, name: str) -> bytes:
        if name not in self.files:
            raise self.fault(f"it has no file {name}")
        return self.files[name]

    def text(self, name: str) -> str:
        content = self.content(name)
        if len(content) > MOST_JSON:
            raise self.fault(f"{name} has {len(content):,} bytes, more than any that FedLens writes")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"{name} is not UTF-8 text ({first_line(error)})") from error

    def read(self, name: str, model: type[_Model]) -> _Model:
        text = self.text(name)
        try:
            return model.model_validate(parse_json(text))
        except (ValueError, RecursionError, OverflowError) as error:
            raise self.fault(f"{name}: {first_line(error)}") from error

    def fault(self, what: str) -> BundleFault:
        """Return the error for a file that differs from what FedLens writes."""
        return _fault(self.name, what)


def _fault(name: str, what: str) -> BundleFault:
    return BundleFault(f"{name} is not a sound bundle: {what}; ask its authors for another copy", "bundle")


def _one_line(text: str) -> str:
    """Return a text without control characters, which would act on a terminal, and half characters."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of some files by name and SHA-256."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def packed(title: str, commit: str, files: Mapping[str, bytes]) -> bytes:
    """Return the archive of some files and their manifest."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = BundleManifest(
        format="fedlens-bundle-2",
        title=_one_line(title),
        fedlens=fedcore.__version__,
        commit=commit,
        digest=digest_of(hashes),
        files=hashes,
    )
    return zipped({MANIFEST: manifest.model_dump_json(indent=1).encode(), **files}, compression=9)


def open_bundle(path: str | Path) -> Archive:
    """Read a bundle and compare the bytes of its files with its manifest."""
    named = user_path(path, "bundle")
    if named.exists() and not named.is_file():
        raise FedLensError(f"{path} is not a file; give the path of a bundle", "bundle")
    try:
        if (size := named.stat().st_size) > MOST_BYTES:
            raise _fault(str(path), f"it has {size / 1e9:.1f} GB")
        content = named.read_bytes()
    except OSError as error:
        raise FedLensError(
            f"cannot read {path}: {error.strerror}; give the path of a bundle", "bundle"
        ) from error
    return read_bundle(content, str(path))


def read_bundle(content: bytes, name: str = "the bundle") -> Archive:
    """Read a bundle from its bytes, see ``open_bundle``."""
    try:
        files = _unpacked(content, name)
    except FedLensError:
        raise
    except _BROKEN as error:
        raise _fault(name, first_line(error)) from error
    empty = BundleManifest(format="fedlens-bundle-2", title="", fedlens="", commit="", digest="", files={})
    manifest = Archive(name, empty, files).read(MANIFEST, BundleManifest)
    files.pop(MANIFEST)
    archive = Archive(name, manifest, files)
    for text in (manifest.title, manifest.fedlens, manifest.commit, *manifest.files):
        if text != _one_line(text):
            raise archive.fault(f"{text[:100]!r} in {MANIFEST} is not one line of text")
    if digest_of(manifest.files) != manifest.digest:
        raise archive.fault("its digest is not that of its files")
    for missing in sorted(manifest.files.keys() - files.keys()):
        raise archive.fault(f"{missing} is missing")
    for other in sorted(files.keys() - manifest.files.keys()):
        raise archive.fault(f"{other} is not part of it")
    for each, sha256 in manifest.files.items():
        if hashlib.sha256(files[each]).hexdigest() != sha256:
            raise archive.fault(f"{each} has changed since it was written")
    return archive


def _unpacked(content: bytes, name: str) -> dict[str, bytes]:
    """Return the files of an archive by name, once their names and sizes have been checked."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_FILES:
            raise _fault(name, f"it has {counted(len(entries), 'file')}")
        names = [entry.filename for entry in entries]
        for each in names:
            if not _NAME.fullmatch(each) or ".." in each:
                raise _fault(name, f"{each[:100]!r} is not a name that FedLens writes")
        if len({each.lower() for each in names}) < len(names):
            raise _fault(name, "it has two files of one name")
        size = sum(entry.file_size for entry in entries)
        if size > MOST_BYTES:
            raise _fault(name, f"it unpacks to {size / 1e9:.1f} GB")
        files = {}
        for entry in entries:
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _fault(name, f"{entry.filename} is compressed in another way than FedLens does")
            with archive.open(entry) as file:
                files[entry.filename] = file.read(entry.file_size + 1)
            if len(files[entry.filename]) != entry.file_size:
                raise _fault(name, f"{entry.filename} is longer than its entry says")
        return files


class Sample(NamedTuple):
    """An image of a data set.

    Attributes:
        sha256: of its pixels, see ``images.pixel_hash``.
        client, part: who holds it, and in which set; empty and ``test`` for a test image of no client.
        test_sets: codes of the test sets that it belongs to, and ``classes``, separated by spaces.
    """

    sample: str
    sha256: str
    domain: str
    label: str
    client: str
    part: str
    test_sets: str


SAMPLE_COLUMNS = ("sample", "sha256", "domain", "class", "client", "set", "test_sets")


def read_samples(text: str) -> list[Sample]:
    """Read the samples of a run.

    Raises:
        ValueError: naming the line.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        if tuple(next(reader, ())) != SAMPLE_COLUMNS:
            raise ValueError(f"line 1: the columns are not {', '.join(SAMPLE_COLUMNS)}")
        found = []
        for values in reader:
            if len(values) != len(SAMPLE_COLUMNS):
                raise ValueError(f"line {reader.line_num}: {len(values)} values, not {len(SAMPLE_COLUMNS)}")
            found.append(Sample(*map(unguarded, values)))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    if len({s.sample for s in found}) < len(found):
        raise ValueError("a sample is named twice")
    return found


def first_difference(stated: str, recomputed: str) -> str:
    """Return the first line in which a file differs from what follows from the evidence; empty if none."""
    lines: Sequence[str] = stated.split("\n")
    expected: Sequence[str] = recomputed.split("\n")
    for number, (one, other) in enumerate(zip(lines, expected, strict=False), 1):
        if one != other:
            pair = [next(csv.reader([line]), []) for line in (one, other)]
            for mine, follows in zip(*pair, strict=False):
                if mine != follows:
                    return f"line {number} says {mine[:80]!r}, and {follows[:80]!r} follows ({other[:120]})"
            return f"line {number} says {one[:120]!r}, and {other[:120]!r} follows"
    if len(lines) != len(expected):
        return f"it has {len(lines) - 1} lines, and {len(expected) - 1} follow"
    return ""
