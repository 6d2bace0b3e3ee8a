"""Written descriptions of classes, edited in the form."""

import json
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from fedcore.config import Experiment, MethodEntry, RunConfig, loads
from fedcore.data import descriptions
from fedcore.results.run_files import run_toml
from fedcore.store import Store
from pages.forms import methods
from tests.support import fill
from tests.support.web.pages import Opened, button, html, open_form, widget
from tests.support.web.pictures import image_folder

TEXTS = {"cat": ["a pet.", "a small tiger."]}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A data set of the classes cat, which is described, and fire engine, which is not."""
    root = tmp_path / "pictures"
    image_folder(root, TEXTS)
    return root


def recorded(tmp_path: Path, root: Path | None, texts: object = None, method: str = "fedalign") -> Path:
    """Experiment 1: a method with written descriptions on the pictures, or on the embedded shapes."""
    db = tmp_path / "runs.db"
    fields = {"class_text": "description", **({} if texts is None else {"descriptions": texts})}
    where = {"name": "shapes"} if root is None else {"name": "folder", "root": str(root)}
    Store(db).prepare()
    entries, partition = (MethodEntry(name=method, config=fields),), {"kind": "iid", "clients": 2}
    Store(db).experiments.create(Experiment(data=where, partition=partition, rounds=1, methods=entries))
    return db


def place(app: AppTest) -> str:
    """The editor's keys begin with it."""
    (found,) = {k.removesuffix(".start") for k in app.session_state if k.endswith(".start")}
    return found


def edit(app: AppTest, **changes: object) -> AppTest:
    """Edit the table as the browser does: rows from 0."""
    state = {"edited_rows": {}, "added_rows": [], "deleted_rows": [], **changes}
    version = app.session_state[f"{place(app)}.version"]
    app.session_state[f"{place(app)}.{version}"] = state
    return app.run()


def lines(app: AppTest) -> list[tuple[str, str | None]]:
    (table,) = [f.value for f in app.dataframe if "text" in f.value]
    return [(c, None if pd.isna(t) else t) for c, t in zip(table["class"], table["text"], strict=True)]


def launched(app: AppTest, db: Path) -> tuple[dict[str, object], RunConfig]:
    """What the newest experiment's method was asked, and its run."""
    assert not app.error, app.error
    assert not button(app, "Launch").click().run().exception
    newest = Store(db).experiments.all()[0]
    return newest.config.methods[0].config, Store(db).runs.config(newest.runs[0].id)


@pytest.mark.parametrize("method", ["fedalign", pytest.param("zero-shot", marks=pytest.mark.slow)])
def test_edited_texts_go_into_the_experiment_and_its_run(
    open_page: Opened, tmp_path: Path, pictures: Path, method: str
) -> None:
    db = recorded(tmp_path, pictures, method=method)
    app = open_form(open_page("new", clone="1"), {"fedalign": "FedAlign", "zero-shot": "Zero"}[method])
    assert lines(app) == [("cat", "a pet."), ("cat", "a small tiger."), ("fire engine", None)]
    engine = {"class": "fire engine", "text": "a 🚒."}
    changes = {"edited_rows": {0: {"text": " a  purring\npet. "}}, "deleted_rows": [1]}
    app = edit(app, added_rows=[engine, {"text": "of nothing"}], **changes)
    assert "1 text has no class" in app.error[0].value and button(app, "Launch").disabled
    assert "Not ready: see Class descriptions." in [c.value for c in app.caption]
    app = edit(app, added_rows=[engine], **changes)
    edited = {"cat": ["a purring pet."], "fire engine": ["a 🚒."]}
    asked, run = launched(app, db)
    assert asked["descriptions"] == edited == run.method.config["descriptions"]
    again = loads(run_toml(Store(db), Store(db).experiments.all()[0].runs[0].id))
    assert again.methods[0].config["descriptions"] == edited
    clone = open_form(open_page("new", clone="2"), {"fedalign": "FedAlign", "zero-shot": "Zero"}[method])
    assert lines(clone) == [("cat", "a purring pet."), ("fire engine", "a 🚒.")]


def test_untouched_texts_stay_the_data_set_s_and_are_read_when_planned(
    open_page: Opened, tmp_path: Path, pictures: Path
) -> None:
    db = recorded(tmp_path, pictures)
    app = open_form(open_page("new", clone="1"), "FedAlign")
    (pictures / "descriptions.json").write_text(json.dumps({"fire_engine": ["a red van."]}))
    app = app.run()
    assert lines(app) == [("cat", None), ("fire engine", "a red van.")]
    asked, run = launched(app, db)
    assert "descriptions" not in asked
    assert run.method.config["descriptions"] == {"cat": [], "fire engine": ["a red van."]}, "not the old plan"


def test_an_edit_can_be_taken_back(open_page: Opened, tmp_path: Path, pictures: Path) -> None:
    db = recorded(tmp_path, pictures, {"cat": ["mine."], "dog": ["of another data set."]})
    assert "no class 'dog'" in open_page("new", clone="1").error[0].value
    app = open_form(open_page("new", clone="1"), "FedAlign")
    assert lines(app) == [("cat", "mine."), ("fire engine", None)]
    assert any("no such class: dog" in c.value for c in app.caption) and not app.error
    app = edit(app, edited_rows={0: {"text": "mine, better."}})
    app = button(app, "Reset to the data set's texts").click().run()
    assert lines(app)[0] == ("cat", "a pet.") and button(app, "Reset to the data set's texts").disabled
    assert "descriptions" not in launched(app, db)[0]


def test_edits_of_one_data_set_wait_while_another_is_looked_at(
    open_page: Opened, tmp_path: Path, pictures: Path
) -> None:
    recorded(tmp_path, pictures)
    app = edit(open_form(open_page("new", clone="1"), "FedAlign"), edited_rows={0: {"text": "edited."}})
    data = widget(app, "Data set", "selectbox")
    app = data.set_value("shapes").run()
    assert lines(app)[0][0] == "arrow" and not app.error
    app = widget(app, "Data set", "selectbox").set_value("folder").run()
    assert lines(app)[0] == ("cat", "edited.")


def test_there_is_no_editor_where_the_prompt_is_taken(open_page: Opened, tmp_path: Path) -> None:
    recorded(tmp_path, None)
    app = open_form(open_page("new", clone="1"), "FedAlign")
    assert len(lines(app)) == 30
    assert any("written for FedLens" in c.value for c in app.caption)
    app = widget(app, "Class texts", "selectbox").set_value("template").run()
    assert not [f for f in app.dataframe if "text" in f.value]


def test_the_row_of_a_method_says_how_many_texts_it_holds(
    open_page: Opened, tmp_path: Path, pictures: Path
) -> None:
    recorded(tmp_path, pictures, {"cat": ["mine."]})
    row = next(text for text in html(open_page("new", clone="1")).splitlines() if "1 text for 1" in text)
    assert "1 text for 1 of 1 classes (checksum" in row and "mine" not in row


def test_texts_of_a_file_are_read_as_the_folder_s_are() -> None:
    given = descriptions.parse('\ufeff{"fire_engine": ["a  van."], "dog": ["x"]}'.encode(), "mine.json")
    table = methods._text_table(given, ("cat", "fire engine"))
    assert methods._texts_of_table(table) == ({"fire engine": ["a van."]}, 0)


def test_rows_that_took_the_prompt_are_marked_in_compare(open_page: Opened, tmp_path: Path) -> None:
    half = {"class_text": "description", "descriptions": {"cat": ["a pet."], "dog": []}}
    entries = (MethodEntry(name="fedalign", config=half), MethodEntry(name="fedot"))
    fill.done(tmp_path / "runs.db", Experiment(methods=entries, rounds=2))
    app = open_page("compare", ids="1")
    why = "1 of 2 classes had no written description and used the prompt"
    assert [c.value.replace("\\", "") for c in app.caption if "†" in c.value] == [
        f":material/info: † FedAlign: {why}"
    ]
    (table,) = [e.proto.body for e in app.get("html") if "Summary of" in e.proto.body]
    assert table.count("†") == 1 and why in table
