from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.store import Store
from pages.live_view import chart as live_chart
from tests.support import fill

ROOT = Path(__file__).resolve().parents[2]
Opened = Callable[..., AppTest]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A finished experiment (1: two methods, two seeds) and one in the middle of things (2)."""
    db = tmp_path / "runs.db"
    fill.done(db, fill.an_experiment("Made up", methods=("fedot", "promptfl"), seeds=(1, 2), rounds=4))
    fill.mixed(db)
    return db


def keep_checkpoint(db: Path, run_id: int, round_: int) -> None:
    """As if a run's files were here: made-up runs have none."""
    folder = Store(db).runs.folder(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"round-{round_}.safetensors").write_bytes(b"")


@pytest.fixture
def open_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens a page of the app as a link would; queued runs stay queued, since no worker is started."""
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "runs.db"))
    monkeypatch.setattr("fedcore.jobs.ensure_worker", lambda db: False)
    monkeypatch.setattr("pages.forms.planning.PATIENCE", 60)  # nothing ticks here that would look again

    def opened(page: str = "experiments", **query: str | list[str]) -> AppTest:
        app = AppTest.from_file(str(ROOT / "dashboard.py"), default_timeout=60)
        for name, value in query.items():
            app.query_params[name] = value
        app.run()
        if page != "experiments":
            app.switch_page(f"pages/{page}.py")
            for name, value in query.items():
                app.query_params[name] = value
            app.run()
        assert not app.exception, app.exception
        return app

    return opened


@pytest.fixture
def shown_as_text() -> Callable[[AppTest], None]:
    """Asserts that no name became markup: nothing in HTML, no live Markdown."""

    def check(app: AppTest) -> None:
        own = live_chart.fetching(live_chart.plotly_url())  # the one script that a page brings along
        page = "\n".join(e.proto.body for e in app.get("html") if e.proto.body != own)
        assert not re.search(r"<(script|i|b)\b(?! *>\d)", page.replace("<b>", "")), page
        for element in [*app.markdown, *app.caption, *app.error, *app.success, *app.info, *app.warning]:
            assert not re.search(r"(?<!\\)(<script|<i>|\]\(javascript|:red\[|\$x)", element.value), (
                element.value
            )

    return check
