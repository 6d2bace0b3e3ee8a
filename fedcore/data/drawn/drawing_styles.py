"""Styles: functions (mask, colour, background, generator) -> pixels in 0..255, which paint a mask.

Shape: mask (64, 64) in 0..1; colour and background (3,); result (64, 64, 3) float, which ``paint`` clips and
rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

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
    """Blur an array in 0..1 with a Gaussian, through 8-bit Pillow: fast, and the same on every machine."""
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
    """Return a linear ramp around 0 in a random direction, like light from one side."""
    a = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[0:n, 0:n] / (n - 1) - 0.5
    slope: Array = (strength * (np.cos(a) * x + np.sin(a) * y)).astype(np.float32)
    return slope


def _smooth_noise(rng: np.random.Generator, n: int, cells: int) -> Array:
    """Enlarge the noise of a coarse grid, for brush strokes and uneven paper. Shape: -> (n, n), in -1..1."""
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
