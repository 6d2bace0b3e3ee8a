"""The images on which the embedded CLIP is pretrained, drawn once into memory-mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.format import open_memmap
from PIL import Image

from fedcore.data.drawn import digits, drawing
from fedcore.data.drawn.drawing import BACKGROUNDS, COLOURS
from tools.pretraining.strokes import scanned, styled

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
    digit = int(rng.integers(10)) if rng.random() < _DIGITS else None
    label = int(rng.integers(len(drawing.SHAPES))) if digit is None else len(drawing.SHAPES) + digit
    angle = rng.uniform(-90, 90) if rng.random() < _TURNED else float(np.clip(rng.normal(0, 5), -10, 10))
    angle = drawing.visible_angle(CLASSES[label], angle)
    if digit is not None and rng.random() < _SCANS:
        names = ("scan", "white", "black", "large", "in the middle")
        pixels = scanned(digit, angle, rng)
    else:
        what = drawing.choose(rng, CLASSES[label], STYLES[rng.integers(7)], angle)
        names = (what.style, what.colour, what.background, what.size, what.place)
        pixels = drawing.draw(what, rng) if digit is None else styled(digit, what, rng)
    vocabularies = (STYLES, COLOURS, BACKGROUNDS, drawing.SIZES, drawing.PLACES)
    return pixels, [
        label,
        *(list(k).index(n) for k, n in zip(vocabularies, names, strict=True)),
        round(angle),
    ]


def make(folder: Path, count: int, seed: int) -> None:
    """Draw the corpus on all cores into the files of a folder."""
    corpus = open_corpus(folder, "w+", count)
    with Pool() as pool:
        for i, (pixels, facts) in enumerate(pool.imap(partial(_one, seed), range(count), 64)):
            corpus.pixels[64][i], corpus.facts[i] = pixels, facts
            # As open_clip's own preprocessing does it: bicubic with antialiasing, on 8-bit pixels.
            small = Image.fromarray(pixels).resize((48, 48), Image.Resampling.BICUBIC)
            corpus.pixels[48][i] = np.asarray(small)


def open_corpus(folder: Path, mode: Literal["r", "w+"] = "r", count: int = 0) -> Corpus:
    """Map the files of a folder into memory; mode "w+" creates them for ``count`` drawings."""

    def array(name: str, dtype: type, *shape: int) -> np.ndarray:
        return open_memmap(folder / f"{name}.npy", mode, dtype, (count, *shape) if count else None)

    pixels = {side: array(f"pixels-{side}", np.uint8, side, side, 3) for side in (64, 48)}
    return Corpus(pixels, array("facts", np.int16, len(_COLUMNS)))


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
