"""The leaderboard of one setting, with ranks as intervals.

A row may take every rank that the measured seeds do not rule out. Every pair of rows is tested over the seeds
that both have, and Holm's correction (1979) over all pairs keeps the chance of a single false separation
below 5 %. A row then cannot rank above the rows that are significantly better, nor below those that are
significantly worse. Confidence sets for ranks from simultaneous pairwise tests: Mogstad, Romano, Shaikh and
Wilhelm, "Inference for Ranks with Applications to Mobility across Neighbourhoods and Academic Achievement
across Countries", Review of Economic Studies 91, 2024.

Mean ranks with Nemenyi's critical difference are not used: whether two rows differ would then depend on which
other rows are in the table (Benavoli, Corani and Mangili, JMLR 17, 2016), and rows with unequal seeds would
lose those that they do not share with all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

from fedcore.base.progress import first_few
from fedcore.config.tuning import is_draw
from fedcore.results.comparison import Comparison, compare
from fedcore.results.metrics import Metric, Rule, value_per_seed
from fedcore.results.rows import ComparisonRow
from fedcore.results.search import budget_note
from fedcore.results.settings import setting_keys, setting_title
from fedcore.results.statistics import (
    MIN_PAIRS,
    KeyPair,
    PairedTest,
    group_by,
    pairwise_tests,
)
from fedcore.store import RunRow, Store


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
    """

    key: str
    rounds: int
    participation: float
    title: str
    experiments: tuple[int, ...]


@dataclass(frozen=True)
class Board:
    """The rows of a leaderboard, ranked rows first, by their mean.

    Attributes:
        comparison: these rows only, for curves and costs.
        ranks: of the ranked rows, which are comparable and have at least three seeds.
        tests: of the ranked rows by pair, in the order of the rows.
    """

    comparison: Comparison
    metric: Metric
    rows: tuple[ComparisonRow, ...]
    ranks: dict[str, RankInterval]
    tests: dict[KeyPair, PairedTest]

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

    def pairs(self, *joined: ComparisonRow) -> int:
        """Return the number of pairs that are tested once some more rows are ranked."""
        return comb(len(self.ranks.keys() | {g.key for g in joined}), 2)

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


def board_settings(store: Store, runs: Sequence[RunRow]) -> list[BoardSetting]:
    """Return the settings of some finished runs, the one with the most runs first."""
    stored = store.runs.configs([r.id for r in runs], skip_damaged=True)
    configs = {i: config for i, config in stored.items() if not is_draw(config)}
    keys = setting_keys(store, runs, configs)
    experiment = {r.id: r.experiment_id for r in runs}
    trained = {i: c for i, c in configs.items() if c.rounds > 0}
    found = group_by(trained, lambda i: (keys[i], configs[i].rounds, configs[i].participation))
    titles = group_by(found, lambda k: (setting_title(configs[found[k][0]]), k[1], k[2]))
    settings = []
    for (key, rounds, share), ids in sorted(found.items(), key=lambda item: -len(item[1])):
        title = setting_title(configs[ids[0]])
        extra = f", {100 * share:.3g} % of the clients" if share < 1 else ""
        suffix = f" [{key[:4]}]" if len(titles[title, rounds, share]) > 1 else ""
        name = f"{title} · {rounds} round{'s' * (rounds != 1)}{extra}{suffix}"
        in_setting = [i for i, other in keys.items() if other == key]  # also those that do not train
        numbers = tuple(sorted({experiment[i] for i in in_setting}))
        settings.append(BoardSetting(key, rounds, share, name, numbers))
    return settings


def board(store: Store, setting: BoardSetting, metric: Metric, rule: Rule = "last", where: str = "") -> Board:
    """Rank the rows of a setting over all experiments that have runs in it."""
    compared = compare(store, setting.experiments, rule, where=where)
    key = setting.key
    protocol = setting.rounds, setting.participation
    candidates = {}
    for row in compared.rows_in(key):
        of_protocol = (row.config.rounds, row.config.participation) == protocol
        if metric in row.stats and (of_protocol or not row.trains):
            candidates[row.key] = row
    values = {k: value_per_seed(row.runs, metric) for k, row in candidates.items()}
    in_order = sorted(candidates.values(), key=lambda row: -row.stats[metric].mean)
    order = [g.key for g in in_order if not g.other_tests and len(values[g.key]) >= MIN_PAIRS]
    tests = pairwise_tests({k: values[k] for k in order})
    rows = tuple(sorted(in_order, key=lambda g: (bool(g.other_tests), g.key not in order)))
    titles = {k: t for k, t in compared.settings.items() if k == key}
    only = replace(compared, rows=rows, settings=titles)
    return Board(only, metric, rows, rank_intervals(order, tests), tests)
