"""Accuracy matrices as panels: what one heatmap shows, in per cent, NaN where there is no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedcore.report.tables import Comparison, Group
from fedcore.runs import queries
from fedcore.runs.queries import BROADCAST, TEST, NamedCell, RunRow

View = Literal["matrix", "clients"]
VIEWS: dict[View, str] = {"matrix": "Model by test set", "clients": "Client by round"}
FULL_MATRIX_CLIENTS = 16
"""With more clients only their models' own samples are recorded in every round."""


@dataclass(frozen=True)
class Panel:
    """One heatmap.

    Shape: values (rows, columns) per cent, NaN without data; correct, total (rows, columns), 0 without data.

    Attributes:
        title: of the panel, e.g. ``FedOT: round 4/10``.
        own: for each row the column of the model's own test samples, -1 where it has none.
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

    @property
    def own_mean(self) -> float | None:
        """Mean accuracy of the models on their own samples, per cent."""
        own = [
            self.values[i, j] for i, j in enumerate(self.own) if j >= 0 and not np.isnan(self.values[i, j])
        ]
        return float(np.mean(own)) if own else None


def round_title(run: RunRow, round_: int | None) -> str:
    """``FedOT: round 4/10``: what a reader, and a test, knows a panel's age by."""
    if round_ is None:
        return f"{run.label}: {'waiting' if run.state == 'queued' else 'no round yet'}"
    return f"{run.label}: round {round_}/{run.rounds_total}"


def live_panel(
    db: str | Path,
    run: RunRow,
    view: View = "matrix",
    split: int = TEST,
    point: int = BROADCAST,
    until: int | None = None,
) -> Panel:
    """The newest matrix up to round ``until`` (default: of all), or those rounds of the clients."""
    entities = queries.entities(db, run.id)
    evaluated = queries.evaluated_rounds(db, run.id, split, point)
    rounds = [r for r in evaluated if until is None or r <= until]
    if view == "clients":
        return _clients_panel(db, run, entities, split, point, rounds)
    cells = queries.heatmap(db, run.id, rounds[-1], split, point) if rounds else []
    names = {e.entity: (e.name, e.kind) for e in entities}
    triples = [(names[c.model], names[c.test_set], c.correct, c.total) for c in cells]
    title = round_title(run, rounds[-1] if rounds else None)
    return _matrix(title, run.method, triples, [(e.name, e.kind) for e in entities])


def default_view(clients: int) -> View:
    """The view that says most for so many clients."""
    return "matrix" if clients <= FULL_MATRIX_CLIENTS else "clients"


Named = tuple[str, str]


def _matrix(
    title: str, method: str, cells: Sequence[tuple[Named, Named, int, int]], entities: Sequence[Named]
) -> Panel:
    """Entities give the order; a domain that is just one client's samples is not shown twice."""
    clients = {name for name, kind in entities if kind == "client"}
    test_sets = [e for e in entities if e[1] == "client" or (e[1] == "domain" and e[0] not in clients)]
    models = [e for e in entities if e[1] != "domain"]
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
        _percent(correct, total),
        correct,
        total,
        tuple(column.get(m, -1) if m[1] == "client" else -1 for m in models),
    )


def _percent(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.where(total > 0, 100.0 * correct / np.maximum(total, 1), np.nan)


def _clients_panel(
    db: str | Path,
    run: RunRow,
    entities: Sequence[queries.EntityRow],
    split: int,
    point: int,
    rounds: Sequence[int],
) -> Panel:
    clients = [e for e in entities if e.kind == "client"]
    own = [o for o in queries.own_accuracy(db, run.id, split, point) if o.round in set(rounds)]
    row = {e.entity: i for i, e in enumerate(clients)}
    column = {r: j for j, r in enumerate(rounds)}
    correct, total = np.zeros((2, len(clients), len(rounds)), dtype=np.int64)
    for o in own:
        correct[row[o.client], column[o.round]] = o.correct
        total[row[o.client], column[o.round]] = o.total
    return Panel(
        round_title(run, rounds[-1] if rounds else None),
        run.method,
        tuple(e.name for e in clients),
        tuple(map(str, rounds)),
        _percent(correct, total),
        correct,
        total,
        tuple(len(rounds) - 1 for _ in clients),
        "client",
        "round",
    )


def compared_panels(db: str | Path, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """One panel per row of the comparison: mean over seeds (and over the rule's rounds) of every cell."""
    return {g.key: _group_panel(db, g) for g in comparison.of(setting)}


def _group_panel(db: str | Path, group: Group) -> Panel:
    cells: dict[tuple[Named, Named], list[NamedCell]] = {}
    depth = max(len(r.rounds) for r in group.runs)
    for i in range(depth):
        at = {r.run.id: r.rounds[i] for r in group.runs if len(r.rounds) > i}
        for c in queries.cells_at(db, at):
            cells.setdefault(((c.model, c.model_kind), (c.test_set, c.test_set_kind)), []).append(c)
    entities: dict[Named, None] = {}
    for value in group.runs:
        entities.update(dict.fromkeys((e.name, e.kind) for e in queries.entities(db, value.run.id)))
    flat = [
        (m, t, sum(c.correct for c in found), sum(c.total for c in found)) for (m, t), found in cells.items()
    ]
    panel = _matrix(group.label, group.method, flat, list(entities))
    means = {
        pair: 100 * float(np.mean([c.correct / c.total for c in found])) for pair, found in cells.items()
    }
    return _with_means(panel, means)


def _with_means(panel: Panel, means: Mapping[tuple[Named, Named], float]) -> Panel:
    """Means of shares instead of the share of sums: seeds weigh equally, as in the tables."""
    values = panel.values.copy()
    rows = {name: i for i, name in enumerate(panel.rows)}
    columns = {name: j for j, name in enumerate(panel.columns)}
    for (model, test_set), mean in means.items():
        in_columns = test_set[1] == "client" or test_set[0] not in panel.rows
        if model[0] in rows and test_set[0] in columns and in_columns:
            values[rows[model[0]], columns[test_set[0]]] = mean
    return Panel(
        panel.title, panel.method, panel.rows, panel.columns, values, panel.correct, panel.total, panel.own
    )


def minus(panel: Panel, baseline: Panel) -> Panel:
    """Difference in points, cell by cell; NaN where either has no data or the names do not fit."""
    rows = {name: i for i, name in enumerate(baseline.rows)}
    columns = {name: j for j, name in enumerate(baseline.columns)}
    values = np.full(panel.values.shape, np.nan)
    for i, row in enumerate(panel.rows):
        for j, column in enumerate(panel.columns):
            if row in rows and column in columns:
                values[i, j] = panel.values[i, j] - baseline.values[rows[row], columns[column]]
    return Panel(
        f"{panel.title} - {baseline.title}",
        panel.method,
        panel.rows,
        panel.columns,
        values,
        panel.correct,
        panel.total,
        panel.own,
    )
