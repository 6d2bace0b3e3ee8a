"""What ``streamlit run app.py`` serves beside the pages, and the clock of the Live page that asks it."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.responses import Response

import app as served
from fedcore.results import progress
from fedcore.results.charts.theme import Chart
from fedcore.store import Store
from pages.widgets import browser, charts
from tests.support import fill
from tests.support.web.live import clock, widget
from tests.support.web.pages import Opened, html

Asked = Callable[..., tuple[int, str]]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: browser tests leave a running loop in that of the tests."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Asks the served route for an address; returns the status and the text of the answer."""
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "runs.db"))
    app = Starlette(routes=served.ROUTES)

    def asked(address: str, host: str = "127.0.0.1:8501") -> tuple[int, str]:
        path, _, query = address.partition("?")
        scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "scheme": "http"}
        scope |= {"query_string": query.encode(), "headers": [(b"host", host.encode())]}
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        run(app(scope, receive, send))
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent).decode()

    return asked


def test_the_pulse_changes_with_what_a_reader_would_see(ask: Asked, db: Path) -> None:
    created, (first, second) = fill.start(
        db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=5)
    )
    another, _ = fill.start(db, fill.an_experiment("Another", methods=("fedot",), seeds=(1,), rounds=5))

    def now(number: int = created.experiment_id) -> str:
        status, text = ask(browser.address(browser.PULSE, number))
        assert status == 200
        return text

    seen, elsewhere = [now()], now(another.experiment_id)
    fill.train(first, until=1)
    seen.append(now())
    second.claim.update("status_text='encoding images'")
    seen.append(now())
    first.claim.finish("done")
    seen.append(now())
    assert len(set(seen)) == 4
    assert now() == seen[-1], "nothing has happened"
    assert now(another.experiment_id) == elsewhere, "another experiment's rounds are no news here"


def test_one_pulse_can_be_that_of_all_experiments(ask: Asked, db: Path) -> None:
    _, (first,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=5))
    before = ask(browser.address(browser.PULSE, None))
    assert ask(browser.address(browser.PULSE, None)) == before
    fill.train(first, until=1)
    trained = ask(browser.address(browser.PULSE, None))
    fill.start(db, fill.an_experiment("Another", methods=("fedot",), seeds=(1,), rounds=5))
    assert len({before, trained, ask(browser.address(browser.PULSE, None))}) == 3


def test_a_question_that_cannot_be_answered(ask: Asked) -> None:
    assert ask("/pulse")[0] == 400
    assert (
        ask(browser.address(browser.PULSE, 10**30))[0]
        == ask(browser.address(browser.COUNTS, 10**30))[0]
        == 400
    )
    assert "by its number" in ask("/pulse?experiment=x")[1]
    status, text = ask("/pulse?experiment=1")
    assert status == 503
    assert "no database" in text


def test_live_looks_for_news_until_the_reader_pauses(open_page: Opened, filled: Path) -> None:
    app = open_page("live", id="2")
    schedule = clock(app)  # a run is in its first seconds: it is looked at more often
    assert schedule == {
        "address": "/pulse?experiment=2",
        "seen": Store(filled).runs.digest(2),
        "every": 0.5,
        "longest": 15,
    }
    assert "CPU" in html(app), "the load of the machine is said while something runs"
    widget(app.toggle, "live_paused").set_value(True).run()
    assert clock(app) is None
    ended = open_page("live", id="1")
    schedule = clock(ended)
    assert schedule is not None
    assert schedule["longest"] is None, "it may still be resumed from elsewhere"
    assert "CPU" not in html(ended), "it would be that of the last drawing"


def test_the_clock_goes_on_whatever_went_wrong(
    open_page: Opened, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page("live", id="2")

    def broken(db: Path, ids: list[int]) -> progress.NewestRounds:
        raise OSError("no room on the disk")

    monkeypatch.setattr(progress, "newest_snapshot", broken)
    app.run()
    assert app.exception
    assert clock(app) == {"address": "/pulse?experiment=2", "seen": "", "every": 2, "longest": 2}


@pytest.mark.parametrize(("headless", "opened"), [(False, ["http://localhost:8599/"]), (True, [])])
def test_the_browser_is_opened_where_there_is_a_screen(
    headless: bool, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"server.headless": headless, "server.port": 8599, "server.baseUrlPath": ""}
    monkeypatch.setattr(st, "get_option", options.get)
    monkeypatch.setattr(served.sys, "platform", "linux")
    monkeypatch.setattr(served, "READY_SECONDS", 0)
    shown: list[str] = []
    monkeypatch.setattr(served.webbrowser, "open", shown.append)
    loads = threading.Event()
    monkeypatch.setattr(served, "load_pages", loads.set)

    async def start() -> None:
        async with served.announced(served.app):
            later = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0, later.set_result, None)
            await later

    run(start())
    assert shown == opened
    assert loads.wait(60), "the pages' code is loaded before anybody asks for a page"


@pytest.mark.parametrize(
    ("path", "kind", "named"),
    [
        ("/compare", "text/html", True),
        ("/live", "text/html", True),
        ("/papers", "text/html", False),
        ("/compare", "text/css", False),
    ],
)
def test_pages_with_charts_name_plotly_js(path: str, kind: str, named: bool) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    page = served.EarlyCharts(Response("page", media_type=kind))
    run(page({"type": "http", "method": "GET", "path": path}, None, send))
    links = [value.decode() for name, value in sent[0]["headers"] if name == b"link"]
    assert links == ([f"<{charts.plotly_url()}>; rel=preload; as=script"] if named else [])


def test_plotly_js_is_served_whole_and_compiled_in_the_background() -> None:
    (route,) = (r for r in served.ROUTES if r.path == charts.plotly_url())
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    run(route.handle({"type": "http", "method": "GET", "path": route.path, "headers": []}, None, send))
    first, rest = b"".join(message.get("body", b"") for message in sent).split(b"\n", 1)
    assert first == b"//# allFunctionsCalledOnLoad", "Chromium compiles it in the background"
    assert rest == (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    assert b"immutable" in dict(sent[0]["headers"])[b"cache-control"], "its name contains its version"


def test_a_chart_is_sent_with_its_own_template_alone() -> None:
    """Streamlit makes a template of 6 KB the default, whose colours only its own component replaces."""
    content = {"data": [{"type": "scatter", "y": [1, 2]}], "layout": {"title": {"text": "<A>"}}}
    sent = json.loads(charts.payload(Chart(go.Figure(content), "two points"), "1"))
    assert sent["alt"] == "two points"
    layout = {**content["layout"], "template": charts.TEMPLATE, "uirevision": "1"}
    assert sent["figure"] == {**content, "layout": layout}
