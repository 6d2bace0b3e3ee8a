"""The metrics of a run: which of its rounds count, and its accuracies in them.

Functions of ``cells`` take the test cells of one round after aggregation (``Store.cells.own_and_global``):
every client's own model on its own samples, and the global model on every test set. Their results
are shares of one; everything else is in per cent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedcore.results.statistics import group_by, mean_or_none
from fedcore.store import NamedCell, RunRow, Store

Rule = Literal["last", "best", "mean10"]
RULES: dict[Rule, str] = {
    "last": "last round",
    "best": "best on validation",
    "mean10": "mean of last ten rounds",
}
"""Rules by which the reported round of a run is selected; never by test accuracy."""
Metric = Literal[
    "generalisation", "personalisation", "comprehensive", "personal", "weighted", "worst", "classes",
    "global", "whole", "dual", "base", "new", "harmonic", "new_gain", "own_base", "own_new",
    "harmonic3", "unseen", "adapted", "transfer", "local", "harmonic_local",
]  # fmt: skip


@dataclass(frozen=True)
class MetricFacts:
    """The names of a metric, and the places where it is shown.

    Attributes:
        heading: of its column in a table.
        leads: the words of a finding after *leads*.
        column: its field of ``MeanAccuracy``, if it is recorded for every round and so has a curve.
        curve_on: kind of test set from which any other metric has a curve, see ``metrics_by_round``.
        on_request: it has a column only in a table that compares by it, as other columns say the same.
        may_lack: a method may have no value of it, for a reason that its notice says.
        unit: per cent, or points for a difference of two accuracies.
    """

    title: str
    heading: str
    leads: str
    help: str
    column: str = ""
    curve_on: str = ""
    on_request: bool = False
    may_lack: bool = False
    unit: str = "%"


METRICS: dict[Metric, MetricFacts] = {
    "generalisation": MetricFacts(
        "Generalisation G",
        "G",
        "on held-out domains (G)",
        "the global model on the held-out domain, mean over these; empty for methods without a global model",
    ),
    "personalisation": MetricFacts(
        "Personalisation P",
        "P",
        "on the clients' own domains (P)",
        "each domain's own model on that domain, mean over the runs that hold out another one",
    ),
    "comprehensive": MetricFacts(
        "Comprehensive C",
        "C",
        "over all domains (C)",
        "mean of the whole matrix of held-out domain by domain, G and P together",
    ),
    "personal": MetricFacts(
        "Personal accuracy",
        "Personal",
        "on personal accuracy",
        "each client's own model on its own test samples, clients weighing equally",
        column="personal_mean",
    ),
    "weighted": MetricFacts(
        "Personal accuracy, weighted by samples",
        "Weighted",
        "on personal accuracy weighted by samples",
        "each client's own model on its own test samples, every sample weighing equally",
        column="personal_weighted",
    ),
    "worst": MetricFacts(
        "Worst client",
        "Worst client",
        "on the worst client",
        "the lowest accuracy of a client's own model on its own test samples",
        column="personal_worst",
    ),
    "classes": MetricFacts(
        "Own classes",
        "Own classes",
        "on the clients' own classes",
        "each client's own model on all test samples of the classes it trains on (FedAlign's local "
        "performance); equal to personal accuracy where classes or domains are disjoint",
        column="classes_mean",
    ),
    "global": MetricFacts(
        "Global model",
        "Global",
        "with the global model",
        "the global model on each client's test samples, clients weighing equally; empty for methods without "
        "a global model",
        column="global_mean",
    ),
    "whole": MetricFacts(
        "Global model, whole test set",
        "Whole test",
        "with the global model on the whole test set",
        "the global model on all test samples, including classes that no client has; every sample weighs "
        "equally",
    ),
    "dual": MetricFacts(
        "Harmonic mean of global and personal",
        "HM, global and personal",
        "on global and personal accuracy together (harmonic mean)",
        "2 G P / (G + P) of the global model's accuracy G and the personal accuracy P, both on the clients' "
        "test samples, for each run, then averaged (FLiP's dual)",
        on_request=True,
    ),
    "base": MetricFacts(
        "Base classes",
        "Base",
        "on the base classes",
        "the global model on all test images of the base classes, among their names; several data sets weigh "
        "equally",
        curve_on="new",
    ),
    "new": MetricFacts(
        "New classes",
        "New",
        "on the new classes",
        "the global model on all test images of the new classes, among their names; no client trains on "
        "them, and several data sets weigh equally",
        curve_on="new",
        may_lack=True,
    ),
    "harmonic": MetricFacts(
        "Harmonic mean of base and new",
        "HM",
        "on base and new classes together (harmonic mean)",
        "2 B V / (B + V) of base B and new V, for each seed, then averaged",
        curve_on="new",
        may_lack=True,
    ),
    "new_gain": MetricFacts(
        "New classes, gain over zero-shot",
        "New, gain",
        "by the gain over zero-shot on new classes",
        "accuracy on the new classes minus that of zero-shot CLIP with the same seed, in points; below 0, "
        "training has made the model forget",
        may_lack=True,
        unit="points",
    ),
    "own_base": MetricFacts(
        "Own models, base classes",
        "Own, base",
        "on the base classes with the clients' models",
        "each client's own model on all test images of the base classes, clients weighing equally",
        curve_on="new",
    ),
    "own_new": MetricFacts(
        "Own models, new classes",
        "Own, new",
        "on the new classes with the clients' models",
        "each client's own model on all test images of the new classes, clients weighing equally",
        curve_on="new",
        may_lack=True,
    ),
    "harmonic3": MetricFacts(
        "Harmonic mean of local, base and new",
        "HM of three",
        "on local, base and new classes together (harmonic mean)",
        "harmonic mean of the own models on their own classes (local), on the base classes and on the new "
        "ones, for each seed, then averaged",
        may_lack=True,
    ),
    "unseen": MetricFacts(
        "Unseen clients",
        "Unseen",
        "on unseen clients",
        "the global model on the test samples of clients that never take part; clients weigh equally",
        curve_on="unseen",
    ),
    "adapted": MetricFacts(
        "Unseen clients, adapted",
        "Adapted",
        "on unseen clients after adaptation",
        "each unseen client's model on its test samples, after local training on its own samples that "
        "begins with the trained model; measured after the last round",
        may_lack=True,
    ),
    "transfer": MetricFacts(
        "Transfer to other data",
        "Transfer",
        "on other data sets",
        "the global model on the test images of other data sets, each among its own names; data sets weigh "
        "equally",
        curve_on="transfer",
        may_lack=True,
    ),
    "local": MetricFacts(
        "Local classes",
        "Local",
        "on each client's classes with the global model",
        "the global model on the test images of each client's classes, among these names only; the mean "
        "over the clients of a data set, then over data sets",
        curve_on="local",
    ),
    "harmonic_local": MetricFacts(
        "Harmonic mean of local, base and new, global model",
        "HM of L, B, V",
        "on local, base and new classes together with the global model (harmonic mean)",
        "harmonic mean of local L, base B and new V of the global model, for each seed, then averaged",
    ),
}
"""In the order of the columns of a table."""
Breakdown = Literal["domain", "client", "held_out"]
BREAKDOWNS: dict[Breakdown, str] = {
    "domain": "Personal accuracy by domain",
    "client": "Personal accuracy by client",
    "held_out": "Generalisation G by held-out domain",
}
"""The accuracies that a mean is made of: by domain, client or held-out domain."""
TestSets = dict[str, dict[str, int]]
"""``own``, ``global`` or ``domain``, see ``recorded_test_sets`` -> test set -> number of test samples."""
SCORE_COLUMNS = {metric: facts.column for metric, facts in METRICS.items() if facts.column}
"""Metric that is recorded for every round -> its field of ``MeanAccuracy``."""
BY_ROUND = tuple(metric for metric, facts in METRICS.items() if facts.column or facts.curve_on)
"""Metrics that have a curve over the rounds."""
FURTHER = ("base", "new", "unseen", "transfer")
"""Kinds of test sets beside those of clients and domains."""
HALVES = ("base", "new")
"""Kinds of test sets that are all test images of the base or of the new classes."""
AVERAGED_ROUNDS = 10
"""Last rounds over which the rule ``mean10`` averages."""


@dataclass(frozen=True)
class RunResult:
    """The accuracies of one run in the selected rounds, per cent.

    Attributes:
        rounds: the selected rounds; empty if the rule selects none.
        breakdowns: accuracies by the name of a domain or client.
        test_images: domain -> number of test images, those of its clients if it has no test set.
        test_sets: those of each selected round, equal ones once.
    """

    run: RunRow
    rounds: tuple[int, ...]
    values: dict[Metric, float | None]
    breakdowns: dict[Breakdown, dict[str, float]] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    test_images: dict[str, int] = field(default_factory=dict)
    test_sets: tuple[TestSets, ...] = ()

    @property
    def rounds_text(self) -> str:
        """The selected rounds in words: ``7``, ``0 (before training)``, ``mean of 11 to 20``."""
        if len(self.rounds) == 1:
            return f"{self.rounds[0]}{' (before training)' if self.rounds == (0,) else ''}"
        full = len(self.rounds) == self.rounds[-1] - self.rounds[0] + 1
        count = "" if full else f", {len(self.rounds)} evaluated"
        return f"mean of {self.rounds[0]} to {self.rounds[-1]}{count}"


def selected_rounds(evaluated: Sequence[int], best: int | None, rule: Rule) -> tuple[int, ...]:
    """Return the rounds that a rule selects among the evaluated ones.

    Args:
        evaluated: rounds in ascending order.
        best: the best round on validation; None if it is not known.
    """
    if not evaluated:
        return ()
    if rule == "last":
        return (evaluated[-1],)
    if rule == "best":
        return (best,) if best is not None and best in evaluated else ()
    trained = [r for r in evaluated if r > max(0, evaluated[-1] - AVERAGED_ROUNDS)]
    return tuple(trained or evaluated)  # a run that does not train has round 0 only


def run_results(store: Store, runs: Sequence[RunRow], rule: Rule) -> list[RunResult]:
    """Read the results of some runs in the rounds that a rule selects."""
    selected = select_rounds(store, runs, rule)
    scores = {(s.run_id, s.round): s for s in store.rounds.mean_accuracy(selected)}
    recorded = store.cells.own_and_global(selected)
    recorded += [c for c in store.cells.on_kinds(selected, FURTHER) if c.model_kind != "global"]
    cells = group_by(recorded, lambda c: (c.run_id, c.round))
    results = []
    for run in runs:
        rounds = selected[run.id]
        by_round = [cells[run.id, r] for r in rounds if (run.id, r) in cells]
        means = [scores[run.id, r] for r in rounds]
        values: dict[Metric, float | None] = {
            metric: _mean_percent(getattr(mean, name) for mean in means)
            for metric, name in SCORE_COLUMNS.items()
        }
        values |= _cell_metrics(run.held_out, by_round)
        values |= harmonic_means(values)
        sets = [recorded_test_sets(of_round, run.held_out) for of_round in by_round]
        results.append(
            RunResult(
                run,
                rounds,
                values,
                _breakdowns(run.held_out, by_round),
                tuple(_domain_sets(by_round)),
                test_images(by_round),
                tuple(one for i, one in enumerate(sets) if one not in sets[:i]),
            )
        )
    return results


def select_rounds(store: Store, runs: Sequence[RunRow], rule: Rule) -> dict[int, tuple[int, ...]]:
    """Return the rounds that a rule selects of each run."""
    evaluated = store.rounds.evaluated_of_runs([r.id for r in runs])
    return {r.id: selected_rounds(evaluated.get(r.id, []), r.best_round, rule) for r in runs}


def recorded_test_sets(cells: Iterable[NamedCell], held_out: str | None) -> TestSets:
    """Return the test sets of a round's accuracies.

    They are those of the clients' own models (``own``), and of the global model on the clients' test sets
    (``global``) and on the domains' (``domain``; where one was held out, only that one enters a metric).
    """
    found: TestSets = {"own": {}, "global": {}, "domain": {}}
    for c in cells:
        if is_own(c):
            found["own"][c.test_set] = c.total
        elif c.model_kind == "global" and c.test_set_kind == "client":
            found["global"][c.test_set] = c.total
        elif c.model_kind == "global" and c.test_set_kind == "domain" and held_out in (None, c.test_set):
            found["domain"][c.test_set] = c.total
    return found


def test_images(rounds: Sequence[list[NamedCell]]) -> dict[str, int]:
    """Return the number of test images of each domain, those of its clients if it has no test set."""
    cells = (c for cs in rounds[-1:] for c in cs if is_own(c) and c.domain)
    by_domain = group_by(cells, lambda c: c.domain or "")
    return {domain: sum(c.total for c in cs) for domain, cs in by_domain.items()} | _domain_sets(rounds)


def _domain_sets(rounds: Sequence[list[NamedCell]]) -> dict[str, int]:
    """Return the number of test images of each domain that has a test set."""
    return {c.test_set: c.total for cells in rounds for c in cells if c.test_set_kind == "domain"}


def _cell_metrics(held_out: str | None, rounds: Sequence[list[NamedCell]]) -> dict[Metric, float | None]:
    """Return the metrics that are read from cells, in per cent, averaged over rounds."""
    by_round = [further_accuracies(cells) for cells in rounds]
    values: dict[Metric, float | None] = {
        m: _mean_percent(one.get(m) for one in by_round)
        for m in dict.fromkeys(m for one in by_round for m in one)
    }
    if held_out is None:
        halved = any(c.test_set_kind in HALVES for cells in rounds for c in cells)
        whole = None if halved else _mean_percent(global_accuracy(cells) for cells in rounds)
        return {"whole": whole, **values}
    return {
        **values,
        "generalisation": _mean_percent(global_accuracy(cells, held_out) for cells in rounds),
        "personalisation": _mean_percent(personalisation(cells, held_out) for cells in rounds),
        "comprehensive": _mean_percent(comprehensive(cells, held_out) for cells in rounds),
    }


def _breakdowns(held_out: str | None, rounds: Sequence[list[NamedCell]]) -> dict[Breakdown, dict[str, float]]:
    """Return accuracies by domain, client and held-out domain, in per cent, averaged over rounds."""
    shares: dict[Breakdown, list[dict[str, float]]] = {
        "domain": [accuracy_by_domain(cells) for cells in rounds],
        "client": [accuracy_by_client(cells) for cells in rounds],
    }
    if held_out is not None:
        unseen = [global_accuracy(cells, held_out) for cells in rounds]
        shares["held_out"] = [{held_out: share} for share in unseen if share is not None]
    means: dict[Breakdown, dict[str, float]] = {}
    for breakdown, by_round in shares.items():
        for name in dict.fromkeys(name for one in by_round for name in one):
            value = _mean_percent(one.get(name) for one in by_round)
            if value is not None:
                means.setdefault(breakdown, {})[name] = value
    return means


def _mean_percent(shares: Iterable[float | None]) -> float | None:
    mean = mean_or_none(shares)
    return None if mean is None else 100 * mean


def is_own(c: NamedCell) -> bool:
    """Return whether a cell is of a client's own model on its own test samples."""
    return c.model_kind == c.test_set_kind == "client" and c.model == c.test_set


def accuracy_by_client(cells: Iterable[NamedCell]) -> dict[str, float]:
    """Return the accuracy of each client's own model on its own test samples."""
    return {c.model: c.correct / c.total for c in cells if is_own(c)}


def accuracy_by_domain(cells: Iterable[NamedCell]) -> dict[str, float]:
    """Return the mean of ``accuracy_by_client`` over each domain's clients; empty without domains."""
    by_domain = group_by((c for c in cells if is_own(c) and c.domain), lambda c: c.domain or "")
    return {domain: float(np.mean([c.correct / c.total for c in cs])) for domain, cs in by_domain.items()}


def global_accuracy(cells: Iterable[NamedCell], domain: str | None = None) -> float | None:
    """Return the global model's accuracy on a domain's test set, by default on all domains' together.

    The latter is FedAlign's global performance; None if no such cell was recorded. Where test sets were
    sampled, each domain's share weighs as many samples as its whole test set has: samples of equal size
    would let small domains weigh as much as large ones.
    """
    chosen = [
        c
        for c in cells
        if c.model_kind == "global" and c.test_set_kind == "domain" and domain in (None, c.test_set)
    ]
    if all(c.size in (None, c.total) for c in chosen):
        return sum(c.correct for c in chosen) / sum(c.total for c in chosen) if chosen else None
    sizes = [c.total if c.size is None else c.size for c in chosen]
    weighted = (size * c.correct / c.total for size, c in zip(sizes, chosen, strict=True))
    return sum(weighted) / sum(sizes)


def further_accuracies(cells: Iterable[NamedCell]) -> dict[Metric, float]:
    """Return the accuracies of one round on further test sets, as far as they were recorded."""
    names: dict[tuple[str, str], Metric] = {
        ("global", "base"): "base",
        ("global", "new"): "new",
        ("client", "base"): "own_base",
        ("client", "new"): "own_new",
        ("global", "unseen"): "unseen",
        ("adapted", "unseen"): "adapted",
        ("global", "transfer"): "transfer",
    }
    cells = list(cells)
    found = group_by(cells, lambda c: (c.model_kind, c.test_set_kind))
    shares = {
        names[key]: float(np.mean([c.correct / c.total for c in of_kind]))
        for key, of_kind in found.items()
        if key in names
    }
    local = local_accuracy(cells)
    return shares if local is None else {**shares, "local": local}


def local_accuracy(cells: Sequence[NamedCell]) -> float | None:
    """Return the global model's accuracy on clients' classes among themselves; None in other protocols.

    Source: Qiu et al., FedTPG, 2024: the mean over the clients of a data set, then over data sets.
    """
    if not any(c.test_set_kind == "base" and c.domain for c in cells):  # a column for each data set
        return None
    clients = (c for c in cells if (c.model_kind, c.test_set_kind) == ("global", "client"))
    by_data = group_by(clients, lambda c: c.domain)
    return mean_or_none(
        mean_or_none(c.correct / c.total for c in of_dataset) for of_dataset in by_data.values()
    )


def metrics_by_round(test_sets: Iterable[tuple[str, str | None]]) -> set[Metric]:
    """Return the metrics that have a curve in a run with test sets of these kinds and domains."""
    recorded = set(test_sets)
    kinds = {kind for kind, _ in recorded}
    if any(kind == "base" and domain for kind, domain in recorded):  # as ``local_accuracy`` has it
        kinds.add("local")
    return {metric for metric in BY_ROUND if METRICS[metric].column or METRICS[metric].curve_on in kinds}


def harmonic_means(values: Mapping[Metric, float | None]) -> dict[Metric, float | None]:
    """Return the harmonic means of a run's accuracies, or of one round's.

    Where classes are disjoint, a client's own classes are its own test samples.
    """
    local = values.get("classes")
    local = values.get("personal") if local is None else local
    return {
        "dual": harmonic_mean(values.get("global"), values.get("personal")),
        "harmonic": harmonic_mean(values.get("base"), values.get("new")),
        "harmonic3": harmonic_mean(local, values.get("own_base"), values.get("own_new")),
        "harmonic_local": harmonic_mean(*(values.get(m) for m in ("local", "base", "new"))),
    }


def harmonic_mean(*values: float | None) -> float | None:
    """Return the harmonic mean; 0 if one of the values is 0, None if one is not known."""
    defined = [v for v in values if v is not None]
    if len(defined) < len(values):
        return None
    return len(defined) / sum(1 / v for v in defined) if all(defined) else 0.0


def personalisation(cells: Sequence[NamedCell], held_out: str | None) -> float | None:
    """Return P of one run: the mean over domains but the held-out one of own models on their own domain."""
    return mean_or_none(_own_accuracies(cells, held_out))


def comprehensive(cells: Sequence[NamedCell], held_out: str | None) -> float | None:
    """Return C of one run: the mean of the global model's G and the own models' accuracies by domain."""
    shares, unseen = _own_accuracies(cells, held_out), global_accuracy(cells, held_out)
    return mean_or_none([*shares, unseen]) if shares and unseen is not None else None


def _own_accuracies(cells: Sequence[NamedCell], held_out: str | None) -> list[float]:
    """Return own models' accuracies by domain except the held-out one, or by client without domains."""
    by_domain = {domain: share for domain, share in accuracy_by_domain(cells).items() if domain != held_out}
    return list((by_domain or accuracy_by_client(cells)).values())


def complete_seeds(runs: Iterable[RunResult]) -> list[RunResult]:
    """Return the runs of seeds that have every held-out domain that any seed has.

    A mean over fewer domains is another quantity, and its distance from the others does not measure the
    spread over seeds.
    """
    runs = list(runs)
    domains = {
        seed: {r.run.held_out for r in of_seed}
        for seed, of_seed in group_by(runs, lambda r: r.run.seed).items()
    }
    all_domains = set[str | None]().union(*domains.values())
    return [r for r in runs if domains[r.run.seed] == all_domains]


def value_per_seed(runs: Iterable[RunResult], metric: Metric) -> dict[int, float]:
    """Return a value per complete seed: the mean over its held-out domains, or of its one run."""
    measured = complete_seeds(r for r in runs if r.values.get(metric) is not None)
    by_seed = sorted(group_by(measured, lambda r: r.run.seed).items())
    means = {seed: mean_or_none(r.values[metric] for r in results) for seed, results in by_seed}
    return {seed: mean for seed, mean in means.items() if mean is not None}
