"""Start the real app and end its processes, for the browser tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]


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


@dataclass
class Tab:
    """A page with a record of what it asked for."""

    page: Page
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
