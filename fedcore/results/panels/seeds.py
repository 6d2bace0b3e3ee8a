"""The mean of panels of one method over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fedcore.results.panels.panel import Panel


def mean_over_seeds(panels: Sequence[Panel], title: str) -> Panel:
    """Return the mean of each cell over the panels that have it, weighing equally; counts add up.

    Args:
        panels: one per seed, of one method and one kind; a row or column may be missing in some of them.
    """
    first = panels[0]
    if len(panels) == 1:
        return replace(first, title=title)
    rows, columns = _names(p.rows for p in panels), _names(p.columns for p in panels)
    if first.column_title == "round":
        columns = sorted(columns, key=int)
    row, column = {name: i for i, name in enumerate(rows)}, {name: j for j, name in enumerate(columns)}
    sums, known = np.zeros((2, len(rows), len(columns)))
    correct, total = np.zeros((2, len(rows), len(columns)), dtype=np.int64)
    own = dict.fromkeys(rows, -1)
    for panel in panels:
        place = np.ix_([row[name] for name in panel.rows], [column[name] for name in panel.columns])
        sums[place] += np.nan_to_num(panel.values)
        known[place] += ~np.isnan(panel.values)
        correct[place] += panel.correct.astype(np.int64)
        total[place] += panel.total.astype(np.int64)
        for name, j in zip(panel.rows, panel.own_columns, strict=False):
            own[name] = column[panel.columns[j]] if j >= 0 else own[name]
    values = np.where(known > 0, sums / np.maximum(known, 1), np.nan)
    if first.column_title == "round":  # a seed that is behind ends at an earlier round
        own = dict.fromkeys(rows, len(columns) - 1)
    owns = tuple(own.values()) if any(p.own_columns for p in panels) else ()
    shown = next((p for p in panels if p.rows), first)
    return replace(
        shown, title=title, rows=tuple(rows), columns=tuple(columns), values=values, correct=correct,
        total=total, own_columns=owns,
    )  # fmt: skip


def _names(lists: Iterable[Sequence[str]]) -> list[str]:
    """Return all names once, in the order of the first list that has each."""
    return list(dict.fromkeys(name for names in lists for name in names))
