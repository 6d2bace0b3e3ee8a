"""The real app in a real browser: a server on a free port with its own database, and a Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.browser import LIMIT_SECONDS, NewPage, Server, Tab, end_workers, start_server

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """The app on an empty database."""
    db = tmp_path / "runs.db"
    running = start_server(db, tmp_path / "server.log")
    yield running
    running.stop()
    end_workers(db)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium; without one these tests fail, since nobody has then seen the app."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = [shutil.which(n) for n in names]
    path = next((p for p in found if p), None)
    with sync_playwright() as playwright:
        path = path or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.fail(
                "no Chromium: install chromium or google-chrome, or run `playwright install chromium`"
            )
        expect.set_options(timeout=1000 * LIMIT_SECONDS)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Opens a page in a fresh profile: its arguments are those of ``Browser.new_context``."""
    with ExitStack() as opened:

        def open_page(**options: object) -> Page:
            context = browser.new_context(**options)
            opened.callback(context.close)
            context.set_default_timeout(1000 * LIMIT_SECONDS)
            return context.new_page()

        yield open_page


@pytest.fixture
def tab(new_page: NewPage) -> Iterator[Tab]:
    """A fresh profile. No request may leave 127.0.0.1, and no script may fail."""
    opened = Tab(new_page(viewport={"width": 1440, "height": 1600}))
    context = opened.page.context
    inside = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
    context.on("request", lambda r: None if r.url.startswith(inside) else opened.outside.append(r.url))
    opened.page.on("pageerror", lambda e: opened.errors.append(str(e)))
    yield opened
    assert opened.outside == [], "requests left this machine"
    assert opened.errors == [], "a script of the page failed"
