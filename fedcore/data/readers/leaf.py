"""FEMNIST as LEAF writes it: json files of writers, each with its 28 x 28 images as lists of numbers.

Reading all of LEAF's json takes minutes, so it is done only once for the same files: pixels and labels are
stored as arrays in a folder ``converted-...`` beside the json files.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import BaseModel, ValidationError

from fedcore.base.codes import SPLITS, TEST, TRAIN
from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import results_folder
from fedcore.base.progress import Progress, Work, require_slow_work, result_of
from fedcore.data import integrity
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, ImageSet
from fedcore.data.integrity import hash_versions
from fedcore.data.readers.files import NotInFolder, levels

SIDE = 28
_PIXELS, _ROWS = "pixels.npy", "rows.npz"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeafSamples:
    """LEAF's samples as arrays.

    Shape: pixels (samples, 784) uint8; labels, writer and part (samples,).

    Attributes:
        names: the writers' names in LEAF's order; ``writer`` indexes them.
        part: codes of LEAF's split, -1 without a split.
    """

    names: tuple[str, ...]
    pixels: np.ndarray
    labels: np.ndarray
    writer: np.ndarray
    part: np.ndarray


def load(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> ImageSet:
    """Load the chosen writers as domains; without a choice, all images are one domain with writers as owners.

    A writer is named as in LEAF (``f0000_14``) or by its index in LEAF's list of users: FedOT's four are 0,
    25, 26 and 33. A data set of fewer than 62 classes has only the images with the first labels.
    """
    files = _files(entry, roots)
    samples = _samples(files)
    in_classes = samples.labels < len(entry.classes)
    chosen: tuple[str, ...]
    if domains is None:
        rows = np.flatnonzero(in_classes)
        chosen, domain = (ONE_DOMAIN,), np.zeros(len(rows), dtype=np.int64)
    else:
        places = _places(entry, samples.names, domains)
        number = np.full(len(samples.names), -1, dtype=np.int64)
        number[places] = np.arange(len(places))
        rows = np.flatnonzero(in_classes & (number[samples.writer] >= 0))
        chosen, domain = tuple(domains), number[samples.writer[rows]]
    part = samples.part[rows]

    def read(index: int) -> Image.Image:  # dark ink on white paper, as it was written
        flat = np.array(samples.pixels[rows[index]])
        return Image.fromarray(flat.reshape(SIDE, SIDE)).convert("RGB")

    content = hashlib.sha256("\0".join([_stamp(files), entry.name, *chosen]).encode())
    return ImageSet(
        name=entry.name,
        classes=entry.classes,
        domains=chosen,
        template=entry.template,
        labels=samples.labels[rows],
        domain=domain,
        keys=_keys(samples, rows),
        fingerprint=content.hexdigest()[:16],
        read=read,
        split=part.astype(np.int8) if len(part) and part.min() >= 0 else None,
        owner=None if domains else tuple(samples.names[w] for w in samples.writer[rows]),
    )


def names(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> tuple[str, ...]:
    """Return the domains as ``load`` would give them."""
    files = _files(entry, roots)
    if domains is None:
        return (ONE_DOMAIN,)
    _places(entry, _samples(files).names, domains)
    return tuple(domains)


def _places(entry: Entry, names: tuple[str, ...], domains: Sequence[str]) -> list[int]:
    if not domains:
        raise FedLensError(f"{entry.name}: no domain chosen; name writers, or omit domains", "data.domains")
    places: dict[int, str] = {}
    for wanted in domains:
        if wanted in names:
            place = names.index(wanted)
        elif wanted.isdecimal() and int(wanted) < len(names):
            place = int(wanted)
        else:
            raise FedLensError(
                f"{entry.name}: no writer '{wanted}'; name one as LEAF does ({names[0]}), or by its place "
                f"from 0 to {len(names) - 1}",
                "data.domains",
            )
        if place in places:
            raise FedLensError(
                f"{entry.name}: '{places[place]}' and '{wanted}' are the same writer; drop one",
                "data.domains",
            )
        places[place] = wanted
    return list(places)


def _keys(samples: LeafSamples, rows: np.ndarray) -> tuple[str, ...]:
    """Return keys ``[part/]writer/number``, where the number counts the writer's samples in the part."""
    cell = samples.writer * 3 + np.maximum(samples.part, 0)
    order = np.argsort(cell, kind="stable")
    first = np.searchsorted(cell[order], cell[order], side="left")
    count = np.empty(len(cell), dtype=np.int64)
    count[order] = np.arange(len(cell)) - first
    above = ["" if p < 0 else f"{SPLITS[p]}/" for p in samples.part[rows].tolist()]
    return tuple(
        f"{a}{samples.names[w]}/{n:04d}"
        for a, w, n in zip(above, samples.writer[rows].tolist(), count[rows].tolist(), strict=True)
    )


def _files(entry: Entry, roots: Sequence[Path]) -> list[tuple[Path, int]]:
    """Find LEAF's json files in its order, each with its part (-1: not split)."""
    for folders in levels(roots):
        for folder in folders:
            parts = {part: _json_in(folder / name) for part, name in ((TRAIN, "train"), (TEST, "test"))}
            if all(parts.values()):
                return [(path, part) for part, paths in parts.items() for path in paths]
            unsplit = _json_in(folder / "all_data") or _json_in(folder)
            if unsplit:
                return [(path, -1) for path in unsplit]
    raise NotInFolder(f"{roots[0]}: no json files of LEAF in it. {entry.how_to_get}")


def _json_in(folder: Path) -> list[Path]:
    """Return LEAF's json files in a folder, ``all_data_2.json`` before ``all_data_10.json``."""
    if not folder.is_dir():
        return []
    files = [p for p in folder.iterdir() if p.suffix == ".json" and not p.name.startswith(".")]
    files = [p for p in files if p.name.startswith(("all_data", "mytrain", "mytest", "femnist"))]
    return sorted(files, key=lambda p: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", p.name)])


def _stamp(files: Sequence[tuple[Path, int]]) -> str:
    return hash_versions((path, f"{path.name}\0{part}") for path, part in files).hexdigest()[:16]


def _samples(files: Sequence[tuple[Path, int]]) -> LeafSamples:
    """Load the samples from the ``converted-...`` folder; convert the json files if necessary."""
    parent, name = files[0][0].parent, f"converted-{_stamp(files)}"
    results = results_folder(parent)
    for folder in dict.fromkeys((parent, results or parent)):
        samples = _converted(folder / name)
        if samples is not None:
            return samples
    if results is None:
        return result_of(_parse(files))
    require_slow_work(f"LEAF's json in {parent} has to be read", lambda: _convert(files, results / name))
    samples = _converted(results / name)
    if samples is None:
        raise FolderError(f"{results / name} changed while it was read; check the disk and try again")
    return samples


def _converted(folder: Path) -> LeafSamples | None:
    """Load converted samples; None if they are missing or damaged.

    The pixels are memory-mapped: only the check of their digest, once per process, reads all of them.
    """
    pixels, rows_file = folder / _PIXELS, folder / _ROWS
    try:
        checked = result_of(integrity.check(pixels, {_ROWS: integrity.file_digest(rows_file)}))
    except FileNotFoundError:
        return None
    if checked.state != "intact":
        _log.warning("%s is not used: %s", folder, checked.damage or f"it is {checked.state}")
        return None
    with np.load(rows_file) as rows:
        names = tuple(rows["names"].tolist())
        labels, writer, part = rows["labels"], rows["writer"], rows["part"]
    return LeafSamples(names, np.load(pixels, mmap_mode="r"), labels, writer, part)


def _convert(files: Sequence[tuple[Path, int]], folder: Path) -> Work[None]:
    """Write the samples into a folder that appears under its name only when it is complete."""
    samples = yield from _parse(files)
    unfinished = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    unfinished.mkdir(exist_ok=True)
    try:
        pixels, rows_file = unfinished / _PIXELS, unfinished / _ROWS
        np.save(pixels, samples.pixels)
        np.savez(
            rows_file,
            names=np.array(samples.names),
            labels=samples.labels,
            writer=samples.writer,
            part=samples.part,
        )
        yield from integrity.write_described(pixels, {_ROWS: integrity.file_digest(rows_file)})
        if _converted(folder) is None:  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class _User(BaseModel):
    x: list[Any] = []
    y: list[Any] = []


class _LeafFile(BaseModel):
    """The structure of a file; numbers are checked as arrays."""

    users: list[str]
    user_data: dict[str, _User]


def _parse(files: Sequence[tuple[Path, int]]) -> Work[LeafSamples]:
    place: dict[str, int] = {}
    pixels: list[np.ndarray] = []
    labels: list[int] = []
    writer: list[int] = []
    part: list[int] = []
    for done, (path, mark) in enumerate(files):
        yield Progress(f"reading {path.name}", done, len(files))
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from error
        try:
            file = _LeafFile.model_validate(content)
        except ValidationError as error:
            expected = "expected users, num_samples and user_data"
            raise _damaged(path, f"{expected}: {first_line(error)}") from error
        for name in file.users:
            user = file.user_data.get(name, _User())
            y = user.y
            x: np.ndarray | None
            try:
                x = np.asarray(user.x, dtype=np.float64).reshape(len(y), SIDE * SIDE)
            except (TypeError, ValueError):
                x = None
            valid = all(isinstance(label, int) and 0 <= label < 62 for label in y)
            if not valid or x is None or not np.all((x >= 0) & (x <= 1)):
                raise _damaged(
                    path,
                    f"user '{name}' needs as many labels 0 to 61 in y as images of 784 numbers 0 to 1 in x",
                )
            index = place.setdefault(name, len(place))
            pixels.append((x * 255 + 0.5).astype(np.uint8))
            labels += y
            writer += [index] * len(y)
            part += [mark] * len(y)
    if not labels:
        raise _damaged(files[0][0], "no samples")
    return LeafSamples(
        tuple(place),
        np.concatenate(pixels),
        np.array(labels, dtype=np.int64),
        np.array(writer, dtype=np.int64),
        np.array(part, dtype=np.int8),
    )


def _damaged(path: Path, why: str) -> FedLensError:
    return FolderError(f"{path}: not a file of LEAF ({why}); run its preprocess.sh again")
