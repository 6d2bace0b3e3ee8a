"""Large sets of drawn shapes, each made for one question; with 20,000 test images half a point can be seen.

An image is drawn when it is read, from a generator seeded by its key, so a set takes no space of its own; its
encodings are kept like those of any data set. Each set has an official split, whose test part is large and
whose training part is as small as a client's usually is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from fedcore.data.drawn import drawing, shapes
from fedcore.data.images import ImageSet
from fedcore.records.codes import TEST, TRAIN, VALIDATION

SWAPPED = "-swapped"
"""End of the names of domains in which some classes have changed places."""
_STYLES = ("photo", "sketch", "cartoon", "painting", "clipart", "mosaic", "halftone", "night")


@dataclass(frozen=True)
class LargeSet:
    """A drawn data set of equal numbers of images of each class in each domain.

    Attributes:
        domains: style and angle as ``shapes.parse_domain`` reads them, and "-swapped" where ``swaps`` apply.
        swaps: class -> the shape that its images show in swapped domains; all others show themselves.
        split: images of each class in each domain for training, validation and test.
    """

    name: str
    domains: tuple[str, ...]
    split: tuple[int, int, int]
    classes: tuple[str, ...] = shapes.CLASSES
    swaps: Mapping[str, str] = field(default_factory=dict)

    def draw(self, key: str) -> np.ndarray:
        """Draw the image of a key, e.g. ``sketch+30-swapped/heart/007``. Shape: -> (64, 64, 3) uint8."""
        domain, name, _ = key.split("/")
        if domain.endswith(SWAPPED):
            name = self.swaps.get(name, name)
        return shapes.draw_shape(key, name, *shapes.parse_domain(domain.removesuffix(SWAPPED)))

    def load(self) -> ImageSet:
        """Return the data set; its ``read`` draws the pixels."""
        each = sum(self.split)
        keys = [f"{d}/{c}/{i:03d}" for d in self.domains for c in self.classes for i in range(each)]
        cells = len(self.domains) * len(self.classes)
        marks = np.repeat(np.array([TRAIN, VALIDATION, TEST], dtype=np.int8), self.split)
        swaps = ",".join(f"{one}>{other}" for one, other in sorted(self.swaps.items()))
        content = hashlib.sha256("\n".join([f"{drawing.DRAWING_VERSION}:{swaps}", *keys]).encode())
        return ImageSet(
            name=self.name,
            classes=self.classes,
            domains=self.domains,
            template=shapes.TEMPLATE,
            labels=np.tile(np.repeat(np.arange(len(self.classes)), each), len(self.domains)),
            domain=np.repeat(np.arange(len(self.domains)), len(self.classes) * each),
            keys=tuple(keys),
            fingerprint=content.hexdigest()[:16],
            read=lambda index: Image.fromarray(self.draw(keys[index])),
            split=np.tile(marks, cells),
        )


SETS = {
    one.name: one
    for one in (
        LargeSet(
            "shapes-conflict",
            tuple(f"{style}+30{end}" for style in _STYLES[:4] for end in ("", SWAPPED)),
            (60, 20, 250),
            swaps={"heart": "star", "star": "heart"},
        ),
        LargeSet("shapes-common", tuple(f"{style}+30" for style in _STYLES), (60, 20, 250)),
        LargeSet(
            "shapes-39",
            ("sketch+30", "cartoon+30", "painting-45", "halftone+45"),
            (40, 20, 129),
            classes=tuple(sorted(drawing.SHAPES)),
        ),
    )
}
"""Name -> large drawn data set."""
