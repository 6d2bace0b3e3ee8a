"""Matrices as panels: what one heatmap shows, NaN where there is no data; accuracies in per cent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedcore.engine.events import FULL_MATRIX_CLIENTS
from fedcore.methods.charts import MatrixChart
from fedcore.results import diagnostics
from fedcore.results.domains import (
    by_domains,
    domain_by_domain,
    domain_names,
    domains_of,
    held_out_matrix,
    live_held_out,
    method_by_domain,
)
from fedcore.results.panel import Named, Panel, accuracy_matrix, matrix_panel, mean_shares, paired, percent
from fedcore.results.tables import Comparison, Group
from fedcore.store import queries
from fedcore.store.queries import BROADCAST, TEST, NamedCell, RunRow

View = str
"""One of ``VIEWS``, or the name of a matrix that methods record (``diagnostics.matrices``)."""
VIEWS: dict[View, str] = {
    "matrix": "Model by test set",
    "clients": "Client by round",
    "domains": "Domain of the model by domain of the images",
    "held_out": "Held-out domain by domain",
}


def round_title(run: RunRow, round_: int | None) -> str:
    """``FedOT: round 4/10``: what a reader, and a test, knows a panel's age by."""
    if round_ is None:
        return f"{run.label}: {'waiting' if run.state == 'queued' else 'no round yet'}"
    return f"{run.label}: round {round_}/{run.rounds_total}"


def live_panels(
    db: str | Path,
    runs: Sequence[RunRow],
    view: View = "matrix",
    split: int = TEST,
    point: int = BROADCAST,
    until: Mapping[int, int] | None = None,
) -> list[Panel]:
    """A panel per run, of a recorded matrix only for those that have it; of held-out domains one per method.

    Args:
        until: run -> the last round to be shown; default: all.
    """
    until = until or {}
    if view not in VIEWS:
        runs = [r for r in runs if view in queries.diagnostic_names(db, r.id)] or runs
    if view != "held_out":
        return [live_panel(db, r, view, split, point, until.get(r.id)) for r in runs]
    methods: dict[tuple[str, str], list[RunRow]] = {}
    for run in runs:
        if run.held_out is not None:
            methods.setdefault((run.label, run.group_hash), []).append(run)
    return [live_held_out(db, members, split, point, until) for members in methods.values()]


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
    if view not in VIEWS:
        matrix = diagnostics.matrices([run])[view]
        return _recorded_panel(db, run, matrix, entities, rounds[-1] if rounds else None)
    if view == "clients":
        return _clients_panel(db, run, entities, split, point, rounds)
    title = round_title(run, rounds[-1] if rounds else None)
    if view == "domains":
        cells = queries.cells_at(db, {run.id: rounds[-1]}, split, point) if rounds else []
        domains = domain_names([entities])
        pairs = by_domains(cells, domains_of(entities))
        domains = domains if pairs else []
        panel = paired(title, run.method, domains, domains, pairs)
        return replace(panel, nothing="no domains recorded") if cells else panel
    heat = queries.heatmap(db, run.id, rounds[-1], split, point) if rounds else []
    names = {e.entity: (e.name, e.kind) for e in entities}
    triples = [(names[c.model], names[c.test_set], c.correct, c.total) for c in heat]
    return accuracy_matrix(title, run.method, triples, [(e.name, e.kind) for e in entities])


def default_view(clients: int) -> View:
    """The view that says most for so many clients."""
    return "matrix" if clients <= FULL_MATRIX_CLIENTS else "clients"


def _clients_panel(
    db: str | Path,
    run: RunRow,
    entities: Sequence[queries.EntityRow],
    split: int,
    point: int,
    rounds: Sequence[int],
) -> Panel:
    clients = [e for e in entities if e.kind == "client"]
    absent, shown = absences(db, run.id), set(rounds)
    own = [
        o
        for o in queries.own_accuracy(db, run.id, split, point)
        if o.round in shown and o.client not in absent.get(o.round, ())
    ]
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
        percent(correct, total),
        correct,
        total,
        tuple(len(rounds) - 1 for _ in clients),
        "client",
        "round",
    )


def absences(db: str | Path, run_id: int) -> dict[int, frozenset[int]]:
    """round -> clients that took no part in it; rounds of which nobody's part was recorded are left out."""
    took: dict[int, set[int]] = {}
    for row in queries.client_rounds(db, run_id):
        took.setdefault(row.round, set()).add(row.client)
    clients = {e.entity for e in queries.entities(db, run_id) if e.kind == "client"}
    return {r: frozenset(clients - there) for r, there in took.items()}


def _recorded_panel(
    db: str | Path, run: RunRow, matrix: MatrixChart, entities: Sequence[queries.EntityRow], until: int | None
) -> Panel:
    """A recorded matrix as it was last up to a round. Empty where a run records none."""
    found = [] if until is None else queries.diagnostics_at(db, run.id, matrix.name, until)
    names = {e.entity: e.name for e in entities if e.kind == "client"} if found else {}
    pairs = {(names[d.a], names[d.b]): (d.value, 0, 0) for d in found if d.value is not None}
    title = round_title(run, found[0].round if found else until)
    panel = matrix_panel(title, run.method, list(names.values()), pairs, matrix)
    return replace(panel, nothing=f"records no {matrix.name.replace('_', ' ')}") if until else panel


def compared_panels(db: str | Path, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """One panel per row of the comparison: mean over seeds (and over the rule's rounds) of every cell."""
    groups = comparison.of(setting)
    values = [v for g in groups for v in g.runs]
    cells: dict[int, list[NamedCell]] = {}
    for i in range(max((len(v.rounds) for v in values), default=0)):
        for c in queries.cells_at(db, {v.run.id: v.rounds[i] for v in values if len(v.rounds) > i}):
            cells.setdefault(c.run_id, []).append(c)
    return {g.key: _group_panel(db, g, [c for v in g.runs for c in cells.get(v.run.id, ())]) for g in groups}


def _group_panel(db: str | Path, group: Group, found: Sequence[NamedCell]) -> Panel:
    cells: dict[tuple[Named, Named], list[NamedCell]] = {}
    for c in found:
        cells.setdefault(((c.model, c.model_kind), (c.test_set, c.test_set_kind)), []).append(c)
    entities: dict[Named, None] = {}
    for value in group.runs:
        entities.update(dict.fromkeys((e.name, e.kind) for e in queries.entities(db, value.run.id)))
    flat = [
        (m, t, sum(c.correct for c in same), sum(c.total for c in same)) for (m, t), same in cells.items()
    ]
    panel = accuracy_matrix(group.label, group.method, flat, list(entities))
    means = {pair: 100 * float(np.mean([c.correct / c.total for c in same])) for pair, same in cells.items()}
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
    return replace(panel, values=values)


def minus(panel: Panel, baseline: Panel) -> Panel:
    """Difference in points, cell by cell; NaN where either has no data or the names do not fit."""
    rows = {name: i for i, name in enumerate(baseline.rows)}
    columns = {name: j for j, name in enumerate(baseline.columns)}
    values = np.full(panel.values.shape, np.nan)
    for i, row in enumerate(panel.rows):
        for j, column in enumerate(panel.columns):
            if row in rows and column in columns:
                values[i, j] = panel.values[i, j] - baseline.values[rows[row], columns[column]]
    return replace(panel, title=f"{panel.title} - {baseline.title}", values=values)


def recorded_panels(
    db: str | Path, comparison: Comparison, setting: str, matrix: MatrixChart
) -> dict[str, Panel]:
    """A panel per row of the comparison that records a matrix: mean over seeds.

    Taken from the last of the rule's rounds, where clients are the same by name.
    """
    found = {}
    for group in comparison.of(setting):
        single = [live_panel(db, v.run, matrix.name, until=v.rounds[-1]) for v in group.runs]
        single = [p for p in single if p.values.size]
        names = list(dict.fromkeys(n for p in single for n in p.rows))
        pairs = mean_shares(
            {
                (r, c): (float(p.values[i, j]), 0, 0)
                for i, r in enumerate(p.rows)
                for j, c in enumerate(p.columns)
                if not np.isnan(p.values[i, j])
            }
            for p in single
        )
        if pairs:
            found[group.key] = matrix_panel(group.label, group.method, names, pairs, matrix)
    return found


__all__ = [
    "VIEWS",
    "Panel",
    "View",
    "absences",
    "compared_panels",
    "default_view",
    "domain_by_domain",
    "held_out_matrix",
    "live_held_out",
    "live_panel",
    "live_panels",
    "method_by_domain",
    "minus",
    "recorded_panels",
    "round_title",
]
