"""Means over data sets: of all of them or none, seed by seed, and what is missing is named."""

from pathlib import Path

import numpy as np
import pytest

from fedcore.results.averages import mean_over, over_data_sets
from fedcore.results.comparison import compare, reason_not_comparable
from fedcore.results.costs import row_costs
from fedcore.results.leaderboard import board, board_settings, decisive_runs
from fedcore.results.metrics import value_per_seed
from fedcore.results.summary import summarise
from fedcore.store import Store
from tests.support import fill


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Digits with FedOT, PromptFL and SDFed on seeds 1 to 3; shapes without SDFed, FedOT on 2 to 4."""
    db = tmp_path / "runs.db"
    fill.done(db, fill.an_experiment(methods=("fedot", "promptfl", "sdfed"), rounds=2))
    fill.done(db, fill.an_experiment(methods=("promptfl",), rounds=2, data="shapes"))
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(2, 3, 4), rounds=2, data="shapes"))
    return Store(db)


def test_a_mean_is_over_all_data_sets_seed_by_seed(store: Store) -> None:
    compared = compare(store, [1, 2, 3])
    means = over_data_sets(compared)
    (setting,) = means.settings
    assert means.settings[setting] == "Mean over 2 data sets (rotated-digits, shapes) · by domain · mini-vit"
    rows = {row.label: row for row in means.rows}
    assert list(rows) == ["FedOT", "PromptFL"] and rows["FedOT"].seeds == (2, 3)
    for label, row in rows.items():
        parts = [value_per_seed(r.runs, "personal") for r in compared.rows if r.label == label]
        by_seed = {seed: np.mean([part[seed] for part in parts]) for seed in row.seeds}
        assert value_per_seed(row.runs, "personal") == pytest.approx(by_seed)
        stat = row.stats["personal"]
        assert (stat.n, stat.mean) == (len(by_seed), pytest.approx(np.mean(list(by_seed.values()))))
        assert stat.std == pytest.approx(np.std(list(by_seed.values()), ddof=1))
    assert means.notes == (
        "FedOT, mean over data sets: seeds 1 and 4 left out, which not all data sets have",
        "SDFed has no mean over data sets: no run on shapes",
    )
    assert mean_over([{1: 2.0}, {2: 3.0}]) == mean_over([]) == {}


def test_a_metric_that_one_data_set_lacks_has_no_mean_and_two_settings_of_one_are_not_averaged(
    store: Store,
) -> None:
    fill.done(store.path, fill.an_experiment(methods=("fedot",), rounds=2, data="shapes", held_out=("0°",)))
    assert over_data_sets(compare(store, [1, 4])).settings == {}  # one domain is held out in one of them
    many = fill.an_experiment(methods=("fedot",), rounds=2, data="shapes")
    fill.done(store.path, many.model_copy(update={"data": many.data.model_copy(update={"shots": 5})}))
    assert len(compare(store, [1, 3, 5]).settings) == 3
    assert over_data_sets(compare(store, [1, 3, 5])).settings == {}


def test_a_mean_over_data_without_evidence_about_clip_is_taken_and_marked(store: Store) -> None:
    fill.done(store.path, fill.an_experiment(methods=("fedot",), rounds=2, data="pacs"))
    (title,) = over_data_sets(compare(store, [1, 4])).settings.values()
    assert title == "Mean over 2 data sets (pacs, rotated-digits) · by domain · mini-vit (no evidence)"


def test_rows_of_other_rounds_on_one_data_set_are_not_compared(store: Store) -> None:
    fill.done(store.path, fill.an_experiment(methods=("promptfl",), rounds=3, data="shapes"))
    means = over_data_sets(compare(store, [1, 3, 4]))
    fedot, promptfl = means.rows
    assert reason_not_comparable(promptfl, fedot) == "rounds 3 against 2"
    (table,) = summarise(means, "FedOT").tables
    shown = {row.row.label: row for row in table.rows}
    assert (shown["FedOT"].rounds, shown["PromptFL"].rounds) == ("2", "2 to 3")
    assert shown["PromptFL"].differences["personal"].p_text == "not comparable"


def test_the_leaderboard_ranks_means_and_queues_what_each_data_set_lacks(store: Store) -> None:
    *single, mean = board_settings(store, store.runs.of_experiments([1, 2, 3]))
    assert (len(single), len(mean.parts), mean.experiments) == (2, 2, (1, 2, 3))
    assert mean.title.endswith("(rotated-digits, shapes) · by domain · mini-vit · 2 rounds")
    made = board(store, mean, "personal")
    assert [made.rank_text(row) for row in made.rows] == ["1", "not ranked yet, 1 more seed"]
    costs = row_costs(store, made.comparison, mean.key)
    assert [cost.label for cost in costs] == [row.label for row in made.rows]
    assert all(cost.megabytes for cost in costs)
    plan, _ = decisive_runs(store, made)
    wanted = {(row.label, run.data.name, run.seed) for row, runs in plan for run in runs}
    assert ("FedOT", "shapes", 1) in wanted and ("FedOT", "rotated-digits", 1) not in wanted


def test_a_filter_that_removes_a_data_set_leaves_no_mean_over_the_others(store: Store) -> None:
    fill.done(store.path, fill.an_experiment(methods=("fedot",), rounds=2, data="shapes-conflict"))
    *_, mean = board_settings(store, store.runs.of_experiments([1, 2, 3, 4]))
    assert mean.title.startswith("Mean over 3 data sets")
    assert [row.label for row in board(store, mean, "personal").rows] == ["FedOT"]
    assert not board(store, mean, "personal", where="not data.name = shapes-conflict").rows
