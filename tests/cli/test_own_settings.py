"""The dashboard is started in a folder of somebody else, whose files of Streamlit decide nothing."""

import http.client
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcore.base.files import PROJECT
from tests.support.jobs import wait_for
from tests.support.web.browser import end_workers, free_port

FEDLENS = [sys.executable, "-P", "-m", "fedcore", "app"]
STREAMLIT = [sys.executable, "-P", "-m", "streamlit", "run", str(PROJECT / "app.py")]
THEIRS = '[server]\nallowedHosts = ["evil.example"]\nenableStaticServing = true\n'
SECRETS = 'FEDLENS_STATE = "/theirs"\n'  # Streamlit makes environment variables of secrets


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    (tmp_path / "here" / ".streamlit").mkdir(parents=True)
    (tmp_path / "here" / ".streamlit" / "config.toml").write_text(THEIRS)
    (tmp_path / "here" / ".streamlit" / "secrets.toml").write_text(SECRETS)
    return tmp_path / "here"


@pytest.fixture
def start(tmp_path: Path, poisoned: Path):
    """Starts a command in the poisoned folder, with a state folder beside it; returns port and log."""
    started: list[subprocess.Popen[bytes]] = []
    log, db = tmp_path / "log.txt", tmp_path / "runs.db"

    def run(command: list[str]) -> tuple[int, Callable[[], str]]:
        port = free_port()
        new = {"FEDLENS_DB": str(db), "FEDLENS_STATE": str(tmp_path / "state"), "HOME": str(tmp_path)}
        new |= {"PYTHONPATH": str(PROJECT), "STREAMLIT_SERVER_HEADLESS": "true"}
        new["STREAMLIT_SERVER_PORT"] = str(port)
        with log.open("wb") as out:
            environment = {**os.environ, **new}
            started.append(subprocess.Popen(command, cwd=poisoned, env=environment, stdout=out, stderr=out))
        wait_for(lambda: "For other accounts" in log.read_text() or started[0].poll() is not None)
        return port, log.read_text

    yield run
    for process in started:
        process.terminate()
        process.wait(30)
    end_workers(db)


def status(port: int, host: str = "localhost", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/", headers={"Host": host, **headers})
    return connection.getresponse().status


@pytest.mark.parametrize("command", [FEDLENS, STREAMLIT], ids=["fedlens", "streamlit"])
def test_files_of_the_current_folder_decide_nothing_and_those_of_the_state_folder_do(
    start, poisoned: Path, command: list[str]
) -> None:
    settings(poisoned, 'allowedHosts = ["lens.example.org"]')
    port, log = start(command)
    assert status(port) == 200, log()
    assert status(port, host="evil.example") == 400
    assert status(port, host="lens.example.org") == 403, "the name is known, the visitor is not"
    assert str(poisoned.with_name("state") / "token") in log() and "/theirs" not in log()
    for name in ("config.toml", "secrets.toml"):
        assert f"{poisoned / '.streamlit' / name} is not read" in log()


def test_an_option_that_comes_too_late_ends_the_start(start, poisoned: Path) -> None:
    """The server has its address before app.py is imported."""
    settings(poisoned, 'address = "::1"')
    _, log = start(STREAMLIT)
    assert "a file comes too late for server.address" in log()


def settings(poisoned: Path, line: str) -> None:
    state = poisoned.with_name("state")
    state.mkdir()
    (state / "config.toml").write_text(f"[server]\n{line}\n")
