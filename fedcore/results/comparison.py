"""Comparison tables from recorded runs: means over clients, then mean and spread over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedcore.config import RunConfig
from fedcore.config.field_names import field_words, value_text
from fedcore.results.metrics import (
    AVERAGED_ROUNDS,
    METRICS,
    Breakdown,
    Metric,
    Rule,
    RunResult,
    complete_seeds,
    run_results,
    value_per_seed,
)
from fedcore.results.settings import (
    NOT_COMPARED,
    config_for_display,
    distinct_titles,
    distinguishing_texts,
    result_caveat,
    row_key,
    setting_keys,
)
from fedcore.results.statistics import PairedTest, Stat, Test, holm, paired_test, spread
from fedcore.store import RunRow, Store

RECORDED_ELSEWHERE = " (recorded elsewhere)"
CAVEAT_MARK = "†"
"""Marks a row whose runs are not quite what their config says, and the note that says why."""


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
    runs: tuple[RunResult, ...]
    stats: dict[Metric, Stat]
    config: RunConfig
    breakdowns: dict[Breakdown, dict[str, Stat]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that went into the mean."""
        return tuple(sorted({r.run.seed for r in self.runs}))

    @property
    def trained_by_fedlens(self) -> bool:
        """Whether FedLens trained them; else they were recorded by a script or imported from a table."""
        return self.runs[0].run.origin == "engine"

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Their config as a flat table, defaults written out where FedLens trained."""
        return config_for_display(self.config, self.trained_by_fedlens)

    @cached_property
    def caveat(self) -> str:
        """How these runs depart from what their config promises; empty: they do not, or who knows."""
        return result_caveat(self.config) if self.trained_by_fedlens else ""


@dataclass(frozen=True)
class Comparison:
    """What a comparison shows. ``settings``: key -> title; ``notes``: what was left out."""

    rule: Rule
    groups: tuple[Group, ...]
    settings: dict[str, str]
    notes: tuple[str, ...]

    def groups_in(self, setting: str) -> tuple[Group, ...]:
        """The rows of one setting."""
        return tuple(g for g in self.groups if g.setting == setting)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that at least one row has."""
        return tuple(m for m in METRICS if any(m in g.stats for g in self.groups))


def compare(
    store: Store,
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
    runs = store.runs.of_experiments(experiment_ids)
    configs = store.runs.configs([r.id for r in runs])
    keys = setting_keys(store, configs)
    names = _row_keys(runs, configs)
    kept, notes = _newest_runs(runs, {r.id: (keys[r.id], names[r.id]) for r in runs}, unfinished)
    values = run_results(store, kept, rule)
    notes += _round_notes(values, rule)
    grouped: dict[tuple[str, str], list[RunResult]] = {}
    for value in values:
        if value.rounds:
            grouped.setdefault((keys[value.run.id], names[value.run.id]), []).append(value)
    if not partial_seeds:
        grouped, lost = _complete_seeds_only(grouped)
        notes += lost
    settings = {s: configs[members[0].run.id] for (s, _), members in grouped.items()}
    groups = [
        Group(
            key,
            members[0].run.label,
            members[0].run.method,
            setting,
            tuple(members),
            _stats(members),
            configs[members[0].run.id],
            _breakdown_stats(members),
        )
        for (setting, key), members in grouped.items()
    ]
    notes += _domain_notes(groups) + _protocol_notes(groups)
    rows = tuple(_with_distinct_labels(groups))
    titles = distinct_titles(settings)
    notes += _caveat_notes(rows, titles)
    return Comparison(rule, rows, titles, tuple(notes))


def _row_keys(runs: Iterable[RunRow], configs: Mapping[int, RunConfig]) -> dict[int, str]:
    """Run -> the row that it belongs to; runs of one stored hash are looked into once."""
    known: dict[tuple[str, bool], str] = {}
    found = {}
    for run in runs:
        stored = run.group_hash, run.origin == "engine"
        key = known.get(stored) or known.setdefault(stored, row_key(configs[run.id], stored[1]))
        found[run.id] = f"{key}/{run.label}"
    return found


def _caveat_notes(rows: Sequence[Group], titles: Mapping[str, str]) -> list[str]:
    """A line for every marked row; labels are unique within a setting only, so of several it is named."""
    where = {key: f" ({title})" if len(titles) > 1 else "" for key, title in titles.items()}
    return [f"{CAVEAT_MARK} {g.label}{where[g.setting]}: {g.caveat}" for g in rows if g.caveat]


def _complete_seeds_only(
    grouped: dict[tuple[str, str], list[RunResult]],
) -> tuple[dict[tuple[str, str], list[RunResult]], list[str]]:
    """Rows with their whole seeds alone, and what was left out; a row without any goes."""
    found, notes = {}, []
    for key, members in grouped.items():
        kept = complete_seeds(members)
        if kept:
            found[key] = kept
        lost = sorted({v.run.seed for v in members} - {v.run.seed for v in kept})
        if lost:
            notes.append(
                f"{members[0].run.label}, seed {', '.join(map(str, lost))}: left out, "
                "a held-out domain that another seed has is missing"
            )
    return found, notes


def _round_notes(values: Sequence[RunResult], rule: Rule) -> list[str]:
    """What a reader must know of the chosen rounds: one line per method and fact."""
    found: dict[tuple[str, str], list[int]] = {}
    for v in values:
        fact = None
        if rule == "best" and not v.rounds and v.run.rounds_done:
            fact = "no validation accuracy, so no round can be chosen by it"
        elif rule == "best" and v.rounds == (0,) and v.run.method != "zero-shot":
            fact = "best on validation is round 0 (before training)"
        elif rule == "mean10" and v.rounds != (0,) and 0 < len(v.rounds) < AVERAGED_ROUNDS:
            fact = f"only {len(v.rounds)} of the last ten rounds evaluated"
        if fact:
            found.setdefault((v.run.label, fact), []).append(v.run.seed)
    return [
        f"{label}, seed {', '.join(map(str, sorted(set(seeds))))}: {fact}"
        for (label, fact), seeds in found.items()
    ]


def _newest_runs(
    runs: Sequence[RunRow], rows: Mapping[int, tuple[str, str]], unfinished: bool
) -> tuple[list[RunRow], list[str]]:
    """Runs to average; ``rows``: run -> setting, name. A repeated seed counts once: no more evidence."""
    usable = [r for r in runs if r.state == "done" or (unfinished and r.rounds_done > 0)]
    notes = []
    missing = len(runs) - len(usable)
    if missing:
        notes.append(f"{_count(missing, 'run')} not finished and left out")
    newest: dict[tuple[tuple[str, str], int, str | None], RunRow] = {}
    for run in usable:
        key = (rows[run.id], run.seed, run.held_out)
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


def _breakdown_stats(runs: Sequence[RunResult]) -> dict[Breakdown, dict[str, Stat]]:
    """Mean over a seed's runs that have a name, then over seeds."""
    by_seed: dict[Breakdown, dict[str, dict[int, list[float]]]] = {}
    for value in complete_seeds(runs):
        for part, shares in value.breakdowns.items():
            for name, share in shares.items():
                seeds = by_seed.setdefault(part, {}).setdefault(name, {})
                seeds.setdefault(value.run.seed, []).append(share)
    found: dict[Breakdown, dict[str, Stat]] = {}
    order = {d: i for i, d in enumerate(dict.fromkeys(d for v in runs for d in v.domains))}
    for part, names in by_seed.items():
        # a run that holds the first domain out names it last; a table has the data set's order
        for name, seeds in sorted(names.items(), key=lambda item: order.get(item[0], len(order))):
            stat = spread(float(np.mean(numbers)) for numbers in seeds.values())
            if stat is not None:
                found.setdefault(part, {})[name] = stat
    return found


def _domain_notes(groups: Sequence[Group]) -> list[str]:
    """Where G, P and C are means over fewer domains than there are: another quantity than a paper's."""
    found = {}
    for group in groups:
        held = dict.fromkeys(v.run.held_out for v in group.runs if v.run.held_out is not None)
        domains = {d for v in group.runs for d in v.domains}
        if held and len(held) < len(domains):
            found[f"G, P and C over {len(held)} of {len(domains)} domains held out: {', '.join(held)}"] = None
    return list(found)


def _protocol_notes(groups: Sequence[Group]) -> list[str]:
    """Where rows stand in one table that have trained for other rounds, or with other shares of clients."""
    found = {}
    for setting in dict.fromkeys(g.setting for g in groups):
        trained = [g for g in groups if g.setting == setting and any(v.rounds != (0,) for v in g.runs)]
        for name in ("rounds", "participation"):
            values = sorted({getattr(g.config, name) for g in trained})
            if len(values) > 1:
                texts = ", ".join(value_text(name, v) for v in values)
                found[f"rows differ in {field_words(name)}: {texts}"] = None
    return list(found)


def _stats(runs: Sequence[RunResult]) -> dict[Metric, Stat]:
    stats = {metric: spread(value_per_seed(runs, metric).values()) for metric in METRICS}
    return {metric: stat for metric, stat in stats.items() if stat is not None}


def _with_distinct_labels(groups: Sequence[Group]) -> list[Group]:
    """Labels that tell rows of one setting apart: by the fields that differ, as many as it takes."""
    own = {(g.setting, g.label) for g in groups if g.trained_by_fedlens}
    twice = [not g.trained_by_fedlens and (g.setting, g.label) in own for g in groups]
    groups = [replace(g, label=g.label + RECORDED_ELSEWHERE * t) for g, t in zip(groups, twice, strict=True)]
    twins: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        twins.setdefault((group.setting, group.label), []).append(group)
    more = {}
    for (setting, label), members in twins.items():
        if len(members) > 1:
            texts = zip(members, distinguishing_texts([g.fields for g in members]), strict=True)
            more |= {(setting, g.key): f"{label} ({text})" for g, text in texts if text}
    return [replace(g, label=more.get((g.setting, g.key), g.label)) for g in groups]


def config_differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Fields that have several values: path -> a text per row, empty where a row has no such field.

    Hyper-parameters that were left at their defaults count too.
    """
    return {n: row for n, row in _config_texts(groups).items() if len(set(row) - {""}) > 1}


def partial_fields(groups: Sequence[Group]) -> dict[tuple[str, ...], dict[str, str]]:
    """Fields that some rows alone have, with one value: keys of these rows -> path -> text."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name, row in _config_texts(groups).items():
        having = tuple(g.key for g, text in zip(groups, row, strict=True) if text)
        if len(set(row)) == 2 and len(having) < len(groups):
            found.setdefault(having, {})[name] = max(row)
    return found


def _config_texts(groups: Sequence[Group]) -> dict[str, list[str]]:
    """path -> a text per row, empty where a row has no such field."""
    flat = [g.fields for g in groups]
    names = dict.fromkeys(name for f in flat for name in f if name not in NOT_COMPARED)
    return {n: [value_text(n, f[n]) or "empty" if n in f else "" for f in flat] for n in names}


def reason_not_comparable(group: Group, baseline: Group) -> str:
    """Why two rows of one setting are not set against each other, in words; empty where they are.

    Rows of other rounds or another participation have had other chances. A row that does not train is the
    same whatever its rounds, so that it can be set against any.
    """
    if any(all(v.rounds == (0,) for v in g.runs) for g in (group, baseline)):
        return ""
    for one in (group, baseline):
        if any(v.run.state != "done" for v in one.runs):
            return f"{one.label} has unfinished runs"
    for name in ("rounds", "participation"):
        ours, theirs = getattr(group.config, name), getattr(baseline.config, name)
        if ours != theirs:
            return f"{field_words(name)} {value_text(name, ours)} against {value_text(name, theirs)}"
    return ""


def difference(group: Group, baseline: Group | None, metric: Metric) -> float | None:
    """Points by which a row's mean exceeds the baseline's; None for the baseline and across protocols."""
    if baseline is None or baseline.setting != group.setting or baseline.key == group.key:
        return None
    if metric not in group.stats or metric not in baseline.stats or reason_not_comparable(group, baseline):
        return None
    return group.stats[metric].mean - baseline.stats[metric].mean


def significance(
    groups: Sequence[Group], baseline: Group, metric: Metric, test: Test = "t"
) -> dict[str, PairedTest]:
    """Each row of the baseline's protocol against it, paired by seed; Holm's correction over these rows."""
    rows = [g for g in groups if difference(g, baseline, metric) is not None]
    theirs = value_per_seed(baseline.runs, metric)
    found = holm([paired_test(value_per_seed(g.runs, metric), theirs, test) for g in rows])
    return {g.key: p for g, p in zip(rows, found, strict=True)}


def shown_metrics(groups: Sequence[Group]) -> tuple[Metric, ...]:
    """The metrics that a table of some rows has columns for.

    Where domains were held out, the mean personal accuracy is P under another name.
    """
    found = tuple(m for m in METRICS if any(m in g.stats for g in groups))
    return tuple(m for m in found if m != "personal" or "personalisation" not in found)


def ranks(groups: Sequence[Group], metric: Metric, digits: int = 1) -> tuple[set[str], set[str]]:
    """Keys of the best and second best rows of a setting; equal as printed, with ``digits``, is equal.

    A row that has nothing beside it is no best one.
    """
    shown = {g.key: round(g.stats[metric].mean, digits) for g in groups if metric in g.stats}
    levels = sorted(set(shown.values()), reverse=True) if len(shown) > 1 else []
    best = {k for k, v in shown.items() if levels and v == levels[0]}
    second = {k for k, v in shown.items() if len(levels) > 1 and v == levels[1]}
    return best, second
