"""The metrics of a run: which of its rounds count, and its accuracies in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedcore.store import MeanAccuracy, NamedCell, RunRow, Store


def accuracy_by_client(cells: Iterable[NamedCell]) -> dict[str, float]:
    """Each client's own model on its own test samples."""
    return {c.model: c.correct / c.total for c in cells if is_own(c)}


def accuracy_by_domain(cells: Iterable[NamedCell]) -> dict[str, float]:
    """The same, mean over the clients of each domain; empty where clients belong to none."""
    found: dict[str, list[float]] = {}
    for c in cells:
        if is_own(c) and c.domain:
            found.setdefault(c.domain, []).append(c.correct / c.total)
    return {domain: float(np.mean(shares)) for domain, shares in found.items()}


def global_accuracy(cells: Iterable[NamedCell], domain: str | None = None) -> float | None:
    """The global model on a domain's test set, or on all of them as one (FedAlign's global performance)."""
    found = [
        c
        for c in cells
        if c.model_kind == "global" and c.test_set_kind == "domain" and domain in (None, c.test_set)
    ]
    return sum(c.correct for c in found) / sum(c.total for c in found) if found else None


def personalisation(cells: Sequence[NamedCell], held_out: str | None) -> float | None:
    """P of one run: own models on their own domains, all of these equal; the held-out one is none of them."""
    shares = _own_accuracies(cells, held_out)
    return float(np.mean(shares)) if shares else None


def comprehensive(cells: Sequence[NamedCell], held_out: str | None) -> float | None:
    """C of one run: a row of the N x N matrix, the global model's G among the own models' accuracies."""
    shares, unseen = _own_accuracies(cells, held_out), global_accuracy(cells, held_out)
    return float(np.mean([*shares, unseen])) if shares and unseen is not None else None


def _own_accuracies(cells: Sequence[NamedCell], held_out: str | None) -> list[float]:
    own = {d: share for d, share in accuracy_by_domain(cells).items() if d != held_out}
    return list((own or accuracy_by_client(cells)).values())


def is_own(c: NamedCell) -> bool:
    """A client's own model on its own test samples."""
    return c.model_kind == c.test_set_kind == "client" and c.model == c.test_set


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
METRIC_HEADINGS: dict[Metric, str] = {
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
Breakdown = Literal["domain", "client", "held_out"]
BREAKDOWNS: dict[Breakdown, str] = {
    "domain": "Personal accuracy by domain",
    "client": "Personal accuracy by client",
    "held_out": "Generalisation G by held-out domain",
}
"""What a mean is made of: accuracies by name."""
SCORE_COLUMNS: dict[Metric, str] = {
    "personal": "personal_mean",
    "weighted": "personal_weighted",
    "worst": "personal_worst",
    "classes": "classes_mean",
    "global": "global_mean",
}
AVERAGED_ROUNDS = 10


@dataclass(frozen=True)
class RunResult:
    """One run with its accuracies (per cent) in the chosen rounds. ``domains``: all that it was tested on."""

    run: RunRow
    rounds: tuple[int, ...]
    values: dict[Metric, float | None]
    breakdowns: dict[Breakdown, dict[str, float]] = field(default_factory=dict)
    domains: tuple[str, ...] = ()

    @property
    def rounds_text(self) -> str:
        """The chosen rounds in words: ``7``, ``0 (before training)``, ``mean of 11 to 20``."""
        if len(self.rounds) == 1:
            return f"{self.rounds[0]}{' (before training)' if self.rounds == (0,) else ''}"
        full = len(self.rounds) == self.rounds[-1] - self.rounds[0] + 1
        count = "" if full else f", {len(self.rounds)} evaluated"
        return f"mean of {self.rounds[0]} to {self.rounds[-1]}{count}"


def selected_rounds(evaluated: Sequence[int], best: int | None, rule: Rule) -> tuple[int, ...]:
    """The rounds a rule picks among the evaluated ones (ascending); empty where it has no answer."""
    if not evaluated:
        return ()
    if rule == "last":
        return (evaluated[-1],)
    if rule == "best":
        return (best,) if best is not None and best in evaluated else ()
    trained = [r for r in evaluated if r > max(0, evaluated[-1] - AVERAGED_ROUNDS)]
    return tuple(trained or evaluated)  # a run that does not train has round 0 only


def run_results(store: Store, runs: Sequence[RunRow], rule: Rule) -> list[RunResult]:
    """Every run in the rounds that a rule picks; those without such a round have empty ``rounds``."""
    points: dict[int, dict[int, MeanAccuracy]] = {r.id: {} for r in runs}
    for point in store.rounds.mean_accuracy(points):
        points[point.run_id][point.round] = point
    chosen = {r.id: selected_rounds(sorted(points[r.id]), r.best_round, rule) for r in runs}
    cells: dict[int, dict[int, list[NamedCell]]] = {r.id: {} for r in runs}
    for cell in store.cells.own_and_domains(chosen):
        cells[cell.run_id].setdefault(cell.round, []).append(cell)
    found = []
    for run in runs:
        rows = [points[run.id][r] for r in chosen[run.id]]
        values: dict[Metric, float | None] = {
            metric: _mean_percent([getattr(row, name) for row in rows])
            for metric, name in SCORE_COLUMNS.items()
        }
        by_round = list(cells[run.id].values())
        values |= _cell_metrics(run.held_out, by_round)
        domains = dict.fromkeys(c.test_set for cs in by_round for c in cs if c.test_set_kind == "domain")
        found.append(
            RunResult(run, chosen[run.id], values, _breakdowns(run.held_out, by_round), tuple(domains))
        )
    return found


def _cell_metrics(out: str | None, by_round: Sequence[list[NamedCell]]) -> dict[Metric, float | None]:
    """Per cent, mean over rounds. With a held-out domain a run is a row of the protocol's matrix."""
    if out is None:
        return {"whole": _mean_percent([global_accuracy(cells) for cells in by_round])}
    return {
        "generalisation": _mean_percent([global_accuracy(cells, out) for cells in by_round]),
        "personalisation": _mean_percent([personalisation(cells, out) for cells in by_round]),
        "comprehensive": _mean_percent([comprehensive(cells, out) for cells in by_round]),
    }


def _breakdowns(out: str | None, by_round: Sequence[list[NamedCell]]) -> dict[Breakdown, dict[str, float]]:
    read: dict[Breakdown, list[dict[str, float]]] = {
        "domain": [accuracy_by_domain(cells) for cells in by_round],
        "client": [accuracy_by_client(cells) for cells in by_round],
    }
    if out is not None:
        unseen = [global_accuracy(cells, out) for cells in by_round]
        read["held_out"] = [{out: share} for share in unseen if share is not None]
    found: dict[Breakdown, dict[str, float]] = {}
    for part, rounds in read.items():
        for name in dict.fromkeys(name for shares in rounds for name in shares):
            value = _mean_percent([shares.get(name) for shares in rounds])
            if value is not None:
                found.setdefault(part, {})[name] = value
    return found


def _mean_percent(shares: Sequence[float | None]) -> float | None:
    known = [s for s in shares if s is not None]
    return 100 * float(np.mean(known)) if known else None


def complete_seeds(runs: Iterable[RunResult]) -> list[RunResult]:
    """The runs of seeds that have every held-out domain that any seed has.

    A mean over fewer domains is another quantity: its distance from the others is no spread over seeds.
    """
    runs = list(runs)
    domains: dict[int, set[str | None]] = {}
    for value in runs:
        domains.setdefault(value.run.seed, set()).add(value.run.held_out)
    wanted = set[str | None]().union(*domains.values())
    return [v for v in runs if domains[v.run.seed] == wanted]


def value_per_seed(runs: Iterable[RunResult], metric: Metric) -> dict[int, float]:
    """One value per whole seed: the mean over its held-out domains (one value where there is none)."""
    by_seed: dict[int, list[float]] = {}
    for value in complete_seeds(v for v in runs if v.values.get(metric) is not None):
        by_seed.setdefault(value.run.seed, []).append(value.values[metric])
    return {seed: float(np.mean(numbers)) for seed, numbers in sorted(by_seed.items())}
