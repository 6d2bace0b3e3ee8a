"""Pictures made of a few kinds of shapes, written as SVG for a browser and as PDF for a paper.

Lengths are in CSS pixels (96 to the inch) from the upper left corner. Text stays text in both formats.
"""

from __future__ import annotations

import base64
import io
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]
PIXELS_PER_INCH = 96
POINTS = 72 / PIXELS_PER_INCH
"""Points, the unit of printed text, in a CSS pixel."""
SHARP = 600
"""Pixels to which the matrix of an image is enlarged: readers of PDF blur a smaller one between its cells."""
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_DRAWING = threading.Lock()  # matplotlib's settings are shared by all threads
_SETTINGS: Any = {
    "pdf.fonttype": 42,  # TrueType, as conferences ask for
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.family": "DejaVu Sans",
    "path.sketch": None,
    "savefig.bbox": None,
}
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The fields that all shapes have in common.

    Attributes:
        tip: text that a pointer on the shape shows, lines separated by line breaks.
        line: number of the line of a chart that it belongs to; its entry in the legend has the same number.
    """

    tip: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Path(Shape):
    """Straight lines between points; a point that is NaN begins another part. Dashes: strokes and gaps."""

    points: Sequence[Point]
    stroke: str = "none"
    fill: str = "none"
    width: float = 1.0
    dashes: tuple[float, ...] = ()
    closed: bool = False

    @property
    def parts(self) -> list[np.ndarray]:
        """Its points, those between two gaps together. Shape: (points, 2) each."""
        points = np.array(self.points, dtype=float).reshape(-1, 2)
        gap = np.isnan(points).any(axis=1)
        parts = np.split(points[~gap], np.cumsum(~gap)[gap])
        return [part for part in parts if len(part)]


@dataclass(frozen=True)
class Disc(Shape):
    """A circle; one without fill and stroke shows its tip only."""

    x: float
    y: float
    radius: float = 3.0
    fill: str = "none"
    stroke: str = "none"
    width: float = 1.0


@dataclass(frozen=True)
class Box(Shape):
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True)
class Text(Shape):
    """One line of text; ``y`` is the middle of its small letters, around which it may be turned."""

    x: float
    y: float
    text: str
    colour: str
    size: float = 11.0
    anchor: Anchor = "start"
    angle: float = 0.0
    bold: bool = False


@dataclass(frozen=True)
class Image(Shape):
    """A matrix of colours, for matrices of many cells and colour bars.

    Shape: rgb (rows, columns, 3), 0 to 255.

    Attributes:
        table: number of the table whose cells it shows, from which a page reads what a pointer is on.
    """

    x: float
    y: float
    width: float
    height: float
    rgb: np.ndarray
    table: int | None = None


@dataclass(frozen=True)
class Picture:
    """Shapes on a sheet, the later ones on top."""

    width: float
    height: float
    shapes: Sequence[Shape]


def inline_svg(picture: Picture, alt: str) -> str:
    """Return the picture, with its text alternative, as an element of an HTML page, as wide as its place."""
    size = f"0 0 {_number(picture.width)} {_number(picture.height)}"
    body = "".join(map(_svg, picture.shapes))
    return f'<svg viewBox="{size}" role="img" aria-label="{escape(alt)}" font-family="{FONT}">{body}</svg>'


def svg_file(picture: Picture, alt: str) -> bytes:
    """Return the picture as an SVG file of its size in print."""
    size = f'width="{picture.width * POINTS:.8g}pt" height="{picture.height * POINTS:.8g}pt"'
    element = f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
    return inline_svg(picture, alt).replace("<svg ", element, 1).encode()


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _svg(shape: Shape) -> str:
    tip = f"<title>{escape(shape.tip, quote=False)}</title>" if shape.tip else ""
    line = "" if shape.line is None else f' data-line="{shape.line}"'
    pen = ""
    if isinstance(shape, Path | Disc) and shape.stroke != "none":
        pen = f'{_paint("stroke", shape.stroke)} stroke-width="{_number(shape.width)}"'
    if isinstance(shape, Path):
        dash = f' stroke-dasharray="{" ".join(map(_number, shape.dashes))}"' if shape.dashes else ""
        end = "z" if shape.closed else ""
        parts = ("L".join(f"{_number(x)} {_number(y)}" for x, y in part.tolist()) for part in shape.parts)
        path = "".join(f"M{part}{end}" for part in parts)
        return f'<path d="{path}"{_paint("fill", shape.fill)}{pen}{dash}{line}>{tip}</path>'
    if isinstance(shape, Disc):
        unseen = ' pointer-events="all"' if shape.fill == "none" else ""
        place = f'cx="{_number(shape.x)}" cy="{_number(shape.y)}" r="{_number(shape.radius)}"'
        return f"<circle {place}{_paint('fill', shape.fill)}{pen}{unseen}{line}>{tip}</circle>"
    if isinstance(shape, Text):
        x, y = _number(shape.x), _number(shape.y)
        turned = f' transform="rotate({_number(shape.angle)} {x} {y})"' if shape.angle else ""
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        weight = ' font-weight="bold"' if shape.bold else ""
        look = f'font-size="{_number(shape.size)}" fill="{shape.colour}"{weight}'
        text = tip + escape(shape.text, quote=False)
        return f'<text x="{x}" y="{y}" dy=".35em" {look}{anchor}{turned}{line}>{text}</text>'
    assert isinstance(shape, Box | Image)
    place = " ".join(f'{name}="{_number(getattr(shape, name))}"' for name in ("x", "y", "width", "height"))
    if isinstance(shape, Box):
        return f"<rect {place}{_paint('fill', shape.fill)}>{tip}</rect>"
    from PIL import Image as PillowImage  # here: only an image needs it

    table = "" if shape.table is None else f' data-table="{shape.table}"'
    buffer = io.BytesIO()
    PillowImage.fromarray(_enlarged(shape)).save(buffer, "PNG", optimize=True)
    png = base64.b64encode(buffer.getvalue()).decode()
    return f'<image {place} preserveAspectRatio="none"{table} href="data:image/png;base64,{png}"/>'


def _paint(what: str, colour: str) -> str:
    """Return the attributes of a colour; an opacity has its own, which also editors of SVG understand."""
    if colour == "none":
        return f' {what}="none"'
    solid, opacity = solid_colour(colour)
    return f' {what}="{solid}"' + ("" if opacity == 1 else f' {what}-opacity="{opacity:g}"')


def solid_colour(colour: str) -> tuple[str, float]:
    """Return a colour of CSS (``#rrggbb``, ``rgb()``, ``rgba()``) as ``#rrggbb`` and its opacity."""
    if colour.startswith("#"):
        return colour, 1.0
    red, green, blue, *opacity = (float(part) for part in re.findall(r"[\d.]+", colour))
    return f"#{round(red):02x}{round(green):02x}{round(blue):02x}", opacity[0] if opacity else 1.0


def _enlarged(shape: Image) -> np.ndarray:
    rgb = shape.rgb
    for side in (0, 1):
        rgb = rgb.repeat(max(1, ceil(SHARP / rgb.shape[side])) if rgb.shape[side] > 1 else 1, axis=side)
    return rgb


def pdf_file(picture: Picture) -> bytes:
    """Return the picture as a PDF file with embedded fonts; equal pictures give equal bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with _DRAWING, mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(picture.width / PIXELS_PER_INCH, picture.height / PIXELS_PER_INCH))
        for order, shape in enumerate(picture.shapes):
            _add(figure, picture, shape, order)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None, "Creator": "FedLens"})
    return buffer.getvalue()


def _add(figure: Figure, picture: Picture, shape: Shape, order: int) -> None:
    from matplotlib import patches
    from matplotlib.path import Path as MplPath
    from matplotlib.transforms import Affine2D

    place = Affine2D().scale(1 / picture.width, -1 / picture.height).translate(0, 1) + figure.transFigure
    if isinstance(shape, Text):
        x, y = shape.x / picture.width, 1 - shape.y / picture.height
        across = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        figure.text(
            x,
            y,
            shape.text,
            size=0.93 * shape.size * POINTS,
            color=shape.colour,
            ha=across,
            va="center_baseline",
            rotation=-shape.angle,
            rotation_mode="anchor",
            weight="bold" if shape.bold else "normal",
            zorder=order,
        )
        return
    if isinstance(shape, Image):
        left, width = shape.x / picture.width, shape.width / picture.width
        bottom, height = 1 - (shape.y + shape.height) / picture.height, shape.height / picture.height
        axes = figure.add_axes((left, bottom, width, height), zorder=order)
        axes.imshow(_enlarged(shape), aspect="auto", interpolation="none")
        axes.set_axis_off()
        return
    if isinstance(shape, Disc):
        patch: patches.Patch = patches.Circle((shape.x, shape.y), shape.radius)
    elif isinstance(shape, Box):
        patch = patches.Rectangle((shape.x, shape.y), shape.width, shape.height)
    else:
        assert isinstance(shape, Path)
        parts = [np.vstack([part, part[:1]]) if shape.closed else part for part in shape.parts]
        outlines = [MplPath(part, closed=shape.closed) for part in parts]
        patch = patches.PathPatch(MplPath.make_compound_path(*outlines))
        if shape.dashes:
            patch.set_linestyle((0, tuple(d / shape.width for d in shape.dashes)))
            patch.set_capstyle("butt")
    patch.set_facecolor(_mpl_colour(shape.fill))
    stroke = "none" if isinstance(shape, Box) else shape.stroke
    patch.set_edgecolor(_mpl_colour(stroke))
    patch.set_linewidth(0 if stroke == "none" else shape.width * POINTS)
    patch.set_zorder(order)
    patch.set_transform(place)
    figure.add_artist(patch)


def _mpl_colour(colour: str) -> Any:
    return "none" if colour == "none" else solid_colour(colour)
