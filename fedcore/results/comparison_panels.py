"""Panels of the rows of a comparison: means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcore.methods.presentation import MatrixChart
from fedcore.results.comparison import Comparison, Group
from fedcore.results.panels import (
    Named,
    Panel,
    Share,
    Shares,
    accuracy_matrix,
    client_domains,
    domain_names,
    held_out_shares,
    mean_shares,
    panel_of_matrix,
    panel_of_pairs,
    shares_by_domain,
)
from fedcore.results.run_panels import absent_clients, run_panel
from fedcore.store import NamedCell, Store

Cells = dict[tuple[int, int], list[NamedCell]]
"""(run, round) -> its cells."""


def domain_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """A panel per row of the comparison: domain of the model by domain of the images, mean over seeds.

    Rows whose clients belong to no domain are left out.
    """
    found = {}
    for group in comparison.groups_in(setting):
        known = {v.run.id: store.cells.entities(v.run.id) for v in group.runs}
        cells = _all_cells(store, group)
        pairs = _over_seeds(
            group, {at: shares_by_domain(c, client_domains(known[at[0]])) for at, c in cells.items()}
        )
        names = domain_names(known.values())
        if pairs:
            found[group.key] = panel_of_pairs(group.label, group.method, names, names, pairs)
    return found


def held_out_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """A panel per row of the comparison that holds domains out: FedOT's ACC matrix, mean over seeds.

    A row is the run that held this domain out: the global model on it on the diagonal (G; empty where a
    method has no such model), every other domain's own models on that domain beside it (P).
    """
    found = {}
    for group in comparison.groups_in(setting):
        out = {v.run.id: v.run.held_out for v in group.runs if v.run.held_out is not None}
        if not out:
            continue
        rows = {
            (run, round_): {
                (out[run], domain): share for domain, share in held_out_shares(cells, out[run]).items()
            }
            for (run, round_), cells in _measured(store, group).items()
        }
        names = domain_names(store.cells.entities(run) for run in out)
        held = [n for n in names if n in out.values()]
        panel = panel_of_pairs(group.label, group.method, held, names, _over_seeds(group, rows))
        found[group.key] = replace(panel, row_title="held out", column_title="domain")
    return found


def method_by_domain_panel(store: Store, comparison: Comparison, setting: str) -> Panel:
    """Rows of the comparison by domain: as in its table, the personal accuracy on each domain.

    Mean over the domain's clients, each with its own model after aggregation on its own test samples, then
    over seeds. Where domains were held out: G, the global model on the domain that its run held out.
    """
    groups = comparison.groups_in(setting)
    held_out = any(v.run.held_out is not None for g in groups for v in g.runs)
    pairs: dict[tuple[str, str], Share] = {}
    for group in groups:
        out = {v.run.id: v.run.held_out for v in group.runs}
        rows = {}
        for (run, round_), cells in _measured(store, group).items():
            shares = held_out_shares(cells, out[run])
            shown = {out[run]} & shares.keys() if held_out else shares.keys()
            rows[run, round_] = {(group.label, domain): shares[domain] for domain in shown}
        pairs |= _over_seeds(group, rows)
    known = [store.cells.entities(v.run.id) for g in groups for v in g.runs]
    names = [n for n in domain_names(known) if any(n == column for _, column in pairs)]
    title = "Generalisation G by held-out domain" if held_out else "Personal accuracy by domain"
    panel = panel_of_pairs(title, "", [g.label for g in groups], names, pairs)
    return replace(panel, row_title="method", column_title="domain", own_columns=())


def _measured(store: Store, group: Group) -> Cells:
    """Own models on own samples and the global model on domains, in the rule's rounds."""
    found: Cells = {}
    for c in store.cells.own_and_domains({v.run.id: v.rounds for v in group.runs}):
        found.setdefault((c.run_id, c.round), []).append(c)
    return found


def _all_cells(store: Store, group: Group) -> Cells:
    found: Cells = {}
    for i in range(max(len(v.rounds) for v in group.runs)):
        at = {v.run.id: v.rounds[i] for v in group.runs if len(v.rounds) > i}
        for c in store.cells.at_rounds(at):
            found.setdefault((c.run_id, c.round), []).append(c)
    return found


def _over_seeds(group: Group, found: Mapping[tuple[int, int], Shares]) -> dict[tuple[str, str], Share]:
    """Mean over a run's rounds, a seed's runs, then seeds: as the tables do it."""
    seeds: dict[int, list[Shares]] = {}
    for value in group.runs:
        rounds = mean_shares(shares for (run, _), shares in found.items() if run == value.run.id)
        seeds.setdefault(value.run.seed, []).append(rounds)
    return mean_shares(mean_shares(runs) for runs in seeds.values())


def mean_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """One panel per row of the comparison: mean over seeds (and over the rule's rounds) of every cell."""
    groups = comparison.groups_in(setting)
    values = [v for g in groups for v in g.runs]
    cells: dict[int, list[NamedCell]] = {}
    for i in range(max((len(v.rounds) for v in values), default=0)):
        for c in store.cells.at_rounds({v.run.id: v.rounds[i] for v in values if len(v.rounds) > i}):
            cells.setdefault(c.run_id, []).append(c)
    return {
        g.key: _group_panel(store, g, [c for v in g.runs for c in cells.get(v.run.id, ())]) for g in groups
    }


def _group_panel(store: Store, group: Group, found: Sequence[NamedCell]) -> Panel:
    cells: dict[tuple[Named, Named], list[NamedCell]] = {}
    for c in found:
        cells.setdefault(((c.model, c.model_kind), (c.test_set, c.test_set_kind)), []).append(c)
    entities: dict[Named, None] = {}
    for value in group.runs:
        entities.update(dict.fromkeys((e.name, e.kind) for e in store.cells.entities(value.run.id)))
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


def difference_panel(panel: Panel, baseline: Panel) -> Panel:
    """Difference in points, cell by cell; NaN where either has no data or the names do not fit."""
    rows = {name: i for i, name in enumerate(baseline.rows)}
    columns = {name: j for j, name in enumerate(baseline.columns)}
    values = np.full(panel.values.shape, np.nan)
    for i, row in enumerate(panel.rows):
        for j, column in enumerate(panel.columns):
            if row in rows and column in columns:
                values[i, j] = panel.values[i, j] - baseline.values[rows[row], columns[column]]
    return replace(panel, title=f"{panel.title} - {baseline.title}", values=values)


def mean_matrix_panels(
    store: Store, comparison: Comparison, setting: str, matrix: MatrixChart
) -> dict[str, Panel]:
    """A panel per row of the comparison that records a matrix: mean over seeds.

    Taken from the last of the rule's rounds, where clients are the same by name.
    """
    found = {}
    for group in comparison.groups_in(setting):
        single = [run_panel(store, v.run, matrix.name, until=v.rounds[-1]) for v in group.runs]
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
            found[group.key] = panel_of_matrix(group.label, group.method, names, pairs, matrix)
    return found


def client_by_round_panels(store: Store, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """A panel per row of the comparison: clients down, rounds across, own models on own test samples.

    Mean over a seed's runs, then over seeds, of those in which the client took part in the round; a gap
    where it did so in none.
    """
    found = {}
    for group in comparison.groups_in(setting):
        seeds: dict[int, list[Shares]] = {}
        names: dict[str, None] = {}
        for value in group.runs:
            clients = {e.entity: e.name for e in store.cells.entities(value.run.id) if e.kind == "client"}
            names |= dict.fromkeys(clients.values())
            seeds.setdefault(value.run.seed, []).append(_own_shares(store, value.run.id, clients))
        pairs = mean_shares(mean_shares(runs) for runs in seeds.values())
        rounds = sorted({int(round_) for _, round_ in pairs})
        if rounds:
            words = {"row_title": "client", "column_title": "round"}
            panel = panel_of_pairs(
                group.label, group.method, list(names), list(map(str, rounds)), pairs, **words
            )
            found[group.key] = replace(panel, own_columns=(len(rounds) - 1,) * len(names))
    return found


def _own_shares(store: Store, run_id: int, clients: dict[int, str]) -> Shares:
    """(client, round) -> its own accuracy in one run, where it took part in that round."""
    absent = absent_clients(store, run_id)
    return {
        (clients[o.client], str(o.round)): (o.correct / o.total, o.correct, o.total)
        for o in store.cells.own_accuracy(run_id)
        if o.client not in absent.get(o.round, ())
    }
