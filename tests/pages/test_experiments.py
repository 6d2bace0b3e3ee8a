"""The Experiments page: selection, row menu, import, queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.errors import FedLensError
from fedcore.report.overview import load
from fedcore.runs import queries, slots, store, transfer
from pages.parts import experiment_actions as actions
from tests import fill
from tests.pages.conftest import Opened

TABLE, MENU = "experiment_table", "experiment_menu"
LONG = "é😀<i>&amp;`*_" * 38 + "end"  # 497 characters


def select(app: AppTest, key: str, *rows: int) -> AppTest:
    """As a click in the first column of a table does."""
    app.session_state[key] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    return app.run()


def button(app: AppTest, label: str) -> object:
    return next(b for b in app.button if b.label == label)


@pytest.fixture
def queued(filled: Path) -> list[int]:
    """Three more runs that wait behind the one of the second experiment; all ids in the queue's order."""
    made = store.create_experiment(
        filled, fill.an_experiment("Waiting", methods=("fedot",), seeds=(1, 2, 3)), device="cpu"
    )
    order = queries.queue(filled)
    assert order[1:] == list(made.run_ids)
    return order


def test_a_new_experiment_does_not_change_what_is_selected(open_page: Opened, filled: Path) -> None:
    app = select(open_page(), TABLE, 1)  # the older one
    assert app.query_params["chosen"] == "1"
    fill.done(filled, fill.an_experiment("Just arrived", methods=("fedot",), seeds=(1,), rounds=2))
    app = app.run()
    assert list(app.dataframe[0].value["Experiment"]) == [
        "Just arrived",
        "In the middle of things",
        "Made up",
    ]
    assert app.query_params["chosen"] == "1"
    assert app.session_state[TABLE]["selection"]["rows"] == [2]
    assert any(m.value == "**Runs of Made up**" for m in app.markdown)


def test_a_click_on_the_table_before_the_arrival_means_what_was_shown(
    open_page: Opened, filled: Path
) -> None:
    app = open_page()
    fill.done(filled, fill.an_experiment("Just arrived", methods=("fedot",), seeds=(1,), rounds=2))
    app = select(app, TABLE, 0)  # the page that the reader sees has experiment 2 there
    assert app.query_params["chosen"] == "2"


def test_the_selection_stands_in_the_url(open_page: Opened, filled: Path) -> None:
    app = open_page(chosen=["1"])
    assert any(m.value == "**Runs of Made up**" for m in app.markdown)
    assert not button(app, "Clone").disabled


def test_filters_stand_in_the_url_and_do_not_block_the_way_out(open_page: Opened, filled: Path) -> None:
    app = open_page(find="middle", status=["failed"])
    assert list(app.dataframe[0].value["Experiment"]) == ["In the middle of things"]
    app = button(app, "New experiment").click().run()
    assert not app.exception
    assert app.title[0].value == "New experiment"


def test_the_menu_of_a_row_holds_what_makes_sense(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions.common, "writable", lambda: True)
    mixed, done = load(filled)
    assert [label.split(": ")[1] for label in actions.menu(done)] == [
        "Live", "Compare", "Clone", "Edit", "Archive", "Delete",
    ]  # fmt: skip
    assert [label.split(": ")[1] for label in actions.menu(mixed)] == [
        "Live", "Compare", "Clone", "Edit", "Stop", "Resume", "Retry failed", "Archive", "Delete",
    ]  # fmt: skip
    monkeypatch.setattr(actions.common, "writable", lambda: False)
    assert [label.split(": ")[1] for label in actions.menu(mixed)] == ["Live", "Compare"]


def test_a_click_in_a_row_menu_acts_on_the_row_that_was_shown(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(actions, "ACTIONS", tuple(
        actions.Action(a.label, a.icon, a.fits, lambda items, a=a: asked.append((a.label, items[0].row.id)))
        for a in actions.ACTIONS
    ))  # fmt: skip
    app = open_page()
    app.session_state["experiment_asked"] = (":material/edit: Edit", 2)  # as the table's callback does
    app.run()
    assert asked == [("Edit", 2)]
    app.run()
    assert len(asked) == 1


def test_archived_ones_can_be_shown_again(open_page: Opened, filled: Path) -> None:
    app = button(select(open_page(), TABLE, 1), "Archive").click().run()
    assert list(app.dataframe[0].value["Experiment"]) == ["In the middle of things"]
    app = select(open_page(archived="true"), TABLE, 1)
    button(app, "Unarchive").click().run()
    assert [e.id for e in queries.experiments(filled)] == [2, 1]


def test_what_another_fedlens_exported_is_imported_once(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = transfer.experiments_json(filled, [1]).encode()
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "other" / "runs.db"))
    assert actions.record("Made up.json", content, "", "") == "1 experiment(s) added, 0 here already."
    assert actions.record("Made up.json", content, "", "") == "0 experiment(s) added, 1 here already."
    assert [e.name for e in queries.experiments(tmp_path / "other" / "runs.db")] == ["Made up"]


def test_a_table_of_results_is_imported_and_a_mistake_names_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "runs.db"))
    head = "method,seed,round,model,test_set,correct,total\n"
    assert actions.record("R.CSV", f"{head}mine,1,1,a,a,5,6\n".encode(), "Mine", "x") == "1 run(s) recorded."
    with pytest.raises(FedLensError, match=r"^.*my results\.csv") as caught:
        actions.record("my results.csv", f"{head}mine,1,1,a,a,7,6\n".encode(), "Mine", "x")
    assert "upload" not in str(caught.value)
    with pytest.raises(FedLensError, match="broken.json"):
        actions.record("broken.json", b"{", "", "")


def test_the_queue_is_shown_in_order_and_moved(open_page: Opened, filled: Path, queued: list[int]) -> None:
    app = open_page(queue="true")
    table = app.dataframe[-1].value
    assert list(table["Place"]) == [1, 2, 3, 4]
    assert list(table["Seed"]) == [1, 1, 2, 3]
    assert button(app, "Top").disabled
    app = select(app, "queue_table", 3)
    app = button(app, "Top").click().run()
    assert queries.queue(filled) == [queued[3], *queued[:3]]
    assert app.session_state["queue_table"]["selection"]["rows"] == [0]  # the same run, where it stands now
    app = button(app, "Down").click().run()
    assert queries.queue(filled) == [queued[0], queued[3], *queued[1:3]]
    next(b for b in app.button if b.key == "queue_stop").click().run()
    assert queries.queue(filled) == queued[:3]


def test_slots_are_stored_for_the_worker(open_page: Opened, filled: Path) -> None:
    app = open_page(queue="true")
    next(n for n in app.number_input if n.label.startswith("Runs at once on")).set_value(3).run()
    assert list(slots.slots(filled).values()) == [3]


def test_an_empty_queue_says_what_will_be_there(open_page: Opened, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    app = open_page(queue="true")
    assert any("wait here" in c.value for c in app.caption)


@pytest.mark.parametrize(
    "name", [LONG, '"><script>x</script>', "=cmd|' /C'!A0", "[a](javascript:x) :red[b] $x$"]
)
def test_names_are_text_in_list_queue_and_dialogs(
    open_page: Opened, tmp_path: Path, name: str, shown_as_text: Callable[[AppTest], None]
) -> None:
    db = tmp_path / "runs.db"
    fill.done(db, fill.an_experiment(name, methods=("fedot",), seeds=(1,), rounds=2))
    store.create_experiment(db, fill.an_experiment(name, methods=("fedot",), seeds=(1,)))
    app = open_page(queue="true", chosen=["1", "2"])
    assert list(app.dataframe[0].value["Experiment"]) == [name, name]
    assert list(app.dataframe[-1].value["Experiment"]) == [name]
    shown_as_text(app)
    button(select(app, TABLE, 0), "Stop").click().run()
    shown_as_text(app)
