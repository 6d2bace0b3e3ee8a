"""The order of a panel's rows: as recorded, by their mean, or with rows that are alike beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fedcore.results.panels.panel import Panel

RowOrder = Literal["recorded", "mean", "alike"]
ORDERS: dict[RowOrder, str] = {
    "recorded": "As recorded",
    "mean": "Highest mean first",
    "alike": "Alike rows together",
}


def ordered_panels(panels: Sequence[Panel], order: RowOrder) -> list[Panel]:
    """Return panels with their rows in an order, the same for all panels that have the same rows.

    Rows without a column of their own, such as the global model, stay first. Where each row has such a
    column, columns move with the rows, so that own accuracies stay on the diagonal.
    """
    if order == "recorded":
        return list(panels)
    arranged = []
    for panel in panels:
        alike = [p.values for p in panels if p.rows == panel.rows and p.values.shape == panel.values.shape]
        arranged.append(_arranged(panel, row_order(np.concatenate(alike, axis=1), panel.own_columns, order)))
    return arranged


def row_order(values: np.ndarray, own_columns: Sequence[int], order: RowOrder) -> list[int]:
    """Return the indices of rows in an order; values that are missing count as the mean of their column.

    Hierarchical clustering with average linkage of Euclidean distances, leaves in optimal order (scipy).
    Shape: values (rows, columns).
    """
    fixed = [i for i, own in enumerate(own_columns) if own < 0]
    moving = [i for i in range(len(values)) if i not in set(fixed)]
    known = values[moving]
    if order == "recorded" or len(moving) < 2 or not known.size:
        return [*fixed, *moving]
    count = np.maximum(1, (~np.isnan(known)).sum(0))
    filled = np.where(np.isnan(known), np.nansum(known, 0) / count, known)
    if order == "mean":
        places = np.argsort(-filled.mean(1), kind="stable").tolist()
    else:
        from scipy.cluster.hierarchy import leaves_list, linkage  # slow to import, and seldom asked for

        places = leaves_list(linkage(filled, "average", optimal_ordering=True)).tolist()
    return [*fixed, *(moving[i] for i in places)]


def _arranged(panel: Panel, rows: Sequence[int]) -> Panel:
    """Return a panel with its rows, and the columns that belong to them, in an order."""
    columns = list(range(len(panel.columns)))
    owned = [panel.own_columns[i] for i in rows if panel.own_columns and panel.own_columns[i] >= 0]
    if len(set(owned)) == len(owned):  # a panel of rounds has one last column for all rows
        columns = [*owned, *(j for j in columns if j not in set(owned))]
    place = {j: new for new, j in enumerate(columns)}
    at = np.ix_(list(rows), columns)
    return replace(
        panel,
        rows=tuple(panel.rows[i] for i in rows),
        columns=tuple(panel.columns[j] for j in columns),
        values=panel.values[at],
        correct=panel.correct[at],
        total=panel.total[at],
        own_columns=tuple(place.get(panel.own_columns[i], -1) for i in rows) if panel.own_columns else (),
    )
