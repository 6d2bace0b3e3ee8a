"""Small promises of the pages: nothing typed is lost, nothing vanishes without a word, words agree."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.store import Store
from pages.forms import fields
from pages.live_view.actions import stop_offers
from tests.support import fill
from tests.support.web.pages import Opened, button, html, widget


def test_a_reload_of_new_keeps_the_form(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    assert "draft" not in app.query_params, "nothing was typed yet"
    widget(app, "Seeds", "text_input").set_value("4-6").run()
    widget(app, "Name", "text_input").set_value("My own").run()
    key = "".join(app.query_params["draft"])
    again = open_page("new", preset="demo", draft=key)  # a new session, as after a reload
    assert widget(again, "Name", "text_input").value == "My own"
    assert widget(again, "Seeds", "text_input").value == "4, 5, 6"
    other = open_page("new", draft="unknown")
    assert widget(other, "Name", "text_input").value.startswith("Try it")


def test_an_experiment_deleted_elsewhere_is_named_and_an_archived_one_is_not_called_so(
    open_page: Opened, filled: Path
) -> None:
    app = open_page()
    Store(filled).experiments.edit(2, archived=True)
    assert not app.run().toast
    Store(filled).experiments.delete(1)
    app = app.run()
    assert any("Made up" in t.value and "was deleted" in t.value for t in app.toast)
    app = app.run()
    assert not app.toast


def test_a_large_model_comes_with_its_suggested_weights(
    open_page: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page("new")
    app = widget(app, "CLIP backbone", "selectbox").set_value("ViT-B-32").run()
    assert widget(app, "Weights: tag or file", "text_input").value == "openai"
    monkeypatch.setattr("fedcore.clip.tags.cached", lambda name, tag: tag == "laion2b_s34b_b79k" or None)
    assert fields.suggested_weights("ViT-B-32") == "laion2b_s34b_b79k"


def test_live_names_the_data_as_experiments_does(open_page: Opened, tmp_path: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2)
    data = experiment.data.model_copy(update={"name": "folder", "root": "/data/pacs"})
    fill.done(tmp_path / "runs.db", experiment.model_copy(update={"data": data}))
    assert "pacs (folder)" in html(open_page("live", id="1"))


def test_results_from_elsewhere_took_an_unknown_time(open_page: Opened, db: Path, tmp_path: Path) -> None:
    store = Store(db)
    table = tmp_path / "mine.csv"
    rows = [f"mine,1,{r},client a,client a,{r},10" for r in (1, 2)]
    table.write_text("\n".join(["method,seed,round,model,test_set,correct,total", *rows]) + "\n")
    store.imports.csv(table, "Mine", "own data")
    app = open_page(columns=["Duration"])
    assert app.dataframe[0].value["Duration"].tolist() == [""]
    run = open_page("run", id="1")
    assert next(m.value for m in run.metric if m.label == "Duration") == "-"
    compared = open_page("compare", ids=["1"], tab="Cost")
    assert any("has recorded its traffic" in i.value for i in compared.info), json.dumps(
        [i.value for i in compared.info]
    )


@pytest.fixture
def waiting(db: Path) -> Store:
    """Two experiments of four queued runs each."""
    store = Store(db)
    for name in ("First", "Second"):
        store.experiments.create(
            fill.an_experiment(name, methods=("fedot", "promptfl"), seeds=(1, 2), rounds=3)
        )
    return store


def test_whole_experiments_move_in_the_queue(waiting: Store) -> None:
    waiting.queue.move([6], "top")  # runs of both are mixed now
    assert waiting.queue.move([1], by="experiment_id") == [1, 2, 3, 4]
    assert waiting.queue.ids() == [1, 2, 3, 4, 6, 5, 7, 8]
    assert waiting.queue.move([2], "up", "experiment_id") == [6, 5, 7, 8]
    assert waiting.queue.move([2], "bottom", "experiment_id") == [6, 5, 7, 8]
    assert waiting.queue.ids() == [1, 2, 3, 4, 6, 5, 7, 8]
    assert waiting.queue.move([99], by="experiment_id") == []


def test_an_experiment_runs_next_from_its_menu(open_page: Opened, waiting: Store) -> None:
    app = open_page(chosen="2")
    app = button(app, "Run next").click().run()
    assert not app.exception
    assert waiting.queue.ids() == [5, 6, 7, 8, 1, 2, 3, 4]


def test_the_stop_dialog_offers_one_seed_or_all(open_page: Opened, waiting: Store) -> None:
    app = button(open_page("live", id="1"), "Stop").click().run()
    offers = widget(app, "Runs", "radio")
    assert offers.options == ["Seed 1: 2 runs", "Seed 2: 2 runs", "All: 4 runs", "Choose by name"]
    assert button(app, "Stop 4 runs") and button(app, "Cancel")
    running = [replace(r, state="running") if r.id == 3 else r for r in waiting.runs.of_experiments([1])]
    ids = {title: [r.id for r in runs] for title, runs in stop_offers(running).items()}
    assert ids == {
        "Running now": [3],
        "Seed 1": [1, 2],
        "Seed 2": [3, 4],
        "All": [1, 2, 3, 4],
        "Choose by name": [],
    }


def the_dialog_that_kills() -> None:
    from pages.live_view.actions import confirm_kill
    from pages.widgets import session

    confirm_kill(session.store().runs.of_experiments([1])[:2])


def test_why_a_run_cannot_be_killed_stays_to_be_read(waiting: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dialog closed at once, and with it the sentence that said why."""
    monkeypatch.setenv("FEDLENS_DB", str(waiting.path))
    app = button(AppTest.from_function(the_dialog_that_kills).run(), "Kill").click().run()
    assert not app.exception
    assert ["stop it first" in error.value for error in app.error] == [True, True]
