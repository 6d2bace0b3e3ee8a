"""The leaderboard of one setting: its rows over all experiments, and the runs that would separate two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import comb

from fedcore.config import SHARED, Experiment, RunConfig
from fedcore.config.grouping import group_hash
from fedcore.errors import FedLensError
from fedcore.results.comparison import Comparison, Group, compare, reason_not_comparable
from fedcore.results.leaderboard.power import Separation, separation
from fedcore.results.leaderboard.ranks import (
    Pair,
    RankInterval,
    mean_order,
    pairwise_tests,
    rank_intervals,
)
from fedcore.results.metrics import Metric, Rule, value_per_seed
from fedcore.results.settings import setting_keys, setting_title
from fedcore.results.statistics import MIN_PAIRS, PairedTest, group_by
from fedcore.store import RunRow, Store


@dataclass(frozen=True)
class Setting:
    """Rows that can be ranked together: one setting, with equal rounds and participation.

    Attributes:
        key: of the setting, as in a comparison.
        experiments: those that have runs in it.
    """

    key: str
    rounds: int
    participation: float
    title: str
    experiments: tuple[int, ...]


@dataclass(frozen=True)
class Board:
    """The rows of a leaderboard: the ranked ones first, among these the highest mean.

    Attributes:
        comparison: these rows only, for curves and costs.
        ranks: of the rows that are ranked: comparable ones with three seeds at least.
        tests: of the ranked rows by pair, in the order of the rows.
    """

    comparison: Comparison
    metric: Metric
    rows: tuple[Group, ...]
    ranks: dict[str, RankInterval]
    tests: dict[Pair, PairedTest]

    @property
    def ranked(self) -> tuple[Group, ...]:
        """The rows that have a rank."""
        return tuple(g for g in self.rows if g.key in self.ranks)

    def rank_text(self, row: Group) -> str:
        """Return a row's rank, or the reason why it has none."""
        if row.other_tests:
            return f"not ranked: {row.other_tests}"
        if row.key not in self.ranks:
            missing = MIN_PAIRS - row.stats[self.metric].n
            return f"not ranked yet, {missing} more seed{'s' * (missing > 1)}"
        return self.ranks[row.key].text

    def pairs(self, *joined: Group) -> int:
        """Return the number of pairs that are tested once some more rows are ranked."""
        return comb(len(self.ranks.keys() | {g.key for g in joined}), 2)

    @property
    def finding(self) -> str:
        """What the ranks say, in a sentence or two."""
        others = len(self.rows) - len(self.ranks)
        rest = f"{others} {'row is' if others == 1 else 'rows are'} not ranked; the table says why."
        return " ".join([self._finding_of_ranked(), *([rest] if others and self.ranks else [])])

    def _finding_of_ranked(self) -> str:
        ranked = self.ranked
        first = [g for g in ranked if self.ranks[g.key].best == 1]
        if not ranked:
            return "No row is ranked yet: the table says what each of them lacks."
        if len(ranked) == 1:
            return f"{ranked[0].label} is the only ranked row, so there is nothing to compare."
        if len(first) == 1:
            others = len(ranked) - 1
            beaten = "the other ranked row" if others == 1 else f"each of the other {others} ranked rows"
            return f"{first[0].label} is first: significantly better than {beaten}."
        if len(first) == len(ranked):
            return f"Nothing separates the {len(first)} ranked rows: each of them may be first."
        names = ", ".join(g.label for g in first[:4]) + (f" and {len(first) - 4} more" if first[4:] else "")
        return f"{len(first)} of {len(ranked)} ranked rows may be first: {names}."


def board_settings(store: Store, runs: Sequence[RunRow]) -> list[Setting]:
    """Return the settings of some finished runs, the one with the most runs first."""
    configs = store.runs.configs([r.id for r in runs], skip_damaged=True)
    keys = setting_keys(store, configs)
    experiment = {r.id: r.experiment_id for r in runs}
    trained = {i: c for i, c in configs.items() if c.rounds > 0}
    found = group_by(trained, lambda i: (keys[i], configs[i].rounds, configs[i].participation))
    titles = group_by(found, lambda k: (setting_title(configs[found[k][0]]), k[1], k[2]))
    settings = []
    for (key, rounds, share), ids in sorted(found.items(), key=lambda item: -len(item[1])):
        title = setting_title(configs[ids[0]])
        extra = f", {share:.0%} of the clients" if share < 1 else ""
        same = len(titles[title, rounds, share]) > 1
        name = f"{title} · {rounds} round{'s' * (rounds != 1)}{extra}{f' [{key[:4]}]' if same else ''}"
        in_setting = [i for i, other in keys.items() if other == key]  # rows that do not train join in
        numbers = tuple(sorted({experiment[i] for i in in_setting}))
        settings.append(Setting(key, rounds, share, name, numbers))
    return settings


def board(store: Store, setting: Setting, metric: Metric, rule: Rule = "last", where: str = "") -> Board:
    """Rank the rows of a setting over all experiments that have runs in it.

    Raises:
        FedLensError: field ``where``, for a filter that cannot be read.
    """
    compared = compare(store, setting.experiments, rule, where=where)
    key = setting.key
    groups = [
        g
        for g in compared.groups_in(key)
        if metric in g.stats
        and (
            (g.config.rounds, g.config.participation) == (setting.rounds, setting.participation)
            or all(v.rounds == (0,) for v in g.runs)
        )
    ]
    values = {g.key: value_per_seed(g.runs, metric) for g in groups}
    by_key = {g.key: g for g in groups}
    in_order = [by_key[k] for k in mean_order(values)]
    order = [g.key for g in in_order if not g.other_tests and len(values[g.key]) >= MIN_PAIRS]
    tests = pairwise_tests({k: values[k] for k in order})
    rows = tuple(sorted(in_order, key=lambda g: (bool(g.other_tests), g.key not in order)))
    titles = {k: t for k, t in compared.settings.items() if k == key}
    only = replace(compared, groups=rows, settings=titles)
    return Board(only, metric, rows, rank_intervals(order, tests), tests)


def separating(shown: Board, a: Group, b: Group) -> Separation | None:
    """Return the seeds that would separate two rows of a board; None with fewer than two in common."""
    ours, theirs = value_per_seed(a.runs, shown.metric), value_per_seed(b.runs, shown.metric)
    common = sorted(set(ours) & set(theirs))
    return separation([ours[s] - theirs[s] for s in common], shown.pairs(a, b))


def missing_runs(store: Store, a: Group, b: Group, total: int) -> list[tuple[Experiment, list[RunConfig]]]:
    """Return the runs that give two rows ``total`` seeds in common, as an experiment per row.

    Seeds that one of the rows has come first, then the next ones that neither has. Runs that are queued or
    running already are not repeated.

    Raises:
        FedLensError: for rows that FedLens did not train, and rows that are not comparable.
    """
    for group in (a, b):
        if not group.trained_by_fedlens:
            raise FedLensError(f"{group.label} was recorded elsewhere; its own script gives more seeds")
    if why := reason_not_comparable(a, b):
        raise FedLensError(f"{a.label} and {b.label} are not comparable: {why}")
    ours, theirs = set(a.seeds), set(b.seeds)
    wanted = total - len(ours & theirs)
    fresh = (seed for seed in count(1) if seed not in ours | theirs)
    seeds = list(islice([*sorted(ours ^ theirs), *islice(fresh, max(0, wanted))], max(0, wanted)))
    everywhere = [r for e in store.experiments.all(include_archived=True) for r in e.runs]
    pending = {(r.group_hash, r.seed, r.held_out) for r in everywhere if not r.ended}
    plans = []
    for group, have in ((a, ours), (b, theirs)):
        held_out = dict.fromkeys(v.run.held_out for v in group.runs)
        runs = [
            group.config.model_copy(update={"seed": seed, "held_out": domain})
            for seed in seeds
            if seed not in have
            for domain in held_out
        ]
        runs = [r for r in runs if (group_hash(r), r.seed, r.held_out) not in pending]
        if runs:
            plans.append((_experiment(group, runs), runs))
    return plans


def _experiment(group: Group, runs: Sequence[RunConfig]) -> Experiment:
    domains = tuple(dict.fromkeys(r.held_out for r in runs if r.held_out is not None))
    return Experiment(
        name=f"More seeds: {group.label}"[:500],
        methods=(group.config.method,),
        seeds=tuple(dict.fromkeys(r.seed for r in runs)),
        held_out=domains,
        **group.config.model_dump(include=SHARED),
    )
