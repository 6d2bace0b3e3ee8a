"""A method file outside the repository: form, plan, real job process and tables, without a line elsewhere."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.base.files import PROJECT
from fedcore.config import Experiment, parse
from fedcore.config.field_names import field_title
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.results.comparison import compare, partial_fields
from fedcore.store import Store
from tests.support.encoded import DIGITS
from tests.support.exported import exported
from tests.support.jobs import execute_next
from tests.support.web.pages import SWEEP, open_form, open_sweep

SOURCE = '''
"""A scale per class that the clients share, and a shift of the image that stays with each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedcore.base.lazy import torch
from fedcore.methods import About, Method, MethodConfig, State, Step, cosine_logits, cross_entropy, method


class DoorConfig(MethodConfig):
    lr: float = Field(0.05, ge=0, description="Learning rate of local SGD")
    reach: float = Field(0.5, ge=0, le=2, description="How far an image may be shifted")
    start: Literal["text", "zero"] = Field(
        "text",
        title="first class features",
        description="What training starts from",
        json_schema_extra={"words": {"text": "those of the prompt"}},
    )
    rank: int | None = Field(None, ge=1, title="rank in the test", json_schema_extra={"empty": "full rank"})


@method
class Door(Method):
    name = "open-door"
    about = About(
        title="Open door",
        source="a file of a test",
        summary="Class features that the server averages; each client keeps a shift of its images.",
    )
    Config = DoorConfig
    shared = ("features",)

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.text = problem.class_features

    def init(self, generator):
        first = self.text if self.config.start == "text" else torch.zeros_like(self.text)
        clients = len(self.problem.clients)
        return State(shared={"features": first}, local={"shift": first.new_zeros(clients, first.shape[1])})

    def train_step(self, params, const, batch):
        loss = cross_entropy(self.logits(params, const, batch.x), batch.labels, batch.mask)
        return Step({("features", "shift"): loss})

    def logits(self, params, head, x):
        if "shift" in params:  # the global model has none
            x = x + self.config.reach * params["shift"][:, None]
        return cosine_logits(x, params["features"], self.problem.backbone.logit_scale)
'''
CONTENT = {
    "name": "Through the open door",
    "data": DIGITS,
    "rounds": 2,
    "methods": [{"name": "zero-shot"}, {"name": "open-door", "config": {"reach": 0.25}}],
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The method file, in a folder of its own, named by FEDLENS_METHODS as a user would."""
    path = tmp_path / "elsewhere" / "door.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    monkeypatch.setenv("FEDLENS_METHODS", str(path))
    yield path
    registry._METHODS.pop("open-door", None)
    registry._FILES.pop("open-door", None)


def test_it_has_a_form_made_from_its_config(file, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "runs.db"))
    monkeypatch.setattr("fedcore.jobs.ensure_worker", lambda db, **options: False)
    app = AppTest.from_file(str(PROJECT / "dashboard.py"), default_timeout=60).run()
    app.switch_page("pages/new.py").run()
    assert not app.exception
    methods = next(m for m in app.multiselect if m.label == "Methods")
    assert "Open door" in methods.options
    methods.set_value(["open-door"]).run()
    app = open_form(app, "Open door")
    assert not app.exception
    labels = {w.label: w for w in [*app.text_input, *app.selectbox]}
    reach, start = labels["Reach"], labels["First class features"]
    assert reach.value == "0.5" and "≥ 0, ≤ 2" in reach.help
    assert start.options == ["those of the prompt", "zero"] and start.value == "text"
    assert labels["Rank in the test"].placeholder == "full rank", "its own words, not FedAlign's"
    assert labels["Learning rate"].value == "0.05"
    start.set_value("zero").run()
    assert "paper: those of the prompt" in [c.value for c in app.caption]
    app = open_sweep(app)
    swept = next(m for m in app.multiselect if m.label == SWEEP).options
    assert "Open door: rank in the test" in swept and "Open door: learning rate" in swept
    assert not next(b for b in app.button if b.label == "Launch").disabled


def test_it_is_planned_trained_by_a_job_and_compared(file, db, tmp_path, monkeypatch, encoded_digits):
    experiment: Experiment = parse(CONTENT)
    planned = plan(experiment).runs
    planned_run = next(r for r in planned if r.method.name == "open-door")
    assert planned_run.method.file == str(file) and planned_run.method.label == "Open door"
    assert (planned_run.method.config["reach"], planned_run.method.config["start"]) == (0.25, "text")

    encoded_digits(tmp_path / "artifacts")
    created = Store(db).experiments.create(experiment, planned)
    monkeypatch.delenv("FEDLENS_METHODS")  # the job must find the file by the run's own record
    del registry._METHODS["open-door"], registry._FILES["open-door"]
    assert [execute_next(db) for _ in planned] == ["done"] * 2
    rows = Store(db).runs.get(created.run_ids)
    assert [(r.status, r.rounds_done) for r in rows] == [("done", 2)] * 2, [r.status_text for r in rows]

    groups = {g.method: g for g in compare(Store(db), [created.experiment_id]).rows}
    planned_run = partial_fields(list(groups.values()))[(groups["open-door"].key,)]
    assert planned_run["method.config.start"] == "those of the prompt"
    assert field_title("method.config.start") == "First class features"
    assert set(groups) == {"zero-shot", "open-door"}
    assert groups["open-door"].label == "Open door"
    assert groups["open-door"].stats["personal"].mean > groups["zero-shot"].stats["personal"].mean
    table = list(csv.DictReader(io.StringIO(exported(Store(db), [created.experiment_id]))))
    printed = [r for r in table if r["method"] == "open-door"]
    assert printed and {r["label"] for r in printed} == {"Open door"}
    assert {r["n"] for r in printed} == {"1"}
