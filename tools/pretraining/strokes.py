"""Digits drawn as pen strokes, for pretraining the embedded CLIP: never the real digits of the federation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fedcore.data.drawn import digits, drawing
from fedcore.data.drawn.drawing import BACKGROUNDS, COLOURS, paint

_HANDS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("strokes.toml").read_text())
"""The ways to write each digit; the file explains its notation."""


def _spline(points: np.ndarray) -> np.ndarray:
    """Catmull-Rom curve through the points. Shape: (n, 2) -> (8 (n - 1) + 1, 2)."""
    p = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    t = np.linspace(0, 1, 8, endpoint=False)[:, None]
    pieces = [
        0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        for a, b, c, d in zip(p[:-3], p[1:-2], p[2:-1], p[3:], strict=True)
    ]
    return np.concatenate([*pieces, points[-1:]])


def handwriting(digit: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the lines of one written digit in the box -1..1 (x spans less than y), slanted and jittered."""
    hands = _HANDS[str(digit)]
    hand = hands[rng.integers(len(hands))]
    slant, narrow, jitter = rng.normal(0.08, 0.16), rng.uniform(0.5, 0.9), rng.uniform(0.015, 0.05)
    lines = []
    for stroke in hand.split("/"):
        angular = "|" in stroke
        points = np.array([xy.split(",") for xy in stroke.replace("|", " ").split()], dtype=float) / 100
        points = points + rng.normal(0, jitter, points.shape)
        points = (points if angular else _spline(points)) * 2 - 1
        lines.append(np.stack([points[:, 0] * narrow - slant * points[:, 1], points[:, 1]], 1))
    return lines


def _pen(lines: list[np.ndarray], canvas: int, width: float) -> Image.Image:
    image = Image.new("L", (canvas, canvas))
    pen = ImageDraw.Draw(image)
    r = width / 2
    for line in lines:
        xy = [tuple(p) for p in line.tolist()]
        pen.line(xy, fill=255, width=max(1, round(width)), joint="curve")
        for x, y in (xy[0], xy[-1]):
            pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
    return image


def scanned(digit: int, angle: float, rng: np.random.Generator) -> np.ndarray:
    """Return a digit as in scikit-learn's set: 32 x 32 bits, counted in 4 x 4 blocks, enlarged and turned.

    Shape: -> (64, 64, 3) uint8.
    """
    lines = handwriting(digit, rng)
    width = rng.uniform(2.8, 6.2)
    every = np.concatenate(lines)
    low, high = every.min(0), every.max(0)
    # The real set scales each digit to the full height of its frame and centres it.
    scale = (31 - width) / max(high[1] - low[1], 0.5)
    wide = min(scale, (31 - width) / max(high[0] - low[0], 0.2))
    shift = rng.uniform(-1.5, 1.5, 2) * (1, 0.3)
    lines = [(line - (low + high) / 2) * (wide, scale) + 16 + shift for line in lines]
    bits = np.asarray(_pen([line * 4 for line in lines], 128, width * 4).reduce(4)) > 127
    counts = bits.reshape(8, 4, 8, 4).sum((1, 3)).astype(float)
    if rng.random() < 0.3:  # a faint pen
        counts *= rng.uniform(0.7, 1.0)
    return np.asarray(digits.enlarge(counts, angle, drawing.CANVAS))


def styled(digit: int, what: drawing.Drawing, rng: np.random.Generator) -> np.ndarray:
    """Return a digit in one of the drawn styles. Shape: -> (64, 64, 3) uint8."""
    warp = drawing.placement(what, rng)
    lines = [warp(line) * 3 for line in handwriting(digit, rng)]
    width = 3 * drawing.SIZES[what.size] * rng.uniform(0.2, 0.38)
    mask = np.asarray(_pen(lines, drawing.CANVAS * 3, width).reduce(3), dtype=np.float32) / 255
    return paint(mask, what.style, COLOURS[what.colour], BACKGROUNDS[what.background], rng)
