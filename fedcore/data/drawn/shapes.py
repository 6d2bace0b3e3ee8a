"""Shapes: ten classes of drawings in several styles and rotations, drawn on demand, the same everywhere.

A domain is a style, or a style and an angle: ``sketch``, ``sketch+30`` (30 degrees counter-clockwise),
``mosaic-30``.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

from fedcore.data.drawn import drawing
from fedcore.data.drawn.drawing_styles import STYLES
from fedcore.data.images import ImageSet

CLASSES = ("arrow", "circle", "crescent", "cup", "fish", "heart", "house", "square", "star", "tree")
DOMAINS = ("photo", "sketch", "cartoon+30", "painting-45", "sketch+30", "mosaic-30", "halftone+45", "night")
TEMPLATE = "a picture of a {}."
PER_CLASS = 30  # images of a class in a domain
_NAME = re.compile(r"([a-z]+)([+-]\d+)?")


def parse_domain(name: str) -> tuple[str, int]:
    """Split a domain name into style and angle (degrees, counter-clockwise).

    Raises:
        ValueError: listing the valid styles.
    """
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in STYLES:
        raise ValueError(
            f"shapes: no domain '{name}'; write a style, or one with an angle (sketch+30). "
            f"Styles: {', '.join(STYLES)}"
        )
    return match[1], int(match[2] or 0)


def draw_key(key: str) -> np.ndarray:
    """Draw the image of a key, e.g. ``sketch+30/star/007``. Shape: -> (64, 64, 3) uint8.

    All choices come from a generator seeded by the key's CRC (Python's hash changes between processes).
    """
    domain, name, _ = key.split("/")
    return draw_shape(key, name, *parse_domain(domain))


def draw_shape(key: str, name: str, style: str, angle: float) -> np.ndarray:
    """Draw a shape in a style, turned by an angle; what that leaves open follows from the key.

    Shape: -> (64, 64, 3) uint8.
    """
    rng = np.random.default_rng([drawing.DRAWING_VERSION, zlib.crc32(key.encode())])
    tilt = angle + float(np.clip(rng.normal(0, 4), -8, 8))  # drawings are never exactly upright
    return drawing.draw(drawing.choose(rng, name, style, drawing.visible_angle(name, tilt)), rng)


def load(
    domains: Sequence[str] = DOMAINS, per_class: int = PER_CLASS, size: int = drawing.CANVAS
) -> ImageSet:
    """Return the drawn multi-domain data set; its ``read`` draws the pixels.

    Args:
        domains: names as :func:`parse_domain` reads them.
        per_class: images of each class in each domain.
        size: side of the images, pixels.
    """
    for name in domains:
        parse_domain(name)
    keys = [f"{d}/{c}/{i:03d}" for d in domains for c in CLASSES for i in range(per_class)]
    n = len(CLASSES) * per_class

    def read(index: int) -> Image.Image:
        image = Image.fromarray(draw_key(keys[index]))
        return image if size == drawing.CANVAS else image.resize((size, size), Image.Resampling.BICUBIC)

    content = hashlib.sha256("\n".join([f"{drawing.DRAWING_VERSION}:{size}", *keys]).encode())
    return ImageSet(
        name="shapes",
        classes=CLASSES,
        domains=tuple(domains),
        template=TEMPLATE,
        labels=np.tile(np.repeat(np.arange(len(CLASSES)), per_class), len(domains)),
        domain=np.repeat(np.arange(len(domains)), n),
        keys=tuple(keys),
        fingerprint=content.hexdigest()[:16],
        read=read,
    )
