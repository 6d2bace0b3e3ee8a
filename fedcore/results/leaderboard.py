"""The leaderboard of one setting, with ranks as intervals.

Each method has one row, its hyper-parameters chosen on validation samples or by the reader. Ranking every
setting that somebody tried would put the luckiest one first: a choice on the test set.

A row may take every rank that the measured seeds do not rule out. Every pair of rows is tested over the seeds
that both have, and Holm's correction (1979) over all pairs keeps the chance of a single false separation
below 5 %. A row then cannot rank above the rows that are significantly better, nor below those that are
significantly worse. Confidence sets for ranks from simultaneous pairwise tests: Mogstad, Romano, Shaikh and
Wilhelm, "Inference for Ranks with Applications to Mobility across Neighbourhoods and Academic Achievement
across Countries", Review of Economic Studies 91, 2024.

Mean ranks with Nemenyi's critical difference are not used: whether two rows differ would then depend on which
other rows are in the table (Benavoli, Corani and Mangili, JMLR 17, 2016), and rows with unequal seeds would
lose those that they do not share with all others.

Below it are the further seeds that would separate rows. Their number follows from the differences and spreads
that were measured, so it is itself uncertain when few seeds have measured them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, pairwise

import numpy as np

from fedcore.base.progress import first_few
from fedcore.config import RunConfig
from fedcore.config.identity import group_hash
from fedcore.config.tuning import is_draw
from fedcore.results.averages import groups_of_data, over_data_sets
from fedcore.results.comparison import Comparison, compare
from fedcore.results.metrics import Metric, Rule
from fedcore.results.progress import budget_note
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import NO_EVIDENCE, is_same_everywhere, setting_keys, setting_title
from fedcore.results.statistics import (
    LEVEL,
    MIN_PAIRS,
    KeyPair,
    PairedTest,
    group_by,
    mean_or_none,
    pairwise_tests,
)
from fedcore.store import ExperimentRow, RunRow, Store
from fedcore.store.runs import FinishedRun


@dataclass(frozen=True)
class RankInterval:
    """The best and the worst rank that the measured seeds leave open; 1 is the best."""

    best: int
    worst: int

    @property
    def text(self) -> str:
        return str(self.best) if self.best == self.worst else f"{self.best} to {self.worst}"


def rank_intervals(keys: list[str], tests: Mapping[KeyPair, PairedTest]) -> dict[str, RankInterval]:
    """Return the ranks that each row may have: from 1 + better rows to all rows - worse rows."""
    better, worse = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    for (a, b), test in tests.items():
        if not test.significant or test.difference is None:
            continue
        winner, loser = (a, b) if test.difference > 0 else (b, a)
        better[loser] += 1
        worse[winner] += 1
    return {key: RankInterval(1 + better[key], len(keys) - worse[key]) for key in keys}


@dataclass(frozen=True)
class BoardSetting:
    """Rows that can be ranked together: one setting, with equal rounds and participation.

    Attributes:
        experiments: numbers of those with runs in it.
        parts: of a mean over data sets, the setting of each.
    """

    key: str
    rounds: int
    participation: float
    title: str
    experiments: tuple[int, ...]
    parts: tuple[BoardSetting, ...] = ()


@dataclass(frozen=True)
class Board:
    """The rows of a leaderboard, ranked rows first, by their mean.

    Attributes:
        comparison: these rows only, for curves and costs.
        ranks: of the ranked rows, which are comparable and have at least three seeds.
        tests: of the ranked rows by pair, in the order of the rows.
        variants: of each row, all rows of its method, the row itself first.
        validation: mean validation accuracy of variants, per cent, over the seeds that all of a method have.
        pinned: keys of rows that the reader has chosen.
    """

    comparison: Comparison
    metric: Metric
    rows: tuple[ComparisonRow, ...]
    ranks: dict[str, RankInterval]
    tests: dict[KeyPair, PairedTest]
    variants: dict[str, tuple[ComparisonRow, ...]] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()

    @property
    def ranked(self) -> tuple[ComparisonRow, ...]:
        return tuple(g for g in self.rows if g.key in self.ranks)

    def rank_text(self, row: ComparisonRow) -> str:
        """Return a row's rank, or the reason why it has none."""
        if row.other_tests:
            return f"not ranked: {row.other_tests}"
        if row.key not in self.ranks:
            missing = MIN_PAIRS - row.stats[self.metric].n
            return f"not ranked yet, {missing} more seed{'s' * (missing > 1)}"
        return self.ranks[row.key].text

    def chosen_by(self, row: ComparisonRow) -> str:
        """Return how a row was chosen among the settings of its method; empty if that has only one."""
        number = len(self.variants[row.key])
        if number == 1:
            return ""
        if row.key in self.pinned:
            return f"pinned, of {number} settings"
        if row.key in self.validation:
            return f"highest of {number} settings on validation, {self.validation[row.key]:.1f} %"
        return f"most seeds of {number} settings, not selected: no validation samples"

    def pairs(self, *joined: ComparisonRow) -> int:
        """Return the number of pairs that are tested once some more rows are ranked."""
        return math.comb(len(self.ranks.keys() | {g.key for g in joined}), 2)

    @property
    def budgets(self) -> str:
        """The tuning budgets of the rows in words; empty if none was tuned."""
        return budget_note({g.label: g.config for g in self.rows})

    @property
    def finding(self) -> str:
        """The result of the ranking in a sentence or two."""
        ranked = self.ranked
        first = [g for g in ranked if self.ranks[g.key].best == 1]
        if not ranked:
            return "No row is ranked yet; the table shows what each row lacks."
        if len(ranked) == 1:
            said = f"{ranked[0].label} is the only ranked row, so there is nothing to compare."
        elif not first:  # rows without common seeds can be separated in a circle
            said = "No ranked row may be first: each is significantly worse than some other row."
        elif len(first) == 1 and self.ranks[first[0].key].worst == 1:
            beaten = f"each of the other {len(ranked) - 1} ranked rows"
            beaten = "the other ranked row" if len(ranked) == 2 else beaten
            said = f"{first[0].label} is first: significantly better than {beaten}."
        elif len(first) == 1:  # a row may be worse than the second one, and not separated from the first
            said = (
                f"Only {first[0].label} may be first. Each of the other {len(ranked) - 1} ranked rows is "
                f"significantly worse than some other row, but not each of them than {first[0].label}."
            )
        elif len(first) == len(ranked):
            said = f"Nothing separates the {len(first)} ranked rows: each of them may be first."
        else:
            names = first_few([g.label for g in first], 4)
            said = f"{len(first)} of {len(ranked)} ranked rows may be first: {names}."
        others = len(self.rows) - len(ranked)
        rest = f" {others} {'row is' if others == 1 else 'rows are'} not ranked; the table says why."
        return said + rest * (others > 0)


def board_settings(store: Store, runs: Sequence[RunRow | FinishedRun]) -> list[BoardSetting]:
    """Return the settings of some finished runs, the one with the most runs first; means over data last."""
    configs = {i: config for i, config in _configs(store, runs).items() if not is_draw(config)}
    keys = setting_keys(store, runs, configs)
    members = group_by((r for r in runs if r.id in keys), lambda r: keys[r.id])  # also what does not train
    trained = {i: c for i, c in configs.items() if c.rounds > 0}
    found = group_by(trained, lambda i: (keys[i], configs[i].rounds, configs[i].participation))
    titles = group_by(found, lambda k: (setting_title(configs[found[k][0]]), k[1], k[2]))
    settings = []
    for (key, rounds, share), ids in sorted(found.items(), key=lambda item: -len(item[1])):
        title = setting_title(configs[ids[0]])
        extra = f", {100 * share:.3g} % of the clients" if share < 1 else ""
        suffix = f" [{key[:4]}]" if len(titles[title, rounds, share]) > 1 else ""
        name = f"{title} · {rounds} round{'s' * (rounds != 1)}{extra}{suffix}"
        numbers = tuple(sorted({r.experiment_id for r in members[key]}))
        settings.append(BoardSetting(key, rounds, share, name, numbers))

    def protocol_of(setting: BoardSetting) -> tuple[int, float, str]:
        title = setting.title.replace(NO_EVIDENCE, "")  # which depends on the data
        return setting.rounds, setting.participation, title.partition(" · ")[2]

    for (rounds, share, protocol), parts in group_by(settings, protocol_of).items():
        mark = NO_EVIDENCE if any(NO_EVIDENCE in s.title for s in parts) else ""
        of = {s.key: configs[found[s.key, rounds, share][0]] for s in parts}
        for key, (title, _) in groups_of_data(of).items():
            numbers = tuple(sorted({n for s in parts for n in s.experiments}))
            name = f"{title} · {protocol}{mark}"
            settings.append(BoardSetting(key, rounds, share, name, numbers, tuple(parts)))
    return settings


def _configs(store: Store, runs: Sequence[RunRow | FinishedRun]) -> dict[int, RunConfig]:
    """Return the configs of runs that can be read; those that differ in seed or domain only share one."""
    groups = group_by(runs, lambda r: (r.group_hash, r.held_out is None)).values()
    firsts = store.runs.configs([group[0].id for group in groups], skip_damaged=True)
    alike = {i for i, config in firsts.items() if is_same_everywhere(config)}
    others = [r.id for group in groups for r in group[1:] if group[0].id not in alike]
    shared = {r.id: firsts[group[0].id] for group in groups for r in group if group[0].id in alike}
    return firsts | shared | store.runs.configs(others, skip_damaged=True)


def board(
    store: Store,
    setting: BoardSetting,
    metric: Metric,
    rule: Rule = "last",
    where: str = "",
    pins: Collection[str] = (),
) -> Board:
    """Rank the methods of a setting over all experiments that have runs in it.

    Args:
        pins: keys of the rows that stand for their methods; the others are chosen on validation samples, or
            by the number of their seeds where nothing was validated. Results of other code, whose
            hyper-parameters are not known, each have a row.
    """
    compared = compare(store, setting.experiments, rule, where=where)
    key = setting.key
    protocol = setting.rounds, setting.participation
    keys = [part.key for part in setting.parts or (setting,)]
    of_protocol = tuple(
        row
        for of in keys
        for row in compared.rows_in(of)
        if not row.trains or (row.config.rounds, row.config.participation) == protocol
    )
    compared = replace(compared, rows=of_protocol)
    if setting.parts:
        compared = over_data_sets(compared)
    candidates = [row for row in compared.rows_in(key) if metric in row.stats]
    methods = group_by(candidates, lambda row: row.method if row.trained_by_fedlens else row.key).values()
    validation = _validation(store, methods)
    variants = {}
    for of_method in methods:
        of_method.sort(
            key=lambda row: (
                row.key not in pins, bool(row.other_tests), -validation.get(row.key, 0), -len(row.seeds)
            )
        )  # fmt: skip
        variants[of_method[0].key] = tuple(of_method)
    in_order = sorted((rows[0] for rows in variants.values()), key=lambda row: -row.stats[metric].mean)
    values = {row.key: row.by_seed[metric] for row in in_order}
    order = [g.key for g in in_order if not g.other_tests and len(values[g.key]) >= MIN_PAIRS]
    tests = pairwise_tests({k: values[k] for k in order})
    rows = tuple(sorted(in_order, key=lambda g: (bool(g.other_tests), g.key not in order)))
    only = replace(compared, rows=rows, settings={k: t for k, t in compared.settings.items() if k == key})
    ranks = rank_intervals(order, tests)
    return Board(
        only, metric, rows, ranks, tests, variants, validation, tuple(k for k in variants if k in pins)
    )


def _validation(store: Store, methods: Iterable[Sequence[ComparisonRow]]) -> dict[str, float]:
    """Return the mean validation accuracy of rows, per cent, over the seeds that all rows of a method have.

    Rows without a seed in common with the others are averaged over their own seeds.
    """
    methods = list(methods)
    runs = {row.key: [r.run for part in row.parts for r in part.runs] for of in methods for row in of}
    measured = store.rounds.validated(run.id for of_row in runs.values() for run in of_row)
    validation = {}
    for of_method in methods:
        common = set.intersection(*(set(row.seeds) for row in of_method))
        for row in of_method:
            shares = [measured.get(run.id) for run in runs[row.key] if run.seed in (common or row.seeds)]
            if (mean := mean_or_none(shares)) is not None:
                validation[row.key] = 100 * mean
    return validation


RunsByRow = list[tuple[ComparisonRow, list[RunConfig]]]
"""Runs on further seeds, for each row that lacks some."""
DECISIVE_SEEDS = 20
"""Neighbours that would need more seeds in common than this are left undecided."""
POWER = 0.8
"""The chance of finding a difference of the measured size that is asked for."""
MOST_SEEDS = 100
"""Beyond this many seeds a difference is not worth separating."""
CERTAIN = 30.0
"""Noncentrality from which on the power is 1 to many digits; scipy's noncentral t loses its digits there."""


def power(effect: float, n: int, level: float = LEVEL) -> float:
    """Return the power of a two-sided paired t-test.

    Args:
        effect: mean difference over its standard deviation (Cohen's d of differences).
        n: pairs, at least two.
    """
    from scipy.special import nctdtr, stdtrit  # here: the import takes longer than a page may

    shift = abs(effect) * math.sqrt(n)
    critical = float(stdtrit(n - 1, 1 - level / 2))
    if shift > CERTAIN + critical:
        return 1.0
    wrong_side = float(nctdtr(n - 1, shift, -critical))  # nan in scipy if it is almost 0
    return 1 - float(nctdtr(n - 1, shift, critical)) + (0.0 if math.isnan(wrong_side) else wrong_side)


def seeds_for_power(effect: float, level: float = LEVEL, least: int = MIN_PAIRS) -> int | None:
    """Return the smallest number of pairs that gives ``POWER``; None above ``MOST_SEEDS``."""
    if effect == 0 or power(effect, MOST_SEEDS, level) < POWER:
        return None
    return least + bisect_left(range(least, MOST_SEEDS), POWER, key=lambda n: power(effect, n, level))


def separating_seeds(differences: Sequence[float], pairs: int) -> int | None:
    """Return the seeds in common that would separate two rows with ``POWER``; None above ``MOST_SEEDS``.

    With fewer than two seeds in common nothing is known, and they first need those for a rank. The level is
    5 % divided by the number of pairs in the table, which Holm's correction never exceeds.

    Args:
        differences: by common seed, points, which are taken as the true mean and spread.
        pairs: pairs of rows that are tested together.
    """
    n = len(differences)
    if n < 2:
        return MIN_PAIRS
    mean, spread = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if spread <= 1e-9 * max(1.0, abs(mean)):  # no test divides by a spread that is rounding error
        return None
    return seeds_for_power(mean / spread, LEVEL / max(1, pairs), max(MIN_PAIRS, n + 1))


def decisive_runs(store: Store, board: Board) -> tuple[RunsByRow, list[str]]:
    """Return the runs that would make a ranking decisive, and the pairs that it leaves undecided.

    A ranking is decisive if each row has the seeds for a rank, and neighbours by their means are separated.
    Rows with too few seeds in common for an estimate first get the seeds for a rank.
    """
    rows = [row for row in board.rows if row.trained_by_fedlens and not row.other_tests]
    rows.sort(key=lambda row: -row.stats[board.metric].mean)
    wanted = {row.key: MIN_PAIRS for row in rows}
    undecided = []
    for above, below in pairwise(rows):
        tested = board.tests.get((above.key, below.key))
        if tested is not None and tested.significant:
            continue
        ours, theirs = above.by_seed[board.metric], below.by_seed[board.metric]
        differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        total = separating_seeds(differences, board.pairs(above, below))
        if total is None or total > DECISIVE_SEEDS:
            undecided.append(f"{above.label} and {below.label}")
        else:
            wanted |= {row.key: max(total, wanted[row.key]) for row in (above, below)}
    searched = _seeds_of_searches(part.config for row in rows for part in row.parts)
    measured = Counter(seed for row in rows for seed in row.seeds if seed not in searched)
    order = [seed for seed, _ in sorted(measured.items(), key=lambda item: (-item[1], item[0]))]
    order += islice((seed for seed in count(1) if seed not in {*measured, *searched}), DECISIVE_SEEDS)
    return _lacking(store, {row.key: order[: wanted[row.key]] for row in rows}, rows), undecided


def _lacking(store: Store, seeds: Mapping[str, Sequence[int]], rows: Sequence[ComparisonRow]) -> RunsByRow:
    """Return the runs of each row on the seeds that it lacks, without those that are queued or running."""
    lacking = []
    for key, part in ((row.key, part) for row in rows for part in row.parts):
        held_out = dict.fromkeys(result.run.held_out for result in part.runs)
        runs = [
            part.config.model_copy(update={"seed": seed, "held_out": domain})
            for seed in seeds[key]
            if seed not in part.seeds
            for domain in held_out
        ]
        if runs:
            lacking.append((part, runs))
    if not lacking:
        return []
    pending = {(r.group_hash, r.seed, r.held_out) for r in store.runs.unfinished()}
    plans = [
        (row, [run for run in runs if (group_hash(run), run.seed, run.held_out) not in pending])
        for row, runs in lacking
    ]
    return [(row, runs) for row, runs in plans if runs]


def queue(store: Store, plan: RunsByRow) -> list[int]:
    """Queue the runs of a plan, and return them.

    They join the experiment of their row's newest run, so that its comparison counts them too.
    """
    joined = (
        store.experiments.extend(max(result.run.experiment_id for result in row.runs), runs)
        for row, runs in plan
    )
    return [run_id for created in joined for run_id in created.run_ids]


def more_seeds(store: Store, experiment: ExperimentRow) -> list[RunConfig]:
    """Return the runs that an experiment lacks for a test: each method on the next seeds, up to three in all.

    Empty if it has three seeds, is a search, or holds runs that were recorded elsewhere.
    """
    if experiment.config.tuning is not None or any(run.origin != "engine" for run in experiment.runs):
        return []
    seeds = {run.seed for run in experiment.runs}
    configs = store.runs.configs(run.id for run in experiment.runs).values()
    taken = seeds | _seeds_of_searches(configs)
    further = islice((seed for seed in count(1) if seed not in taken), max(0, MIN_PAIRS - len(seeds)))
    alike = {}  # of runs with a method's file before and after a correction, the later ones count
    for config in configs:
        method = config.method.model_copy(update={"sha256": None})
        alike[config.model_copy(update={"seed": 0, "method": method}).model_dump_json()] = config
    return [config.model_copy(update={"seed": seed}) for seed in further for config in alike.values()]


def _seeds_of_searches(configs: Iterable[RunConfig]) -> set[int]:
    """Return the seeds with which hyper-parameters were selected, which further runs must not have."""
    return {config.method.tuned.seed for config in configs if config.method.tuned is not None}
