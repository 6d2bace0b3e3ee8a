"""The real app in a real browser: a server on a free port with its own database, and a Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.browser import Server, Tab, end_workers, start_server

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
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A fresh profile. No request may leave 127.0.0.1, and no script may fail."""
    context = browser.new_context(viewport={"width": 1440, "height": 1600}, accept_downloads=True)
    opened = Tab(context.new_page())
    inside = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
    context.on("request", lambda r: None if r.url.startswith(inside) else opened.outside.append(r.url))
    opened.page.on("pageerror", lambda e: opened.errors.append(str(e)))
    opened.page.set_default_timeout(60_000)
    yield opened
    context.close()
    assert opened.outside == [], "requests left this machine"
    assert opened.errors == [], "a script of the page failed"
