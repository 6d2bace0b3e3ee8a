"""Who helps whom: what a client's model gains on another client's test samples over that client's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.results.panels.panel import Panel
from fedcore.results.statistics import group_by

EMPTY = "no model was tested on another client's samples in this round"


@dataclass(frozen=True)
class Edge:
    """What the model of one client gains on the test samples of another, in points; negative: it harms."""

    giver: str
    taker: str
    gain: float


def gains_panel(now: Panel, start: Panel) -> Panel:
    """Return clients by clients: accuracy of the row's model minus the start of the column's own, in points.

    Args:
        now: models by test sets of the round to show.
        start: the same at the first evaluated round; its diagonal is where each client began.

    Returns: the panel; its diagonal, the global model and test sets of domains are left out.
    """
    clients = [i for i, own in enumerate(now.own_columns) if own >= 0]
    names = tuple(now.rows[i] for i in clients)
    columns = [now.own_columns[i] for i in clients]
    began = {
        start.rows[i]: start.values[i, own] for i, own in enumerate(start.own_columns) if own >= 0
    }  # a client that the first round did not test has no start
    values = now.values[np.ix_(clients, columns)] - np.array([began.get(n, np.nan) for n in names])
    np.fill_diagonal(values, np.nan)
    counts = np.zeros(values.shape, dtype=np.int64)
    known = not np.isnan(values).all() if values.size else False
    if not known:
        return Panel(
            now.title, now.method, (), (), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0)),
            row_title="model of", column_title="test samples of", empty_text=EMPTY,
        )  # fmt: skip
    return replace(
        now, rows=names, columns=names, values=values, correct=counts, total=counts, own_columns=(),
        row_title="model of", column_title="test samples of",
    )  # fmt: skip


def edges(panel: Panel) -> list[Edge]:
    """Return all pairs of different clients with a known gain, the largest gain first."""
    found = [
        Edge(panel.rows[i], panel.columns[j], float(panel.values[i, j]))
        for i, j in np.argwhere(~np.isnan(panel.values))
    ]
    return sorted(found, key=lambda e: -e.gain)


def main_edges(panel: Panel) -> list[Edge]:
    """Return for each client who helps it most and who harms it most, if anybody does."""
    takers = group_by(edges(panel), lambda e: e.taker)
    kept: list[Edge] = []
    for name in panel.columns:
        own = takers.get(name, [])
        kept += [e for e in own[:1] if e.gain > 0] + [e for e in own[-1:] if e.gain < 0]
    return kept


def findings(panels: Sequence[Panel]) -> list[str]:
    """Say in a sentence or two, per panel, what clients' models do for one another."""
    return [_finding(p) for p in panels]


def _finding(panel: Panel) -> str:
    found = edges(panel)
    if not found:
        return f"{panel.title}: {panel.empty_text}."
    harmful = sum(e.gain < 0 for e in found)
    mean, best, worst = float(np.mean([e.gain for e in found])), found[0], found[-1]
    if best.gain == worst.gain == 0:
        return f"{panel.title}: no client's model changes the accuracy on another's samples."
    text = (
        f"{panel.title}: a client's model changes the accuracy on another's samples by {mean:+.1f} points "
        "over that client's start, on average"
    )
    if best.gain > 0:
        text += f"; most of all {best.giver}'s on {best.taker} ({best.gain:+.1f})"
    if harmful:
        text += (
            f". {harmful} of {len(found)} pairs lose (negative transfer), most of all {worst.giver}'s on "
            f"{worst.taker} ({worst.gain:+.1f})"
        )
    return f"{text}."
