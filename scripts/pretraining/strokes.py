"""Digits drawn as pen strokes, for pretraining the embedded CLIP: never the real digits of the federation."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from fedcore.data.drawn import digits, drawing
from fedcore.data.drawn.drawing_styles import BACKGROUNDS, COLOURS, paint

# The ways to write each digit. Strokes are separated by "/"; control points are x,y in hundredths, x to the
# right and y down. A stroke that begins with "|" stays angular, the others are smooth curves.
_HANDS: dict[int, list[str]] = {
    0: [
        "50,0 15,20 8,50 15,80 50,100 85,80 92,50 85,20 50,0",
        "60,2 20,25 10,65 40,100 80,75 90,30 60,0 40,6",
    ],
    1: [
        "| 50,0 50,100",
        "| 20,30 55,0 55,100",
        "| 20,28 52,0 52,100 / | 20,100 85,100",
        "| 25,15 55,5 50,100",
    ],
    2: [
        "12,25 30,3 65,3 85,25 70,50 35,78 10,100 / | 10,100 92,100",
        "15,20 40,0 75,10 78,40 45,75 15,95 20,75 45,85 65,98 95,92",
        "10,10 50,0 80,15 75,45 40,75 8,98 50,95 95,100",
    ],
    3: [
        "15,10 50,0 82,15 75,38 42,48 / 42,48 80,58 88,80 55,100 12,90",
        "| 12,2 85,2 45,42 / 45,42 85,58 82,90 45,100 10,90",
        "20,5 70,2 80,25 45,45 85,65 70,97 30,100 10,92",
    ],
    4: [
        "| 60,0 8,62 95,62 / | 66,35 66,100",
        "| 20,0 12,50 85,50 / | 80,0 78,100",
        "| 65,100 65,0 5,68 95,68",
        "| 40,0 5,55 90,60 / | 75,30 55,100",
    ],
    5: [
        "| 85,2 25,2 20,42 / 20,42 55,34 88,60 75,90 40,100 10,90",
        "| 90,0 35,2 25,40 / 25,40 60,42 75,70 50,97 10,100",
        "90,3 40,5 20,30 50,42 80,60 70,92 20,100",
    ],
    6: [
        "75,2 35,25 12,65 30,97 65,97 85,75 60,53 30,58 15,74",
        "45,0 20,35 10,75 40,100 80,90 80,62 50,52 20,68",
    ],
    7: [
        "| 10,3 90,3 40,100",
        "| 10,3 90,3 40,100 / | 20,50 85,50",
        "8,12 40,5 85,3 / 85,3 60,45 45,100 / | 25,55 90,50",
        "| 10,20 15,2 85,5 50,50 40,100",
    ],
    8: [
        "80,18 50,0 20,20 50,46 85,75 50,100 15,78 50,48 80,18",
        "50,0 25,10 25,35 50,46 75,35 75,10 50,0 / 50,46 15,62 15,88 50,100 85,88 85,62 50,46",
        "70,10 35,5 30,30 60,55 65,90 35,100 30,75 55,50 75,20 60,2",
    ],
    9: [
        "82,25 50,2 15,25 40,50 82,30 / | 82,25 72,100",
        "80,20 45,0 15,22 40,48 80,25 / 80,25 82,65 55,100 20,93",
        "70,10 30,5 20,35 55,50 80,15 / 80,15 75,60 40,100",
    ],
}


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
    hand = _HANDS[digit][rng.integers(len(_HANDS[digit]))]
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
