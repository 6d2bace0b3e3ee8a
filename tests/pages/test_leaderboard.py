"""The Leaderboard: ranks over all experiments, a budget, and the runs that would separate two rows."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from fedcore.results.costs import row_costs
from fedcore.results.leaderboard import board, board_settings, decisive_runs
from fedcore.store import Store
from tests.support import command_line, fill
from tests.support.web.live import charts
from tests.support.web.markup import tables
from tests.support.web.pages import Opened, html, widget


def filled(db: Path) -> Store:
    fill.done(db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2, 3), rounds=2))
    fill.done(db, fill.an_experiment(methods=("fedalign",), seeds=(1, 2), rounds=2))
    return Store(db)


def ranking(app: AppTest) -> list[list[str]]:
    return next(t.rows for t in tables(html(app)) if t.label == "Leaderboard")


def test_ranks_are_those_of_the_results_and_a_budget_says_what_fits(
    open_page: Opened, tmp_path: Path
) -> None:
    store = filled(tmp_path / "runs.db")
    app = open_page("leaderboard")
    (setting,) = board_settings(store, store.runs.of_experiments([1, 2]))
    made = board(store, setting, "personal")
    head, *rows = ranking(app)
    assert [r[:4] for r in rows] == [
        [made.rank_text(g), g.label, g.stats["personal"].text(), str(g.stats["personal"].n)]
        for g in made.rows
    ]
    assert made.finding == app.info[0].value.replace("\\", "")
    assert len(charts(app)) == 1
    costs = {r[1]: float(r[head.index("Traffic, MB")]) for r in rows}
    cheapest = min(costs, key=costs.__getitem__)
    least = min(c.megabytes for c in row_costs(store, made.comparison, setting.key))
    app = app.select_slider[0].set_value(round(least, 3)).run()
    assert any(m.value.startswith(f"**Best within {costs[cheapest]:.3g}") for m in app.markdown)
    over = {r[1].removesuffix(", over the budget") for r in ranking(app)[1:] if "over" in r[1]}
    assert over == {name for name, cost in costs.items() if cost > costs[cheapest]}
    app.toggle[0].set_value(True).run()
    assert list(app.dataframe[0].value.columns) == ["method", "rank", "mean, %", "± 95 %", "n"]


def test_one_button_makes_the_ranking_decisive(open_page: Opened, tmp_path: Path) -> None:
    store = filled(tmp_path / "runs.db")
    before = [e.id for e in store.experiments.all()]
    (setting,) = board_settings(store, store.runs.of_experiments(before))
    plan, _ = decisive_runs(store, board(store, setting, "personal"))
    number = sum(len(runs) for _, runs in plan)
    app = open_page("leaderboard")
    (offer,) = (b for b in app.button if b.label.startswith("Make this ranking decisive: "))
    assert f": {number} run" in offer.label and offer.label.endswith((" s", " min")), (
        "with the time that it takes"
    )
    app = offer.click().run()
    assert sum(r.state == "queued" for e in store.experiments.all() for r in e.runs) == number
    assert [e.id for e in store.experiments.all()] == before, "they join the experiments"
    assert not [b for b in app.button if b.label.startswith("Make this")]


def test_a_pinned_setting_of_a_method_replaces_the_one_that_validation_chose(
    open_page: Opened, tmp_path: Path
) -> None:
    filled(tmp_path / "runs.db")
    sweep = {"methods.fedot.blocks": (2, 4)}
    fill.done(tmp_path / "runs.db", fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, sweep=sweep))
    app = open_page("leaderboard")
    (row,) = (row for row in ranking(app) if row[1].startswith("FedOT"))
    assert "highest of 3 settings on validation" in row[1] and "FedOT (blocks 4): " in html(app)
    pin = widget(app, "FedOT", "selectbox")
    app = pin.select("FedOT (blocks 4)").run()
    (row,) = (row for row in ranking(app) if row[1].startswith("FedOT"))
    assert row[1].startswith("FedOT (blocks 4) pinned, of 3 settings")
    again = open_page("leaderboard", pin_fedot="FedOT (blocks 4)")
    assert row in ranking(again), "the address has it"


def test_without_finished_runs_the_page_says_what_it_is_for(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("leaderboard")
    assert "ranked here" in app.info[0].value
    filled(tmp_path / "runs.db")
    app = open_page("leaderboard", where="no.such = 1")
    assert "No run has the field" in app.error[0].value.replace("\\", "")


def test_a_database_that_takes_the_place_of_another_is_read(open_page: Opened, tmp_path: Path) -> None:
    """Its runs have the numbers, rounds and states of those before."""
    for method, label, other in (("fedot", "FedOT", "PromptFL"), ("promptfl", "PromptFL", "FedOT")):
        for file in tmp_path.glob("runs.db*"):
            file.unlink() if file.is_file() else None
        number = fill.done(tmp_path / "runs.db", fill.an_experiment(methods=(method,), seeds=(1,), rounds=2))
        assert [row[1] for row in ranking(open_page("leaderboard"))[1:]] == [label]
        compared = html(open_page("compare", ids=str(number)))
        assert label in compared and other not in compared


def test_a_line_below_the_table_names_the_preset_here_and_on_compare(
    open_page: Opened, tmp_path: Path
) -> None:
    file = tmp_path / "board.csv"
    file.write_text(
        "preset,method,seed,round,model,test_set,correct,total\ndemo,Ours,1,10,global,a,9,10\n", "utf-8"
    )
    assert command_line.run("import", file, "--db", tmp_path / "runs.db") == 0
    for app in (open_page("leaderboard", by="global"), open_page("compare", ids=["1"])):
        assert "Preset demo: all rows." in [c.value.replace("\\", "") for c in app.caption]
