"""Data sets of drawn shapes: classes of drawings in several styles and rotations, the same everywhere.

A domain is a style, or a style and an angle: ``sketch``, ``sketch+30`` (30 degrees counter-clockwise),
``mosaic-30``. An image is drawn when it is read, from a generator seeded by its key, so that a data set takes
no disk space. Its encodings are cached like those of any data set.
"""

import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from PIL import Image

from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.data.drawn import drawing
from fedcore.data.images import ImageSet

CLASSES = ("arrow", "circle", "crescent", "cup", "fish", "heart", "house", "square", "star", "tree")
DOMAINS = ("photo", "sketch", "cartoon+30", "painting-45", "sketch+30", "mosaic-30", "halftone+45", "night")
TEMPLATE = "a picture of a {}."
PER_CLASS = 30  # images of a class in a domain
SWAPPED = "-swapped"
"""End of a domain's name if some of its classes show each other's shapes."""
_NAME = re.compile(r"([a-z]+)([+-]\d+)?")


def parse_domain(name: str) -> tuple[str, int]:
    """Split a domain name into style and angle (degrees, counter-clockwise)."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in drawing.STYLES:
        raise ValueError(
            f"shapes: no domain '{name}'; write a style, or one with an angle (sketch+30). "
            f"Styles: {', '.join(drawing.STYLES)}"
        )
    return match[1], int(match[2] or 0)


def draw_key(key: str, swaps: Mapping[str, str] = MappingProxyType({})) -> np.ndarray:
    """Draw a key, e.g. ``sketch+30/star/007``; swaps: see ``LargeSet``. Shape: -> (64, 64, 3) uint8."""
    domain, name, _ = key.split("/")
    if domain.endswith(SWAPPED):
        name = swaps.get(name, name)
    return draw_shape(key, name, *parse_domain(domain.removesuffix(SWAPPED)))


def draw_shape(key: str, name: str, style: str, angle: float) -> np.ndarray:
    """Draw a shape in a style, turned by an angle; the rest is seeded by the key.

    The seed is the key's CRC, because Python's hash differs between processes.

    Shape: -> (64, 64, 3) uint8.
    """
    rng = np.random.default_rng([drawing.DRAWING_VERSION, zlib.crc32(key.encode())])
    tilt = angle + float(np.clip(rng.normal(0, 4), -8, 8))  # drawings are never exactly upright
    return drawing.draw(drawing.choose(rng, name, style, drawing.visible_angle(name, tilt)), rng)


def load(domains: Sequence[str] = DOMAINS, per_class: int = PER_CLASS) -> ImageSet:
    """Return the data set ``shapes``, with ``per_class`` images of each class in each domain."""
    for name in domains:
        parse_domain(name)
    return _image_set("shapes", tuple(domains), CLASSES, per_class, str(drawing.CANVAS), {})


def _image_set(
    name: str,
    domains: tuple[str, ...],
    classes: tuple[str, ...],
    each: int,
    stamp: str,
    swaps: Mapping[str, str],
    split: np.ndarray | None = None,
) -> ImageSet:
    """Return ``each`` images of each class in each domain; ``stamp`` changes the fingerprint."""
    keys = tuple(f"{d}/{c}/{i:03d}" for d in domains for c in classes for i in range(each))
    content = hashlib.sha256("\n".join([f"{drawing.DRAWING_VERSION}:{stamp}", *keys]).encode())
    return ImageSet(
        name=name,
        classes=classes,
        domains=domains,
        template=TEMPLATE,
        labels=np.tile(np.repeat(np.arange(len(classes)), each), len(domains)),
        domain=np.repeat(np.arange(len(domains)), len(classes) * each),
        keys=keys,
        fingerprint=content.hexdigest()[:16],
        read=lambda index: Image.fromarray(draw_key(keys[index], swaps)),
        split=split,
    )


@dataclass(frozen=True)
class LargeSet:
    """A large drawn data set, made for one question; 20,000 test images make half a point visible.

    Its official split has a large test part and, as in most federations, little training data per client.

    Attributes:
        domains: style and angle as ``parse_domain`` reads them, with "-swapped" if ``swaps`` apply.
        swaps: class -> the shape that its images show in swapped domains; other classes show their own.
        split: images of each class in each domain for training, validation and test.
    """

    name: str
    domains: tuple[str, ...]
    split: tuple[int, int, int]
    classes: tuple[str, ...] = CLASSES
    swaps: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> ImageSet:
        marks = np.repeat(np.array([TRAIN, VALIDATION, TEST], dtype=np.int8), self.split)
        split = np.tile(marks, len(self.domains) * len(self.classes))
        swaps = ",".join(f"{name}>{shown}" for name, shown in sorted(self.swaps.items()))
        return _image_set(self.name, self.domains, self.classes, sum(self.split), swaps, self.swaps, split)


_STYLES = ("photo", "sketch", "cartoon", "painting", "clipart", "mosaic", "halftone", "night")
LARGE_SETS = {
    data_set.name: data_set
    for data_set in (
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
