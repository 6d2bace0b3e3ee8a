"""An experiment whose clients differ, through the form."""

from __future__ import annotations

from pathlib import Path

from fedcore import runs
from fedcore.config import Experiment, load, loads
from fedcore.presets import mini
from fedcore.report.inventory import run_toml
from fedcore.runs import queries
from fedcore.runs.database import prepare
from tests.pages.conftest import ROOT, Opened
from tests.pages.test_pages import button

SMALL = mini(load(ROOT / "experiments" / "sdfed" / "table4-dtd.toml"))


def recorded(tmp_path: Path, experiment: Experiment) -> Path:
    db = tmp_path / "runs.db"
    prepare(db)
    runs.create_experiment(db, experiment)
    return db


def test_the_form_shows_cohorts_and_keeps_them_when_launched(open_page: Opened, tmp_path: Path) -> None:
    db = recorded(tmp_path, SMALL)
    app = open_page("new", clone="1")
    assert not app.error
    shown = next(f.value for f in app.dataframe if "max_steps" in f.value)
    assert shown["clients"].tolist() == [1, 1, 3]
    assert shown["backbone"].tolist() == ["mini-vit", "mini-vit", "mini-rn"]
    button(app, "Launch").click().run()
    newest = queries.experiments(db)[0]
    assert newest.id == 2 and newest.config.cohorts == SMALL.cohorts
    for run in newest.runs:
        assert queries.run_config(db, run.id).cohorts == SMALL.cohorts
    assert loads(run_toml(db, newest.runs[0].id)).cohorts == SMALL.cohorts


def test_cohorts_can_be_left_out(open_page: Opened, tmp_path: Path) -> None:
    db = recorded(tmp_path, SMALL)
    app = open_page("new", clone="1")
    next(t for t in app.toggle if t.label == "Clients in 3 cohorts").set_value(False).run()
    button(app, "Launch").click().run()
    assert queries.experiments(db)[0].config.cohorts == ()


def test_cohorts_that_do_not_fit_stand_beside_their_field(open_page: Opened, tmp_path: Path) -> None:
    recorded(tmp_path, SMALL)
    app = open_page("new", clone="1")
    next(w for w in app.number_input if w.label == "Clients").set_value(4).run()
    (said,) = app.error
    assert "the cohorts hold 5 clients, the partition makes 4" in said.value
    assert button(app, "Launch").disabled
