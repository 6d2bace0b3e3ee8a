"""One run as numbers: which of its rounds count, and every accuracy of these, per cent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fedcore.results import protocol
from fedcore.store import queries
from fedcore.store.queries import NamedCell, RunRow

Rule = Literal["last", "best", "mean10"]
RULES: dict[Rule, str] = {
    "last": "last round",
    "best": "best on validation",
    "mean10": "mean of last ten rounds",
}
"""How a run's round is chosen. Never by test accuracy."""

Metric = Literal[
    "generalisation", "personalisation", "comprehensive", "personal", "weighted", "worst", "classes",
    "global", "whole",
]  # fmt: skip
METRICS: dict[Metric, str] = {
    "generalisation": "Generalisation G",
    "personalisation": "Personalisation P",
    "comprehensive": "Comprehensive C",
    "personal": "Personal accuracy",
    "weighted": "Personal accuracy, weighted by samples",
    "worst": "Worst client",
    "classes": "Own classes",
    "global": "Global model",
    "whole": "Global model, whole test set",
}
METRIC_HEADS: dict[Metric, str] = {
    "generalisation": "G",
    "personalisation": "P",
    "comprehensive": "C",
    "personal": "Personal",
    "weighted": "Weighted",
    "worst": "Worst client",
    "classes": "Own classes",
    "global": "Global",
    "whole": "Whole test",
}
METRIC_HELP: dict[Metric, str] = {
    "generalisation": "the global model on the domain held out, mean over these; empty without such a model",
    "personalisation": "each domain's own model on that domain, mean over the runs that hold another one out",
    "comprehensive": "mean of the whole matrix of held-out domain by domain, G and P together",
    "personal": "each client's own model on its own test samples, clients weighing equally",
    "weighted": "the same, every test sample weighing equally",
    "worst": "the client whose own model does worst on its own test samples",
    "classes": "each client's own model on all test samples of the classes it trains on (FedAlign's local); "
    "where classes or domains are disjoint, personal accuracy says it",
    "global": "the global model on the clients' test samples; empty where a method has none",
    "whole": "the global model on all test samples, those of classes that no client holds too",
}
Part = Literal["domain", "client", "held_out"]
PARTS: dict[Part, str] = {
    "domain": "Personal accuracy by domain",
    "client": "Personal accuracy by client",
    "held_out": "Generalisation G by held-out domain",
}
"""What a mean is made of: accuracies by name."""
_SCORE_FIELDS: dict[Metric, str] = {
    "personal": "personal_mean",
    "weighted": "personal_weighted",
    "worst": "personal_worst",
    "classes": "classes_mean",
    "global": "global_mean",
}
LAST_TEN = 10


@dataclass(frozen=True)
class RunValue:
    """One run with its accuracies (per cent) in the chosen rounds. ``domains``: all that it was tested on."""

    run: RunRow
    rounds: tuple[int, ...]
    values: dict[Metric, float | None]
    parts: dict[Part, dict[str, float]] = field(default_factory=dict)
    domains: tuple[str, ...] = ()

    @property
    def taken(self) -> str:
        """The chosen rounds in words: ``7``, ``0 (before training)``, ``mean of 11 to 20``."""
        if len(self.rounds) == 1:
            return f"{self.rounds[0]}{' (before training)' if self.rounds == (0,) else ''}"
        full = len(self.rounds) == self.rounds[-1] - self.rounds[0] + 1
        count = "" if full else f", {len(self.rounds)} evaluated"
        return f"mean of {self.rounds[0]} to {self.rounds[-1]}{count}"


def chosen_rounds(evaluated: Sequence[int], best: int | None, rule: Rule) -> tuple[int, ...]:
    """The rounds a rule picks among the evaluated ones (ascending); empty where it has no answer."""
    if not evaluated:
        return ()
    if rule == "last":
        return (evaluated[-1],)
    if rule == "best":
        return (best,) if best is not None and best in evaluated else ()
    trained = [r for r in evaluated if r > max(0, evaluated[-1] - LAST_TEN)]
    return tuple(trained or evaluated)  # a run that does not train has round 0 only


def run_values(db: str | Path, runs: Sequence[RunRow], rule: Rule) -> list[RunValue]:
    """Every run in the rounds that a rule picks; those without such a round have empty ``rounds``."""
    points: dict[int, dict[int, queries.CurvePoint]] = {r.id: {} for r in runs}
    for point in queries.curves(db, points):
        points[point.run_id][point.round] = point
    chosen = {r.id: chosen_rounds(sorted(points[r.id]), r.best_round, rule) for r in runs}
    cells: dict[int, dict[int, list[NamedCell]]] = {r.id: {} for r in runs}
    for cell in queries.measured(db, chosen):
        cells[cell.run_id].setdefault(cell.round, []).append(cell)
    found = []
    for run in runs:
        rows = [points[run.id][r] for r in chosen[run.id]]
        values: dict[Metric, float | None] = {
            metric: _mean_percent([getattr(row, name) for row in rows])
            for metric, name in _SCORE_FIELDS.items()
        }
        by_round = list(cells[run.id].values())
        values |= _protocol_values(run.held_out, by_round)
        domains = dict.fromkeys(c.test_set for cs in by_round for c in cs if c.test_set_kind == "domain")
        found.append(
            RunValue(run, chosen[run.id], values, _run_parts(run.held_out, by_round), tuple(domains))
        )
    return found


def _protocol_values(out: str | None, by_round: Sequence[list[NamedCell]]) -> dict[Metric, float | None]:
    """Per cent, mean over rounds. With a held-out domain a run is a row of the protocol's matrix."""
    if out is None:
        return {"whole": _mean_percent([protocol.whole(cells) for cells in by_round])}
    return {
        "generalisation": _mean_percent([protocol.whole(cells, out) for cells in by_round]),
        "personalisation": _mean_percent([protocol.personalisation(cells, out) for cells in by_round]),
        "comprehensive": _mean_percent([protocol.comprehensive(cells, out) for cells in by_round]),
    }


def _run_parts(out: str | None, by_round: Sequence[list[NamedCell]]) -> dict[Part, dict[str, float]]:
    read: dict[Part, list[dict[str, float]]] = {
        "domain": [protocol.own_by_domain(cells) for cells in by_round],
        "client": [protocol.own_by_client(cells) for cells in by_round],
    }
    if out is not None:
        unseen = [protocol.whole(cells, out) for cells in by_round]
        read["held_out"] = [{out: share} for share in unseen if share is not None]
    found: dict[Part, dict[str, float]] = {}
    for part, rounds in read.items():
        for name in dict.fromkeys(name for shares in rounds for name in shares):
            value = _mean_percent([shares.get(name) for shares in rounds])
            if value is not None:
                found.setdefault(part, {})[name] = value
    return found


def _mean_percent(shares: Sequence[float | None]) -> float | None:
    known = [s for s in shares if s is not None]
    return 100 * float(np.mean(known)) if known else None
