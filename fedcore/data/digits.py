"""Rotated digits: scikit-learn's 1,797 real digits, each turned by one of six angles (a domain each)."""

from __future__ import annotations

import hashlib

import numpy as np
from PIL import Image

from fedcore.data.images import ImageSet

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ANGLES = (0, 15, 30, 45, 60, 75)  # degrees, counter-clockwise
DOMAINS = tuple(f"rot{a}" for a in ANGLES)
TEMPLATE = "a picture of the number: {}."
_SEED = 20_250_601  # which image is turned by which angle; part of the data set, so never a run's choice
_VERSION = 1
_MARGIN = 2  # pixels around the 8 x 8 image: room to turn


def enlarge(grey: np.ndarray, angle: float, size: int = 64) -> Image.Image:
    """Turn a low-resolution digit and enlarge it.

    Args:
        grey: (8, 8) counts in 0..16, as ``sklearn.datasets.load_digits`` gives them.
        angle: degrees, counter-clockwise.
        size: pixels a side of the result.
    """
    padded = np.pad(np.asarray(grey, dtype=float) * (255 / 16), _MARGIN)
    image = Image.fromarray((padded + 0.5).clip(0, 255).astype(np.uint8)).resize(
        (size, size), Image.Resampling.BICUBIC
    )
    if angle:
        image = image.rotate(angle, resample=Image.Resampling.BICUBIC)
    return image.convert("RGB")


def load(size: int = 64) -> ImageSet:
    """Real digits in six rotations, about 300 images a domain, every image in one domain only.

    Within each class the images are shuffled (by a fixed seed) and dealt to the angles in turn, so that all
    domains have the same classes in nearly the same numbers.
    """
    from sklearn.datasets import (
        load_digits,
    )  # slow to import, and the page process lists data sets without it

    bunch = load_digits()
    pixels, labels = np.asarray(bunch.images), np.asarray(bunch.target, dtype=np.int64)
    rng = np.random.default_rng(_SEED)
    domain = np.empty(len(labels), dtype=np.int64)
    for c in range(len(CLASSES)):
        members = rng.permutation(np.flatnonzero(labels == c))
        # Each class starts its deal at another angle, so that the remainders do not pile up in the first.
        domain[members] = (np.arange(len(members)) + c) % len(ANGLES)
    content = hashlib.sha256(
        pixels.astype(np.uint8).tobytes() + domain.tobytes() + f"{_VERSION}:{size}".encode()
    )
    return ImageSet(
        name="rotated-digits",
        classes=CLASSES,
        domains=DOMAINS,
        template=TEMPLATE,
        labels=labels,
        domain=domain,
        keys=tuple(f"digit-{i:04d}" for i in range(len(labels))),
        fingerprint=content.hexdigest()[:16],
        read=lambda i: enlarge(pixels[i], ANGLES[domain[i]], size),
    )
