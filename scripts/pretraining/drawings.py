"""The images on which the embedded CLIP is pretrained, drawn once into memory-mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.data.drawn import digits, drawing
from fedcore.data.drawn.drawing_styles import BACKGROUNDS, COLOURS
from scripts.pretraining.strokes import scanned, styled

CLASSES = drawing.SHAPES + digits.CLASSES
# Sketch, mosaic, night and halftone are held out for the federation; "scan" imitates scikit-learn's digits.
STYLES = ("photo", "cartoon", "clipart", "silhouette", "painting", "neon", "pixel", "scan")
CLEAN = (0, 1, 2)  # the first steps see these styles only
_COLUMNS = ("label", "style", "colour", "background", "size", "place", "angle")
_DIGITS = 0.38  # share of digits
_SCANS = 0.65  # share of the digits that look like the real ones
_TURNED = 0.5


@dataclass
class Corpus:
    """Drawings and their facts. Shape: pixels[side] (images, side, side, 3) uint8, facts (images, 7)."""

    pixels: dict[int, np.ndarray]
    facts: np.ndarray

    def column(self, name: str) -> np.ndarray:
        return self.facts[:, _COLUMNS.index(name)]


def _one(seed: int, index: int) -> tuple[np.ndarray, list[int]]:
    """Draw one image of the corpus. The same (seed, index) gives the same pixels and facts."""
    rng = np.random.default_rng([seed, index])
    if rng.random() < _DIGITS:
        label = len(drawing.SHAPES) + int(rng.integers(10))
    else:
        label = int(rng.integers(len(drawing.SHAPES)))
    name = CLASSES[label]
    angle = rng.uniform(-90, 90) if rng.random() < _TURNED else float(np.clip(rng.normal(0, 5), -10, 10))
    angle = drawing.visible_angle(name, angle)
    is_digit = label >= len(drawing.SHAPES)
    if is_digit and rng.random() < _SCANS:
        pixels = scanned(label - len(drawing.SHAPES), angle, rng)
        facts = [
            label,
            STYLES.index("scan"),
            list(COLOURS).index("white"),
            list(BACKGROUNDS).index("black"),
            2,
            0,
        ]
    else:
        style = STYLES[rng.integers(7)]
        what = drawing.choose(rng, name, style, angle)
        pixels = styled(label - len(drawing.SHAPES), what, rng) if is_digit else drawing.draw(what, rng)
        facts = [
            label,
            STYLES.index(style),
            list(COLOURS).index(what.colour),
            list(BACKGROUNDS).index(what.background),
            list(drawing.SIZES).index(what.size),
            list(drawing.PLACES).index(what.place),
        ]
    return pixels, [*facts, round(angle)]


def make(folder: Path, count: int, seed: int, rank: int, ranks: int) -> None:
    """Draw this process's part of the corpus; rank 0 must have called :func:`allocate` before."""
    corpus = open_corpus(folder, "r+")
    for i in range(rank, count, ranks):
        pixels, facts = _one(seed, i)
        corpus.pixels[64][i], corpus.facts[i] = pixels, facts
        # As open_clip's own preprocessing does it: bicubic with antialiasing, on 8-bit pixels.
        corpus.pixels[48][i] = np.asarray(Image.fromarray(pixels).resize((48, 48), Image.Resampling.BICUBIC))


def allocate(folder: Path, count: int) -> None:
    """Create the empty files that the processes fill."""
    folder.mkdir(parents=True, exist_ok=True)
    for side in (64, 48):
        np.lib.format.open_memmap(
            folder / f"pixels-{side}.npy", "w+", np.uint8, (count, side, side, 3)
        ).flush()
    np.lib.format.open_memmap(folder / "facts.npy", "w+", np.int16, (count, len(_COLUMNS))).flush()


def open_corpus(folder: Path, mode: str = "r") -> Corpus:
    """Map the files of a folder into memory."""
    pixels = {side: np.load(folder / f"pixels-{side}.npy", mmap_mode=mode) for side in (64, 48)}
    return Corpus(pixels, np.load(folder / "facts.npy", mmap_mode=mode))


def disturb(batch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Darken some images, add noise to others: the held-out styles are darker or rougher than those seen.

    Shape: (n, side, side, 3) uint8 -> the same.
    """
    out = batch.astype(np.float32)
    n, side = batch.shape[:2]
    dark, rough, coarse = (np.flatnonzero(rng.random(n) < share) for share in (0.25, 0.25, 0.15))
    out[dark] *= rng.uniform(0.2, 0.8, (len(dark), 1, 1, 1))
    out[rough] += rng.normal(0, 1, (len(rough), side, side, 1)) * rng.uniform(4, 28, (len(rough), 1, 1, 1))
    grain = rng.normal(0, 22, (len(coarse), side // 4, side // 4, 3))
    out[coarse] += np.repeat(np.repeat(grain, 4, 1), 4, 2)
    return (out + 0.5).clip(0, 255).astype(np.uint8)
