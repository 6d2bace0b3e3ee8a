"""DDR: fundus photographs by grade, in four domains made from resolution and brightness.

FedDEAP divides the set "based on resolution and illumination" into HB, LB, HD and LD (high or low resolution,
bright or dark) and does not say where it draws the lines. The rule here (ours):

- resolution is width times height; brightness is the mean grey value (0 to 255) of the pixels above 10, which
  leaves out the black around the eye, on the image at about 256 pixels;
- each line goes where it parts all graded images most evenly (the lower of two equally good ones); images on
  the line count as high or bright.

The lines are drawn over the whole set, whatever domains are in use. Grade 5, "ungradable", is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.data.entry import Entry
from fedcore.data.images import TEST, TRAIN, VALIDATION
from fedcore.data.readers.archives import Step
from fedcore.data.readers.layout import chosen_domains
from fedcore.data.readers.listing import Listing
from fedcore.data.readers.prepare import do_first, kept_in
from fedcore.data.readers.walk import lines, locate
from fedcore.errors import FedLensError

UNGRADABLE = "5"
NO_GRADE = "ungradable (grade 5)"
BLACK = 10
_LOOK_AT = 256
_EVERY = 20
_FILES = {"train": TRAIN, "valid": VALIDATION, "test": TEST}
_KEPT = "fedlens-brightness.json"
"""Where measurements are kept: to measure 12,522 photographs takes minutes."""


def load(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """The graded images in the chosen domains.

    Raises:
        FedLensError: ``data.root``, for a missing or damaged label file, or when all images measure the same;
            ``data.domains``.
    """
    wanted = chosen_domains(found, domains)
    root = locate(found, bases, *(f"{name}.txt" for name in _FILES), *_FILES)
    result = Listing(root, found.classes, wanted, label_files=[root / f"{name}.txt" for name in _FILES])
    rows = []
    for name, part in _FILES.items():
        for image, grade in _graded(root / f"{name}.txt"):
            path = root / name / image
            if grade == UNGRADABLE:
                result.left_out.append((path, NO_GRADE))
            else:
                rows.append((path, f"{name}/{image}", int(grade), part))
    measured = _measured(root, [(path, key) for path, key, _, _ in rows])
    fine = [m for m in measured if m is not None]
    if not fine:
        raise FedLensError(f"{root}: none of the images that its txt files name can be read", "data.root")
    size_line = dividing_line(np.array([m[0] for m in fine]))
    light_line = dividing_line(np.array([m[1] for m in fine]))
    if size_line is None or light_line is None:
        what = "resolution" if size_line is None else "brightness"
        raise FedLensError(
            f"{root}: all images have the same {what}, so that there are no domains; is this DDR as its "
            "authors hand it out?",
            "data.root",
        )
    for (path, key, grade, part), found_in in zip(rows, measured, strict=True):
        size, light = found_in or (0, 0.0)  # an unreadable image is left out later, wherever it goes
        domain = ("H" if size >= size_line else "L") + ("B" if light >= light_line else "D")
        if domain in wanted:
            result.add(path, key, grade, wanted.index(domain), part)
    return result


def dividing_line(values: np.ndarray) -> float | None:
    """The value that parts the values most evenly into below and from it on; None where all are equal.

    Shape: values (n,).
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 2:
        return None
    below = np.cumsum(counts)[:-1]
    return float(distinct[1:][np.argmin(np.abs(2 * below - len(values)))])


def measure(path: Path) -> tuple[int, float] | None:
    """Resolution (width x height) and brightness of a photograph; None where it cannot be read."""
    try:
        with Image.open(path) as image:
            size = image.width * image.height
            image.draft("L", (_LOOK_AT, _LOOK_AT))
            small = image.convert("L")
            small.thumbnail((_LOOK_AT, _LOOK_AT), Image.Resampling.BOX)
            grey = np.asarray(small, dtype=np.float64)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    eye = grey[grey > BLACK]
    return size, round(float(eye.mean()), 6) if eye.size else 0.0


def _graded(path: Path) -> list[tuple[str, str]]:
    """(file, grade) of every line of a label file."""
    result = []
    for line in lines(path):
        image, _, grade = line.rpartition(" ")
        if not image or "/" in image or grade not in tuple("012345"):
            raise FedLensError(
                f"{path}: '{line}' is not 'image.jpg grade' with grades 0 to 5; get the set again",
                "data.root",
            )
        result.append((image.strip(), grade))
    return result


def _measured(root: Path, files: Sequence[tuple[Path, str]]) -> list[tuple[int, float] | None]:
    """Measurements of all files, those kept from before taken where a file has not changed."""
    kept = kept_in(root)
    try:
        known = json.loads((kept / _KEPT).read_text(encoding="utf-8")) if kept else {}
    except (OSError, ValueError):
        known = {}
    fresh: dict[str, list[float]] = {}
    new = []
    for path, key in files:
        try:
            stat = path.stat()
        except OSError:
            continue
        before = known.get(key)
        if before and before[:2] == [stat.st_size, stat.st_mtime_ns]:
            fresh[key] = before
        else:
            new.append((path, key))
    if new and kept:
        do_first(
            f"{len(new):,} photographs in {root} have to be measured", lambda: _measure_all(kept, new, fresh)
        )
    elif new:
        for _ in _measure_all(None, new, fresh):
            pass
    found = (fresh.get(key, ())[2:] for _, key in files)
    return [(int(figures[0]), float(figures[1])) if figures else None for figures in found]


def _measure_all(
    folder: Path | None, files: Sequence[tuple[Path, str]], into: dict[str, list[float]]
) -> Iterator[Step]:
    """Measure files; what is in ``into`` at the end, or when it is left early, is kept in ``folder``.

    A row is size and time of the file, then its figures, or none where it cannot be read.
    """
    try:
        for done, (path, key) in enumerate(files):
            if done % _EVERY == 0:
                yield Step("measuring photographs", done, len(files))
            try:
                stat = path.stat()
            except FileNotFoundError:  # gone since they were listed
                continue
            into[key] = [stat.st_size, stat.st_mtime_ns, *(measure(path) or ())]
    finally:
        if folder is not None:
            making = folder / f"{_KEPT}.part-{os.getpid()}"
            making.write_text(json.dumps(into), encoding="utf-8")
            making.replace(folder / _KEPT)
