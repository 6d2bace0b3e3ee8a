"""From recorded rounds to comparison tables: mean over clients within a run, then mean and spread over seeds.

All accuracies are per cent. ``figures`` draws these tables and ``export`` writes them: a file and the screen
hold the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedcore.config import RunConfig
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


def setting_key(config: RunConfig) -> str:
    """Equal for runs that pose the same problem."""
    part = config.model_dump(mode="json", include={"data", "partition", "backbone"})
    part["data"].pop("root")  # where a folder lies does not change what is in it
    part["lodo"] = config.held_out is not None
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def setting_title(config: RunConfig) -> str:
    """``rotated-digits · domain · mini-vit``: the data, who holds what, the CLIP."""
    part = config.partition
    who = {
        "domain": "by domain",
        "iid": "IID",
        "dirichlet": f"Dirichlet({part.alpha:g})" if part.alpha else "Dirichlet",
    }
    parts = [config.data.name, who.get(part.kind, part.kind), config.backbone.name]
    parts += ["one domain held out"] if config.held_out is not None else []
    return " · ".join(parts)


def chosen_rounds(evaluated: Sequence[int], best: int | None, rule: Rule) -> tuple[int, ...]:
    """The rounds a rule picks among the evaluated ones (ascending); empty where it has no answer."""
    if not evaluated:
        return ()
    if rule == "last":
        return (evaluated[-1],)
    if rule == "best":
        return (best,) if best is not None and best in evaluated else ()
    trained = [r for r in evaluated if r > 0] or list(evaluated)
    return tuple(trained[-LAST_TEN:])


def compare(
    db: str | Path, experiment_ids: Iterable[int], rule: Rule = "last", *, unfinished: bool = False
) -> Comparison:
    """The comparison of all runs of some experiments.

    Args:
        unfinished: also take runs that have not done all their rounds.
    """
    runs = queries.runs_of(db, experiment_ids)
    kept, notes = _select(runs, unfinished)
    configs = queries.configs(db, [r.id for r in kept])
    values = _run_values(db, kept, rule)
    notes += [
        f"{v.run.label}, seed {v.run.seed}: no validation accuracy, so no round can be chosen by it"
        for v in values
        if not v.rounds and rule == "best" and v.run.rounds_done
    ]
    grouped: dict[tuple[str, str], list[RunValue]] = {}
    settings: dict[str, str] = {}
    for value in values:
        if value.rounds:
            config = configs[value.run.id]
            setting = setting_key(config)
            settings.setdefault(setting, setting_title(config))
            grouped.setdefault((setting, f"{value.run.group_hash}/{value.run.label}"), []).append(value)
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
    return Comparison(rule, tuple(_distinct(groups)), _distinct_titles(settings), tuple(notes))


def _select(runs: Sequence[RunRow], unfinished: bool) -> tuple[list[RunRow], list[str]]:
    """Runs to average. A repeated seed counts once: a repeat is no further evidence."""
    usable = [r for r in runs if r.state == "done" or (unfinished and r.rounds_done > 0)]
    notes = []
    missing = len(runs) - len(usable)
    if missing:
        notes.append(f"{_count(missing, 'run')} not finished and left out")
    newest: dict[tuple[str, str, int, str | None], RunRow] = {}
    for run in usable:
        key = (run.group_hash, run.label, run.seed, run.held_out)
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


def per_seed(runs: Iterable[RunValue], metric: Metric) -> dict[int, float]:
    """One value per seed: the mean over its held-out domains (one value where there is none)."""
    by_seed: dict[int, list[float]] = {}
    for value in runs:
        number = value.values[metric]
        if number is not None:
            by_seed.setdefault(value.run.seed, []).append(number)
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


def _distinct_titles(settings: dict[str, str]) -> dict[str, str]:
    titles = list(settings.values())
    return {k: f"{t} [{k[:4]}]" if titles.count(t) > 1 else t for k, t in settings.items()}


def flatten(config: RunConfig) -> dict[str, Any]:
    """A run's config as dotted names, lists as text."""

    def walk(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from walk(inner, f"{prefix}.{key}" if prefix else key)
        else:
            yield prefix, json.dumps(value) if isinstance(value, (list, dict)) else value

    return dict(walk(config.model_dump(mode="json"), ""))


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
