"""Recorded tables of docs/ as figures: every number as text, and the differences with their intervals drawn.

A table is kept as CSV in docs/measured/, and its figure, which is drawn from that file, beside it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tools.docs.blocks import FOLDER

MEASURED = FOLDER / "measured"
INTERVAL = re.compile(r"([+-]?\d+\.\d+) \(([+-]?\d+\.\d+) to ([+-]?\d+\.\d+)\)")
Table = tuple[list[str], list[list[str]]]
"""Headings and lines; a line begins with its name."""
ROW, LETTER, BOLD, GAP, STRIP, MARGIN = 20, 6.3, 7.2, 16, 220, 8
"""In pixels: a row, a letter, a bold one, the space between columns, the drawn intervals, the margin."""
INK, GREY, SURE = "#1f2328", "#8b949e", "#1d5fa6"


def figure(name: str, title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table as CSV and as SVG, and return the Markdown that shows both.

    Args:
        name: of the files.
        headings: the first one is of the rows' names.
        lines: cells as text; a difference reads ``+1.5 (+0.8 to +2.2)``, in ``**`` if it excludes 0.
    """
    MEASURED.mkdir(exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [headings, *([cell.replace("**", "") for cell in line] for line in lines)]
    )
    (MEASURED / f"{name}.csv").write_text(text.getvalue(), encoding="utf-8")
    draw(name, title)
    return f"![{title} (numbers: measured/{name}.csv)](measured/{name}.svg)\n"


def draw(name: str, title: str) -> Path:
    """Draw the figure of a table that is stored as CSV."""
    content = (MEASURED / f"{name}.csv").read_text(encoding="utf-8")
    headings, *lines = csv.reader(io.StringIO(content))
    drawn = next(i for i in range(1, len(headings)) if any(INTERVAL.fullmatch(line[i]) for line in lines))
    parts, left = [_text(MARGIN, 0, title, bold=True)], float(MARGIN)
    for i, heading in enumerate(headings):
        words = [heading, *(line[i] for line in lines)]
        wide = max(BOLD * len(heading), *((BOLD if i == drawn else LETTER) * len(w) for w in words[1:]))
        at, anchor = (left, "start") if i == 0 else (left + wide, "end")
        for row, word in enumerate(words):
            sure = i == drawn and row > 0 and _excludes_zero(word)
            parts.append(_text(at, row + 1, word, anchor, bold=row == 0 or sure))
        left += wide + GAP
        if i == drawn:
            parts += _intervals(left, [line[i] for line in lines])
            left += STRIP + GAP
    width, height = round(max(left, BOLD * len(title))), (len(lines) + 2) * ROW + MARGIN
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
    file = MEASURED / f"{name}.svg"
    file.write_text(picture, encoding="utf-8")
    return file


def _excludes_zero(cell: str) -> bool:
    found = INTERVAL.fullmatch(cell)
    return found is not None and (float(found[2]) > 0 or float(found[3]) < 0)


def _intervals(left: float, cells: Sequence[str]) -> list[str]:
    """Return the lines from the lower to the upper end, with a point at the mean, on one scale with 0."""
    found = [(row, INTERVAL.fullmatch(cell)) for row, cell in enumerate(cells)]
    ends = [float(m[i]) for _, m in found if m for i in (2, 3)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = STRIP / ((high - low) or 1.0)
    zero = left - low * scale
    parts = [f'<path d="M{zero:.1f} {2 * ROW - 4}V{(len(cells) + 2) * ROW}" stroke="{GREY}"/>']
    for row, match in found:
        if match:
            mean, start, end = (left + (float(v) - low) * scale for v in match.groups())
            y = (row + 2) * ROW + ROW / 2 - 1
            shade = SURE if _excludes_zero(match[0]) else GREY
            parts.append(f'<path d="M{start:.1f} {y:g}H{end:.1f}" stroke="{shade}" stroke-width="2"/>')
            parts.append(f'<circle cx="{mean:.1f}" cy="{y:g}" r="3.5" fill="{shade}"/>')
    return parts


def _text(x: float, row: int, words: str, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{row * ROW + 14}" text-anchor="{anchor}" fill="{INK}"{weight}>'
        f"{escape(words)}</text>"
    )
