"""FEMNIST as LEAF writes it: json files of writers, each with its 28 x 28 images as lists of numbers.

Reading all of LEAF's json takes minutes, so it is done once: pixels and labels are kept as arrays in a folder
``converted-...`` beside the json files, which is made anew when they change.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.data.entry import ONE_DOMAIN, Entry
from fedcore.data.images import SPLITS, TEST, TRAIN, ImageSet
from fedcore.data.readers.archives import Step
from fedcore.data.readers.prepare import do_first, kept_in
from fedcore.data.readers.walk import DEPTH, NotHere, folders_in
from fedcore.errors import FedLensError

SIDE = 28
_PIXELS, _ROWS = "pixels.npy", "rows.npz"


@dataclass(frozen=True)
class Writers:
    """LEAF's samples as arrays.

    Shape: pixels (samples, 784) uint8; labels, writer and part (samples,). ``writer`` indexes ``names``,
    which are in LEAF's order; ``part`` is -1 without LEAF's split.
    """

    names: tuple[str, ...]
    pixels: np.ndarray
    labels: np.ndarray
    writer: np.ndarray
    part: np.ndarray


class Pixels:
    """Index -> image, ink dark on white as it was written."""

    def __init__(self, pixels: np.ndarray, rows: np.ndarray) -> None:
        self._pixels, self._rows = pixels, rows

    def __call__(self, index: int) -> Image.Image:
        """Image of a row, RGB."""
        flat = np.array(self._pixels[self._rows[index]])
        return Image.fromarray(flat.reshape(SIDE, SIDE)).convert("RGB")


def load(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> tuple[ImageSet, list[str]]:
    """The chosen writers as domains; without a choice all images as one domain whose owners are the writers.

    A writer is named as LEAF names it (``f0000_14``) or by its place in LEAF's list of users, from 0: FedOT's
    four are 0, 25, 26 and 33. A data set of fewer classes than 62 takes those with the first labels only.

    Raises:
        FedLensError: ``data.root`` for missing or damaged files; ``data.domains`` for an unknown writer.
    """
    files = _files(found, bases)
    held = _arrays(files)
    kept = held.labels < len(found.classes)
    if domains is None:
        rows = np.flatnonzero(kept)
        chosen, domain = (ONE_DOMAIN,), np.zeros(len(rows), dtype=np.int64)
    else:
        places = _places(found, held.names, domains)
        number = np.full(len(held.names), -1, dtype=np.int64)
        number[places] = np.arange(len(places))
        rows = np.flatnonzero(kept & (number[held.writer] >= 0))
        chosen, domain = tuple(domains), number[held.writer[rows]]
    part = held.part[rows]
    content = hashlib.sha256("\0".join([_stamp(files), found.name, *chosen]).encode())
    return ImageSet(
        name=found.name,
        classes=found.classes,
        domains=chosen,
        template=found.template,
        labels=held.labels[rows],
        domain=domain,
        keys=_keys(held, rows),
        fingerprint=content.hexdigest()[:16],
        read=Pixels(held.pixels, rows),
        split=part.astype(np.int8) if len(part) and part.min() >= 0 else None,
        owner=None if domains else tuple(held.names[w] for w in held.writer[rows]),
    ), []


def names(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> tuple[str, ...]:
    """The domains as ``load`` would give them.

    Raises:
        FedLensError: ``data.root`` for missing files; ``data.domains`` for an unknown writer.
    """
    files = _files(found, bases)
    if domains is None:
        return (ONE_DOMAIN,)
    _places(found, _arrays(files).names, domains)
    return tuple(domains)


def _places(found: Entry, names: tuple[str, ...], domains: Sequence[str]) -> list[int]:
    """Where the chosen writers stand in LEAF's list."""
    places = [_place(found, names, name) for name in domains]
    _refuse_twice(found, domains, places)
    return places


def _keys(held: Writers, rows: np.ndarray) -> tuple[str, ...]:
    """``[part/]writer/number``: the number counts the writer's samples within the part, digits or not."""
    cell = held.writer * 3 + np.maximum(held.part, 0)
    order = np.argsort(cell, kind="stable")
    first = np.searchsorted(cell[order], cell[order], side="left")
    count = np.empty(len(cell), dtype=np.int64)
    count[order] = np.arange(len(cell)) - first
    above = ["" if p < 0 else f"{SPLITS[p]}/" for p in held.part[rows].tolist()]
    return tuple(
        f"{a}{held.names[w]}/{n:04d}"
        for a, w, n in zip(above, held.writer[rows].tolist(), count[rows].tolist(), strict=True)
    )


def _place(found: Entry, names: tuple[str, ...], wanted: str) -> int:
    if wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    raise FedLensError(
        f"{found.name}: no writer '{wanted}'; name one as LEAF does ({names[0]}), or by its place from 0 to "
        f"{len(names) - 1}",
        "data.domains",
    )


def _refuse_twice(found: Entry, domains: Sequence[str], places: list[int]) -> None:
    if not domains:
        raise FedLensError(
            f"{found.name}: no domain chosen; name writers, or leave domains out", "data.domains"
        )
    for i, place in enumerate(places):
        if place in places[:i]:
            raise FedLensError(
                f"{found.name}: '{domains[places.index(place)]}' and '{domains[i]}' are one writer; drop one",
                "data.domains",
            )


def _files(found: Entry, bases: Sequence[Path]) -> list[tuple[Path, int]]:
    """LEAF's json files in its order, each with its part (-1: not split)."""
    level = list(bases)
    for _ in range(DEPTH + 1):
        for folder in level:
            parts = {part: _json_in(folder / name) for part, name in ((TRAIN, "train"), (TEST, "test"))}
            if all(parts.values()):
                return [(path, part) for part, paths in parts.items() for path in paths]
            whole = _json_in(folder / "all_data") or _json_in(folder)
            if whole:
                return [(path, -1) for path in whole]
        level = [folder / name for folder in level for name in folders_in(folder, folder)]
    raise NotHere(f"{bases[0]}: no json files of LEAF's in it. {found.how}", "data.root")


def _json_in(folder: Path) -> list[Path]:
    """all_data_2.json before all_data_10.json."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.suffix == ".json" and not p.name.startswith(".")]
    found = [p for p in found if p.name.startswith(("all_data", "mytrain", "mytest", "femnist"))]
    return sorted(found, key=lambda p: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", p.name)])


def _stamp(files: Sequence[tuple[Path, int]]) -> str:
    content = hashlib.sha256()
    for path, part in files:
        stat = path.stat()
        content.update(f"{path.name}\0{part}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return content.hexdigest()[:16]


def _arrays(files: Sequence[tuple[Path, int]]) -> Writers:
    """From the converted folder; made first where it is not there."""
    above = files[0][0].parent
    name = f"converted-{_stamp(files)}"
    folder = above / name
    if not (folder / _ROWS).is_file():
        kept = kept_in(above)
        if kept is None:
            parsed: list[Writers] = []
            for _ in _parse(files, parsed):
                pass
            return parsed[0]
        folder = kept / name
    if not (folder / _ROWS).is_file():
        do_first(f"LEAF's json in {above} has to be read", lambda: _convert(files, folder))
    with np.load(folder / _ROWS) as rows:
        names = tuple(rows["names"].tolist())
        labels, writer, part = rows["labels"], rows["writer"], rows["part"]
    return Writers(names, np.load(folder / _PIXELS, mmap_mode="r"), labels, writer, part)


def _convert(files: Sequence[tuple[Path, int]], folder: Path) -> Iterator[Step]:
    parsed: list[Writers] = []
    yield from _parse(files, parsed)
    _keep(parsed[0], folder)


def _keep(held: Writers, folder: Path) -> None:
    """Under its name only when it is whole; another process may have been quicker."""
    making = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    making.mkdir(exist_ok=True)
    try:
        np.save(making / _PIXELS, held.pixels)
        arrays = {"labels": held.labels, "writer": held.writer, "part": held.part}
        np.savez(making / _ROWS, names=np.array(held.names), **arrays)
        if not folder.exists():
            making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _parse(files: Sequence[tuple[Path, int]], into: list[Writers]) -> Iterator[Step]:
    """Read the json; what was in it is appended to ``into`` at the end."""
    place: dict[str, int] = {}
    pixels, labels, writer, part = [], [], [], []
    for done, (path, mark) in enumerate(files):
        yield Step(f"reading {path.name}", done, len(files))
        content = _content(path)
        for name in content["users"]:
            own = content["user_data"].get(name, {})
            y = own.get("y", [])
            try:
                x = np.asarray(own.get("x", []), dtype=np.float64).reshape(len(y), SIDE * SIDE)
            except (TypeError, ValueError):
                x = None
            whole = all(isinstance(label, int) and 0 <= label < 62 for label in y)
            if not whole or x is None or not np.all((x >= 0) & (x <= 1)):
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
    into.append(
        Writers(
            tuple(place),
            np.concatenate(pixels),
            np.array(labels, dtype=np.int64),
            np.array(writer, dtype=np.int64),
            np.array(part, dtype=np.int8),
        )
    )


def _content(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict) or not {"users", "user_data"} <= set(content):
        raise _damaged(path, "expected users, num_samples and user_data")
    return content


def _damaged(path: Path, why: str) -> FedLensError:
    return FedLensError(f"{path}: not as LEAF writes it ({why}); run its preprocess.sh again", "data.root")
