"""Searches and their budgets beside results."""

from pathlib import Path

import pytest

from fedcore.config import Experiment, MethodEntry, Tuned, parse
from fedcore.results import exports
from fedcore.results.charts.sweep import DrawPoint, search_chart, search_table
from fedcore.results.charts.theme import Theme
from fedcore.results.comparison import compare
from fedcore.results.costs import row_costs
from fedcore.results.leaderboard import board, board_settings, more_seeds
from fedcore.results.progress import methods_of
from fedcore.results.summary import summarise
from fedcore.store import Store
from tests.support import fill
from tests.support.exported import table_of

SEARCH = {"search": "5" * 32, "sampler": "random", "draw": 2, "validation": 0.8, "rounds": 40}


def tuned(draws: int, seed: int = 0) -> Tuned:
    return Tuned(draws=draws, seed=seed, bytes=30_000_000, seconds=120.0, **SEARCH)


def an_experiment(*entries: MethodEntry, **changes: object) -> Experiment:
    return Experiment(name="tuned", methods=entries, **({"seeds": (1, 2, 3), "rounds": 2} | changes))


def budgets(db: Path, *entries: MethodEntry) -> list[str]:
    number = fill.done(db, an_experiment(*entries, seeds=(1,)))
    return [note for note in compare(Store(db), [number]).notes if "budget" in note]


def test_equal_budgets_are_stated_once_and_unequal_ones_name_their_rows(db):
    fedot, zero_shot = MethodEntry(name="fedot", tuned=tuned(8)), MethodEntry(name="zero-shot")
    equal = "equal tuning budgets: 8 draws for each method that has hyper-parameters"
    assert budgets(db, fedot, zero_shot) == [equal]
    assert budgets(db, fedot, MethodEntry(name="promptfl", tuned=tuned(8)), zero_shot) == [equal]
    (unequal,) = budgets(db, fedot, MethodEntry(name="promptfl", tuned=tuned(4)), MethodEntry(name="sdfed"))
    assert "(8 draws: FedOT; 4 draws: PromptFL; not tuned: SDFed)" in unequal
    assert budgets(db, MethodEntry(name="fedot"), zero_shot) == []
    on_digits, on_shapes = (
        tuned(8).model_copy(update={"data": data}) for data in ("rotated-digits", "shapes")
    )
    (other,) = budgets(
        db, MethodEntry(name="fedot", tuned=on_digits), MethodEntry(name="promptfl", tuned=on_shapes)
    )
    assert "(8 draws: FedOT; 8 draws on shapes: PromptFL)" in other


def test_a_tuned_row_and_an_untuned_one_are_two_rows_of_one_setting(db):
    numbers = [fill.done(db, an_experiment(MethodEntry(name="fedot", tuned=t))) for t in (tuned(8), None)]
    compared = compare(Store(db), numbers)
    assert len(compared.rows) == 2 and len(compared.settings) == 1
    assert len({row.label for row in compared.rows}) == 2


def test_the_search_is_charged_to_its_row_beside_the_cost_of_a_run(db):
    entries = MethodEntry(name="fedot", tuned=tuned(8)), MethodEntry(name="promptfl")
    store, number = Store(db), fill.done(db, an_experiment(*entries))
    compared = compare(store, [number])
    (setting,) = compared.settings
    fedot, promptfl = row_costs(store, compared, setting)
    assert fedot.megabytes_with_search == pytest.approx(fedot.megabytes + 30)
    assert fedot.seconds_with_search == pytest.approx(fedot.seconds + 120)
    assert promptfl.megabytes_with_search is promptfl.seconds_with_search is None
    for text in (
        exports.rows_csv(exports.summary_rows(summarise(compared))),
        exports.costs_csv(store, compared, "personal"),
    ):
        rows = {row["method"]: row for row in table_of(text)}
        assert [rows["fedot"][name] for name in exports.SEARCH_COLUMNS] == ["8", "40", "30.0", "120.0"]
        assert not any(rows["promptfl"][name] for name in exports.SEARCH_COLUMNS)


def test_draws_are_no_results_beside_other_runs_and_never_on_the_leaderboard(db):
    draws = [MethodEntry(name="fedot", label=f"FedOT (draw {n})", draw=n) for n in (1, 2)]
    search, final = (fill.done(db, an_experiment(*e)) for e in (draws, [MethodEntry(name="fedot")]))
    store = Store(db)
    assert [row.label for row in compare(store, [search]).rows] == ["FedOT (draw 1)", "FedOT (draw 2)"]
    both = compare(store, [search, final])
    assert [row.label for row in both.rows] == ["FedOT"]
    assert "6 draws are left out, as part of a search; compare the search alone to see them" in both.notes
    (setting,) = board_settings(store, [r for e in store.experiments.all() for r in e.runs])
    assert setting.experiments == (final,)
    assert [row.label for row in board(store, setting, "personal").rows] == ["FedOT"]


def test_further_seeds_of_a_tuned_row_leave_out_the_seed_of_its_search(db):
    entry = MethodEntry(name="fedot", tuned=tuned(8, seed=2))
    number = fill.done(db, an_experiment(entry, seeds=(1,)))
    store = Store(db)
    assert [run.seed for run in more_seeds(store, store.experiments.get(number))] == [3, 4]


def test_a_search_names_the_best_draw_so_far_with_its_values(tmp_path: Path) -> None:
    tuning = {"draws": 3, "space": {"fedot": {"blocks": {"choices": [2, 4]}}}}
    methods = [{"name": "fedot"}, {"name": "promptfl"}, {"name": "zero-shot"}]
    db = tmp_path / "runs.db"
    created, writers = fill.start(db, parse({"name": "x", "methods": methods, "rounds": 1, "tuning": tuning}))
    for i in (0, 1):
        fill.train(writers[i])
    for writer in writers[3:6]:
        writer.claim.finish("failed", "it diverged")
    store = Store(db)
    fedot, promptfl, zero_shot = methods_of(store, store.experiments.get(created.experiment_id))
    assert (fedot.done, fedot.failed, fedot.budget, fedot.fields) == (2, 0, 3, ("lr", "blocks"))
    assert fedot.text.startswith("draw 1 of 3, learning rate 5e-05, blocks 1, ")
    assert promptfl.text == "all 3 draws failed" and zero_shot.text == "nothing to search"


def test_the_chart_of_draws_marks_the_best_and_has_a_logarithmic_axis_for_wide_ranges() -> None:
    points = [
        DrawPoint("FedOT", "fedot", value, accuracy, f"draw {i}", accuracy == 90)
        for i, (value, accuracy) in enumerate([(0.001, 80), (0.1, 90), (0.01, 70)], 1)
    ]
    chart = search_chart(points, Theme(), "methods.fedot.lr")
    assert chart.figure.layout.xaxis.type == "log"
    (trace,) = chart.figure.data
    assert trace.marker.size[1] > trace.marker.size[0] == trace.marker.size[2]
    assert chart.alt.endswith("best: FedOT 90.0 % at 0.1.")
    assert search_table(points, "methods.fedot.lr")["best"] == ["", "yes", ""]
    words = [p._replace(value=text) for p, text in zip(points, ("text", "random", "text"), strict=True)]
    assert search_chart(words, Theme(), "methods.fedot.init").figure.layout.xaxis.type == "category"
