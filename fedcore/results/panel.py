"""A panel: a matrix as one heatmap shows it, NaN where there is no data; accuracies in per cent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.methods.charts import MatrixChart

Named = tuple[str, str]
"""A model or test set: (name, kind)."""
Share = tuple[float, int, int]
"""A share of one with its counts: (share, correct, total)."""
Shares = Mapping[tuple[str, str], Share]
"""Shares by row and column."""


@dataclass(frozen=True)
class Panel:
    """One heatmap.

    Shape: values (rows, columns) per cent, NaN without data; correct, total (rows, columns), 0 without data.

    Attributes:
        title: of the panel, e.g. ``FedOT: round 4/10``.
        own: for each row the column of the model's own test samples, -1 where it has none.
        matrix: what the values are, where they are a method's own figures and not accuracies.
        nothing: what an empty panel says.
    """

    title: str
    method: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    own: tuple[int, ...] = ()
    row_title: str = "model"
    column_title: str = "test set"
    matrix: MatrixChart | None = None
    nothing: str = "no round yet"

    @property
    def own_mean(self) -> float | None:
        """Mean accuracy of the models on their own samples, per cent."""
        own = [
            self.values[i, j] for i, j in enumerate(self.own) if j >= 0 and not np.isnan(self.values[i, j])
        ]
        return float(np.mean(own)) if own else None


def accuracy_matrix(
    title: str, method: str, cells: Sequence[tuple[Named, Named, int, int]], entities: Sequence[Named]
) -> Panel:
    """Entities give the order; a domain that is just one client's samples is not shown twice."""
    clients = {name for name, kind in entities if kind == "client"}
    test_sets = [e for e in entities if e[1] == "client" or (e[1] == "domain" and e[0] not in clients)]
    models = [e for e in entities if e[1] in ("global", "client")]
    seen_models = {c[0] for c in cells}
    models = [m for m in models if m in seen_models or not cells] if models else []
    row = {m: i for i, m in enumerate(models)}
    column = {t: j for j, t in enumerate(test_sets)}
    correct, total = np.zeros((2, len(models), len(test_sets)), dtype=np.int64)
    for model, test_set, right, count in cells:
        if model in row and test_set in column:
            correct[row[model], column[test_set]] += right
            total[row[model], column[test_set]] += count
    return Panel(
        title,
        method,
        tuple(name for name, _ in models),
        tuple(name for name, _ in test_sets),
        percent(correct, total),
        correct,
        total,
        tuple(column.get(m, -1) if m[1] == "client" else -1 for m in models),
    )


def percent(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Accuracy from counts, NaN where nothing was counted. Shape: any -> the same."""
    return np.where(total > 0, 100.0 * correct / np.maximum(total, 1), np.nan)


def mean_shares(found: Iterable[Shares]) -> dict[tuple[str, str], Share]:
    """Shares that weigh equally, pair by pair, over those that have the pair; counts add up."""
    parts: dict[tuple[str, str], list[Share]] = {}
    for shares in found:
        for pair, share in shares.items():
            parts.setdefault(pair, []).append(share)
    return {
        pair: (float(np.mean([s for s, _, _ in p])), sum(c for _, c, _ in p), sum(n for _, _, n in p))
        for pair, p in parts.items()
    }


def paired(
    title: str, method: str, rows: Sequence[str], columns: Sequence[str], pairs: Shares, **words: str
) -> Panel:
    """A panel of named pairs, shares as per cent."""
    row, column = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    values = np.full((len(rows), len(columns)), np.nan)
    correct, total = np.zeros((2, len(rows), len(columns)), dtype=np.int64)
    for (r, c), (share, right, count) in pairs.items():
        if r in row and c in column:
            values[row[r], column[c]] = 100 * share
            correct[row[r], column[c]], total[row[r], column[c]] = right, count
    own = tuple(column.get(r, -1) for r in rows)
    words = {"row_title": "domain of the model", "column_title": "domain of the images", **words}
    return Panel(title, method, tuple(rows), tuple(columns), values, correct, total, own, **words)


def matrix_panel(title: str, method: str, names: Sequence[str], pairs: Shares, matrix: MatrixChart) -> Panel:
    """A method's own figures of pairs of clients; they come as shares, and stay as they are."""
    panel = paired(title, method, names, names, pairs)
    return replace(
        panel,
        values=panel.values / 100,
        row_title=matrix.rows,
        column_title=matrix.columns,
        matrix=matrix,
    )
