"""The metrics of a run: which of its rounds count, and its accuracies in them.

Accuracies are in per cent; ``fedcore.results.frames`` says how they are read from cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from fedcore.results.frames import (
    FURTHER,
    ROUND,
    cell_frame,
    client_shares,
    domain_shares,
    round_metrics,
    with_harmonic_means,
)
from fedcore.results.statistics import group_by, mean_or_none
from fedcore.store import RunRow, Store
from fedcore.store.rounds import MeanAccuracy

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T", int, float)

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
"""``own``, ``global`` or ``domain``, see ``_test_sets`` -> test set -> number of test samples."""
SCORE_COLUMNS = {metric: facts.column for metric, facts in METRICS.items() if facts.column}
"""Metric that is recorded for every round -> its field of ``MeanAccuracy``."""
BY_ROUND = tuple(metric for metric, facts in METRICS.items() if facts.column or facts.curve_on)
"""Metrics that have a curve over the rounds."""
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
    import pandas as pd

    selected = select_rounds(store, runs, rule)
    recorded = store.cells.own_and_global(selected)
    recorded += [c for c in store.cells.on_kinds(selected, FURTHER) if c.model_kind != "global"]
    cells = cell_frame(recorded, runs)
    chosen = pd.MultiIndex.from_tuples(
        [(run, round_) for run, rounds in selected.items() for round_ in rounds], names=ROUND
    )
    by_round = score_frame(store.rounds.mean_accuracy_at(selected)).reindex(chosen).join(round_metrics(cells))
    values = with_harmonic_means(100 * by_round.groupby("run_id").mean())
    by_metric = values.reindex(columns=list(METRICS)).to_numpy().tolist()
    of_runs: dict[int, dict[Metric, float | None]] = {
        run: {m: None if math.isnan(v) else v for m, v in zip(METRICS, row, strict=True)}
        for run, row in zip(values.index.tolist(), by_metric, strict=True)
    }
    parts: dict[Breakdown, dict[int, dict[str, float]]] = {
        "domain": _by_run(100 * domain_shares(cells)),
        "client": _by_run(100 * client_shares(cells)),
    }
    images, sets = test_images(cells), _test_sets(cells)
    domains = _domain_sets(cells)
    results = []
    for run in runs:
        found = of_runs.get(run.id, {})
        breakdowns = {part: shares[run.id] for part, shares in parts.items() if run.id in shares}
        if run.held_out is not None and (unseen := found.get("generalisation")) is not None:
            breakdowns["held_out"] = {run.held_out: unseen}
        results.append(
            RunResult(
                run,
                selected[run.id],
                found,
                breakdowns,
                tuple(domains.get(run.id, ())),
                images.get(run.id, {}),
                tuple(sets.get(run.id, ())),
            )
        )
    return results


def score_frame(scores: Iterable[MeanAccuracy]) -> pd.DataFrame:
    """Return recorded means as ``round_metrics`` returns those of cells."""
    import pandas as pd

    frame = pd.DataFrame.from_records(list(scores), columns=MeanAccuracy._fields).set_index(ROUND)
    return frame.rename(columns={column: metric for metric, column in SCORE_COLUMNS.items()}).astype(float)


def select_rounds(store: Store, runs: Sequence[RunRow], rule: Rule) -> dict[int, tuple[int, ...]]:
    """Return the rounds that a rule selects of each run."""
    ids = [r.id for r in runs]
    evaluated = (
        store.rounds.evaluated_of_runs(ids)
        if rule == "best"
        else store.rounds.last_evaluated(ids, AVERAGED_ROUNDS)
    )
    return {r.id: selected_rounds(evaluated.get(r.id, []), r.best_round, rule) for r in runs}


def test_images(cells: pd.DataFrame) -> dict[int, dict[str, int]]:
    """Return by run the number of test images of each domain, those of its clients if it has no test set."""
    own = cells[cells.own & cells.domain.notna()]
    last = own[own["round"] == own.run_id.map(cells.groupby("run_id")["round"].max())]
    of_clients = last.groupby(["run_id", "domain"], sort=False).total.sum()
    images = _nested(of_clients)
    for run, totals in _domain_sets(cells).items():
        images[run] = images.get(run, {}) | totals
    return images


def _domain_sets(cells: pd.DataFrame) -> dict[int, dict[str, int]]:
    """Return by run the number of test images of each domain that has a test set."""
    return _nested(cells[cells.test_set_kind == "domain"].set_index(["run_id", "test_set"]).total)


def _test_sets(cells: pd.DataFrame) -> dict[int, list[TestSets]]:
    """Return by run the test sets of each round's accuracies, equal ones once.

    They are those of the clients' own models (``own``), and of the global model on the clients' test sets
    (``global``) and on the domains' (``domain``; where one was held out, only that one enters a metric).
    """
    shown = cells.held_out.isna() | (cells.held_out == cells.test_set)
    kinds = cells.test_set_kind.map({"client": "global", "domain": "domain"}).where(
        (cells.model_kind == "global") & ((cells.test_set_kind != "domain") | shown)
    )
    kinds = kinds.where(~cells.own, "own")
    of_rounds: dict[tuple[int, int], TestSets] = {}
    columns = (cells.run_id, cells["round"], kinds, cells.test_set, cells.total)
    for run, round_, kind, name, total in zip(*(column.tolist() for column in columns), strict=True):
        sets = of_rounds.setdefault((run, round_), {"own": {}, "global": {}, "domain": {}})
        if isinstance(kind, str):
            sets[kind][name] = total
    by_run: dict[int, list[TestSets]] = {}
    for (run, _), sets in of_rounds.items():
        if sets not in (found := by_run.setdefault(run, [])):
            found.append(sets)
    return by_run


def _by_run(values: pd.Series[float]) -> dict[int, dict[str, float]]:
    """Return values by round and name as the means over each run's rounds, by run and name."""
    name = values.index.names[-1]
    return _nested(values.groupby(["run_id", name], sort=False).mean())


def _nested(values: pd.Series[T]) -> dict[int, dict[str, T]]:
    found: dict[int, dict[str, T]] = {}
    for (run, name), value in zip(values.index.tolist(), values.tolist(), strict=True):
        found.setdefault(run, {})[name] = value
    return found


def metrics_by_round(test_sets: Iterable[tuple[str, str | None]]) -> set[Metric]:
    """Return the metrics that have a curve in a run with test sets of these kinds and domains."""
    recorded = set(test_sets)
    kinds = {kind for kind, _ in recorded}
    if any(kind == "base" and domain for kind, domain in recorded):  # as ``round_metrics`` has it
        kinds.add("local")
    return {metric for metric in BY_ROUND if METRICS[metric].column or METRICS[metric].curve_on in kinds}


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
