"""CoOp's few-shot splits: ``split_zhou_Caltech101.json`` and the like, beside a data set's own images.

Source: Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022, whose code publishes the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedcore.data.entry import Entry
from fedcore.data.readers.files import damaged, locate
from fedcore.data.readers.layout import chosen_domains
from fedcore.data.readers.listing import Listing
from fedcore.errors import FedLensError
from fedcore.records.codes import TEST, TRAIN, VALIDATION

PATTERN = "split_zhou_*.json"
_PARTS = {"train": TRAIN, "val": VALIDATION, "test": TEST}
_Row = tuple[str, int, str]
"""Path within the folder of the images, label and class name."""


def names(entry: Entry, roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the classes as they enter a prompt, in the order of the file's labels.

    Raises:
        FedLensError: ``data.root``, for a missing or malformed file.
    """
    path = _file(entry, roots)
    return _classes(path, _rows(path))


def load(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """List the images that the file names, with its classes and its split; all others are left out.

    Raises:
        FedLensError: ``data.root``, for a missing or malformed file, or where the images are not found.
    """
    chosen_domains(entry, domains)
    path = _file(entry, roots)
    rows = _rows(path)
    result = Listing(roots[0], _classes(path, rows), label_files=[path])
    images = locate(entry, roots, rows[0][1][0])
    for part, (image, label, _) in rows:
        result.add(images / image, image, label, part=part)
    return result


def _file(entry: Entry, roots: Sequence[Path]) -> Path:
    folder = locate(entry, roots, PATTERN)
    found = sorted(folder.glob(PATTERN))
    if len(found) > 1:
        listed = " and ".join(path.name for path in found)
        raise FedLensError(f"{folder}: {listed}; leave one, that of the data set to read", "data.root")
    return found[0]


def _rows(path: Path) -> list[tuple[int, _Row]]:
    """Return each image's part and row; every image stands in the file once."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, f"damaged ({error})", "split") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in _PARTS):
        raise damaged(path, "expected lists of images named train, val and test", "split")
    rows = [(part, row) for name, part in _PARTS.items() for row in _checked(path, content[name])]
    images = {image for _, (image, _, _) in rows}
    if not rows or len(images) < len(rows):
        raise damaged(path, "it lists no image" if not rows else "it lists an image twice", "split")
    return rows


def _checked(path: Path, rows: list[object]) -> Iterator[_Row]:
    for row in rows:
        match row:
            case [str(image), int(label), str(name)] if image and label >= 0 and name:
                yield image, label, name
            case _:
                raise damaged(path, f"{row!r} is not [image, label, class name]", "split")


def _classes(path: Path, rows: list[tuple[int, _Row]]) -> tuple[str, ...]:
    by_label: dict[int, str] = {}
    for _, (_, label, name) in rows:
        if by_label.setdefault(label, name) != name:
            raise damaged(path, f"label {label} is both '{by_label[label]}' and '{name}'", "split")
    missing = sorted(set(range(len(by_label))) - set(by_label))
    if missing:
        raise damaged(path, f"no image has label {missing[0]}", "split")
    if len(set(by_label.values())) < len(by_label):
        raise damaged(path, "two labels have one name", "split")
    return tuple(by_label[label].replace("_", " ") for label in range(len(by_label)))
