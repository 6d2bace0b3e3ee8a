"""Rotated digits: scikit-learn's 1,797 real digits, each rotated by one of six angles (the domains)."""

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.data.images import ImageSet

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ANGLES = (0, 15, 30, 45, 60, 75)  # degrees, counter-clockwise
DOMAINS = tuple(f"rot{a}" for a in ANGLES)
TEMPLATE = "a picture of the number: {}."
_SEED = 20_250_601  # assigns images to angles; a constant of the data set, not the seed of a run
_VERSION = 1
_SIDE = 64
_MARGIN = 2  # pixels around the 8 x 8 image, so that a rotation does not cut off its corners


def enlarge(grey: np.ndarray, angle: float, size: int = _SIDE) -> Image.Image:
    """Enlarge a low-resolution digit and rotate it.

    Args:
        grey: (8, 8) counts in 0..16, as ``sklearn.datasets.load_digits`` gives them.
        angle: degrees, counter-clockwise.
        size: side of the result, pixels.
    """
    padded = np.pad(np.asarray(grey, dtype=float) * (255 / 16), _MARGIN)
    image = Image.fromarray((padded + 0.5).clip(0, 255).astype(np.uint8)).resize(
        (size, size), Image.Resampling.BICUBIC
    )
    if angle:
        image = image.rotate(angle, resample=Image.Resampling.BICUBIC)
    return image.convert("RGB")


@cache
def _bundled() -> tuple[np.ndarray, np.ndarray]:
    """Read the file of ``sklearn.datasets.load_digits``, since importing scikit-learn takes seconds.

    Shape: pixels (1797, 8, 8) float64, labels (1797,) int64.
    """
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None and spec.origin is not None, "scikit-learn is a requirement of FedLens"
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def load() -> ImageSet:
    """Load real digits in six rotations: about 300 images per domain, and each image in one domain only.

    Within each class the images are shuffled by a fixed seed and assigned to the angles in turn, so that all
    domains have the same classes in nearly the same numbers.
    """
    pixels, labels = _bundled()
    rng = np.random.default_rng(_SEED)
    domain = np.empty(len(labels), dtype=np.int64)
    for c in range(len(CLASSES)):
        members = rng.permutation(np.flatnonzero(labels == c))
        # each class starts at another angle, so that the first domains do not get all remainders
        domain[members] = (np.arange(len(members)) + c) % len(ANGLES)
    content = hashlib.sha256(
        pixels.astype(np.uint8).tobytes() + domain.tobytes() + f"{_VERSION}:{_SIDE}".encode()
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
        read=lambda i: enlarge(pixels[i], ANGLES[domain[i]]),
    )
