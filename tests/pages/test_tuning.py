"""A search on the pages New, Live and Experiments."""

from pathlib import Path

import pytest

from fedcore.config import Experiment, parse
from fedcore.jobs.tuning import advance, record_problems
from fedcore.results import progress
from fedcore.store import Store
from tests.support import fill
from tests.support.web.live import charts
from tests.support.web.pages import Opened, button, html, open_form, plan_line, widget


def a_search(**changes: object) -> Experiment:
    methods = [{"name": "zero-shot"}, {"name": "fedot", "config": {"lr": 0.01}}]
    content = {"name": "Tuned", "methods": methods, "rounds": 2, "seeds": [1, 2], "tuning": {"draws": 3}}
    return parse({**content, **changes})


@pytest.fixture
def searched(db: Path) -> Path:
    """A search (1) whose draws have ended, and the experiment with its values (2)."""
    number = fill.done(db, a_search())
    assert number == 1 and advance(Store(db), number) is not None
    return db


def test_a_search_is_planned_and_queued_from_the_form(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("new", preset="demo")
    widget(app, "Tune first", "toggle").set_value(True).run()
    widget(app, "Draws", "text_input").set_value("3").run()
    assert "6 methods, tuned first: 16 runs of the search, then 6 with the selected values" in plan_line(app)
    spaces = next(c.value for c in app.caption if c.value.startswith("Searched")).replace("\\", "")
    assert "FedOT: learning rate 0.001 to 0.1 (log)" in spaces and "Zero-shot CLIP: nothing" in spaces
    assert any("60/20/20 is drawn anew for each seed" in w.value for w in app.warning)
    widget(app, "Yes, queue all 22 runs", "checkbox").set_value(True).run()
    button(app, "Launch").click().run()
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    assert experiment.name.startswith("Search: ") and experiment.config.tuning.draws == 3
    assert len(experiment.runs) == 16 and {r.seed for r in experiment.runs} == {0}


def test_what_is_wrong_with_a_search_stands_beside_its_field(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    widget(app, "Tune first", "toggle").set_value(True).run()
    widget(app, "Seed of the search", "text_input").set_value("1").run()
    assert "seeds that the search has not seen" in app.error[0].value
    assert button(app, "Launch").disabled


def test_live_shows_a_search_as_one_and_leads_to_the_runs_with_its_values(
    open_page: Opened, searched: Path
) -> None:
    app = open_page("live", id="1")
    table = html(app)
    assert "3 of 3" in table and "FedOT" in table and "(draw 2)" not in table
    assert "FedOT: draw 1 of 3, learning rate 0.01" in app.info[0].value.replace("\\", "")
    assert len(charts(app)) == 1
    button(app, "Open the runs with these values").click().run()
    assert 'live?id=1" target="_self">this search' in html(app)
    app = open_page("live", id="1", live_draws="true")
    assert "FedOT (draw 2)" in html(app)


def test_live_says_what_a_search_waits_for(open_page: Opened, tmp_path: Path) -> None:
    _, writers = fill.start(tmp_path / "runs.db", a_search())
    for writer in writers[1:]:
        fill.train(writer)
    writers[0].claim.finish("stopped", "as asked")
    app = open_page("live", id="1")
    assert "The search waits for 1 stopped draw: resume or delete it." in app.info[0].value
    assert not button(app, "Resume").disabled


def test_live_says_why_a_search_cannot_go_on(open_page: Opened, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    number = fill.done(store.path, a_search())
    app = open_page("live", id=str(number))
    assert "The worker queues the runs that follow these draws." in app.info[0].value
    record_problems(store, {number: "optuna is missing; `pip install optuna`"})
    problem = app.run().error[0].value.replace("\\", "")
    assert problem == "The search cannot go on: optuna is missing; `pip install optuna`"
    advance(store, number)
    assert not app.run().error, "it went on"


def test_experiments_lists_a_search_without_a_best_draw(searched: Path) -> None:
    final, search = progress.summaries_of(Store(searched), Store(searched).experiments.all())
    assert search.methods == ("Zero-shot CLIP", "FedOT") and search.done == 4
    assert (search.best_text, search.last, search.best, search.best_run) == ("", None, None, None)
    assert final.row.name == "Tuned"


def test_a_clone_keeps_where_values_come_from_until_one_is_changed(open_page: Opened, searched: Path) -> None:
    app = open_page("new", clone="2")
    button(app, "Launch").click().run()
    app = open_form(open_page("new", clone="2"), "FedOT")
    widget(app, "Learning rate", "text_input").set_value("0.5").run()
    button(app, "Launch").click().run()
    changed, unchanged, *_ = Store(searched).experiments.all()
    assert [entry.tuned is not None for entry in unchanged.config.methods] == [False, True]
    assert [entry.tuned for entry in changed.config.methods] == [None, None]
