"""The running app and a Chromium, for measurements and pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.support.web.browser import Server, start_server

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


def chromium() -> str:
    """Return the path of the installed Chromium.

    Raises:
        SystemExit: when none is installed.
    """
    for name in ("chromium", "google-chrome", "chromium-browser"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no Chromium found; install one")


@contextmanager
def browsing(db: Path) -> Iterator[tuple[Server, Playwright, Browser]]:
    """Start the app on a database and a Chromium; both end with the block."""
    server = start_server(db, db.with_suffix(".app.log"))
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            yield server, playwright, browser
            browser.close()
    finally:
        server.stop()
