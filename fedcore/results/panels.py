"""Panels: the matrix that one heatmap shows, in per cent, NaN where there is no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.methods.presentation import MatrixChart
from fedcore.results.metrics import accuracy_by_domain, global_accuracy, is_own
from fedcore.store import EntityRow, NamedCell

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
    own_columns: tuple[int, ...] = ()
    row_title: str = "model"
    column_title: str = "test set"
    matrix: MatrixChart | None = None
    empty_text: str = "no round yet"

    @property
    def own_mean(self) -> float | None:
        """Mean accuracy of the models on their own samples, per cent."""
        own = [
            self.values[i, j]
            for i, j in enumerate(self.own_columns)
            if j >= 0 and not np.isnan(self.values[i, j])
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
        percent_correct(correct, total),
        correct,
        total,
        tuple(column.get(m, -1) if m[1] == "client" else -1 for m in models),
    )


def percent_correct(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
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


def panel_of_pairs(
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


def panel_of_matrix(
    title: str, method: str, names: Sequence[str], pairs: Shares, matrix: MatrixChart
) -> Panel:
    """A method's own figures of pairs of clients; they come as shares, and stay as they are."""
    panel = panel_of_pairs(title, method, names, names, pairs)
    return replace(
        panel,
        values=panel.values / 100,
        row_title=matrix.rows,
        column_title=matrix.columns,
        matrix=matrix,
    )


def client_domains(entities: Iterable[EntityRow]) -> dict[str, str]:
    """Domain of each client that belongs to one."""
    return {e.name: e.domain for e in entities if e.kind == "client" and e.domain}


def shares_by_domain(
    cells: Iterable[NamedCell], domain_of: Mapping[str, str]
) -> dict[tuple[str, str], Share]:
    """Clients' models by domain, on images by domain (FedDEAP, Figure 3): shares of one round's cells.

    A model's accuracy on a domain is that on the domain's test set, or the mean over the test samples of the
    domain's clients where no such set was recorded; a domain's row is the mean over its clients.
    """
    whole: dict[str, dict[tuple[str, str], Share]] = {}
    single: dict[str, list[dict[tuple[str, str], Share]]] = {}
    for c in cells:
        if c.model_kind != "client" or c.model not in domain_of or not c.domain:
            continue
        if c.test_set_kind not in ("client", "domain"):
            continue
        pair = {(domain_of[c.model], c.domain): (c.correct / c.total, c.correct, c.total)}
        if c.test_set_kind == "domain":
            whole.setdefault(c.model, {}).update(pair)
        else:
            single.setdefault(c.model, []).append(pair)
    models = dict.fromkeys([*single, *whole])
    return mean_shares({**mean_shares(single.get(m, ())), **whole.get(m, {})} for m in models)


def held_out_shares(cells: Iterable[NamedCell], out: str | None) -> dict[str, Share]:
    """Accuracy by domain: own models on their own samples, the global model on the held-out domain."""
    cells = list(cells)
    shares = accuracy_by_domain(cells)
    counts = {d: [c for c in cells if is_own(c) and c.domain == d] for d in shares}
    unseen = None if out is None else global_accuracy(cells, out)
    if out is not None:
        shares.pop(out, None)
    if out is not None and unseen is not None:
        shares[out] = unseen
        counts[out] = [c for c in cells if c.model_kind == "global" and c.test_set == out]
    return {
        d: (share, sum(c.correct for c in counts[d]), sum(c.total for c in counts[d]))
        for d, share in shares.items()
    }


def domain_names(known: Iterable[Sequence[EntityRow]]) -> list[str]:
    """Domains in their own order: that of the test sets of domains, then of the clients."""
    entities = [e for each in known for e in each]
    tested = [e.name for e in entities if e.kind == "domain"]
    return list(dict.fromkeys([*tested, *(e.domain for e in entities if e.domain)]))
