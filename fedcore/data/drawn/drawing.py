"""Draws shapes from primitives, with attributes that a caption can name; deterministic by seed.

A drawing is a mask (the area of the shape) that a style of :mod:`fedcore.data.drawn.drawing_styles` paints.
The same code draws the embedded data set :mod:`fedcore.data.drawn.shapes` and the images on which
``tools/pretraining/train.py`` trains the embedded CLIP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from fedcore.data.drawn.drawing_styles import BACKGROUNDS, COLOURS, paint

# Part of the data set's fingerprint: raise it with any change that moves a pixel.
DRAWING_VERSION = 1
CANVAS = 64  # side of a drawing, pixels
_OVERSAMPLE = 3  # masks are drawn this much larger and averaged down, for smooth edges

SIZES = {"small": 16.0, "medium": 20.0, "large": 26.0}  # half extent in pixels on a canvas of 64
PLACES = {
    "in the middle": (0, 0),
    "on the left": (-1, 0),
    "on the right": (1, 0),
    "at the top": (0, -1),
    "at the bottom": (0, 1),
}

Points = np.ndarray  # (corners, 2), x to the right and y down, in units of the half extent
Part = tuple[Points, int]  # a polygon, and whether it fills (1) or cuts a hole (0)


def _p(*xy: float) -> Points:
    return np.asarray(xy, dtype=float).reshape(-1, 2)


def _regular(n: int, radius: float = 1.0, start: float = -90.0) -> Points:
    """Return the corners of a regular polygon, the first one at ``start`` degrees (-90 is the top)."""
    a = np.deg2rad(start + 360.0 / n * np.arange(n))
    return radius * np.stack([np.cos(a), np.sin(a)], 1)


def _ellipse(
    cx: float = 0, cy: float = 0, rx: float = 1, ry: float = 1, start: float = 0, end: float = 360
) -> Points:
    a = np.deg2rad(np.linspace(start, end, 29))
    return np.stack([cx + rx * np.cos(a), cy + ry * np.sin(a)], 1)


def _box(x0: float, y0: float, x1: float, y1: float) -> Points:
    return _p(x0, y0, x1, y0, x1, y1, x0, y1)


def _star() -> Points:
    points = np.empty((10, 2))
    points[::2], points[1::2] = _regular(5), _regular(5, 0.42, -54)
    return points


def _heart() -> Points:
    a = np.linspace(0, 2 * np.pi, 40)
    x = 16 * np.sin(a) ** 3
    y = -(13 * np.cos(a) - 5 * np.cos(2 * a) - 2 * np.cos(3 * a) - np.cos(4 * a))
    return np.stack([x / 17, (y - 2.5) / 15], 1)


def _drop() -> Points:
    return np.concatenate([_p(0, -1), _ellipse(0, 0.3, 0.68, 0.68, -30, 210)])


def _filled(*polygons: Points) -> list[Part]:
    return [(p, 1) for p in polygons]


OUTLINES: dict[str, list[Part]] = {
    "arrow": _filled(_box(-1, -0.2, 0.25, 0.2), _p(0.1, -0.65, 1, 0, 0.1, 0.65)),
    "circle": _filled(_ellipse(0, 0, 0.9, 0.9)),
    "crescent": [(_ellipse(0.05, 0, 0.95, 0.95), 1), (_ellipse(0.42, -0.08, 0.78, 0.8), 0)],
    "cup": [(_ellipse(0.62, 0, 0.42, 0.42), 1), (_ellipse(0.62, 0, 0.22, 0.22), 0)]
    + _filled(_p(-0.85, -0.75, 0.65, -0.75, 0.45, 0.8, -0.65, 0.8)),
    "fish": _filled(_ellipse(-0.22, 0, 0.76, 0.5), _p(0.3, 0, 1, -0.55, 1, 0.55))
    + [(_ellipse(-0.6, -0.12, 0.1, 0.1), 0)],
    "heart": _filled(_heart()),
    "house": _filled(_box(-0.7, -0.12, 0.7, 0.9), _p(-1, -0.08, 0, -0.95, 1, -0.08))
    + [(_box(-0.17, 0.35, 0.2, 0.9), 0)],
    "square": _filled(_box(-0.78, -0.78, 0.78, 0.78)),
    "star": _filled(_star()),
    "tree": _filled(
        _box(-0.15, 0.3, 0.15, 1), _p(0, -1, 0.55, -0.25, -0.55, -0.25), _p(0, -0.6, 0.8, 0.5, -0.8, 0.5)
    ),
    "triangle": _filled(_p(0, -0.9, 0.95, 0.75, -0.95, 0.75)),
    "pentagon": _filled(_regular(5)),
    "hexagon": _filled(_regular(6, start=0)),
    "diamond": _filled(_p(0, -1, 0.52, 0, 0, 1, -0.52, 0)),
    "cross": _filled(_box(-0.28, -0.95, 0.28, 0.95), _box(-0.95, -0.28, 0.95, 0.28)),
    "ring": [(_ellipse(0, 0, 0.95, 0.95), 1), (_ellipse(0, 0, 0.58, 0.58), 0)],
    "oval": _filled(_ellipse(0, 0, 1, 0.55)),
    "rectangle": _filled(_box(-1, -0.5, 1, 0.5)),
    "trapezoid": _filled(_p(-0.5, -0.6, 0.5, -0.6, 1, 0.6, -1, 0.6)),
    "semicircle": _filled(_ellipse(0, 0.45, 1, 1, 180, 360)),
    "drop": _filled(_drop()),
    "cloud": _filled(
        _ellipse(-0.5, 0.2, 0.48, 0.42),
        _ellipse(0, -0.1, 0.5, 0.52),
        _ellipse(0.5, 0.2, 0.48, 0.42),
        _box(-0.5, 0.2, 0.5, 0.62),
    ),
    "lightning": _filled(_p(0.15, -1, -0.6, 0.15, -0.08, 0.15, -0.3, 1, 0.6, -0.3, 0.08, -0.3, 0.5, -1)),
    "key": [(_ellipse(-0.58, 0, 0.42, 0.42), 1), (_ellipse(-0.6, 0, 0.2, 0.2), 0)]
    + _filled(_box(-0.2, -0.12, 1, 0.12), _box(0.5, 0.1, 0.66, 0.45), _box(0.84, 0.1, 1, 0.45)),
    "hammer": _filled(_box(-0.12, -0.4, 0.14, 1), _box(-0.7, -0.9, 0.75, -0.4)),
    "boat": _filled(
        _p(-1, 0.3, 1, 0.3, 0.6, 0.85, -0.6, 0.85),
        _p(-0.05, -1, 0.75, 0.15, -0.05, 0.15),
        _box(-0.16, -1, -0.05, 0.3),
    ),
    "flower": _filled(*[_ellipse(0.55 * x, 0.55 * y, 0.4, 0.4) for x, y in _regular(5)])
    + [(_ellipse(0, 0, 0.22, 0.22), 0)],
    "leaf": _filled(
        np.concatenate([_ellipse(-0.6, 0.0, 1.15, 1.15, -57, 57), _ellipse(0.6, 0.0, 1.15, 1.15, 123, 237)])
    ),
    "mushroom": _filled(_ellipse(0, 0, 0.95, 0.9, 180, 360), _p(-0.3, 0, 0.3, 0, 0.4, 0.9, -0.4, 0.9)),
    "bottle": _filled(
        _box(-0.42, -0.2, 0.42, 1),
        _box(-0.16, -1, 0.16, 0),
        _p(-0.16, -0.45, 0.16, -0.45, 0.42, -0.18, -0.42, -0.18),
    ),
    "umbrella": _filled(
        _ellipse(0, -0.05, 1, 0.9, 180, 360), _box(-0.07, -0.1, 0.07, 0.8), _box(-0.07, 0.75, 0.4, 0.92)
    ),
    "flag": _filled(_box(-0.7, -1, -0.52, 1), _p(-0.55, -0.95, 0.9, -0.5, -0.55, 0.0)),
    "bell": _filled(
        _ellipse(0, -0.15, 0.55, 0.8, 180, 360),
        _p(-0.55, -0.2, 0.55, -0.2, 0.9, 0.6, -0.9, 0.6),
        _ellipse(0, 0.75, 0.2, 0.2),
    ),
    "ladder": _filled(
        _box(-0.55, -1, -0.35, 1),
        _box(0.35, -1, 0.55, 1),
        *[_box(-0.4, y - 0.1, 0.4, y + 0.1) for y in (-0.65, -0.2, 0.25, 0.7)],
    ),
    "chair": _filled(_box(-0.6, -1, -0.38, 1), _box(-0.6, 0.0, 0.65, 0.25), _box(0.43, 0.1, 0.65, 1)),
    "table": _filled(_box(-1, -0.45, 1, -0.15), _box(-0.8, -0.2, -0.58, 0.8), _box(0.58, -0.2, 0.8, 0.8)),
    "crown": _filled(_p(-0.95, -0.6, -0.45, 0.0, 0, -0.8, 0.45, 0.0, 0.95, -0.6, 0.8, 0.7, -0.8, 0.7)),
    "butterfly": _filled(
        _ellipse(-0.5, -0.35, 0.48, 0.5),
        _ellipse(0.5, -0.35, 0.48, 0.5),
        _ellipse(-0.4, 0.45, 0.36, 0.4),
        _ellipse(0.4, 0.45, 0.36, 0.4),
        _box(-0.09, -0.8, 0.09, 0.85),
    ),
    "candle": _filled(_box(-0.28, -0.25, 0.28, 1), _ellipse(0, -0.62, 0.17, 0.36)),
}
"""Shape -> its polygons, drawn in this order."""
SHAPES = tuple(OUTLINES)
# Degrees after which a shape looks the same again; a caption about its angle means the angle within half
# of this.
PERIODS = {
    **dict.fromkeys(("circle", "ring"), 0),
    **dict.fromkeys(("square", "cross"), 90),
    **dict.fromkeys(("star", "pentagon", "flower"), 72),
    "hexagon": 60,
    **dict.fromkeys(("diamond", "oval", "rectangle", "leaf", "ladder"), 180),
}


@dataclass(frozen=True)
class Drawing:
    """The attributes of a drawing, in words that a caption can use.

    Attributes:
        style: a key of ``drawing_styles.STYLES``.
        angle: degrees, counter-clockwise.
    """

    shape: str
    style: str
    colour: str
    background: str
    size: str
    place: str
    angle: float = 0.0


def visible_angle(shape: str, angle: float) -> float:
    """Reduce an angle to half of the shape's period, as a viewer sees it: a star at 72 degrees is upright."""
    period = PERIODS.get(shape, 360)
    return 0.0 if period == 0 else float((angle + period / 2) % period - period / 2)


def choose(rng: np.random.Generator, shape: str, style: str, angle: float) -> Drawing:
    """Draw the attributes that shape, style and angle leave open; colour and background always contrast."""
    background = str(rng.choice(list(BACKGROUNDS)))
    far = [c for c, rgb in COLOURS.items() if np.abs(np.subtract(rgb, BACKGROUNDS[background])).sum() > 220]
    return Drawing(
        shape,
        style,
        str(rng.choice(far)),
        background,
        str(rng.choice(list(SIZES))),
        str(rng.choice(list(PLACES))),
        angle,
    )


def mask_of(parts: Sequence[Part], warp: Callable[[Points], Points]) -> np.ndarray:
    """Return each pixel's coverage, 0..1. Shape: -> (64, 64); ``warp`` maps unit coordinates to pixels."""
    big = Image.new("L", (CANVAS * _OVERSAMPLE,) * 2)
    pen = ImageDraw.Draw(big)
    for points, fill in parts:
        pen.polygon([tuple(xy) for xy in (warp(points) * _OVERSAMPLE).tolist()], fill=255 * fill)
    return np.asarray(big.reduce(_OVERSAMPLE), dtype=np.float32) / 255


def placement(drawing: Drawing, rng: np.random.Generator) -> Callable[[Points], Points]:
    """Return the map from unit coordinates to pixels: size, angle and place, each with a little jitter."""
    radius = SIZES[drawing.size] * rng.uniform(0.92, 1.08)
    stretch = np.array([rng.uniform(0.88, 1.12), 1.0]) * radius
    a = np.deg2rad(drawing.angle)
    # counter-clockwise on a canvas whose y axis points down
    rotation = np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])
    room = min(9.0, CANVAS / 2 - radius - 1)
    centre = CANVAS / 2 + room * np.array(PLACES[drawing.place]) + rng.uniform(-1.5, 1.5, 2)
    return lambda points: (points * stretch) @ rotation.T + centre


def draw(drawing: Drawing, rng: np.random.Generator) -> np.ndarray:
    """Draw one shape. Shape: -> (64, 64, 3) uint8. The same generator state gives the same pixels."""
    mask = mask_of(OUTLINES[drawing.shape], placement(drawing, rng))
    return paint(mask, drawing.style, COLOURS[drawing.colour], BACKGROUNDS[drawing.background], rng)
