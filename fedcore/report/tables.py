"""From recorded rounds to comparison tables: mean over clients within a run, then mean and spread over seeds.

All accuracies are per cent. ``figures`` draws these tables and ``export`` writes them: a file and the screen
hold the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedcore.config import RunConfig
from fedcore.report.settings import distinct_titles, flatten, keys_of, setting_title
from fedcore.runs import queries
from fedcore.runs.queries import RunRow

Rule = Literal["last", "best", "mean10"]
RULES: dict[Rule, str] = {
    "last": "last round",
    "best": "best on validation",
    "mean10": "mean of last ten rounds",
}
"""How a run's round is chosen. Never by test accuracy."""

Metric = Literal["personal", "weighted", "worst", "global", "held_out"]
METRICS: dict[Metric, str] = {
    "personal": "Personal accuracy",
    "weighted": "Personal accuracy, weighted by samples",
    "worst": "Worst client",
    "global": "Global model",
    "held_out": "Held-out domain",
}
METRIC_HEADS: dict[Metric, str] = {
    "personal": "Personal",
    "weighted": "Weighted",
    "worst": "Worst client",
    "global": "Global",
    "held_out": "Held-out domain",
}
METRIC_HELP: dict[Metric, str] = {
    "personal": "each client's own model on its own test samples, clients weighing equally",
    "weighted": "the same, every test sample weighing equally",
    "worst": "the client whose own model does worst on its own test samples",
    "global": "the global model on the clients' test samples; empty where a method has none",
    "held_out": "the global model, or the mean of the clients' models, on the domain nobody trained on",
}
_SCORE_FIELDS: dict[Metric, str] = {
    "personal": "personal_mean",
    "weighted": "personal_weighted",
    "worst": "personal_worst",
    "global": "global_mean",
}
LAST_TEN = 10
_NOT_CONFIG = ("seed", "held_out", "method.label")


@dataclass(frozen=True)
class Stat:
    """Mean over seeds. ``std`` is the sample standard deviation (ddof = 1), None for a single seed."""

    mean: float
    std: float | None
    n: int

    def text(self, digits: int = 1) -> str:
        """``85.3 ± 0.4``; without the spread for one seed."""
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def spread(values: Iterable[float | None]) -> Stat | None:
    """Mean and sample standard deviation of the values that are there; None where there are none."""
    known = np.array([v for v in values if v is not None and not math.isnan(v)], dtype=np.float64)
    if known.size == 0:
        return None
    std = float(known.std(ddof=1)) if known.size > 1 else None
    return Stat(float(known.mean()), std, int(known.size))


@dataclass(frozen=True)
class RunValue:
    """One run with its accuracies (per cent) in the chosen rounds."""

    run: RunRow
    rounds: tuple[int, ...]
    values: dict[Metric, float | None]

    @property
    def taken(self) -> str:
        """The chosen rounds in words: ``7``, ``0 (before training)``, ``mean of 11 to 20``."""
        if len(self.rounds) == 1:
            return f"{self.rounds[0]}{' (before training)' if self.rounds == (0,) else ''}"
        full = len(self.rounds) == self.rounds[-1] - self.rounds[0] + 1
        count = "" if full else f", {len(self.rounds)} evaluated"
        return f"mean of {self.rounds[0]} to {self.rounds[-1]}{count}"


@dataclass(frozen=True)
class Group:
    """Runs that differ by seed and held-out domain only: one row of a table.

    Attributes:
        label: unique within the setting; says what differs where one method appears twice.
        setting: what must be equal for two rows to be compared (data, partition, backbone).
    """

    key: str
    label: str
    method: str
    setting: str
    runs: tuple[RunValue, ...]
    stats: dict[Metric, Stat]
    config: RunConfig

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that went into the mean."""
        return tuple(sorted({r.run.seed for r in self.runs}))


@dataclass(frozen=True)
class Comparison:
    """What a comparison shows. ``settings``: key -> title; ``notes``: what was left out."""

    rule: Rule
    groups: tuple[Group, ...]
    settings: dict[str, str]
    notes: tuple[str, ...]

    def of(self, setting: str) -> tuple[Group, ...]:
        """The rows of one setting."""
        return tuple(g for g in self.groups if g.setting == setting)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that at least one row has."""
        return tuple(m for m in METRICS if any(m in g.stats for g in self.groups))


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


def compare(
    db: str | Path,
    experiment_ids: Iterable[int],
    rule: Rule = "last",
    *,
    unfinished: bool = False,
    partial_seeds: bool = False,
) -> Comparison:
    """The comparison of all runs of some experiments.

    Args:
        unfinished: also take runs that have not done all their rounds.
        partial_seeds: also hand out the runs of seeds that lack a held-out domain; no mean takes them.
    """
    runs = queries.runs_of(db, experiment_ids)
    configs = queries.configs(db, [r.id for r in runs])
    keys = keys_of(db, configs)
    kept, notes = _select(runs, keys, unfinished)
    values = _run_values(db, kept, rule)
    notes += _round_notes(values, rule)
    grouped: dict[tuple[str, str], list[RunValue]] = {}
    for value in values:
        if value.rounds:
            name = f"{value.run.group_hash}/{value.run.label}"
            grouped.setdefault((keys[value.run.id], name), []).append(value)
    if not partial_seeds:
        grouped, lost = _without_partial(grouped)
        notes += lost
    settings = {s: setting_title(configs[members[0].run.id]) for (s, _), members in grouped.items()}
    groups = [
        Group(
            key,
            members[0].run.label,
            members[0].run.method,
            setting,
            tuple(members),
            _stats(members),
            configs[members[0].run.id],
        )
        for (setting, key), members in grouped.items()
    ]
    return Comparison(rule, tuple(_distinct(groups)), distinct_titles(settings), tuple(notes))


def _without_partial(
    grouped: dict[tuple[str, str], list[RunValue]],
) -> tuple[dict[tuple[str, str], list[RunValue]], list[str]]:
    """Rows with their whole seeds alone, and what was left out; a row without any goes."""
    found, notes = {}, []
    for key, members in grouped.items():
        kept = whole_seeds(members)
        if kept:
            found[key] = kept
        lost = sorted({v.run.seed for v in members} - {v.run.seed for v in kept})
        if lost:
            notes.append(
                f"{members[0].run.label}, seed {', '.join(map(str, lost))}: left out, "
                "a held-out domain that another seed has is missing"
            )
    return found, notes


def _round_notes(values: Sequence[RunValue], rule: Rule) -> list[str]:
    """What a reader must know of the chosen rounds: one line per method and fact."""
    found: dict[tuple[str, str], list[int]] = {}
    for v in values:
        fact = None
        if rule == "best" and not v.rounds and v.run.rounds_done:
            fact = "no validation accuracy, so no round can be chosen by it"
        elif rule == "best" and v.rounds == (0,) and v.run.method != "zero-shot":
            fact = "best on validation is round 0 (before training)"
        elif rule == "mean10" and v.rounds != (0,) and 0 < len(v.rounds) < LAST_TEN:
            fact = f"only {len(v.rounds)} of the last ten rounds evaluated"
        if fact:
            found.setdefault((v.run.label, fact), []).append(v.run.seed)
    return [
        f"{label}, seed {', '.join(map(str, sorted(set(seeds))))}: {fact}"
        for (label, fact), seeds in found.items()
    ]


def _select(
    runs: Sequence[RunRow], keys: Mapping[int, str], unfinished: bool
) -> tuple[list[RunRow], list[str]]:
    """Runs to average; ``keys``: run -> setting. A repeated seed counts once: it is no further evidence."""
    usable = [r for r in runs if r.state == "done" or (unfinished and r.rounds_done > 0)]
    notes = []
    missing = len(runs) - len(usable)
    if missing:
        notes.append(f"{_count(missing, 'run')} not finished and left out")
    newest: dict[tuple[str, str, str, int, str | None], RunRow] = {}
    for run in usable:
        key = (keys[run.id], run.group_hash, run.label, run.seed, run.held_out)
        other = newest.get(key)
        if other is None or (run.state == "done", run.id) > (other.state == "done", other.id):
            newest[key] = run
    repeats = len(usable) - len(newest)
    if repeats:
        notes.append(f"{_count(repeats, 'run')} a repeat of the same config and seed: the newest counts")
    kept = {r.id for r in newest.values()}
    return [r for r in usable if r.id in kept], notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{' is' if number == 1 else 's are'}"


def _run_values(db: str | Path, runs: Sequence[RunRow], rule: Rule) -> list[RunValue]:
    points: dict[int, dict[int, queries.CurvePoint]] = {r.id: {} for r in runs}
    for point in queries.curves(db, points):
        points[point.run_id][point.round] = point
    chosen = {r.id: chosen_rounds(sorted(points[r.id]), r.best_round, rule) for r in runs}
    held_out = _held_out(db, [r for r in runs if r.held_out is not None], chosen)
    found = []
    for run in runs:
        rows = [points[run.id][r] for r in chosen[run.id]]
        values: dict[Metric, float | None] = {
            metric: _mean_percent([getattr(row, name) for row in rows])
            for metric, name in _SCORE_FIELDS.items()
        }
        values["held_out"] = held_out.get(run.id)
        found.append(RunValue(run, chosen[run.id], values))
    return found


def _held_out(
    db: str | Path, runs: Sequence[RunRow], chosen: Mapping[int, tuple[int, ...]]
) -> dict[int, float | None]:
    """Accuracy on the domain that nobody trained on, per cent."""
    shares: dict[int, list[float]] = {}
    for depth in range(max((len(chosen[r.id]) for r in runs), default=0)):
        at = {r.id: chosen[r.id][depth] for r in runs if len(chosen[r.id]) > depth}
        cells: dict[int, dict[str, list[float]]] = {}
        for c in queries.cells_at(db, at):
            if c.test_set_kind == "domain" and c.test_set == next(
                r.held_out for r in runs if r.id == c.run_id
            ):
                cells.setdefault(c.run_id, {}).setdefault(c.model_kind, []).append(c.correct / c.total)
        for run_id, kinds in cells.items():
            shares.setdefault(run_id, []).append(float(np.mean(kinds.get("global") or kinds["client"])))
    return {run_id: 100 * float(np.mean(values)) for run_id, values in shares.items()}


def _mean_percent(shares: Sequence[float | None]) -> float | None:
    known = [s for s in shares if s is not None]
    return 100 * float(np.mean(known)) if known else None


def whole_seeds(runs: Iterable[RunValue]) -> list[RunValue]:
    """The runs of seeds that have every held-out domain that any seed has.

    A mean over fewer domains is another quantity: its distance from the others is no spread over seeds.
    """
    runs = list(runs)
    domains: dict[int, set[str | None]] = {}
    for value in runs:
        domains.setdefault(value.run.seed, set()).add(value.run.held_out)
    wanted = set().union(*domains.values())
    return [v for v in runs if domains[v.run.seed] == wanted]


def per_seed(runs: Iterable[RunValue], metric: Metric) -> dict[int, float]:
    """One value per whole seed: the mean over its held-out domains (one value where there is none)."""
    by_seed: dict[int, list[float]] = {}
    for value in whole_seeds(v for v in runs if v.values[metric] is not None):
        by_seed.setdefault(value.run.seed, []).append(value.values[metric])
    return {seed: float(np.mean(numbers)) for seed, numbers in sorted(by_seed.items())}


def _stats(runs: Sequence[RunValue]) -> dict[Metric, Stat]:
    stats = {metric: spread(per_seed(runs, metric).values()) for metric in METRICS}
    return {metric: stat for metric, stat in stats.items() if stat is not None}


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """Labels that tell rows of one setting apart: by the hyper-parameters that differ, else by their hash."""
    found = []
    for group in groups:
        twins = [g for g in groups if g.setting == group.setting and g.label == group.label]
        if len(twins) > 1:
            flat = flatten(group.config)
            others = [flatten(g.config) for g in twins if g is not group]
            differing = [k for k in flat if any(o.get(k) != flat[k] for o in others)]
            named = [f"{k.split('.')[-1]} {flat[k]}" for k in differing if k not in _NOT_CONFIG]
            text = ", ".join(named[:2]) or group.key[:6]
            group = replace(group, label=f"{group.label} ({text})")
        found.append(group)
    return found


def config_differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Fields that are not equal in all rows: field -> one text per row, ``-`` where a row has none."""
    flat = [flatten(g.config) for g in groups]
    names = list(dict.fromkeys(name for f in flat for name in f if name not in _NOT_CONFIG))
    table = {name: [_shown(f, name) for f in flat] for name in names}
    return {name: row for name, row in table.items() if len(set(row)) > 1}


def _shown(flat: Mapping[str, Any], name: str) -> str:
    if name not in flat:
        return "-"
    return "none" if flat[name] is None else str(flat[name])


def difference(group: Group, baseline: Group | None, metric: Metric) -> float | None:
    """Points by which a row's mean exceeds the baseline's; None for the baseline and across settings."""
    if baseline is None or baseline.setting != group.setting or baseline.key == group.key:
        return None
    if metric not in group.stats or metric not in baseline.stats:
        return None
    return group.stats[metric].mean - baseline.stats[metric].mean


def ranks(groups: Sequence[Group], metric: Metric) -> tuple[set[str], set[str]]:
    """Keys of the best and of the second best rows of a setting; equal as printed (one decimal) is equal."""
    shown = {g.key: round(g.stats[metric].mean, 1) for g in groups if metric in g.stats}
    levels = sorted(set(shown.values()), reverse=True)
    best = {k for k, v in shown.items() if levels and v == levels[0]}
    second = {k for k, v in shown.items() if len(levels) > 1 and v == levels[1]}
    return best, second
