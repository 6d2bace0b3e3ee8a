"""An experiment whose clients differ, through the form."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from fedcore.config import Experiment, loads
from fedcore.papers.experiments import preset
from fedcore.papers.mini import rehearsal
from fedcore.results.run_files import run_toml
from fedcore.store import Store
from pages.forms import fields
from tests.support.web.pages import Opened, button, widget

SMALL = rehearsal(preset("sdfed/table4-dtd"))


def recorded(tmp_path: Path, experiment: Experiment) -> Path:
    db = tmp_path / "runs.db"
    Store(db).prepare()
    Store(db).experiments.create(experiment)
    return db


def test_the_form_shows_cohorts_and_keeps_them_when_launched_unless_they_are_left_out(
    open_page: Opened, tmp_path: Path
) -> None:
    db = recorded(tmp_path, SMALL)
    app = open_page("new", clone="1")
    assert not app.error
    shown = next(f.value for f in app.dataframe if "max_steps" in f.value)
    assert shown["clients"].tolist() == [1, 1, 2]
    assert shown["backbone"].tolist() == ["mini-vit", "mini-vit", "mini-rn"]
    button(app, "Launch").click().run()
    newest = Store(db).experiments.all()[0]
    assert newest.id == 2 and newest.config.cohorts == SMALL.cohorts
    for run in newest.runs:
        assert Store(db).runs.config(run.id).cohorts == SMALL.cohorts
    assert loads(run_toml(Store(db), newest.runs[0].id)).cohorts == SMALL.cohorts
    app = differ(open_page("new", clone="1"), False)
    button(app, "Launch").click().run()
    assert Store(db).experiments.all()[0].config.cohorts == ()


def editor(app: AppTest, **changes: object) -> AppTest:
    """Edit the table of cohorts as the browser does: rows from 0."""
    state = {"edited_rows": {}, "added_rows": [], "deleted_rows": [], **changes}
    form = app.session_state["form"]
    app.session_state[f"new{form.version}.cohorts.table"] = state
    return app.run()


def differ(app: AppTest, value: bool) -> AppTest:
    return next(t for t in app.toggle if t.label.startswith("Clients differ")).set_value(value).run()


def methods(app: AppTest, *names: str) -> AppTest:
    return widget(app, "Methods").set_value(list(names)).run()


def test_cohorts_are_made_in_the_form(open_page: Opened, tmp_path: Path) -> None:
    app = methods(differ(open_page("new", preset="demo"), True), "sdfed", "zero-shot")
    assert not app.error, "one line that holds all clients is as if there were none"
    app = editor(
        app,
        edited_rows={0: {"clients": 4, "batch_size": 8}},
        added_rows=[{"clients": 2, "backbone": "mini-rn", "local_epochs": 2, "max_steps": 5}],
    )
    assert not app.error
    widget(app, "Rounds", "text_input").set_value("3")
    app = button(app.run(), "Launch").click().run()
    assert not app.exception
    made = Store(tmp_path / "runs.db").experiments.all()[0].config
    assert made.rounds == 3
    first, second = made.cohorts
    assert (first.clients, first.batch_size, first.backbone, first.max_steps) == (4, 8, None, None)
    assert (second.clients, second.local_epochs, second.max_steps) == (2, 2, 5)
    assert second.backbone is not None and second.backbone.name == "mini-rn"


def test_what_is_wrong_with_a_line_names_it(open_page: Opened) -> None:
    app = differ(open_page("new", preset="demo"), True)
    app = editor(app, edited_rows={0: {"clients": 5}}, added_rows=[{"clients": 1, "backbone": "RN51"}])
    (said,) = [e.value.replace("\\", "") for e in app.error]
    assert said.startswith("Cohort 2: CLIP backbone: unknown backbone 'RN51'; did you mean 'RN50")
    assert button(app, "Launch").disabled
    app = editor(app, edited_rows={0: {"clients": 3}})
    assert "The cohorts hold 3 clients, the partition makes 6" in app.error[0].value


def test_an_empty_cell_takes_the_weights_above() -> None:
    backbone = {"name": "ViT-B-16", "pretrained": "openai", "precision": "bf16"}
    empty = dict.fromkeys(["backbone", "pretrained", "precision", *fields.NUMBER_COLUMNS])
    row = empty | {"clients": 2}
    assert fields.cohort_content(row, backbone) == {"clients": 2}
    assert fields.cohort_content(row | {"backbone": "RN50"}, backbone)["backbone"] == backbone | {
        "name": "RN50"
    }
    assert fields.cohort_content(row | {"backbone": "mini-rn"}, backbone)["backbone"] == {
        "name": "mini-rn",
        "precision": "bf16",
    }
    assert fields.cohort_content(row | {"pretrained": "laion400m_e31"}, backbone)["backbone"] == backbone | {
        "pretrained": "laion400m_e31"
    }


def test_lines_stay_while_cohorts_are_switched_off_or_another_page_is_open(open_page: Opened) -> None:
    app = differ(open_page("new", preset="demo"), True)
    app = editor(app, edited_rows={0: {"clients": 5}}, added_rows=[{"clients": 1}])
    app = differ(app, False)
    assert not app.dataframe
    app = differ(app, True)
    assert app.dataframe[0].value["clients"].tolist() == [5, 1]
    widget(app, "Name", "text_input").set_value("Mine")
    app.run()
    app.switch_page("pages/data.py").run()
    app.switch_page("pages/new.py").run()
    assert widget(app, "Name", "text_input").value == "Mine"
    assert app.dataframe[0].value["clients"].tolist() == [5, 1]
