"""Panels of single runs, and their means over seeds, for the pages Live and Run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcore.records.codes import AFTER_AGGREGATION, TEST
from fedcore.records.events import FULL_MATRIX_CLIENTS, MAX_EVALUATED_CLIENTS
from fedcore.records.presentation import MatrixChart
from fedcore.results import diagnostics
from fedcore.results.curves import run_labels
from fedcore.results.panels.panel import (
    Panel,
    accuracy_panel,
    client_domains,
    domain_names,
    held_out_shares,
    matrix_panel,
    panel_of_shares,
    share_arrays,
    shares_by_domain,
)
from fedcore.results.panels.transfer import gains_panel
from fedcore.results.statistics import group_by
from fedcore.store import EntityRow, RunRow, Store

PanelView = str
"""One of ``VIEWS``, or the name of a matrix that methods record (``diagnostics.matrix_charts``)."""
VIEWS: dict[PanelView, str] = {
    "matrix": "Model by test set",
    "clients": "Client by round",
    "domains": "Domain of the model by domain of the images",
    "held_out": "Held-out domain by domain",
    "helps": "Who helps whom",
}


def round_title(run: RunRow, round_: int | None) -> str:
    """Return the title of a panel, ``FedOT: round 4/10``; None before the first round."""
    if round_ is None:
        return f"{run.label}: {'waiting' if run.state == 'queued' else 'no round yet'}"
    return f"{run.label}: round {round_}/{run.rounds_total}"


def default_view(clients: int) -> PanelView:
    """Return the default view for a number of clients: the full matrix while it is recorded every round."""
    return "matrix" if clients <= FULL_MATRIX_CLIENTS else "clients"


def run_panels(
    store: Store,
    runs: Sequence[RunRow],
    view: PanelView = "matrix",
    split: int = TEST,
    stage: int = AFTER_AGGREGATION,
    until: Mapping[int, int] | None = None,
) -> list[Panel]:
    """Return a panel per method and held-out domain, the mean over the seeds if there are several.

    The view of held-out domains has one panel per method; a recorded matrix needs runs that have it.

    Args:
        until: run -> the last round to be shown; default: all.
    """
    until = until or {}
    if view not in VIEWS:
        runs = [r for r in runs if view in store.diagnostics.names(r.id)] or runs
    labels = run_labels(runs)
    if view == "held_out":
        runs, labels = [r for r in runs if r.held_out is not None], {r.id: r.label for r in runs}
    panels = []
    for (label, _), same in group_by(runs, lambda r: (labels[r.id], r.group_hash)).items():
        seeds = group_by((replace(r, label=label) for r in same), lambda r: r.seed)
        each = []
        for of_seed in seeds.values():
            if view == "held_out":
                panel = _held_out_panel(store, of_seed, split, stage, until)
                each.append(replace(panel, runs=tuple(r.id for r in of_seed)))
            else:
                shown = (run_panel(store, r, view, split, stage, until.get(r.id)) for r in of_seed)
                each += [replace(p, runs=(r.id,)) for p, r in zip(shown, of_seed, strict=True)]
        if len(seeds) == 1:
            panels += each
        else:
            rounds = _last_rounds(store, same, split, stage, until)
            begun = len({r.seed for r in same if rounds[r.id]})
            text = f"{begun} seeds, {_range_of_rounds(rounds)}" if begun > 1 else _range_of_rounds(rounds)
            mean = mean_over_seeds(each, f"{label}: {text}")
            panels.append(replace(mean, runs=tuple(r.id for r in same)))
    return panels


def _last_rounds(
    store: Store, runs: Sequence[RunRow], split: int, stage: int, until: Mapping[int, int]
) -> dict[int, list[int]]:
    """Return the last evaluated round of each run up to ``until``, as a list of one round or none."""
    last = {}
    for run in runs:
        rounds = store.rounds.evaluated(run.id, split, stage)
        last[run.id] = [r for r in rounds if r <= until.get(run.id, r)][-1:]
    return last


def _range_of_rounds(last: Mapping[int, Sequence[int]]) -> str:
    """Return ``round 3 to 7`` for the last rounds of some runs."""
    shown = sorted({r for rounds in last.values() for r in rounds})
    return "round " + " to ".join(map(str, dict.fromkeys([shown[0], shown[-1]]))) if shown else "no round yet"


def run_panel(
    store: Store,
    run: RunRow,
    view: PanelView = "matrix",
    split: int = TEST,
    stage: int = AFTER_AGGREGATION,
    until: int | None = None,
) -> Panel:
    """Return the panel of a run at its last evaluated round, or of its clients over all rounds.

    Args:
        until: the last round to be shown; default: all.
    """
    entities = store.cells.entities(run.id)
    evaluated = store.rounds.evaluated(run.id, split, stage)
    rounds = [r for r in evaluated if until is None or r <= until]
    last = rounds[-1] if rounds else None
    if view not in VIEWS:
        return _matrix_panel(store, run, diagnostics.matrix_charts([run])[view], entities, last)
    if view == "clients":
        return _clients_panel(store, run, entities, split, stage, rounds)
    if view == "helps":
        start = rounds[0] if rounds else None
        now, began = (run_panel(store, run, "matrix", split, stage, r) for r in (last, start))
        return gains_panel(now, began)
    title = round_title(run, last)
    if view == "domains":
        cells = store.cells.at_rounds({run.id: last}, split, stage) if last is not None else []
        shares = shares_by_domain(cells, client_domains(entities))
        domains = domain_names(entities) if shares else []
        panel = panel_of_shares(title, run.method, domains, domains, shares)
        return replace(panel, empty_text="no domains recorded") if cells else panel
    coded = store.cells.coded({run.id: rounds[-1:]}, split, stage)
    return accuracy_panel(title, run.method, coded, {run.id: entities})


def _clients_panel(
    store: Store, run: RunRow, entities: Sequence[EntityRow], split: int, stage: int, rounds: Sequence[int]
) -> Panel:
    """Return a panel of clients by rounds: own models on own samples, in the client's rounds."""
    clients = {e.entity: e.name for e in entities if e.kind == "client"}
    took_part = participants(store, run.id)
    shares = {
        (o.client, o.round): (o.correct / o.total, o.correct, o.total)
        for o in store.cells.own_accuracy(run.id, split, stage)
        if o.round not in took_part or o.client in took_part[o.round]
    }
    if len(clients) > MAX_EVALUATED_CLIENTS and shares:
        evaluated = {client for client, _ in shares}
        clients = {code: name for code, name in clients.items() if code in evaluated}
    return Panel(
        round_title(run, rounds[-1] if rounds else None),
        run.method,
        tuple(clients.values()),
        tuple(map(str, rounds)),
        *share_arrays(list(clients), rounds, shares),
        own_columns=(len(rounds) - 1,) * len(clients),
        row_title="client",
        column_title="round",
    )


def participants(store: Store, run_id: int) -> dict[int, frozenset[int]]:
    """Return the clients that took part in each round for which participation was recorded."""
    rounds = group_by(store.rounds.clients(run_id), lambda row: row.round)
    return {r: frozenset(row.client for row in rows) for r, rows in rounds.items()}


def _matrix_panel(
    store: Store, run: RunRow, matrix: MatrixChart, entities: Sequence[EntityRow], until: int | None
) -> Panel:
    """Return a recorded matrix at its last round up to ``until``; empty if the run records none."""
    rows = [] if until is None else store.diagnostics.at_round(run.id, matrix.name, until)
    names = {e.entity: e.name for e in entities if e.kind == "client"} if rows else {}
    shares = {(names[d.client_a], names[d.client_b]): (d.value, 0, 0) for d in rows if d.value is not None}
    title = round_title(run, rows[0].round if rows else until)
    panel = matrix_panel(title, run.method, list(names.values()), shares, matrix)
    return replace(panel, empty_text=f"records no {matrix.name.replace('_', ' ')}") if until else panel


def _held_out_panel(
    store: Store, runs: Sequence[RunRow], split: int, stage: int, until: Mapping[int, int]
) -> Panel:
    """Return the panel of held-out domains by domains of one method, a row per run at its last round."""
    last = _last_rounds(store, runs, split, stage, until)
    cells = group_by(store.cells.own_and_global(last, split, stage), lambda c: c.run_id)
    shares = {
        (run.held_out or "", domain): share
        for run in runs
        for domain, share in held_out_shares(cells.get(run.id, []), run.held_out).items()
    }
    names = domain_names(e for run in runs for e in store.cells.entities(run.id))
    held_out = [n for n in names if n in {r.held_out for r in runs}]
    return panel_of_shares(
        f"{runs[0].label}: {_range_of_rounds(last)}", runs[0].method, held_out if shares else [], names,
        shares, row_title="held out", column_title="domain",
    )  # fmt: skip


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
    sums, counts = np.zeros((2, len(rows), len(columns)))
    correct, total = np.zeros((2, len(rows), len(columns)), dtype=np.int64)
    own = dict.fromkeys(rows, -1)
    for panel in panels:
        place = np.ix_([row[name] for name in panel.rows], [column[name] for name in panel.columns])
        sums[place] += np.nan_to_num(panel.values)
        counts[place] += ~np.isnan(panel.values)
        correct[place] += panel.correct.astype(np.int64)
        total[place] += panel.total.astype(np.int64)
        for name, j in zip(panel.rows, panel.own_columns, strict=False):
            own[name] = column[panel.columns[j]] if j >= 0 else own[name]
    values = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    if first.column_title == "round":  # a seed that is behind ends at an earlier round
        own = dict.fromkeys(rows, len(columns) - 1)
    owns = tuple(own.values()) if any(p.own_columns for p in panels) else ()
    shown = next((p for p in panels if p.rows), first)
    return replace(
        shown, title=title, rows=tuple(rows), columns=tuple(columns), values=values, correct=correct,
        total=total, own_columns=owns,
    )  # fmt: skip


def _names(lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))
