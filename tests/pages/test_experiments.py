"""The Experiments page: selection, row menu, import, queue."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.jobs import launcher
from fedcore.results.matrices import run_panel
from fedcore.results.progress import ExperimentSummary, summaries_of
from fedcore.store import Store
from fedcore.store.experiments import Experiments
from pages.experiments_view import actions, table
from tests.support import fill
from tests.support.web.pages import Opened, button, html, widget, work_off

DEFAULT = [name for name, column in table.COLUMNS.items() if column.shown]

TABLE, MENU = "experiment_table", "experiment_menu"
OF_DONE = ["Live", "Compare", "Clone", "Edit", "Tag", "Archive", "Delete"]
"""Actions on an experiment that is done."""
LONG = "é😀<i>&amp;`*_" * 38 + "end"  # 497 characters


def select(app: AppTest, key: str, *rows: int) -> AppTest:
    """As a click in the first column of a table does."""
    app.session_state[key] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    return app.run()


def experiments(app: AppTest) -> list[str]:
    """The names in the table."""
    return list(app.dataframe[0].value["Experiment"])


@pytest.fixture
def queued(filled: Path) -> list[int]:
    """Three more runs that wait behind the one of the second experiment; all ids in the queue's order."""
    made = Store(filled).experiments.create(
        fill.an_experiment("Waiting", methods=("fedot",), seeds=(1, 2, 3)), device="cpu"
    )
    order = Store(filled).queue.ids()
    assert order[1:] == list(made.run_ids)
    return order


def test_a_new_experiment_does_not_change_what_is_selected(open_page: Opened, filled: Path) -> None:
    app = select(open_page(), TABLE, 1)  # the older one
    assert app.query_params["chosen"] == "1"
    fill.done(filled, fill.an_experiment("Just arrived", methods=("fedot",), seeds=(1,), rounds=2))
    app = app.run()
    assert experiments(app) == ["Just arrived", "In the middle of things", "Made up"]
    assert app.query_params["chosen"] == "1"
    assert app.session_state[TABLE]["selection"]["rows"] == [2]
    assert any(m.value == "**Runs of Made up**" for m in app.markdown)


def test_a_full_disk_is_said_where_runs_wait_for_it(
    open_page: Opened, filled: Path, queued: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (experiment,) = {run.experiment_id for run in Store(filled).runs.get(queued[1:])}
    for free, full in (10**10, False), (10**6, True):
        monkeypatch.setattr("fedcore.base.errors.disk_usage", lambda place, free=free: (10**11, free))
        for app in open_page(), open_page("live", id=experiment):
            said = f"The disk that holds {filled.parent} is almost full: no run starts until there is space"
            assert (said in html(app)) is full


def test_news_is_said_and_the_table_is_not_moved(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new experiment and a deleted one, right after the list was read."""
    done, load_ = [], Experiments.listed
    app = open_page()
    assert button(app, "Up to date").disabled

    def loaded(*args: object, **more: object) -> object:
        found = load_(*args, **more)
        if not done:
            done.append(1)
            Store(filled).experiments.delete(1)
            fill.done(filled, fill.an_experiment("Just arrived", methods=("fedot",), seeds=(1,), rounds=2))
        return found

    monkeypatch.setattr(Experiments, "listed", loaded)
    app = app.run()
    assert experiments(app) == ["In the middle of things", "Made up"]
    app = button(app, "4 runs changed, 1 new: refresh").click().run()
    assert experiments(app) == ["Just arrived", "In the middle of things"]
    assert button(app, "Up to date").disabled


def test_a_click_on_the_table_before_the_arrival_means_what_was_shown(
    open_page: Opened, filled: Path
) -> None:
    app = open_page()
    fill.done(filled, fill.an_experiment("Just arrived", methods=("fedot",), seeds=(1,), rounds=2))
    app = select(app, TABLE, 0)  # the page that the reader sees has experiment 2 there
    assert app.query_params["chosen"] == "2"


def test_filters_stand_in_the_url_and_do_not_block_the_way_out(open_page: Opened, filled: Path) -> None:
    app = open_page(find="middle", status=["failed"])
    assert experiments(app) == ["In the middle of things"]
    app = button(app, "New experiment").click().run()
    assert not app.exception
    assert app.title[0].value == "New experiment"


def test_the_menu_of_a_row_holds_what_makes_sense(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions.session, "writable", lambda: True)
    store = Store(filled)
    mixed, done = summaries_of(store, store.experiments.all())

    def menu(item: ExperimentSummary) -> list[str]:
        return [action.label for action in actions.ACTIONS if action.possible([item])]

    assert menu(done) == OF_DONE
    assert menu(mixed) == [*OF_DONE[:5], "Stop", "Run next", "Resume", "Retry failed", *OF_DONE[5:]]
    monkeypatch.setattr(actions.session, "writable", lambda: False)
    assert menu(mixed) == ["Live", "Compare"]


def test_a_click_in_a_row_menu_acts_on_the_row_that_was_shown(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    noted = [
        replace(a, do=lambda items, label=a.label: asked.append((label, items[0].row.id)))
        for a in actions.ACTIONS
    ]
    monkeypatch.setattr(actions, "ACTIONS", noted)
    app = open_page()
    app.session_state["clicked_action"] = (":material/edit: Edit", 2)  # as the table's callback does
    app.run()
    assert asked == [("Edit", 2)]
    app.run()
    assert len(asked) == 1


def test_the_name_of_a_row_opens_it(open_page: Opened, filled: Path) -> None:
    app = open_page()
    app.session_state["clicked_action"] = (":material/monitoring: Live", 1)  # as the table's callback does
    app.run()
    assert app.title[0].value == "Live"
    assert app.query_params["id"] == "1"


def test_columns_are_chosen_and_stand_in_the_url(open_page: Opened, filled: Path) -> None:
    always = ["Status", "Experiment", ""]
    assert list(open_page().dataframe[0].value.columns) == [*always, *DEFAULT]
    app = open_page(columns=["Tags", "Worst client"])
    assert list(app.dataframe[0].value.columns) == [*always, "Worst client", "Tags"], "in their usual order"
    app = open_page(columns=["no such column"])
    assert not app.exception


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        (["FedOT"], "FedOT"),
        (["FedOT", "PromptFL", "SDFed"], "FedOT, PromptFL, SDFed"),
        (["Zero-shot CLIP", "FedOT", "PromptFL", "SDFed"], "Zero-shot CLIP and 3 more"),
        (["A method with a name that is long", "FedOT"], "A method with a name that is long and 1 more"),
    ],
)
def test_methods_are_counted_where_their_names_would_be_cut(methods: list[str], text: str) -> None:
    assert table.methods_text(methods) == text


@pytest.mark.parametrize("archived", [False, True])
def test_no_default_column_is_cut_off_in_a_window_of_1440_pixels(archived: bool) -> None:
    widths = [table.COLUMNS[name].config["width"] for name in DEFAULT if name != "Best"]
    selection, page = 33, 1240
    first = sum(table.WIDTHS[archived]) + table.MENU_WIDTH
    assert selection + first + sum(widths) + table.WIDEST_BEST <= page


def test_actions_appear_with_a_selection_and_only_those_that_are_possible(
    open_page: Opened, filled: Path
) -> None:
    names = {a.label for a in actions.ACTIONS}
    app = open_page()
    assert not names & {b.label for b in app.button}
    app = select(app, TABLE, 1)
    assert {b.label for b in app.button} & names == set(OF_DONE)
    app = select(app, TABLE, 0, 1)
    assert "Stop" in {b.label for b in app.button} and "Delete" not in {b.label for b in app.button}


def test_tags_are_given_to_several_and_group_the_list(open_page: Opened, filled: Path) -> None:
    store = Store(filled)
    store.experiments.edit(1, tags=["paper", "old"])
    app = button(select(open_page(), TABLE, 0, 1), "Tag").click().run()
    assert widget(app, "Tags that all of them have").value == []
    assert actions.changed_tags(("paper", "old"), ["paper"], ["new"]) == ["old", "new"]
    app = open_page(tag="old")
    assert experiments(app) == [store.experiments.get(1).name]


def test_a_thumbnail_shows_the_last_round_of_the_best_method(open_page: Opened, filled: Path) -> None:
    (item,) = summaries_of(Store(filled), [Store(filled).experiments.get(1)])
    assert item.best_run is not None and item.best_run.label == item.best_text
    drawn = open_page().dataframe[0].value["Heatmap"][1].removeprefix("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(drawn))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    panel = run_panel(Store(filled), item.best_run)
    assert pixels.shape[:2] == (4 * panel.values.shape[0], 4 * panel.values.shape[1])
    ends = np.argmin(panel.values), np.argmax(panel.values)
    darkest, brightest = (np.unravel_index(place, panel.values.shape) for place in ends)
    brightness = pixels[2::4, 2::4].sum(axis=2)
    assert brightness[darkest] == brightness.min() and brightness[brightest] == brightness.max()


def test_the_selection_stands_in_the_url_and_runs_of_one_method_are_one_row_that_unfolds(
    open_page: Opened, filled: Path
) -> None:
    app = open_page(chosen=["1"])
    assert any(m.value == "**Runs of Made up**" for m in app.markdown)
    assert not button(app, "Clone").disabled
    shown = next(e.proto.body for e in app.get("html") if "Runs of Made up" in e.proto.body)
    runs = Store(filled).experiments.get(1).runs
    labels = {r.label for r in runs}
    assert len(runs) > len(labels)
    assert shown.count("<tr>") == 1 + len(labels), "with the heading"
    assert shown.count("<details") == len(labels)
    assert shown.count("/run?id=") == len(runs)


def test_archived_ones_can_be_shown_again(open_page: Opened, filled: Path) -> None:
    app = button(select(open_page(), TABLE, 1), "Archive").click().run()
    assert any("archived" in c.value for c in app.caption)
    app = button(app, "Undo").click().run()
    assert not [e for e in Store(filled).experiments.all(include_archived=True) if e.archived]
    app = button(select(app, TABLE, 1), "Archive").click().run()
    assert experiments(app) == ["In the middle of things"]
    app = select(open_page(archived="true"), TABLE, 1)
    button(app, "Unarchive").click().run()
    assert [e.id for e in Store(filled).experiments.all()] == [2, 1]


def test_archiving_everything_is_no_fresh_start(open_page: Opened, filled: Path) -> None:
    for number in (1, 2):
        Store(filled).experiments.edit(number, archived=True)
    app = open_page()
    assert "All 2 experiments are archived" in app.info[0].value
    assert not [b for b in app.button if b.label == "Try it"]
    app = next(t for t in app.toggle if t.key == "archived").set_value(True).run()
    assert len(app.dataframe[0].value) == 2
    assert all(text.endswith(", archived") for text in app.dataframe[0].value["Status"])


def test_an_empty_database_welcomes_even_with_a_filter_in_the_link(open_page: Opened) -> None:
    app = open_page(archived="true", find="x")
    assert button(app, "Try it")
    (key,) = [e.proto.body for e in app.get("html") if "fl-key" in e.proto.body and "<table>" in e.proto.body]
    assert key.count('class="own"') == 2, "the diagonal is framed"


def test_an_empty_database_has_a_worker_that_loads_torch_ahead(
    open_page: Opened, monkeypatch: pytest.MonkeyPatch, db: Path
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("fedcore.jobs.ensure_worker", lambda db, **options: asked.append(options))
    open_page()
    assert {"ahead": True} in asked
    asked.clear()
    Store(db).experiments.create(fill.an_experiment(methods=("fedot",)))
    open_page()
    assert asked and {"ahead": True} not in asked


def test_deleting_offers_to_archive_and_asks_for_the_name(open_page: Opened, filled: Path) -> None:
    app = button(select(open_page(), TABLE, 1), "Delete").click().run()
    assert next(b for b in app.button if b.key == "delete_confirmed").disabled
    assert button(app, "Archive instead")


def test_stopping_many_runs_names_some_and_counts_the_rest(open_page: Opened, db: Path) -> None:
    Store(db).experiments.create(fill.an_experiment(methods=("fedot",), seeds=range(1, 21)), device="cpu")
    app = button(select(open_page(), TABLE, 0), "Stop").click().run()
    named = next(m.value for m in app.markdown if "seed 12" in m.value)
    assert "seed 13" not in named and named.endswith("and 8 more")


def test_a_table_of_results_is_imported_and_a_mistake_names_the_users_file(
    open_page: Opened, db: Path
) -> None:
    Store(db).prepare()
    head = "method,seed,round,model,test_set,correct,total\n"
    actions.submit_import("R.CSV", f"{head}mine,1,1,a,a,5,6\n".encode(), "Mine", "x")
    actions.submit_import("my results.csv", f"{head}mine,1,1,a,a,7,6\n".encode(), "Mine", "x")
    assert work_off(db) == ["done", "failed"]
    wrong, good = Store(db).tasks.recent("import_file")
    assert good.result == {"says": "1 run recorded."}
    assert "my results.csv" in wrong.error and "upload" not in wrong.error


def test_the_import_dialog_asks_a_table_for_its_experiment(open_page: Opened, filled: Path) -> None:
    cases = ("", "", True), ("/x.json", "", False), ("/x.CSV", "", True), ("/x.CSV", "Mine", False)
    for path, name, disabled in cases:
        app = open_page()
        app.session_state["import_path"], app.session_state["import_name"] = path, name
        app = button(app, "Import").click().run()
        assert next(b for b in app.button if b.key == "import_confirmed").disabled == disabled
        assert any(w.key == "import_name" for w in app.text_input) == path.endswith("CSV")


def test_a_file_by_its_path_is_imported_in_the_background(
    open_page: Opened, filled: Path, tmp_path: Path
) -> None:
    source = tmp_path / "<b>results*.csv"
    source.write_text("method,seed,round,model,test_set,correct,total\nmine,1,1,a,a,5,6\n")
    actions.submit_import(str(source), None, "By path")
    assert [t.status for t in Store(filled).tasks.recent("import_file")] == ["queued"]
    assert "waiting for its turn" in open_page().get("progress")[0].proto.text
    assert work_off(filled) == ["done"]
    app = open_page()
    assert next(e.name for e in Store(filled).experiments.all()) == "By path"
    (toast,) = app.toast
    assert toast.value.endswith("1 run recorded\\.") and "\\<b\\>results\\*" in toast.value
    assert Store(filled).tasks.recent("import_file") == []  # told once


def test_an_upload_is_recorded_in_the_background_and_leaves_nothing(
    open_page: Opened, filled: Path, tmp_path: Path
) -> None:
    before = [e.name for e in Store(filled).experiments.all()]
    elsewhere = tmp_path / "other" / "runs.db"
    fill.done(elsewhere, fill.an_experiment("Other", methods=("fedot",), seeds=(1,), rounds=2))
    actions.submit_import("other.json", Store(elsewhere).experiments.to_json([1]).encode())
    actions.submit_import("mine.json", Store(filled).experiments.to_json([1]).encode())
    actions.submit_import("broken.json", b"{")
    assert work_off(filled) == ["done", "done", "failed"]
    broken, good, other = Store(filled).tasks.recent("import_file")
    assert other.result == {"says": "1 experiment added, 0 already here."}
    assert good.result == {"says": "0 experiments added, 1 already here."}
    assert "broken.json" in broken.error and "upload" not in broken.error
    for task in (broken, good, other):
        Store(filled).tasks.delete(task.id)
    assert list((tmp_path / "artifacts").rglob("upload.*")) == []
    assert {e.name for e in Store(filled).experiments.all()} == {*before, "Other"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        *((typed, "no file|cannot be a path") for typed in ("/nowhere/x.json", "x" * 5000, "a\0b", ".")),
        (__file__, r"neither \.json nor \.csv"),
    ],
)
def test_a_path_that_names_no_file_to_import_is_refused_in_words(typed: str, said: str) -> None:
    with pytest.raises(FedLensError, match=said):
        actions.submit_import(typed, None)


def test_the_queue_is_shown_in_order_and_moved(open_page: Opened, filled: Path, queued: list[int]) -> None:
    app = open_page(queue="true")
    table = app.dataframe[-1].value
    assert list(table["Position"]) == [1, 2, 3, 4]
    assert list(table["Seed"]) == [1, 1, 2, 3]
    assert button(app, "Top").disabled
    app = select(app, "queue_table", 3)
    app = button(app, "Top").click().run()
    assert Store(filled).queue.ids() == [queued[3], *queued[:3]]
    assert app.session_state["queue_table"]["selection"]["rows"] == [0]  # the same run, where it stands now
    app = button(app, "Down").click().run()
    assert Store(filled).queue.ids() == [queued[0], queued[3], *queued[1:3]]
    next(b for b in app.button if b.key == "queue_stop").click().run()
    assert Store(filled).queue.ids() == queued[:3]


def test_slots_are_stored_for_the_worker_and_more_than_there_are_cpus_are_pointed_out(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_cpus", lambda: 2)
    app = open_page(queue="true")
    field = next(n for n in app.number_input if n.key == "slots_cpu")
    app = field.set_value(2).run()
    assert not any("take turns" in c.value for c in app.caption)
    field.set_value(3).run()
    assert list(Store(filled).queue.slots().values()) == [3]
    assert any("This machine has 2 CPUs. 3 runs at once take turns there" in c.value for c in app.caption)


def test_an_empty_queue_says_what_will_be_there(open_page: Opened, db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    app = open_page(queue="true")
    assert any("wait here" in c.value for c in app.caption)


def test_the_queue_says_why_a_gpu_is_not_used(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "refused_gpus", lambda: ["NVIDIA H100 cannot be used (too old)"])
    assert any("NVIDIA H100 cannot be used" in w.value for w in open_page(queue="true").warning)


def test_without_the_package_for_a_cluster_the_queue_says_how_to_get_it(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "cluster", lambda: None)
    app = open_page(queue="true")
    said = " ".join(c.value for c in app.caption)
    assert "To train on more machines: `pip install ./fedlens-ray` in a checkout of FedLens" in said
    assert not [b for b in app.button if b.label == "Connect"]


@pytest.mark.parametrize(
    "name",
    [
        LONG,
        "[a](javascript:x) :red[b] $x$",
        pytest.param('"><script>x</script>', marks=pytest.mark.slow),
        pytest.param("=cmd|' /C'!A0", marks=pytest.mark.slow),
    ],
)
def test_names_are_text_in_list_queue_and_dialogs(
    open_page: Opened, db: Path, name: str, shown_as_text: Callable[[AppTest], None]
) -> None:
    fill.done(db, fill.an_experiment(name, methods=("fedot",), seeds=(1,), rounds=2))
    Store(db).experiments.create(fill.an_experiment(name, methods=("fedot",), seeds=(1,)))
    app = open_page(queue="true", chosen=["1", "2"])
    assert experiments(app) == [name, name]
    assert list(app.dataframe[-1].value["Experiment"]) == [name]
    shown_as_text(app)
    button(select(app, TABLE, 0), "Stop").click().run()
    shown_as_text(app)


def test_experiments_are_grouped_and_selected_in_each_group(open_page: Opened, filled: Path) -> None:
    store = Store(filled)
    store.experiments.edit(1, tags=["paper"], notes="for Table 2")
    app = open_page(group="tag", chosen="1")
    assert {"**no tag** (1)", "**paper** (1)"} <= {m.value for m in app.markdown}
    assert [list(d.value["Notes"]) for d in app.dataframe if "Notes" in d.value] == [[""], ["for Table 2"]]
    assert any(m.value == "**1 selected**" for m in app.markdown)
    assert "for Table 2" in [c.value for c in app.caption], "above its runs"
    app.session_state[f"{TABLE}no tag"] = {"selection": {"rows": [0], "columns": [], "cells": []}}
    assert any(m.value == "**2 selected**" for m in app.run().markdown)
    assert app.query_params["chosen"] == ["2", "1"]
