"""Client by round, for the rows of a comparison: every client's own accuracy as it grew, mean over seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedcore.results.panel import Panel, Shares, mean_shares, paired
from fedcore.results.panels import absences
from fedcore.results.tables import Comparison
from fedcore.store import queries


def client_by_round(db: str | Path, comparison: Comparison, setting: str) -> dict[str, Panel]:
    """A panel per row of the comparison: clients down, rounds across, own models on own test samples.

    Mean over a seed's runs, then over seeds, of those in which the client took part in the round; a gap
    where it did so in none.
    """
    found = {}
    for group in comparison.of(setting):
        seeds: dict[int, list[Shares]] = {}
        names: dict[str, None] = {}
        for value in group.runs:
            clients = {e.entity: e.name for e in queries.entities(db, value.run.id) if e.kind == "client"}
            names |= dict.fromkeys(clients.values())
            seeds.setdefault(value.run.seed, []).append(_own(db, value.run.id, clients))
        pairs = mean_shares(mean_shares(runs) for runs in seeds.values())
        rounds = sorted({int(round_) for _, round_ in pairs})
        if rounds:
            words = {"row_title": "client", "column_title": "round"}
            panel = paired(group.label, group.method, list(names), list(map(str, rounds)), pairs, **words)
            found[group.key] = replace(panel, own=(len(rounds) - 1,) * len(names))
    return found


def _own(db: str | Path, run_id: int, clients: dict[int, str]) -> Shares:
    """(client, round) -> its own accuracy in one run, where it took part in that round."""
    absent = absences(db, run_id)
    return {
        (clients[o.client], str(o.round)): (o.correct / o.total, o.correct, o.total)
        for o in queries.own_accuracy(db, run_id)
        if o.client not in absent.get(o.round, ())
    }
