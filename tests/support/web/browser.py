"""Start the real app and end its processes, for the browser tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, Request

ROOT = Path(__file__).resolve().parents[3]
HEALTHY_SECONDS = 120  # the promise is 10 s on an idle machine; tests share theirs
LIMIT_SECONDS = 120  # for every state that a test waits for
PATIENCE_SECONDS = 20  # with processes that were asked to end
AT_REST_FRAMES = 10
AT_REST = """frames => {
  const running = document.getAnimations().some(
    a => a.playState === 'running' && a.effect.getComputedTiming().endTime !== Infinity);
  const busy = document.querySelector(
    '[data-testid=stStatusWidget], [data-testid=stSkeleton], [data-stale=true]');
  // before it has reached its server, a page that was loaded anew says that no script runs
  const done = document.querySelector('[data-test-script-state=notRunning]') && document.querySelector('h1');
  window.framesAtRest = done && !busy && !running ? (window.framesAtRest ?? 0) + 1 : 0;
  return window.framesAtRest >= frames;
}"""


@dataclass
class Server:
    """``streamlit run app.py`` as a user starts it."""

    db: Path
    port: int
    process: subprocess.Popen[bytes]

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
        return int(s.getsockname()[1])


def start_server(
    db: Path,
    log: Path,
    options: Sequence[str] = (),
    health: str = "http://127.0.0.1:{port}/_stcore/health",
    **environment: str,
) -> Server:
    """Start the app and wait until it is healthy.

    Args:
        options: further options of ``streamlit run``.
        health: the address that answers once the app is healthy.
        environment: further variables of the process.
    """
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), *options]
    began = time.monotonic()
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "--server.headless", "true"],
            cwd=ROOT,
            env={**os.environ, "FEDLENS_DB": str(db), **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    while time.monotonic() - began < HEALTHY_SECONDS:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(health.format(port=port), timeout=2) as answer:
                if answer.read() == b"ok":
                    return Server(db, port, process)
        except OSError:
            time.sleep(0.1)
    process.kill()
    pytest.fail(f"the app was not healthy within {HEALTHY_SECONDS} s: {log.read_text()[-2000:]}")


def end_workers(db: Path) -> None:
    """End the supervisor and job of one database: those whose command line names it."""
    workers = [p for p in psutil.process_iter(["cmdline"]) if str(db) in (p.info["cmdline"] or [])]
    for process in workers:
        process.terminate()
    end = time.monotonic() + PATIENCE_SECONDS
    while any(map(_lives, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in filter(_lives, workers):
        process.kill()


def _lives(process: psutil.Process) -> bool:
    """Return whether a process still does something; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


NewPage = Callable[..., Page]


@dataclass
class Tab:
    """A page with a record of what it asked for."""

    page: Page
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def settle(page: Page) -> None:
    """Wait until the script has run, nothing of an earlier run is left, and nothing fades: for ten frames."""
    page.evaluate("window.framesAtRest = 0")
    page.wait_for_function(AT_REST, arg=AT_REST_FRAMES)


class Traffic:
    """The requests of a page: ``pulse`` for news of an experiment, ``rerun`` for everything else."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.log: list[str] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda _: self.log.append("rerun")))
        page.on("requestfinished", lambda request: self.log.append("pulse") if is_pulse(request) else None)

    def wait_for_pulses(self, count: int) -> None:
        """Wait until the page has asked so many more times, whatever else it did."""
        for _ in range(count):
            self.page.wait_for_event("requestfinished", is_pulse)

    def wait_for_rest(self, pulses: int = 3) -> None:
        """Wait until the page has asked so many times in a row without being run in between."""
        for _ in range(20 * pulses):
            if self.log[-pulses:] == ["pulse"] * pulses:
                return
            self.wait_for_pulses(1)
        pytest.fail(f"the page is run again and again: {self.log}")


def is_pulse(request: Request) -> bool:
    return "/pulse?" in request.url
