"""Accuracies by domain: the papers' matrices of domains, and methods by domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedcore.results import protocol
from fedcore.results.panel import Panel, Share, Shares, mean_shares, paired
from fedcore.results.tables import Comparison, Group
from fedcore.store import queries
from fedcore.store.queries import NamedCell, RunRow

Cells = dict[tuple[int, int], list[NamedCell]]
"""(run, round) -> its cells."""


def domains_of(entities: Iterable[queries.EntityRow]) -> dict[str, str]:
    """Domain of each client that belongs to one."""
    return {e.name: e.domain for e in entities if e.kind == "client" and e.domain}


def by_domains(cells: Iterable[NamedCell], domain_of: Mapping[str, str]) -> dict[tuple[str, str], Share]:
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


def domain_by_domain(db: str | Path, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """A panel per row of the comparison: domain of the model by domain of the images, mean over seeds.

    Rows whose clients belong to no domain are left out.
    """
    found = {}
    for group in comparison.of(setting):
        known = {v.run.id: queries.entities(db, v.run.id) for v in group.runs}
        cells = _all_cells(db, group)
        pairs = _over_seeds(group, {at: by_domains(c, domains_of(known[at[0]])) for at, c in cells.items()})
        names = domain_names(known.values())
        if pairs:
            found[group.key] = paired(group.label, group.method, names, names, pairs)
    return found


def held_out_matrix(db: str | Path, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """A panel per row of the comparison that holds domains out: FedOT's ACC matrix, mean over seeds.

    A row is the run that held this domain out: the global model on it on the diagonal (G; empty where a
    method has no such model), every other domain's own models on that domain beside it (P).
    """
    found = {}
    for group in comparison.of(setting):
        out = {v.run.id: v.run.held_out for v in group.runs if v.run.held_out is not None}
        if not out:
            continue
        rows = {
            (run, round_): {(out[run], domain): share for domain, share in _protocol(cells, out[run]).items()}
            for (run, round_), cells in _measured(db, group).items()
        }
        names = domain_names(queries.entities(db, run) for run in out)
        held = [n for n in names if n in out.values()]
        panel = paired(group.label, group.method, held, names, _over_seeds(group, rows))
        found[group.key] = replace(panel, row_title="held out", column_title="domain")
    return found


def live_held_out(
    db: str | Path, runs: Sequence[RunRow], split: int, point: int, until: Mapping[int, int]
) -> Panel:
    """As ``held_out_matrix``, of one method's runs of one seed while they train: a row per run."""
    taken = {}
    for run in runs:
        rounds = queries.evaluated_rounds(db, run.id, split, point)
        taken[run.id] = [r for r in rounds if r <= until.get(run.id, r)][-1:]
    cells: dict[int, list[NamedCell]] = {}
    for c in queries.measured(db, taken, split, point):
        cells.setdefault(c.run_id, []).append(c)
    pairs = {
        (run.held_out or "", domain): share
        for run in runs
        for domain, share in _protocol(cells.get(run.id, []), run.held_out).items()
    }
    names = domain_names(queries.entities(db, run.id) for run in runs)
    held = [n for n in names if n in {r.held_out for r in runs}]
    at = sorted({r for rounds in taken.values() for r in rounds})
    rounds = f"round {at[0]}" + (f" to {at[-1]}" if len(at) > 1 else "") if at else "no round yet"
    panel = paired(f"{runs[0].label}: {rounds}", runs[0].method, held if pairs else [], names, pairs)
    return replace(panel, row_title="held out", column_title="domain")


def method_by_domain(db: str | Path, comparison: Comparison, setting: str) -> Panel:
    """Rows of the comparison by domain: as in its table, the personal accuracy on each domain.

    Mean over the domain's clients, each with its own model after aggregation on its own test samples, then
    over seeds. Where domains were held out: G, the global model on the domain that its run held out.
    """
    groups = comparison.of(setting)
    held_out = any(v.run.held_out is not None for g in groups for v in g.runs)
    pairs: dict[tuple[str, str], Share] = {}
    for group in groups:
        out = {v.run.id: v.run.held_out for v in group.runs}
        rows = {}
        for (run, round_), cells in _measured(db, group).items():
            shares = _protocol(cells, out[run])
            shown = {out[run]} & shares.keys() if held_out else shares.keys()
            rows[run, round_] = {(group.label, domain): shares[domain] for domain in shown}
        pairs |= _over_seeds(group, rows)
    known = [queries.entities(db, v.run.id) for g in groups for v in g.runs]
    names = [n for n in domain_names(known) if any(n == column for _, column in pairs)]
    title = "Generalisation G by held-out domain" if held_out else "Personal accuracy by domain"
    panel = paired(title, "", [g.label for g in groups], names, pairs)
    return replace(panel, row_title="method", column_title="domain", own=())


def _protocol(cells: Iterable[NamedCell], out: str | None) -> dict[str, Share]:
    """Accuracy by domain: own models on their own samples, the global model on the held-out domain."""
    cells = list(cells)
    shares = protocol.own_by_domain(cells)
    counts = {d: [c for c in cells if protocol.is_own(c) and c.domain == d] for d in shares}
    unseen = None if out is None else protocol.whole(cells, out)
    if out is not None:
        shares.pop(out, None)
    if out is not None and unseen is not None:
        shares[out] = unseen
        counts[out] = [c for c in cells if c.model_kind == "global" and c.test_set == out]
    return {
        d: (share, sum(c.correct for c in counts[d]), sum(c.total for c in counts[d]))
        for d, share in shares.items()
    }


def _measured(db: str | Path, group: Group) -> Cells:
    """Own models on own samples and the global model on domains, in the rule's rounds."""
    found: Cells = {}
    for c in queries.measured(db, {v.run.id: v.rounds for v in group.runs}):
        found.setdefault((c.run_id, c.round), []).append(c)
    return found


def _all_cells(db: str | Path, group: Group) -> Cells:
    found: Cells = {}
    for i in range(max(len(v.rounds) for v in group.runs)):
        at = {v.run.id: v.rounds[i] for v in group.runs if len(v.rounds) > i}
        for c in queries.cells_at(db, at):
            found.setdefault((c.run_id, c.round), []).append(c)
    return found


def _over_seeds(group: Group, found: Mapping[tuple[int, int], Shares]) -> dict[tuple[str, str], Share]:
    """Mean over a run's rounds, a seed's runs, then seeds: as the tables do it."""
    seeds: dict[int, list[Shares]] = {}
    for value in group.runs:
        rounds = mean_shares(shares for (run, _), shares in found.items() if run == value.run.id)
        seeds.setdefault(value.run.seed, []).append(rounds)
    return mean_shares(mean_shares(runs) for runs in seeds.values())


def domain_names(known: Iterable[Sequence[queries.EntityRow]]) -> list[str]:
    """Domains in their own order: that of the test sets of domains, then of the clients."""
    entities = [e for each in known for e in each]
    tested = [e.name for e in entities if e.kind == "domain"]
    return list(dict.fromkeys([*tested, *(e.domain for e in entities if e.domain)]))
