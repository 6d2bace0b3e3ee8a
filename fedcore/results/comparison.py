"""Comparison tables from recorded runs: means over clients, then mean and spread over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedcore.config import RunConfig
from fedcore.config.field_names import field_phrase, value_text
from fedcore.results import evaluated_on, run_filter
from fedcore.results.metrics import (
    AVERAGED_ROUNDS,
    BREAKDOWNS,
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
    config_for_display,
    distinct_titles,
    distinguishing_texts,
    result_caveat,
    row_key,
    setting_keys,
)
from fedcore.results.statistics import Stat, group_by, mean_known, spread
from fedcore.store import ExperimentRow, RunRow, Store

RECORDED_ELSEWHERE = " (recorded elsewhere)"
CAVEAT_MARK = "†"
"""Marks a row whose runs depart from their config, and the note that says how."""
NOT_COMPARABLE_MARK = "‡"
"""Marks a row that was evaluated on other test sets than its setting's other rows, and the note on it."""
RowKey = tuple[str, str]
"""The setting and the row that a run belongs to."""


@dataclass(frozen=True)
class ComparisonRow:
    """Runs that differ by seed and held-out domain only: one row of a table.

    Attributes:
        label: unique within the setting; names what differs where one method appears twice.
        setting: key of what rows of one table have in common (data, partition, backbone).
        stats: mean and spread over seeds, per cent.
        other_tests: how its test sets differ from those of the setting's other rows; empty if they do not.
    """

    key: str
    label: str
    method: str
    setting: str
    runs: tuple[RunResult, ...]
    stats: dict[Metric, Stat]
    config: RunConfig
    breakdowns: dict[Breakdown, dict[str, Stat]] = field(default_factory=dict)
    other_tests: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(sorted({r.run.seed for r in self.runs}))

    @property
    def trained_by_fedlens(self) -> bool:
        """Return whether FedLens trained the runs; else a script recorded them, or they were imported."""
        return self.runs[0].run.origin == "engine"

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The config as a flat table, with defaults resolved where FedLens trained."""
        return config_for_display(self.config, self.trained_by_fedlens)

    @cached_property
    def caveat(self) -> str:
        """A sentence on how the runs depart from their config; empty if they do not, or it is unknown."""
        return result_caveat(self.config) if self.trained_by_fedlens else ""

    @property
    def remark(self) -> str:
        """What a reader must know of the row, wherever it is shown; empty if there is nothing."""
        apart = f"{self.other_tests}, so it is not compared with the other rows" if self.other_tests else ""
        return "; ".join(filter(None, (apart, self.caveat)))

    @property
    def mark(self) -> str:
        """The mark of the remark; empty if there is none."""
        return NOT_COMPARABLE_MARK if self.other_tests else CAVEAT_MARK if self.caveat else ""

    @property
    def drawn_label(self) -> str:
        """The label in charts, which have no room for a remark: marked where the row is not compared."""
        return f"{self.label} {NOT_COMPARABLE_MARK}" if self.other_tests else self.label


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison.

    Attributes:
        settings: key -> title.
        notes: what was left out, and what a reader must know of the selected rounds.
        experiments: those that were compared, in the order in which they were named.
        runs: all of their runs that the filter keeps, in order of id, averaged or not.
    """

    rule: Rule
    rows: tuple[ComparisonRow, ...]
    settings: dict[str, str]
    notes: tuple[str, ...]
    experiments: tuple[ExperimentRow, ...]
    runs: tuple[RunRow, ...]

    @property
    def names(self) -> dict[int, str]:
        """The names of the experiments by id."""
        return {e.id: e.name for e in self.experiments}

    def rows_in(self, setting: str) -> tuple[ComparisonRow, ...]:
        """Return the rows of one setting."""
        return tuple(g for g in self.rows if g.setting == setting)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that at least one row has."""
        return tuple(m for m in METRICS if any(m in g.stats for g in self.rows))


def compare(
    store: Store,
    experiment_ids: Iterable[int],
    rule: Rule = "last",
    *,
    unfinished: bool = False,
    partial_seeds: bool = False,
    where: str = "",
) -> Comparison:
    """Compare the runs of some experiments.

    Args:
        where: keeps the runs that meet a filter in words, see ``run_filter``; default: all.
        unfinished: include runs that have not done all their rounds.
        partial_seeds: include runs of seeds that lack a held-out domain; no mean includes them.

    Raises:
        FedLensError: for an unknown experiment; field ``where``, for a filter that cannot be read.
    """
    experiments = tuple(store.experiments.get(i) for i in dict.fromkeys(experiment_ids))
    every = sorted((r for e in experiments for r in e.runs), key=lambda r: r.id)
    runs = run_filter.kept_runs(store, every, where)
    configs = store.runs.configs([r.id for r in runs])
    settings, rows = setting_keys(store, configs), _row_keys(runs, configs)
    keys = {r.id: (settings[r.id], rows[r.id]) for r in runs}
    kept, notes = _newest_runs(runs, keys, unfinished)
    if where.strip():
        notes.append(f"{_count(len(every) - len(runs), 'run')} left out by the filter: {where.strip()}")
    results = run_results(store, kept, rule)
    notes += _round_notes(results, rule)
    grouped = group_by((r for r in results if r.rounds), lambda r: keys[r.run.id])
    if not partial_seeds:
        grouped, left_out = _complete_seeds_only(grouped)
        notes += left_out
    groups = [_group(key, members, configs[members[0].run.id]) for key, members in grouped.items()]
    notes += _domain_notes(groups) + _protocol_notes(groups)
    groups = evaluated_on.with_other_tests(_with_distinct_labels(groups))
    titles = distinct_titles({g.setting: g.config for g in groups})
    notes += _caveat_notes(groups, titles)
    return Comparison(rule, tuple(groups), titles, tuple(notes), experiments, tuple(runs))


def _group(key: RowKey, results: Sequence[RunResult], config: RunConfig) -> ComparisonRow:
    setting, row = key
    run = results[0].run
    stats = {metric: spread(value_per_seed(results, metric).values()) for metric in METRICS}
    known = {metric: stat for metric, stat in stats.items() if stat is not None}
    return ComparisonRow(
        row, run.label, run.method, setting, tuple(results), known, config, _breakdowns(results)
    )


def _breakdowns(results: Sequence[RunResult]) -> dict[Breakdown, dict[str, Stat]]:
    """Average over a seed's runs that have a domain or client, then return mean and spread over seeds."""
    complete = complete_seeds(results)
    seeds = group_by(complete, lambda r: r.run.seed).values()
    position = {d: i for i, d in enumerate(dict.fromkeys(d for r in results for d in r.domains))}
    stats: dict[Breakdown, dict[str, Stat]] = {}
    for breakdown in BREAKDOWNS:
        names = dict.fromkeys(name for r in complete for name in r.breakdowns.get(breakdown, {}))
        # a run that holds out the first domain names it last; a table has the data set's order
        for name in sorted(names, key=lambda name: position.get(name, len(position))):
            stat = spread(
                mean_known(r.breakdowns.get(breakdown, {}).get(name) for r in same) for same in seeds
            )
            if stat is not None:
                stats.setdefault(breakdown, {})[name] = stat
    return stats


def _row_keys(runs: Iterable[RunRow], configs: Mapping[int, RunConfig]) -> dict[int, str]:
    """Run -> key of its row; computed once for all runs of one stored hash."""
    known: dict[tuple[str, bool], str] = {}
    keys = {}
    for run in runs:
        stored = run.group_hash, run.origin == "engine"
        key = known.get(stored) or known.setdefault(stored, row_key(configs[run.id], stored[1]))
        keys[run.id] = f"{key}/{run.label}"
    return keys


def _newest_runs(
    runs: Sequence[RunRow], keys: Mapping[int, RowKey], unfinished: bool
) -> tuple[list[RunRow], list[str]]:
    """Return the runs to average, with a repeated seed only once, and notes on the others."""
    usable = [r for r in runs if r.state == "done" or (unfinished and r.rounds_done > 0)]
    repeats = group_by(usable, lambda r: (keys[r.id], r.seed, r.held_out)).values()
    newest = {max(same, key=lambda r: (r.state == "done", r.id)).id for same in repeats}
    notes = []
    if len(usable) < len(runs):
        notes.append(f"{_count(len(runs) - len(usable), 'run')} not finished and left out")
    if len(newest) < len(usable):
        number = _count(len(usable) - len(newest), "run")
        notes.append(f"{number} a repeat of the same config and seed: the newest counts")
    return [r for r in usable if r.id in newest], notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{' is' if number == 1 else 's are'}"


def _complete_seeds_only(
    grouped: Mapping[RowKey, list[RunResult]],
) -> tuple[dict[RowKey, list[RunResult]], list[str]]:
    """Reduce rows to their complete seeds and drop rows without any; the notes say what is missing."""
    complete, notes = {}, []
    for key, members in grouped.items():
        kept = complete_seeds(members)
        if kept:
            complete[key] = kept
        left_out = sorted({r.run.seed for r in members} - {r.run.seed for r in kept})
        if left_out:
            notes.append(
                f"{members[0].run.label}, seed {', '.join(map(str, left_out))}: left out, "
                "a held-out domain that another seed has is missing"
            )
    return complete, notes


def _round_notes(results: Sequence[RunResult], rule: Rule) -> list[str]:
    """Return notes on the selected rounds: one line per method and fact."""
    facts = ((r, _round_fact(r, rule)) for r in results)
    same = group_by((f for f in facts if f[1]), lambda f: (f[0].run.label, f[1]))
    return [
        f"{label}, seed {', '.join(map(str, sorted({r.run.seed for r, _ in noted})))}: {fact}"
        for (label, fact), noted in same.items()
    ]


def _round_fact(result: RunResult, rule: Rule) -> str:
    rounds, run = result.rounds, result.run
    if rule == "best" and not rounds and run.rounds_done:
        return "no validation accuracy, so no round can be selected by it"
    if rule == "best" and rounds == (0,) and run.method != "zero-shot":
        return "best on validation is round 0 (before training)"
    if rule == "mean10" and rounds != (0,) and 0 < len(rounds) < AVERAGED_ROUNDS:
        return f"only {len(rounds)} of the last ten rounds evaluated"
    return ""


def _domain_notes(groups: Sequence[ComparisonRow]) -> list[str]:
    """Return notes on means of G, P and C over fewer domains than there are, which differ from a paper's."""
    notes = []
    for group in groups:
        held = dict.fromkeys(r.run.held_out for r in group.runs if r.run.held_out is not None)
        domains = {d for r in group.runs for d in r.domains}
        if held and len(held) < len(domains):
            notes.append(f"G, P and C over {len(held)} of {len(domains)} domains held out: {', '.join(held)}")
    return list(dict.fromkeys(notes))


def _protocol_notes(groups: Sequence[ComparisonRow]) -> list[str]:
    """Return notes on rows of one table that trained for different rounds or shares of clients."""
    notes = []
    trained = [g for g in groups if any(r.rounds != (0,) for r in g.runs)]
    for rows in group_by(trained, lambda g: g.setting).values():
        for name in ("rounds", "participation"):
            values = sorted({getattr(g.config, name) for g in rows})
            if len(values) > 1:
                texts = ", ".join(value_text(name, v) for v in values)
                notes.append(f"rows differ in {field_phrase(name)}: {texts}")
    return list(dict.fromkeys(notes))


def _caveat_notes(rows: Sequence[ComparisonRow], titles: Mapping[str, str]) -> list[str]:
    """Return a line for every marked row; it names the setting where there are several."""
    where = {key: f" ({title})" if len(titles) > 1 else "" for key, title in titles.items()}
    return [f"{g.mark} {g.label}{where[g.setting]}: {g.remark}" for g in rows if g.remark]


def _with_distinct_labels(groups: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return the rows of one setting with distinct labels, adding as many differing fields as it takes."""
    trained = {(g.setting, g.label) for g in groups if g.trained_by_fedlens}
    groups = [
        replace(g, label=g.label + RECORDED_ELSEWHERE)
        if not g.trained_by_fedlens and (g.setting, g.label) in trained
        else g
        for g in groups
    ]
    labels: dict[RowKey, str] = {}
    for (setting, label), same in group_by(groups, lambda g: (g.setting, g.label)).items():
        if len(same) > 1:
            texts = zip(same, distinguishing_texts([g.fields for g in same]), strict=True)
            labels |= {(setting, g.key): f"{label} ({text})" for g, text in texts if text}
    return [replace(g, label=labels.get((g.setting, g.key), g.label)) for g in groups]
