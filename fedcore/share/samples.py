"""The samples of a run: which image belongs to which client and set, by its content; made without torch."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedcore.base.events import SPLITS, TEST, TRAIN, VALIDATION
from fedcore.base.progress import Progress, Work, prepare_then
from fedcore.config import RunConfig
from fedcore.data.image_files import map_in_threads
from fedcore.data.images import ImageSet
from fedcore.data.splits import split
from fedcore.engine.prepare import load_images, prepare_inputs
from fedcore.share.evidence import Sample

_HASHED_AT_ONCE = 500
Membership = Mapping[int, str]
"""Row of the data set -> the test sets that it belongs to, as in a bundle."""


def pixel_hash(images: ImageSet, row: int) -> str:
    """Return the SHA-256 of an image: ``WIDTHxHEIGHT``, a line end, and its pixels in RGB, row by row.

    Pixels and not bytes of a file, because some data sets keep many images in one file, and embedded ones
    have no files. A JPEG is decoded at full size; another libjpeg may give other pixels.
    """
    image = images.read(row)
    content = hashlib.sha256(f"{image.width}x{image.height}\n".encode())
    content.update(image.tobytes())
    return content.hexdigest()


@dataclass
class Hasher:
    """Reads data sets and hashes their images, each once."""

    _sets: dict[str, ImageSet] = field(default_factory=dict)
    _hashes: dict[tuple[str, int], str] = field(default_factory=dict)

    def images(self, run: RunConfig) -> Work[ImageSet]:
        """Read the data set of a run, with its images at full size."""
        full = run.model_copy(update={"data": run.data.model_copy(update={"decode": "full"})})
        key = full.model_dump_json(include={"data", "further_data"})
        if key not in self._sets:
            self._sets[key], _ = yield from prepare_then(lambda: load_images(full))
        return self._sets[key]

    def hashes(self, images: ImageSet, rows: np.ndarray) -> Work[list[str]]:
        """Return the hash of some images. Shape: rows (samples,)."""
        name = images.fingerprint
        new = [row for row in rows.tolist() if (name, row) not in self._hashes]
        made: Iterator[str] = map_in_threads(lambda row: pixel_hash(images, row), new)
        for done, (row, each) in enumerate(zip(new, made, strict=True)):
            if done % _HASHED_AT_ONCE == 0:
                yield Progress(f"reading {images.name}", done, len(new))
            self._hashes[name, row] = each
        return [self._hashes[name, row] for row in rows.tolist()]


def samples_of(run: RunConfig, hasher: Hasher, test_sets: Membership | None = None) -> Work[list[Sample]]:
    """Return the samples of a run's clients, with their test sets if there are, in the data set's order."""
    images = yield from hasher.images(run)
    inputs = prepare_inputs(run, images)
    held: dict[int, tuple[str, str]] = {}
    unassigned = [*inputs.assignment.domain_test]
    halved = [inputs.halves] if inputs.halves is not None else []
    for half in (*halved, *(inputs.cross_class.halves if inputs.cross_class is not None else ())):
        unassigned += [half.base_test, half.new_test]
    for rows in unassigned:
        held |= dict.fromkeys(rows.tolist(), ("", SPLITS[TEST]))
    for assignment in filter(None, (inputs.unseen, inputs.assignment)):
        parts = {TRAIN: assignment.train, VALIDATION: assignment.validation, TEST: assignment.test}
        for code, of_clients in parts.items():
            for client, rows in zip(assignment.clients, of_clients, strict=True):
                held |= dict.fromkeys(rows.tolist(), (client, SPLITS[code]))
    return (yield from _described(images, hasher, held, test_sets or {}))


def samples_of_transfer(
    run: RunConfig, number: int, hasher: Hasher, test_sets: Membership | None = None
) -> Work[list[Sample]]:
    """Return the samples of another data set on which a run is tested, see ``samples_of``."""
    other = run.transfer[number]
    images = yield from hasher.images(run.model_copy(update={"data": other.data}))
    rows = np.flatnonzero(split(images, other.split, run.seed) == TEST)
    held = dict.fromkeys(rows.tolist(), ("", SPLITS[TEST]))
    return (yield from _described(images, hasher, held, test_sets or {}))


def _described(
    images: ImageSet, hasher: Hasher, held: Mapping[int, tuple[str, str]], test_sets: Membership
) -> Work[list[Sample]]:
    rows = sorted(held)
    hashes = yield from hasher.hashes(images, np.array(rows, dtype=np.int64))
    return [
        Sample(
            images.keys[row],
            sha256,
            images.domains[images.domain[row]],
            images.classes[images.labels[row]],
            *held[row],
            test_sets.get(row, ""),
        )
        for row, sha256 in zip(rows, hashes, strict=True)
    ]
