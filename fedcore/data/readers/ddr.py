"""DDR: fundus photographs by grade, in four domains made from resolution and brightness.

FedDEAP divides the set "based on resolution and illumination" into HB, LB, HD and LD (high or low resolution,
bright or dark) and does not give the thresholds. FedLens uses this rule:

- resolution is width times height; brightness is the mean grey value (0 to 255) of the pixels above 10, which
  excludes the black around the eye, on the image at about 256 pixels;
- each threshold divides all images most evenly (the lower of two equally good values), whatever domains are
  in use; images at the threshold count as high or bright.

Grade 5, "ungradable", is left out of ``ddr`` and is the sixth class of ``ddr-all``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.base.files import results_folder
from fedcore.base.progress import Progress, Work, require_slow_work, result_of
from fedcore.data.image_files import BROKEN
from fedcore.data.images import Entry, FolderError
from fedcore.data.integrity import read_result, write_result
from fedcore.data.readers.files import Listing, damaged, locate, read_lines
from fedcore.data.readers.layout import chosen_domains

NO_GRADE = "ungradable (grade 5)"
BLACK = 10
_MEASURED_SIDE = 256
_EVERY = 20
_LABEL_FILES = {"train": TRAIN, "valid": VALIDATION, "test": TEST}
_MEASUREMENTS = "fedlens-brightness.json"
"""File of the measurements, since measuring 12,522 photographs takes minutes."""
Brightness = tuple[int, float]
"""Resolution (width x height, pixels) and brightness (0 to 255) of a photograph."""


def load(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> Iterator[Listing]:
    """List the images in the chosen domains."""
    wanted = chosen_domains(entry, domains)
    root = locate(entry, roots, *(f"{name}.txt" for name in _LABEL_FILES), *_LABEL_FILES)
    label_files = [root / f"{name}.txt" for name in _LABEL_FILES]
    result = Listing(root, entry.classes, wanted, label_files=label_files)
    yield result
    rows = []
    for name, part in _LABEL_FILES.items():
        for line in read_lines(root / f"{name}.txt"):
            image, _, grade = line.rpartition(" ")
            if not image or "/" in image or grade not in tuple("012345"):
                why = f"'{line}' is not 'image.jpg grade' with grades 0 to 5"
                raise damaged(root / f"{name}.txt", why)
            image = image.strip()
            path = root / name / image
            if int(grade) >= len(entry.classes):  # ungradable
                result.left_out.append((path, NO_GRADE))
            else:
                rows.append((path, f"{name}/{image}", int(grade), part))
    measured = _measurements(root, [(path, key) for path, key, _, _ in rows])
    readable = [m for m in measured if m is not None]
    if not readable:
        raise damaged(root, "no image that its txt files name can be read")
    size_threshold = dividing_value(np.array([m[0] for m in readable]))
    light_threshold = dividing_value(np.array([m[1] for m in readable]))
    if size_threshold is None or light_threshold is None:
        what = "resolution" if size_threshold is None else "brightness"
        raise FolderError(
            f"{root}: all images have the same {what}, which gives no domains; get DDR as its authors "
            "distribute it"
        )
    for (path, key, label, part), measurement in zip(rows, measured, strict=True):
        size, light = measurement or (0, 0.0)  # an unreadable image is left out later, whatever its domain
        domain = ("H" if size >= size_threshold else "L") + ("B" if light >= light_threshold else "D")
        if domain in wanted:
            result.add(path, key, label, wanted.index(domain), part)


def dividing_value(values: np.ndarray) -> float | None:
    """Return the value that divides values most evenly into lower and other ones; None if all are equal."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 2:
        return None
    below = np.cumsum(counts)[:-1]
    return float(distinct[1:][np.argmin(np.abs(2 * below - len(values)))])


def measure(path: Path) -> Brightness | None:
    """Measure a photograph; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            size = image.width * image.height
            image.draft("L", (_MEASURED_SIDE, _MEASURED_SIDE))
            small = image.convert("L")
            small.thumbnail((_MEASURED_SIDE, _MEASURED_SIDE), Image.Resampling.BOX)
            grey = np.asarray(small, dtype=np.float64)
    except (*BROKEN, Image.DecompressionBombError):
        return None
    eye = grey[grey > BLACK]
    return size, round(float(eye.mean()), 6) if eye.size else 0.0


def _measurements(root: Path, files: Sequence[tuple[Path, str]]) -> list[Brightness | None]:
    """Measure all files that have changed since their stored measurement."""
    folder = results_folder(root)
    stored = (read_result(folder / _MEASUREMENTS) if folder else None) or {}
    rows: dict[str, list[float]] = {}
    new = []
    for path, key in files:
        try:
            stat = path.stat()
        except OSError:
            continue
        before = stored.get(key)
        if before and before[:2] == [stat.st_size, stat.st_mtime_ns]:
            rows[key] = before
        else:
            new.append((path, key))
    if new and folder:
        require_slow_work(
            f"{len(new):,} photographs in {root} have to be measured", lambda: _measure_all(folder, new, rows)
        )
    elif new:
        result_of(_measure_all(None, new, rows))
    measurements = (rows.get(key, ())[2:] for _, key in files)
    return [(int(values[0]), float(values[1])) if values else None for values in measurements]


def _measure_all(
    folder: Path | None, files: Sequence[tuple[Path, str]], rows: dict[str, list[float]]
) -> Work[None]:
    """Measure files into ``rows``, which are stored in ``folder`` at the end or when the work is stopped.

    A row is size and time of the file, then its measurement unless it cannot be read.
    """
    try:
        for done, (path, key) in enumerate(files):
            if done % _EVERY == 0:
                yield Progress("measuring photographs", done, len(files))
            try:
                stat = path.stat()
            except FileNotFoundError:  # deleted since the files were listed
                continue
            rows[key] = [stat.st_size, stat.st_mtime_ns, *(measure(path) or ())]
    finally:
        if folder is not None:
            write_result(folder / _MEASUREMENTS, rows)
