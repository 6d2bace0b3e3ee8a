"""Transfer between clients: the gain of a client's model on another client's test samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.results.panels.panel import Panel
from fedcore.results.statistics import group_by

EMPTY = "no model was tested on another client's samples in this round"
COMMON = "one common model: nothing to show"
LEAST_GAIN = 1.0
"""Minimum gain or loss, in points, that is drawn as an arrow."""
_EQUAL = 1e-9  # points; means over seeds of equal accuracies differ in their last bits


@dataclass(frozen=True)
class Edge:
    """The gain of one client's model on the test samples of another, in points; negative if it harms."""

    giver: str
    taker: str
    gain: float


def gains_panel(now: Panel, start: Panel) -> Panel:
    """Return clients by clients: accuracy of the row's model minus the start of the column's own, in points.

    Args:
        now: models by test sets of the round to show.
        start: the same at the first evaluated round; its diagonal is where each client began.

    The diagonal holds the gains of clients on their own samples. The global model and the test sets of
    domains are left out.
    """
    clients = [i for i, column in enumerate(now.own_columns) if column >= 0]
    names = tuple(now.rows[i] for i in clients)
    columns = [now.own_columns[i] for i in clients]
    began = {
        start.rows[i]: start.values[i, column] for i, column in enumerate(start.own_columns) if column >= 0
    }  # a client that the first round did not test has no start
    values = now.values[np.ix_(clients, columns)] - np.array([began.get(n, np.nan) for n in names])
    if np.isnan(values[~np.eye(len(names), dtype=bool)]).all():
        names, values = (), np.zeros((0, 0))
    counts = np.zeros(values.shape, dtype=np.int64)
    return replace(
        now,
        rows=names,
        columns=names,
        values=values,
        correct=counts,
        total=counts,
        own_columns=(),
        row_title="model of",
        column_title="test samples of",
        empty_text=EMPTY,
    )


def edges(panel: Panel) -> list[Edge]:
    """Return all pairs of different clients with a known gain, the largest gain first."""
    found = [
        Edge(panel.rows[i], panel.columns[j], float(panel.values[i, j]))
        for i, j in np.argwhere(~np.isnan(panel.values))
        if i != j
    ]
    return sorted(found, key=lambda e: -e.gain)


def is_common(panel: Panel) -> bool:
    """Return whether every model gains the same on each client's samples, as one common model does."""
    if not panel.values.size:
        return False
    measured = panel.values[:, ~np.isnan(panel.values).all(axis=0)]
    return bool((np.nanmax(measured, axis=0) - np.nanmin(measured, axis=0) <= _EQUAL).all())


def main_edges(panel: Panel) -> list[Edge]:
    """Return for each taker the giver that helps it most and the giver that harms it most.

    Either is left out below ``LEAST_GAIN`` points, and if two givers tie.
    """
    if is_common(panel):
        return []
    shown: list[Edge] = []
    for received in group_by(edges(panel), lambda e: e.taker).values():
        most, least = tied(received, received[0].gain), tied(received, received[-1].gain)
        shown += [e for e in most if len(most) == 1 and e.gain >= LEAST_GAIN]
        shown += [e for e in least if len(least) == 1 and e.gain <= -LEAST_GAIN]
    return sorted(shown, key=lambda e: panel.columns.index(e.taker))


def tied(among: Sequence[Edge], gain: float) -> list[Edge]:
    """Return the edges of this gain."""
    return [e for e in among if abs(e.gain - gain) <= _EQUAL]


def findings(panels: Sequence[Panel]) -> list[str]:
    """Describe the transfer between clients in a sentence or two per panel."""
    return [_finding(p) for p in panels]


def _finding(panel: Panel) -> str:
    found = edges(panel)
    if not found:
        return f"{panel.title}: {panel.empty_text}."
    if is_common(panel):
        return f"{panel.title}: {COMMON}."
    harmful = sum(e.gain < 0 for e in found)
    mean, best, worst = float(np.mean([e.gain for e in found])), found[0], found[-1]
    text = (
        f"{panel.title}: a client's model changes the accuracy on another's samples by {mean:+.1f} points "
        "over that client's start, on average"
    )
    if best.gain > 0:
        text += f"; most of all {_names(tied(found, best.gain))} ({best.gain:+.1f})"
    if harmful:
        text += (
            f". {harmful} of {len(found)} pairs lose (negative transfer), most of all "
            f"{_names(tied(found, worst.gain))} ({worst.gain:+.1f})"
        )
    return f"{text}."


def _names(equal: Sequence[Edge]) -> str:
    named = [f"{e.giver}'s on {e.taker}" for e in equal]
    return " and ".join(named) if len(named) <= 2 else f"{len(named)} pairs"
