"""Pictures that appear before plotly has loaded: a partition in HTML, and matrices of a few pixels a cell."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from fedcore.base.progress import counted
from fedcore.results.charts.theme import ACCURACY_SCALE, Theme, palette, ticks

MAX_ROWS, MAX_CELLS = 200, 2000
"""Maximum of clients and of bubbles in a picture; thousands would take the browser seconds."""
ROW, TALLEST = 26.0, 480.0
"""Height in pixels of a row, and of all rows together, which become smaller if they are many."""
MAX_BUBBLES = 40
"""Number of classes above which each client is a strip of shades, since bubbles would be mere dots."""
NAMES = 32


@dataclass(frozen=True)
class PartitionPicture:
    """A picture as HTML boxes (Streamlit may remove SVG), and its text alternative."""

    html: str
    alt: str


def partition_picture(
    counts: np.ndarray, clients: Sequence[str], classes: Sequence[str], theme: Theme
) -> PartitionPicture:
    """Draw a bubble per client and class whose area is the number of training samples.

    Many classes are drawn as shades instead. If the clients are too many, an evenly spaced sample is drawn;
    the text alternative describes all of them.

    Shape: counts (clients, classes).
    """
    alt = (
        f"{counted(len(clients), 'client')}, {counted(len(classes), 'class')}; "
        f"a client holds {_range(counts.sum(1), 'training sample')} "
        f"of {_range((counts > 0).sum(1), 'class')}."
    )
    strips = len(classes) > MAX_BUBBLES
    alt += " Stronger colours mean more samples." if strips else ""
    most = MAX_ROWS if strips else max(1, min(MAX_ROWS, MAX_CELLS // max(1, len(classes))))
    if len(clients) > most:
        alt += f" The picture shows {most} of the clients."
        drawn = np.linspace(0, len(clients) - 1, most).astype(int)
        counts, clients = counts[drawn], [clients[i] for i in drawn]
    row = min(ROW, TALLEST / max(1, len(clients)))
    named_rows, named_columns = (
        dict(zip(*ticks(names, room), strict=True)) for names, room in ((clients, NAMES), (classes, 20))
    )
    largest = max(1, int(counts.max())) if counts.size else 1
    cells = []
    for i, client in enumerate(clients):
        cells.append(f'<span style="{_NAME}text-align:right">{named_rows.get(i, "")}</span>')
        if strips:
            cells.append(_strip(counts[i], largest, client, row, theme))
            continue
        for j, held in enumerate(classes):
            cells.append(_bubble(int(counts[i, j]), largest, f"{client}, class {held}", row, theme))
    cells.append("<span></span>")
    cells += [
        f'<span style="{_NAME}{_UPRIGHT}">{named_columns.get(j, "")}</span>' for j in range(len(classes))
    ]
    style = (
        f"display:grid;grid-template-columns:max-content repeat({len(classes)},minmax(0,1fr));"
        "overflow-x:clip;"
        f"grid-template-rows:repeat({len(clients)},{row:.1f}px) auto;font-size:0.8rem;line-height:1.1;"
        "align-items:center;justify-items:center;"
        f"column-gap:{0 if strips else 1}px"
    )
    body = f'<div role="img" aria-label="{html.escape(alt)}" style="{style}">{"".join(cells)}</div>'
    return PartitionPicture(body, alt)


_NAME = "justify-self:end;padding-right:0.5rem;white-space:nowrap;"
_UPRIGHT = "justify-self:center;padding:0.4rem 0 0;writing-mode:vertical-rl;align-self:start;"


def _bubble(count: int, largest: int, what: str, row: float, theme: Theme) -> str:
    """Return a disc whose area is proportional to the count, and which fits into its row and column."""
    if not count:
        return "<span></span>"
    share = 84 * sqrt(count / largest)
    style = f"background:{theme.colour('fedot')};opacity:0.85;border-radius:50%;aspect-ratio:1;"
    style += f"width:min({share:.0f}%,{share * row / 100:.1f}px)"
    title = html.escape(f"{what}: {counted(count, 'training sample')}")
    return f'<span title="{title}" style="{style}"></span>'


def _strip(counts: np.ndarray, largest: int, client: str, row: float, theme: Theme) -> str:
    """Return one box with a gradient for all classes of a client; a box each would be too many."""
    edge, stops = 100 / len(counts), []
    for j in np.flatnonzero(counts):
        shade = round(30 + 70 * int(counts[j]) / largest)
        colour = f"color-mix(in srgb,{theme.colour('fedot')} {shade}%,transparent)"
        left, right = f"{j * edge:.2f}%", f"{(j + 1) * edge:.2f}%"
        stops.append(f"transparent {left},{colour} {left} {right},transparent {right}")
    style = f"grid-column:span {len(counts)};justify-self:stretch;height:{max(1.0, row - 1):.1f}px;"
    style += f"background:linear-gradient(to right,{','.join(stops)})" if stops else ""
    held = f"{counted(int(counts.sum()), 'training sample')} of {counted(int((counts > 0).sum()), 'class')}"
    return f'<span title="{html.escape(f"{client}: {held}")}" style="{style}"></span>'


def _range(numbers: np.ndarray, noun: str) -> str:
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    return ("" if low == high else f"{low:,} to ") + counted(high, noun)


PIXELS, ENOUGH = 4, 128
"""Pixels of a cell's side, as browsers smooth what they enlarge; fewer in a picture of more pixels."""
NO_DATA = (160, 166, 173)


def thumbnail(shares: np.ndarray) -> str:
    """Return accuracies as a PNG in a ``data:`` address, on the scale of the heatmaps from 0 to 100 %.

    Args:
        shares: by model and test set, 0 to 1; nan where nothing was measured. Shape: (models, test sets).
    """
    from PIL import Image

    measured = ~np.isnan(shares)
    steps = np.where(measured, 100 * shares, 0).round().astype(int).clip(0, 100)
    colours = np.where(measured[..., None], palette(ACCURACY_SCALE, 101)[steps], np.array(NO_DATA))
    pixels = min(PIXELS, ceil(ENOUGH / max(shares.shape)))
    picture = Image.fromarray(colours.astype(np.uint8)).resize(
        (pixels * shares.shape[1], pixels * shares.shape[0]), Image.Resampling.NEAREST
    )
    out = io.BytesIO()
    picture.save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
