"""The real app in a real browser: a server on a free port with its own database, and a Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
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
HEALTHY_SECONDS = 60  # the promise is 10 s on an idle machine; tests share theirs


@dataclass
class Server:
    """``streamlit run app.py`` as a user starts it."""

    db: Path
    port: int
    process: subprocess.Popen[bytes]
    healthy_after: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """As Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_server(db: Path, log: Path) -> Server:
    """Start the app and wait until it is healthy."""
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    began = time.monotonic()
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "--server.headless", "true"],
            cwd=ROOT,
            env={**os.environ, "FEDLENS_DB": str(db)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    while time.monotonic() - began < HEALTHY_SECONDS:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
                if answer.read() == b"ok":
                    return Server(db, port, process, time.monotonic() - began)
        except OSError:
            time.sleep(0.1)
    process.kill()
    pytest.fail(f"the app was not healthy within {HEALTHY_SECONDS} s: {log.read_text()[-2000:]}")


def end_workers(db: Path) -> None:
    """End the supervisor and job of one database: those whose command line names it."""
    found = [p for p in psutil.process_iter(["cmdline"]) if str(db) in (p.info["cmdline"] or [])]
    for process in found:
        process.terminate()
    for process in psutil.wait_procs(found, timeout=20)[1]:
        process.kill()


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


@dataclass
class Tab:
    """A page with a record of what it asked for."""

    page: Page
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


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
