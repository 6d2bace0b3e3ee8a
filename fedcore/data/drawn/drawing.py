"""Draw shapes from primitives, with attributes that a caption can name; a seed determines every pixel.

A drawing is a mask (the area of the shape), which a style paints: a function (mask, colour, background,
generator) -> pixels in 0..255. The same code draws the embedded data set ``fedcore.data.drawn.shapes`` and
the images on which ``tools/pretraining/train.py`` trains the embedded CLIP.

Shape of a style: mask (64, 64) in 0..1; colour and background (3,); result (64, 64, 3) float.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

Array = npt.NDArray[np.floating]
RGB = tuple[int, int, int]
COLOURS: dict[str, RGB] = {
    "red": (205, 35, 40),
    "orange": (240, 135, 30),
    "yellow": (245, 220, 60),
    "green": (40, 150, 60),
    "blue": (40, 80, 200),
    "purple": (130, 50, 160),
    "pink": (245, 140, 180),
    "brown": (120, 75, 40),
    "black": (20, 20, 22),
    "white": (245, 245, 242),
    "grey": (130, 130, 132),
    "cyan": (60, 200, 215),
}
BACKGROUNDS: dict[str, RGB] = {
    "white": (248, 248, 246),
    "black": (14, 14, 16),
    "grey": (165, 165, 168),
    "beige": (225, 205, 170),
    "navy": (25, 35, 90),
    "mint": (175, 230, 200),
    "crimson": (150, 20, 45),
    "olive": (110, 115, 45),
}


def _blur(a: Array, radius: float) -> Array:
    """Blur an array in 0..1 with a Gaussian, in Pillow's 8 bits: fast, and equal on every machine."""
    image = Image.fromarray((a * 255 + 0.5).clip(0, 255).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), dtype=np.float32) / 255


def _edge(mask: Array, width: int = 3) -> Array:
    """Return the outline of a mask, about ``width`` (odd) pixels wide."""
    image = Image.fromarray((mask * 255).astype(np.uint8))
    wide = np.asarray(image.filter(ImageFilter.MaxFilter(width)), dtype=np.float32)
    narrow = np.asarray(image.filter(ImageFilter.MinFilter(3)), dtype=np.float32)
    return (wide - narrow) / 255


def _mix(mask: Array, colour: Array, background: Array) -> Array:
    m: Array = mask[..., None]
    return m * colour + (1 - m) * background


def _slope(rng: np.random.Generator, n: int, strength: float) -> Array:
    """Return a linear ramp around 0 in a random direction, as of light from one side."""
    a = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[0:n, 0:n] / (n - 1) - 0.5
    slope: Array = (strength * (np.cos(a) * x + np.sin(a) * y)).astype(np.float32)
    return slope


def _smooth_noise(rng: np.random.Generator, n: int, cells: int) -> Array:
    """Enlarge noise of a coarse grid, for brush strokes and uneven paper. Shape: -> (n, n), in -1..1."""
    small = rng.integers(0, 256, (cells, cells), dtype=np.uint8)
    return (
        np.asarray(Image.fromarray(small).resize((n, n), Image.Resampling.BICUBIC), dtype=np.float32) / 127.5
        - 1
    )


def _shift(mask: Array, dx: Array, dy: Array) -> Array:
    n = len(mask)
    y, x = np.mgrid[0:n, 0:n]
    rows = (y + dy).round().astype(int).clip(0, n - 1)
    columns = (x + dx).round().astype(int).clip(0, n - 1)
    shifted: Array = mask[rows, columns]
    return shifted


def _photo(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    light = 1 + _slope(rng, n, 0.5)[..., None]
    shadow = 1 - 0.35 * np.roll(_blur(m, 2.5), (3, 2), (0, 1))[..., None]
    body = c * (light + 0.25 * (_blur(m, 5) - 0.6)[..., None])
    ground = b * (1 + _slope(rng, n, 0.4)[..., None]) * shadow
    return _mix(_blur(m, 0.6), body, ground) + rng.normal(0, 5, (n, n, 1))


def _cartoon(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    edge = np.clip(_edge(m, 5), 0, 1)[..., None]
    line = np.full(3, 10.0) if b.sum() > 150 else np.full(3, 235.0)  # a visible outline
    return _mix(m, c, b) * (1 - edge) + line * edge


def _clipart(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    return _mix(m, c, b)


def _silhouette(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    dark = b.sum() < 300
    return _mix(m, np.full(3, 240.0 if dark else 8.0), b) + 12 * _slope(rng, len(m), 1.0)[..., None]


def _painting(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    m = _shift(m, 2.2 * _smooth_noise(rng, n, 9), 2.2 * _smooth_noise(rng, n, 9))
    strokes = 26 * _smooth_noise(rng, n, 18)[..., None] + 14 * _smooth_noise(rng, n, 7)[..., None]
    return _mix(_blur(m, 1.0), c, b) + strokes


def _neon(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    edge = np.clip(_edge(m, 3), 0, 1)
    glow: Array = _blur(edge, 3.0)[..., None]
    bright = 0.6 * np.maximum(c, 60) + 100
    light: Array = bright * np.clip(edge[..., None] * 0.9 + 1.3 * glow, 0, 1)
    pixels: Array = np.array([10.0, 8.0, 22.0]) + light
    return pixels


def _pixel(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    small = m.reshape(n // 4, 4, n // 4, 4).mean((1, 3)) > 0.45
    return (
        _mix(np.kron(small, np.ones((4, 4))), c, b)
        + np.kron(rng.normal(0, 6, (n // 4, n // 4)), np.ones((4, 4)))[..., None]
    )


def _sketch(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    wobbly = _shift(m, 1.3 * _smooth_noise(rng, n, 7), 1.3 * _smooth_noise(rng, n, 7))
    edge = np.clip(_edge(wobbly, 3), 0, 1)
    y, x = np.mgrid[0:n, 0:n]
    hatch = ((x + y + rng.integers(0, 5)) % 5 == 0) * m * 0.45
    ink: Array = np.clip(edge * rng.uniform(0.6, 1.0, (n, n)) + hatch, 0, 1)[..., None]
    return (240 + 6 * _smooth_noise(rng, n, 16)[..., None]) * (1 - ink) + 45 * ink * np.ones(3)


def _mosaic(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    tile = 5
    cells = -(-n // tile)
    padded = np.pad(m, (0, cells * tile - n), mode="edge").reshape(cells, tile, cells, tile).mean((1, 3))
    base = _mix(padded, c, b) + rng.normal(0, 18, (cells, cells, 1)) + rng.normal(0, 8, (cells, cells, 3))
    full = np.repeat(np.repeat(base, tile, 0), tile, 1)[:n, :n]
    y, x = np.mgrid[0:n, 0:n]
    grout = ((x % tile == 0) | (y % tile == 0))[..., None]
    pixels: Array = np.where(grout, 0.55 * full + 40, full)
    return pixels


def _night(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    scene: Array = _mix(_blur(m, 1.0), c, b) * (0.22 + 0.08 * _smooth_noise(rng, n, 4)[..., None])
    pixels: Array = scene * np.array([0.75, 0.85, 1.2]) + np.array([6.0, 8.0, 20.0])
    return pixels + rng.normal(0, 8, (n, n, 3))


def _halftone(m: Array, c: Array, b: Array, rng: np.random.Generator) -> Array:
    n = len(m)
    y, x = np.mgrid[0:n, 0:n]
    u, v = (x + y) * np.pi / 4, (x - y) * np.pi / 4  # dots on a grid turned by 45 degrees, 5.7 px apart
    screen = 0.5 + 0.25 * (np.cos(u) + np.cos(v))
    amount = 0.12 + 0.68 * _blur(m, 0.8)
    ink = np.clip((amount - screen) * 4 + 0.5, 0, 1)
    return _mix(ink, np.minimum(c, 150.0), np.array([246.0, 244.0, 236.0]))


STYLES: dict[str, Callable[[Array, Array, Array, np.random.Generator], Array]] = {
    "photo": _photo,
    "cartoon": _cartoon,
    "clipart": _clipart,
    "silhouette": _silhouette,
    "painting": _painting,
    "neon": _neon,
    "pixel": _pixel,
    "sketch": _sketch,
    "mosaic": _mosaic,
    "night": _night,
    "halftone": _halftone,
}


def paint(mask: Array, style: str, colour: RGB, background: RGB, rng: np.random.Generator) -> Array:
    """Paint a mask. Shape: (64, 64) in 0..1 -> (64, 64, 3) uint8."""
    pixels = STYLES[style](mask, np.asarray(colour, float), np.asarray(background, float), rng)
    return (pixels + 0.5).clip(0, 255).astype(np.uint8)


DRAWING_VERSION = 1
"""Part of the data sets' fingerprints: raise it with any change of a pixel."""
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
Polygon = tuple[Points, int]  # a polygon, and whether it fills (1) or cuts a hole (0)


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


def _heart() -> Points:
    a = np.linspace(0, 2 * np.pi, 40)
    x = 16 * np.sin(a) ** 3
    y = -(13 * np.cos(a) - 5 * np.cos(2 * a) - 2 * np.cos(3 * a) - np.cos(4 * a))
    return np.stack([x / 17, (y - 2.5) / 15], 1)


def _filled(*polygons: Points) -> list[Polygon]:
    return [(p, 1) for p in polygons]


OUTLINES: dict[str, list[Polygon]] = {
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
    "star": _filled(np.stack([_regular(5), _regular(5, 0.42, -54)], 1).reshape(-1, 2)),
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
    "drop": _filled(np.concatenate([_p(0, -1), _ellipse(0, 0.3, 0.68, 0.68, -30, 210)])),
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
PERIODS = {
    **dict.fromkeys(("circle", "ring"), 0),
    **dict.fromkeys(("square", "cross"), 90),
    **dict.fromkeys(("star", "pentagon", "flower"), 72),
    "hexagon": 60,
    **dict.fromkeys(("diamond", "oval", "rectangle", "leaf", "ladder"), 180),
}
"""Degrees after which a shape looks the same again (default 360); captions name angles up to half of it."""


@dataclass(frozen=True)
class Drawing:
    """The attributes of a drawing, in words that a caption can use.

    Attributes:
        style: a key of ``STYLES``.
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
    """Return an angle as a viewer sees it, within half of the shape's period: 0 for a star at 72 degrees."""
    period = PERIODS.get(shape, 360)
    return 0.0 if period == 0 else float((angle + period / 2) % period - period / 2)


def choose(rng: np.random.Generator, shape: str, style: str, angle: float) -> Drawing:
    """Draw the remaining attributes at random; colour and background always contrast."""
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


def mask_of(parts: Sequence[Polygon], warp: Callable[[Points], Points]) -> np.ndarray:
    """Return each pixel's coverage, 0..1. Shape: -> (64, 64); ``warp`` maps unit coordinates to pixels."""
    big = Image.new("L", (CANVAS * _OVERSAMPLE,) * 2)
    pen = ImageDraw.Draw(big)
    for points, fill in parts:
        pen.polygon([tuple(xy) for xy in (warp(points) * _OVERSAMPLE).tolist()], fill=255 * fill)
    return np.asarray(big.reduce(_OVERSAMPLE), dtype=np.float32) / 255


def placement(drawing: Drawing, rng: np.random.Generator) -> Callable[[Points], Points]:
    """Return the map from unit coordinates to pixels: size, angle and place, each slightly varied."""
    radius = SIZES[drawing.size] * rng.uniform(0.92, 1.08)
    stretch = np.array([rng.uniform(0.88, 1.12), 1.0]) * radius
    a = np.deg2rad(drawing.angle)
    # counter-clockwise on a canvas whose y axis points down
    rotation = np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])
    room = min(9.0, CANVAS / 2 - radius - 1)
    centre = CANVAS / 2 + room * np.array(PLACES[drawing.place]) + rng.uniform(-1.5, 1.5, 2)
    return lambda points: (points * stretch) @ rotation.T + centre


def draw(drawing: Drawing, rng: np.random.Generator) -> np.ndarray:
    """Draw one shape; the same generator state gives the same pixels. Shape: -> (64, 64, 3) uint8."""
    mask = mask_of(OUTLINES[drawing.shape], placement(drawing, rng))
    return paint(mask, drawing.style, COLOURS[drawing.colour], BACKGROUNDS[drawing.background], rng)
