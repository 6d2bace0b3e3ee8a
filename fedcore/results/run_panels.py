"""Panels of single runs, for the pages Live and Run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcore.data.split_codes import TEST
from fedcore.engine.events import FULL_MATRIX_CLIENTS
from fedcore.methods.presentation import MatrixChart
from fedcore.results import diagnostics
from fedcore.results.panels import (
    Panel,
    accuracy_matrix,
    client_domains,
    domain_names,
    held_out_shares,
    panel_of_matrix,
    panel_of_pairs,
    percent_correct,
    shares_by_domain,
)
from fedcore.store import BROADCAST, EntityRow, NamedCell, RunRow, Store


def held_out_panel(
    store: Store, runs: Sequence[RunRow], split: int, point: int, until: Mapping[int, int]
) -> Panel:
    """As ``held_out_matrix``, of one method's runs of one seed while they train: a row per run."""
    taken = {}
    for run in runs:
        rounds = store.rounds.evaluated(run.id, split, point)
        taken[run.id] = [r for r in rounds if r <= until.get(run.id, r)][-1:]
    cells: dict[int, list[NamedCell]] = {}
    for c in store.cells.own_and_domains(taken, split, point):
        cells.setdefault(c.run_id, []).append(c)
    pairs = {
        (run.held_out or "", domain): share
        for run in runs
        for domain, share in held_out_shares(cells.get(run.id, []), run.held_out).items()
    }
    names = domain_names(store.cells.entities(run.id) for run in runs)
    held = [n for n in names if n in {r.held_out for r in runs}]
    at = sorted({r for rounds in taken.values() for r in rounds})
    rounds = f"round {at[0]}" + (f" to {at[-1]}" if len(at) > 1 else "") if at else "no round yet"
    panel = panel_of_pairs(f"{runs[0].label}: {rounds}", runs[0].method, held if pairs else [], names, pairs)
    return replace(panel, row_title="held out", column_title="domain")


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


def run_panels(
    store: Store,
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
        runs = [r for r in runs if view in store.diagnostics.names(r.id)] or runs
    if view != "held_out":
        return [run_panel(store, r, view, split, point, until.get(r.id)) for r in runs]
    methods: dict[tuple[str, str], list[RunRow]] = {}
    for run in runs:
        if run.held_out is not None:
            methods.setdefault((run.label, run.group_hash), []).append(run)
    return [held_out_panel(store, members, split, point, until) for members in methods.values()]


def run_panel(
    store: Store,
    run: RunRow,
    view: View = "matrix",
    split: int = TEST,
    point: int = BROADCAST,
    until: int | None = None,
) -> Panel:
    """The newest matrix up to round ``until`` (default: of all), or those rounds of the clients."""
    entities = store.cells.entities(run.id)
    evaluated = store.rounds.evaluated(run.id, split, point)
    rounds = [r for r in evaluated if until is None or r <= until]
    if view not in VIEWS:
        matrix = diagnostics.matrix_charts([run])[view]
        return _recorded_panel(store, run, matrix, entities, rounds[-1] if rounds else None)
    if view == "clients":
        return _clients_panel(store, run, entities, split, point, rounds)
    title = round_title(run, rounds[-1] if rounds else None)
    if view == "domains":
        cells = store.cells.at_rounds({run.id: rounds[-1]}, split, point) if rounds else []
        domains = domain_names([entities])
        pairs = shares_by_domain(cells, client_domains(entities))
        domains = domains if pairs else []
        panel = panel_of_pairs(title, run.method, domains, domains, pairs)
        return replace(panel, empty_text="no domains recorded") if cells else panel
    heat = store.cells.heatmap(run.id, rounds[-1], split, point) if rounds else []
    names = {e.entity: (e.name, e.kind) for e in entities}
    triples = [(names[c.model], names[c.test_set], c.correct, c.total) for c in heat]
    return accuracy_matrix(title, run.method, triples, [(e.name, e.kind) for e in entities])


def default_view(clients: int) -> View:
    """The view that says most for so many clients."""
    return "matrix" if clients <= FULL_MATRIX_CLIENTS else "clients"


def _clients_panel(
    store: Store,
    run: RunRow,
    entities: Sequence[EntityRow],
    split: int,
    point: int,
    rounds: Sequence[int],
) -> Panel:
    clients = [e for e in entities if e.kind == "client"]
    absent, shown = absent_clients(store, run.id), set(rounds)
    own = [
        o
        for o in store.cells.own_accuracy(run.id, split, point)
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
        percent_correct(correct, total),
        correct,
        total,
        tuple(len(rounds) - 1 for _ in clients),
        "client",
        "round",
    )


def absent_clients(store: Store, run_id: int) -> dict[int, frozenset[int]]:
    """round -> clients that took no part in it; rounds of which nobody's part was recorded are left out."""
    took: dict[int, set[int]] = {}
    for row in store.rounds.clients(run_id):
        took.setdefault(row.round, set()).add(row.client)
    clients = {e.entity for e in store.cells.entities(run_id) if e.kind == "client"}
    return {r: frozenset(clients - there) for r, there in took.items()}


def _recorded_panel(
    store: Store, run: RunRow, matrix: MatrixChart, entities: Sequence[EntityRow], until: int | None
) -> Panel:
    """A recorded matrix as it was last up to a round. Empty where a run records none."""
    found = [] if until is None else store.diagnostics.at_round(run.id, matrix.name, until)
    names = {e.entity: e.name for e in entities if e.kind == "client"} if found else {}
    pairs = {(names[d.a], names[d.b]): (d.value, 0, 0) for d in found if d.value is not None}
    title = round_title(run, found[0].round if found else until)
    panel = panel_of_matrix(title, run.method, list(names.values()), pairs, matrix)
    return replace(panel, empty_text=f"records no {matrix.name.replace('_', ' ')}") if until else panel
