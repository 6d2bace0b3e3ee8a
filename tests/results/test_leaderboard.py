"""Ranks are as wide as the seeds leave them; seeds that would separate two rows agree with the textbooks."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedcore.results import leaderboard as boards
from fedcore.results.charts.ranks import rank_chart, rank_table
from fedcore.results.charts.theme import TOOLBAR, Theme
from fedcore.results.leaderboard import (
    DECISIVE_SEEDS,
    decisive_runs,
    power,
    queue,
    rank_intervals,
    seeds_for_power,
    separating_seeds,
)
from fedcore.results.metrics import value_per_seed
from fedcore.results.statistics import MIN_PAIRS, pairwise_tests, spread
from fedcore.store import Store
from tests.support import fill


def test_a_rank_is_an_interval_of_what_is_not_ruled_out() -> None:
    noise = dict(enumerate((0.3, -0.2, 0.1, -0.3, 0.2)))
    values = {
        "best": {s: 90 + d for s, d in noise.items()},
        "close": {s: 89.95 - d for s, d in noise.items()},
        "worse": {s: 80 + d / 2 for s, d in noise.items()},
        "one seed": {0: 85.0},
    }
    ranks = rank_intervals(list(values), pairwise_tests(values))
    assert {k: r.text for k, r in ranks.items()} == {
        "best": "1 to 3",
        "close": "1 to 3",
        "one seed": "1 to 4",
        "worse": "3 to 4",
    }


def test_intervals_cover_the_true_ranks() -> None:
    """Four rows, two of them equal: in 100 draws the intervals hold the true ranks in 95 % at least."""
    rng, means, covered = np.random.default_rng(0), (3.0, 2.0, 2.0, 0.0), 0
    possible = [(1, 1), (2, 3), (2, 3), (4, 4)]
    for _ in range(100):
        values = {str(i): dict(enumerate(rng.normal(m, 0.5, 4))) for i, m in enumerate(means)}
        ranks = rank_intervals(list(values), pairwise_tests(values))
        covered += all(
            ranks[str(i)].best <= low and high <= ranks[str(i)].worst
            for i, (low, high) in enumerate(possible)
        )
    assert covered >= 0.95 * 100 - 2 * (100 * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize(("effect", "n"), [(0.5, 34), (0.8, 15)])
def test_seeds_for_power_agree_with_published_sample_sizes(effect: float, n: int) -> None:
    """Paired t-test, two-sided, 5 %, power 0.8: 34 pairs for d = 0.5, 15 for d = 0.8 (G*Power's tables)."""
    assert seeds_for_power(effect) == n
    assert power(effect, n) >= 0.8 > power(effect, n - 1)


def test_power_agrees_with_a_simulation() -> None:
    drawn = np.random.default_rng(1).normal(1.2, 1, (20_000, 6))
    found = (stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.01).mean()
    assert power(1.2, 6, 0.01) == pytest.approx(found, abs=0.012)
    assert power(50, 4) == 1.0 and power(0, 5) == pytest.approx(0.05)


def test_seeds_that_separate_grow_with_the_pairs_and_end_somewhere() -> None:
    among_six = separating_seeds([1.0, 2.0, 1.5, 0.5], pairs=6)
    alone = separating_seeds([1.0, 2.0, 1.5, 0.5], pairs=1)
    assert among_six is not None and alone is not None and 4 < alone <= among_six
    assert separating_seeds([5.0, -5.0, 5.0, -4.99], pairs=1) is None
    assert separating_seeds([1.0], pairs=1) == MIN_PAIRS, "those for a rank come first"
    assert separating_seeds([1.0, 1.0, 1.0], pairs=1) is None


@pytest.fixture(scope="module")
def store_once(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """FedOT and PromptFL on seeds 1 to 3, FedOT also on 4, in two experiments; other rounds in a third."""
    store = Store(tmp_path_factory.mktemp("board") / "runs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2, 3), rounds=2))
    fill.done(store.path, fill.an_experiment(methods=("fedot", "zero-shot"), seeds=(4,), rounds=2))
    fill.done(store.path, fill.an_experiment(methods=("sdfed",), seeds=(1,), rounds=3))
    return store


@pytest.fixture
def store(store_once: Store, tmp_path: Path) -> Store:
    return Store(shutil.copytree(store_once.path.parent, tmp_path, dirs_exist_ok=True) / "runs.db")


def the_board(store: Store) -> boards.Board:
    settings = boards.board_settings(store, store.runs.of_experiments([1, 2, 3]))
    assert [s.title.rpartition(" · ")[2] for s in settings] == ["2 rounds", "3 rounds"]
    return boards.board(store, settings[0], "personal")


def recorded(tmp_path: Path, rounds: int = 1, **seeds_of: tuple[int, ...]) -> Store:
    """A store with an experiment for each method, on these seeds."""
    store = Store(tmp_path / "runs.db")
    for method, seeds in seeds_of.items():
        fill.done(store.path, fill.an_experiment(methods=(method,), seeds=seeds, rounds=rounds))
    return store


def board_of(store: Store, *pins: str, where: str = "") -> boards.Board:
    (setting,) = boards.board_settings(store, store.runs.of_experiments(range(1, 5)))
    return boards.board(store, setting, "personal", where=where, pins=pins)


def test_a_board_holds_all_experiments_of_one_protocol(store: Store) -> None:
    shown = the_board(store)
    assert [g.method for g in shown.rows] == ["fedot", "promptfl", "zero-shot"], "not of three rounds"
    assert [len(g.runs) for g in shown.rows] == [4, 3, 1]
    means = [g.stats["personal"].mean for g in shown.rows]
    assert means == sorted(means, reverse=True)
    assert shown.finding


def test_a_row_with_fewer_than_three_seeds_has_no_rank_yet(tmp_path: Path) -> None:
    three = (1, 2, 3)
    store = recorded(tmp_path, 2, promptfl=three, **{"zero-shot": three}, fedot=(1, 2), fedalign=(1,))
    shown = board_of(store)
    assert [(g.label, shown.rank_text(g)) for g in shown.rows] == [
        ("PromptFL", "1"),
        ("Zero-shot CLIP", "2"),
        ("FedOT", "not ranked yet, 1 more seed"),
        ("FedAlign", "not ranked yet, 2 more seeds"),
    ]
    assert shown.rows[2].stats["personal"].mean > shown.rows[0].stats["personal"].mean, "though it looks best"
    assert shown.finding == (
        "PromptFL is first: significantly better than the other ranked row. 2 rows are not ranked; the table "
        "says why."
    )
    assert len(shown.tests) == 1 and shown.pairs(shown.rows[2]) == 3
    figure = rank_chart(shown, Theme()).figure
    assert figure.layout.margin.t >= TOOLBAR, "plotly's buttons lay on the number of the first row"
    assert [note.text for note in figure.layout.annotations] == ["rank 1", "rank 2"] + 2 * ["not ranked yet"]
    assert [trace.marker.symbol for trace in figure.data] == 2 * ["circle"] + 2 * ["circle-open"]
    values = list(value_per_seed(shown.rows[0].runs, "personal").values())
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert figure.data[0].x[0] == pytest.approx((low + high) / 2)
    assert figure.data[0].error_x.array[0] == pytest.approx((high - low) / 2)
    assert figure.data[2].error_x.array[0] == 0, "the interval of two seeds is too wide to draw"
    assert rank_table(shown)["rank"][2] == "not ranked yet, 1 more seed"
    alone = board_of(store, where="method = fedot or method = fedalign")
    assert alone.finding == "No row is ranked yet; the table shows what each row lacks."
    assert (alone.ranks, alone.tests) == ({}, {})


def test_any_share_of_clients_has_a_board_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    shares = (1e-5, 1 / 3, 0.333333)
    for share in shares:
        methods = "fedot", "promptfl"
        fill.done(store.path, fill.an_experiment(methods=methods, seeds=(1,), rounds=2, participation=share))
    settings = boards.board_settings(store, store.runs.of_experiments([1, 2, 3]))
    assert sorted(s.participation for s in settings) == sorted(shares)
    for setting in settings:
        rows = boards.board(store, setting, "personal").rows
        assert {g.config.participation for g in rows} == {setting.participation} and len(rows) == 2


def test_a_decisive_ranking_first_completes_the_ranks(store: Store) -> None:
    plan, undecided = decisive_runs(store, the_board(store))
    lacking = {(row.method, run.seed) for row, runs in plan for run in runs}
    assert lacking == {("zero-shot", seed) for seed in (1, 2, 3)}, "the seeds that the other rows have"
    assert undecided == [], "FedOT and PromptFL are far apart"
    count = len(store.experiments.all())
    assert len(queue(store, plan)) == len(lacking) and len(store.experiments.all()) == count
    assert decisive_runs(store, the_board(store))[0] == [], "they wait already"
    joined = next(e for e in store.experiments.all() if any(r.method == "zero-shot" for r in e.runs))
    assert {r.seed for r in joined.runs if r.method == "zero-shot"} == {1, 2, 3, 4}


def with_values(board: boards.Board, **values: Sequence[float]) -> boards.Board:
    """Return a board whose rows have other accuracies by seed, by method."""
    rows = []
    for row in board.rows:
        mine = values[row.method]
        runs = [replace(v, values={"personal": mine[v.run.seed - 1]}) for v in row.runs]
        stat = spread(mine[v.run.seed - 1] for v in row.runs)
        assert stat is not None
        rows.append(replace(row, runs=tuple(runs), stats={"personal": stat}))
    tests = pairwise_tests({row.key: value_per_seed(row.runs, "personal") for row in rows})
    return replace(board, rows=tuple(rows), tests=tests)


def test_neighbours_get_the_seeds_that_separate_them_or_are_named(tmp_path: Path) -> None:
    store = recorded(tmp_path, **dict.fromkeys(("fedot", "promptfl", "sdfed"), (1, 2, 3, 4)))
    shown = board_of(store)
    near, close, alike = (82, 84, 80, 83), (79, 83.8, 77.5, 82), (83, 79, 77, 83)
    shown = with_values(
        shown, **dict(zip((row.method for row in shown.rows), (near, close, alike), strict=True))
    )
    first, second, third = shown.rows
    assert not any(test.significant for test in shown.tests.values())
    plan, undecided = decisive_runs(store, shown)
    assert undecided == [f"{second.label} and {third.label}"]
    total = separating_seeds([a - b for a, b in zip(near, close, strict=True)], pairs=3)
    assert total is not None and 4 < total <= DECISIVE_SEEDS
    assert {row.label: [run.seed for run in runs] for row, runs in plan} == {
        row.label: list(range(5, total + 1)) for row in (first, second)
    }


def test_a_row_is_better_than_all_others_only_if_each_of_them_is_tested(tmp_path: Path) -> None:
    """PromptFL shares seeds with both others, which share none and so are not separated."""
    measured = board_of(recorded(tmp_path, fedot=(1, 2, 3), promptfl=(1, 2, 3, 4, 5, 6), sdfed=(4, 5, 6)))

    def finding(**values: Sequence[float]) -> str:
        shown = with_values(measured, **values)
        return replace(shown, ranks=rank_intervals(list(shown.ranks), shown.tests)).finding

    steady = (80.0, 80.1, 80.2, 80.3, 80.4, 80.5)
    above, below = (85.0, 85.2, 85.1, 0, 0, 0), (0, 0, 0, 75.0, 75.2, 75.1)
    assert finding(fedot=above, promptfl=steady, sdfed=below) == (
        "Only FedOT may be first. Each of the other 2 ranked rows is significantly worse than some other "
        "row, but not each of them than FedOT."
    )
    low = (75.0, 75.2, 75.1, 0, 0, 0)
    assert finding(fedot=low, promptfl=steady, sdfed=below) == (
        "PromptFL is first: significantly better than each of the other 2 ranked rows."
    )


def test_no_row_is_first_if_each_is_worse_than_another_one(tmp_path: Path) -> None:
    """Each pair shares other seeds: FedOT beats PromptFL, which beats SDFed, which beats FedOT."""
    seeds = {"fedot": (1, 2, 3, 7, 8, 9), "promptfl": (1, 2, 3, 4, 5, 6), "sdfed": (4, 5, 6, 7, 8, 9)}
    high, low, none = (85.0, 85.2, 85.1), (80.0, 80.1, 80.2), (0.0, 0.0, 0.0)
    shown = with_values(
        board_of(recorded(tmp_path, **seeds)),
        fedot=(*high, *none, *low),
        promptfl=(*low, *high, *none),
        sdfed=(*none, *low, *high),
    )
    ranks = rank_intervals(list(shown.ranks), shown.tests)
    assert replace(shown, ranks=ranks).finding == (
        "No ranked row may be first: each is significantly worse than some other row."
    )


def test_runs_of_another_script_are_not_queued(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("method,seed,round,model,test_set,correct,total\nmine,1,1,a,a,3,4\n", encoding="utf-8")
    store.imports.csv(file, "Mine", "rotated-digits")
    runs = store.runs.of_experiments([e.id for e in store.experiments.all()])
    setting = next(
        s for s in boards.board_settings(store, runs) if store.experiments.all()[0].id in s.experiments
    )
    assert decisive_runs(store, boards.board(store, setting, "personal")) == ([], [])


@pytest.fixture
def swept(tmp_path: Path) -> boards.Board:
    """FedOT as its paper sets it on three seeds, twice under another name, and four values of a sweep on one.

    Learning rate 0.003 is the best on validation samples, 0.03 on test samples.
    """
    store = Store(tmp_path / "runs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2, 3), rounds=2))
    named = fill.an_experiment(methods=("fedot",), seeds=(3, 4), rounds=2)
    again = named.methods[0].model_copy(update={"label": "FedOT (copy)"})
    fill.done(store.path, named.model_copy(update={"methods": (again,)}))
    sweep = {"methods.fedot.lr": (0.001, 0.003, 0.02, 0.03)}
    fill.done(store.path, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, sweep=sweep))
    for rate, split in (("0.003", 1), ("0.03", 2)):
        runs = f"(SELECT id FROM runs WHERE label='FedOT (learning rate {rate})')"
        where = f"WHERE split={split} AND run_id IN {runs}"
        fill.alter(store.path, f"UPDATE accuracy SET correct=total {where}")
        fill.alter(store.path, f"UPDATE scores SET personal_mean=1.0 {where}")
    return board_of(store)


def test_a_method_is_one_row_whose_setting_validation_chooses(swept: boards.Board, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    chosen = next(row for row in swept.rows if row.method == "fedot")
    assert sorted(row.method for row in swept.rows) == ["fedot", "promptfl"]
    assert chosen.label == "FedOT (learning rate 0.003)", "not the one that is best on the test set"
    assert swept.chosen_by(chosen) == "highest of 5 settings on validation, 100.0 %"
    folded = swept.variants[chosen.key]
    assert [row.label for row in folded if len(row.seeds) > 1] == ["FedOT"]
    assert next(row for row in folded if len(row.seeds) > 1).seeds == (1, 2, 3, 4), "whatever its label"
    plan, _ = decisive_runs(store, swept)
    assert {row.key for row, _ in plan} <= {row.key for row in swept.rows}
    assert {(row.label, run.seed) for row, runs in plan for run in runs if row.method == "fedot"} == {
        (chosen.label, 2),
        (chosen.label, 3),
    }


def test_a_pinned_setting_stands_for_its_method(swept: boards.Board, tmp_path: Path) -> None:
    chosen = next(row for row in swept.rows if row.method == "fedot")
    wanted = next(row for row in swept.variants[chosen.key] if len(row.seeds) == 4)
    pinned = board_of(Store(tmp_path / "runs.db"), wanted.key)
    row = next(row for row in pinned.rows if row.method == "fedot")
    assert (row.key, pinned.chosen_by(row)) == (wanted.key, "pinned, of 5 settings")
    assert {r.key for r in pinned.variants[row.key]} == {r.key for r in swept.variants[chosen.key]}


def test_without_validation_the_setting_with_the_most_seeds_is_shown_as_not_selected(
    swept: boards.Board, tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs.db")
    fill.alter(store.path, "DELETE FROM scores WHERE split=1")
    shown = board_of(store)
    row = next(row for row in shown.rows if row.method == "fedot")
    assert len(row.seeds) == 4
    assert shown.chosen_by(row) == "most seeds of 5 settings, not selected: no validation samples"
