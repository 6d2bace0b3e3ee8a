"""The picture of the rooms in docs/architecture.md, drawn from the layer contract in pyproject.toml."""

from __future__ import annotations

import tomllib
from html import escape

from tools.docs.blocks import FOLDER

PICTURE = FOLDER / "rooms.svg"
PURPOSES = {
    "pages": "the dashboard: widgets in, charts out",
    "cli": "the command fedlens, one file per noun",
    "share": "reports to read, and bundles for others to check",
    "papers": "published values, and the experiments that reproduce them",
    "results": "tables, statistics, curves, charts and exports, from recorded cells",
    "jobs": "the supervisor, and the processes that it starts",
    "store": "the database: runs, results and queue, with all the SQL",
    "engine": "plan, setup, round loop, evaluation, checkpoints",
    "config": "an experiment and its runs: models, TOML, sweeps",
    "methods": "the contract, the four methods, the baselines",
    "clip": "frozen CLIP: towers, prompts, LoRA, encodings",
    "data": "catalog, readers, checks, splits, partitions, arrays on disk",
    "base": "errors, files, events, devices, linear algebra",
}
"""A room's purpose."""
GROUPS = {
    "front ends": ("#1d5fa6", ("pages", "cli")),
    "results": ("#0f6f68", ("share", "papers", "results")),
    "record": ("#9a4a12", ("jobs", "store")),
    "training": ("#6741b5", ("engine", "config", "methods", "clip")),
    "data": ("#4c6a1e", ("data",)),
    "basics": ("#57606a", ("base",)),
}
"""Title -> colour (white text on it is readable on light and dark pages) and rooms."""
FILES = {"store": "runs.db", "engine": "checkpoints", "data": "images and encodings"}
"""Files that a room reads and writes."""
NOT_DRAWN = ("fedcore.__main__",)
"""The entry of the command."""
ROW, GAP, TITLE, ROOMS, RIGHT = 34, 4, 96, 560, 120


def layers() -> list[list[str]]:
    """Return the rooms of every layer, the top layer first, as the lint contract has them."""
    content = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contract = content["tool"]["importlinter"]["contracts"][0]
    rows = [layer.split(" | ") for layer in contract["layers"]]
    drawn = [[room.removeprefix("fedcore.") for room in row if room not in NOT_DRAWN] for row in rows]
    return [row for row in drawn if row]


def picture() -> str:
    """Return the picture as SVG: a bar per layer, groups on the left, files on the right.

    Raises:
        KeyError: for a room of the contract that has no purpose here.
    """
    rows = layers()
    top = {room: i * (ROW + GAP) for i, row in enumerate(rows) for room in row}
    color = {room: shade for shade, rooms in GROUPS.values() for room in rooms}
    parts = []
    for title, (shade, rooms) in GROUPS.items():
        first, last = min(top[r] for r in rooms), max(top[r] for r in rooms)
        parts.append(_box(0, first, TITLE, last - first + ROW, shade, title, "middle"))
    for row in rows:
        width = (ROOMS - GAP * (len(row) - 1)) / len(row)
        for i, room in enumerate(row):
            purpose = PURPOSES[room]
            text = f'<tspan font-weight="bold">{room}</tspan>' + (f"  {escape(purpose)}" if purpose else "")
            x = TITLE + GAP + i * (width + GAP)
            parts.append(_box(x, top[room], width, ROW, color[room], text))
    left = TITLE + GAP + ROOMS
    for room, name in FILES.items():
        middle = top[room] + ROW / 2
        parts.append(f'<path d="M{left} {middle}h22" stroke="{color[room]}" stroke-width="3"/>')
        parts.append(_box(left + 22, top[room], RIGHT, ROW, color[room], name, "middle", radius=17))
    width, height = left + 22 + RIGHT, len(rows) * (ROW + GAP) - GAP
    alt = "The rooms of FedLens, one bar per layer; each imports only from the bars below it."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="14" fill="#fff">\n'
        f"<title>{alt}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _box(
    x: float,
    y: float,
    width: float,
    height: float,
    shade: str,
    text: str,
    anchor: str = "start",
    radius: int = 4,
) -> str:
    at = x + (width / 2 if anchor == "middle" else 12)
    base = y + height / 2 + 5
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{shade}"/>'
        f'<text x="{at:g}" y="{base:g}" text-anchor="{anchor}" xml:space="preserve">{text}</text>'
    )
