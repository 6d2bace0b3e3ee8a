"""Comparison tables from recorded runs: means over clients, then mean and spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedcore.base.errors import FedLensError
from fedcore.base.progress import first_few
from fedcore.config import RunConfig
from fedcore.config.field_names import field_phrase, seeds_text, value_text
from fedcore.config.tuning import is_draw
from fedcore.results import run_filter
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
from fedcore.results.progress import budget_note
from fedcore.results.rows import (
    ComparisonRow,
    difference_of_rows,
    sample_notes,
    with_other_tests,
    without_samples,
)
from fedcore.results.settings import (
    distinct_titles,
    distinguishing_texts,
    is_compared,
    row_key,
    setting_keys,
)
from fedcore.results.statistics import (
    PairedTest,
    Stat,
    Test,
    group_by,
    holm,
    mean_or_none,
    paired_test,
    spread,
)
from fedcore.store import ExperimentRow, RunRow, Store

RECORDED_ELSEWHERE = " (recorded elsewhere)"
NAMED = 6
"""Maximum number of rows that a note names."""
RowKey = tuple[str, str]
"""The setting and the row that a run belongs to."""


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison.

    Attributes:
        settings: key -> title.
        notes: on runs that were left out, and on the selected rounds.
        experiments: in the order in which they were named.
        runs: all of their runs that pass the filter, in order of id, averaged or not.
    """

    rule: Rule
    rows: tuple[ComparisonRow, ...]
    settings: dict[str, str]
    notes: tuple[str, ...]
    experiments: tuple[ExperimentRow, ...]
    runs: tuple[RunRow, ...]

    @property
    def names(self) -> dict[int, str]:
        return {e.id: e.name for e in self.experiments}

    def rows_in(self, setting: str) -> tuple[ComparisonRow, ...]:
        return tuple(g for g in self.rows if g.setting == setting)

    def run_ids(self, setting: str) -> list[int]:
        return [r.run.id for row in self.rows_in(setting) for part in row.parts for r in part.runs]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(m for m in METRICS if any(m in g.stats for g in self.rows))

    def best_first(self, metric: Metric) -> Comparison:
        """Return each setting's rows by their means, highest first.

        Rows without such a mean or with other test sets come last.
        """
        place = {setting: i for i, setting in enumerate(self.settings)}

        def rank(row: ComparisonRow) -> tuple[int, bool, float]:
            stat = row.stats.get(metric)
            return place[row.setting], bool(row.other_tests), math.inf if stat is None else -stat.mean

        return replace(self, rows=tuple(sorted(self.rows, key=rank)))

    def check_rows(self) -> None:
        """Refuse a comparison without rows, of which nothing can be written."""
        if not self.rows:
            unfinished = "no run of these experiments has finished; wait for one"
            filtered = "no run of these experiments passes the filter; change it"
            raise FedLensError(unfinished if self.runs else filtered, "ids" if self.runs else "where")


def compare(
    store: Store,
    experiment_ids: Iterable[int],
    rule: Rule = "last",
    *,
    unfinished: bool = False,
    where: str = "",
) -> Comparison:
    """Compare the runs of some experiments.

    Args:
        where: a filter in words that runs must pass, see ``run_filter``; default: all runs.
        unfinished: include runs that have not done all their rounds.

    Raises:
        FedLensError: for an unknown experiment; with field ``where``, for an unreadable filter.
    """
    experiments = tuple(store.experiments.several(list(dict.fromkeys(experiment_ids))))
    all_runs = sorted((r for e in experiments for r in e.runs), key=lambda r: r.id)
    configs = store.runs.configs([r.id for r in all_runs])
    runs = all_runs
    if where.strip():
        kept = run_filter.select(where, run_filter.run_records(all_runs, configs))
        runs = [r for r in all_runs if r.id in kept]
    without_draws = [run for run in runs if not is_draw(configs[run.id])]
    draws = len(runs) - len(without_draws) if without_draws else 0
    runs = without_draws or runs  # draws alone are compared with each other
    settings, row_keys = setting_keys(store, runs, configs), _row_keys(runs, configs)
    keys = {r.id: (settings[r.id], row_keys[r.id]) for r in runs}
    newest, notes = _newest_runs(runs, keys, unfinished)
    if draws:
        notes.append(
            f"{_count(draws, 'draw')} left out, as part of a search; compare the search alone to see them"
        )
    if where.strip():
        left_out = len(all_runs) - len(runs) - draws
        notes.append(f"{_count(left_out, 'run')} left out by the filter: {where.strip()}")
    results = without_samples(run_results(store, newest, rule), configs)
    results = _with_gains(results, settings, configs)
    notes += _round_notes(results, rule)
    measured = group_by((r for r in results if r.rounds), lambda r: keys[r.run.id])
    by_row, incomplete = _complete_seeds_only(measured)
    notes += incomplete
    rows = []
    for (setting, key), members in by_row.items():
        run = members[0].run
        stats = {metric: spread(value_per_seed(members, metric).values()) for metric in METRICS}
        measured_stats = {metric: stat for metric, stat in stats.items() if stat is not None}
        config, parts = configs[run.id], _breakdowns(members)
        rows.append(
            ComparisonRow(key, run.label, run.method, setting, tuple(members), measured_stats, config, parts)
        )
    notes += _row_notes(rows)
    rows = with_other_tests(_with_distinct_labels(rows))
    budgets = (
        budget_note({row.label: row.config for row in table})
        for table in group_by(rows, lambda row: row.setting).values()
    )
    notes += [*dict.fromkeys(filter(None, budgets)), *sample_notes(rows)]
    titles = distinct_titles({row.setting: row.config for row in rows})
    where_of = {key: f" ({title})" if len(titles) > 1 else "" for key, title in titles.items()}
    notes += [f"{row.mark} {row.label}{where_of[row.setting]}: {row.remark}" for row in rows if row.remark]
    return Comparison(rule, tuple(rows), titles, tuple(notes), experiments, tuple(runs))


def _with_gains(
    results: Sequence[RunResult], settings: Mapping[int, str], configs: Mapping[int, RunConfig]
) -> list[RunResult]:
    """Add the gain on new classes over the zero-shot run of the same setting and seed, if there is one."""
    zero_shot = {
        (settings[r.run.id], r.run.seed): r.values.get("new")
        for r in results
        if r.run.method == "zero-shot" and configs[r.run.id].method.config.get("class_text") != "description"
    }

    def gain(result: RunResult) -> float | None:
        new, start = result.values.get("new"), zero_shot.get((settings[result.run.id], result.run.seed))
        return None if new is None or start is None else new - start

    return [replace(r, values={**r.values, "new_gain": gain(r)}) for r in results]


def _breakdowns(results: Sequence[RunResult]) -> dict[Breakdown, dict[str, Stat]]:
    """Average each domain and client over a seed's runs that have it, then over seeds."""
    seeds = group_by(results, lambda r: r.run.seed).values()
    position = {d: i for i, d in enumerate(dict.fromkeys(d for r in results for d in r.domains))}
    stats: dict[Breakdown, dict[str, Stat]] = {}
    for breakdown in BREAKDOWNS:
        names = dict.fromkeys(name for r in results for name in r.breakdowns.get(breakdown, {}))
        # a run that holds out the first domain names it last; a table has the data set's order
        for name in sorted(names, key=lambda name: position.get(name, len(position))):
            stat = spread(
                mean_or_none(r.breakdowns.get(breakdown, {}).get(name) for r in of_seed) for of_seed in seeds
            )
            if stat is not None:
                stats.setdefault(breakdown, {})[name] = stat
    return stats


def _row_keys(runs: Iterable[RunRow], configs: Mapping[int, RunConfig]) -> dict[int, str]:
    """Return the key of each run's row, computed once for all runs with one stored hash."""
    cached: dict[tuple[str, bool], str] = {}
    keys = {}
    for run in runs:
        stored = run.group_hash, run.origin == "engine"
        if stored not in cached:
            cached[stored] = row_key(configs[run.id], stored[1])
        # of other code the label may be all that says how it was configured
        keys[run.id] = cached[stored] if stored[1] else f"{cached[stored]}/{run.label}"
    return keys


def _newest_runs(
    runs: Sequence[RunRow], keys: Mapping[int, RowKey], unfinished: bool
) -> tuple[list[RunRow], list[str]]:
    """Return the runs to average, each seed only once, and notes on the others."""

    def part(run: RunRow) -> tuple[RowKey, int, str | None]:
        return keys[run.id], run.seed, run.held_out

    usable = [r for r in runs if r.state == "done" or (unfinished and r.rounds_done > 0)]
    repeats = group_by(usable, part)
    # not by number alone: merged runs have higher ones than the newer runs that were here before
    newest = {max(of, key=lambda r: (r.state == "done", r.created_at, r.id)).id for of in repeats.values()}
    notes = []
    if len(usable) < len(runs):
        # named, since means of the others are too high if the seeds that failed are left out
        lacking = (r for r in runs if part(r) not in repeats)
        texts = []
        for (label, held_out, state), of in group_by(
            lacking, lambda r: (r.label, r.held_out, r.state)
        ).items():
            name = label if held_out is None else f"{label} without {held_out}"
            texts.append(f"{name}, {seeds_text(r.seed for r in of)} ({state})")
        without = f": {first_few(texts, NAMED, '; ')}" if texts else ""
        notes.append(f"{_count(len(runs) - len(usable), 'run')} not finished and left out{without}")
    if len(newest) < len(usable):
        number = _count(len(usable) - len(newest), "run")
        notes.append(f"{number} a repeat of the same config and seed: the newest counts")
    return [r for r in usable if r.id in newest], notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{' is' if number == 1 else 's are'}"


def _complete_seeds_only(
    by_row: Mapping[RowKey, list[RunResult]],
) -> tuple[dict[RowKey, list[RunResult]], list[str]]:
    """Reduce rows to their complete seeds and drop rows without any; the notes say what is missing."""
    complete, notes = {}, []
    for key, members in by_row.items():
        usable = complete_seeds(members)
        if usable:
            complete[key] = usable
        left_out = sorted({r.run.seed for r in members} - {r.run.seed for r in usable})
        if left_out:
            notes.append(
                f"{members[0].run.label}, seed {', '.join(map(str, left_out))}: left out, "
                "a held-out domain that another seed has is missing"
            )
    return complete, notes


def _round_notes(results: Sequence[RunResult], rule: Rule) -> list[str]:
    """Return notes on the selected rounds, one line per method and fact."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for result in results:
        rounds, run = result.rounds, result.run
        if rule == "best" and not rounds and run.rounds_done:
            fact = "no validation accuracy, so no round can be selected by it"
        elif rule == "best" and rounds == (0,) and run.method != "zero-shot":
            fact = "best on validation is round 0 (before training)"
        elif rule == "mean10" and rounds != (0,) and 0 < len(rounds) < AVERAGED_ROUNDS:
            fact = f"only {len(rounds)} of the last ten rounds evaluated"
        else:
            continue
        seeds.setdefault((run.label, fact), set()).add(run.seed)
    return [
        f"{label}, seed {', '.join(map(str, sorted(of_fact)))}: {fact}"
        for (label, fact), of_fact in seeds.items()
    ]


def _row_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """Note means over some of the domains only, and rows of one table that trained in different ways."""
    notes = []
    for row in rows:  # a paper's G, P and C are over all domains
        held = dict.fromkeys(r.run.held_out for r in row.runs if r.run.held_out is not None)
        domains = {d for r in row.runs for d in r.domains}
        if held and len(held) < len(domains):
            notes.append(f"G, P and C over {len(held)} of {len(domains)} domains held out: {', '.join(held)}")
    for table in group_by((row for row in rows if row.trains), lambda row: row.setting).values():
        for name in ("rounds", "participation"):
            values = sorted({getattr(row.config, name) for row in table})
            if len(values) > 1:
                texts = ", ".join(value_text(name, v) for v in values)
                notes.append(f"rows differ in {field_phrase(name)}: {texts}")
    return list(dict.fromkeys(notes))


def _with_distinct_labels(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Add as many differing fields to equal labels of a setting as it takes to tell rows apart."""
    trained = {(row.setting, row.label) for row in rows if row.trained_by_fedlens}
    renamed = []
    for row in rows:
        clashes = not row.trained_by_fedlens and (row.setting, row.label) in trained
        renamed.append(replace(row, label=row.label + RECORDED_ELSEWHERE) if clashes else row)
    labels: dict[RowKey, str] = {}
    for (setting, label), alike in group_by(renamed, lambda row: (row.setting, row.label)).items():
        if len(alike) > 1:
            texts = distinguishing_texts([row.fields for row in alike])
            for row, text in zip(alike, texts, strict=True):
                labels[setting, row.key] = f"{label} ({text})" if text else label
    return [replace(row, label=labels.get((row.setting, row.key), row.label)) for row in renamed]


def reason_not_comparable(row: ComparisonRow, baseline: ComparisonRow) -> str:
    """Return the reason against comparing two rows of one setting; empty if they are comparable.

    Rows are not comparable if they were evaluated on other test sets, or trained for other rounds or shares
    of clients. The rounds of a row that does not train are of no importance.
    """
    if row.members:
        pairs = zip(row.members, baseline.members, strict=True)
        return next(filter(None, (reason_not_comparable(*pair) for pair in pairs)), "")
    if other := difference_of_rows(row, baseline):
        if row.other_tests or not baseline.other_tests:
            return other
        return f"{baseline.label}: {baseline.other_tests}"
    if not (row.trains and baseline.trains):
        return ""
    for one in (row, baseline):
        if any(v.run.state != "done" for v in one.runs):
            return f"{one.label} has unfinished runs"
    for name in ("rounds", "participation"):
        ours, theirs = getattr(row.config, name), getattr(baseline.config, name)
        if ours != theirs:
            return f"{field_phrase(name)} {value_text(name, ours)} against {value_text(name, theirs)}"
    return ""


def significance(
    rows: Sequence[ComparisonRow], baseline: ComparisonRow, metric: Metric, test: Test = "t"
) -> dict[str, PairedTest]:
    """Test each comparable row that has the metric against the baseline, with Holm's correction over all.

    Both the difference and its test are paired by seed: a difference of the means may have another sign
    where only one of the rows has some seeds.
    """
    compared = [
        row
        for row in rows
        if row.setting == baseline.setting
        and row.key != baseline.key
        and metric in row.stats
        and metric in baseline.stats
        and not reason_not_comparable(row, baseline)
    ]
    tests = holm([paired_test(row.by_seed[metric], baseline.by_seed[metric], test) for row in compared])
    return {row.key: result for row, result in zip(compared, tests, strict=True)}


def config_differences(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return the fields in which rows differ: path -> a text per row, empty if a row lacks the field.

    Hyper-parameters that were left at their defaults count too.
    """
    return {name: texts for name, texts in _config_texts(rows).items() if len(set(texts) - {""}) > 1}


def partial_fields(rows: Sequence[ComparisonRow]) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the fields that only some rows have, with one value: keys of these rows -> path -> text."""
    fields: dict[tuple[str, ...], dict[str, str]] = {}
    for name, texts in _config_texts(rows).items():
        having = tuple(row.key for row, text in zip(rows, texts, strict=True) if text)
        if len(set(texts)) == 2 and len(having) < len(rows):
            fields.setdefault(having, {})[name] = max(texts)
    return fields


def _config_texts(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return by path a text for each row, empty if a row lacks the field."""
    flat = [row.fields for row in rows]
    names = dict.fromkeys(name for f in flat for name in f if is_compared(name))
    return {n: [value_text(n, f[n]) or "empty" if n in f else "" for f in flat] for n in names}
