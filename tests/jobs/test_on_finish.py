"""A command or an address is told once that an experiment has ended; its failures do not stop the queue."""

import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.jobs import launcher, on_finish, supervisor
from fedcore.jobs.launcher import ThisMachine
from fedcore.jobs.on_finish import FinishWatch, notification, sender
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store
from tests.support import fill
from tests.support.jobs import wait_for


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A command of one Python program."""

    def write(text: str) -> str:
        path = tmp_path / "my notify.py"
        path.write_text(text)
        return f'{sys.executable} "{path}"'

    return write


@pytest.fixture
def address() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A web server that records what is posted; ``/moved`` redirects and ``/broken`` fails."""
    asked: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            if self.path == "/silent":
                time.sleep(1)
            codes = {"/moved": 302, "/broken": 500, "/unknown": 404}
            busy = self.path.count("busy") >= len(asked)
            self.send_response(503 if busy else codes.get(self.path, 200))
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_command_is_told_once_by_the_supervisor(db, queued, supervise, script, monkeypatch, tmp_path):
    told = tmp_path / "told"
    program = f"import sys\nwith open({str(told)!r}, 'a') as file: file.write(sys.stdin.read() + '\\n')"
    monkeypatch.setenv(on_finish.VARIABLE, script(program))
    ids = queued(methods=2, rounds=2)
    supervise()
    wait_for(lambda: told.exists() and told.read_text().endswith("\n"))
    (line,) = told.read_text().splitlines()
    content = json.loads(line)
    assert content == notification(Store(db), Store(db).experiments.get(1))
    assert content["states"] == {"done": 2} and [r["run"] for r in content["runs"]] == ids
    assert content["text"] == "FedLens: a test: 2 done"


def test_an_address_that_fails_for_a_moment_is_told_once(address, monkeypatch):
    """There are at most three attempts, and none after a refusal or a message that may have been accepted."""
    monkeypatch.setattr(on_finish, "PAUSES", (0.0, 0.0))
    url, asked = address
    sender(f"{url}/busy/busy/twice")(b"{}")
    assert [path for path, _ in asked] == ["/busy/busy/twice"] * 3
    asked.clear()
    for path, code, times in (("/broken", "500", 3), ("/unknown", "404", 1)):
        with pytest.raises(OSError, match=code):
            sender(f"{url}{path}")(b"{}")
        assert [p for p, _ in asked] == [path] * times
        asked.clear()
    monkeypatch.setattr(on_finish, "WEB_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        sender(f"{url}/silent")(b"{}")
    assert [p for p, _ in asked] == ["/silent"]


def test_an_address_gets_the_same_json_and_no_other_address_does(db, address, monkeypatch):
    monkeypatch.setattr(on_finish, "PAUSES", ())
    url, asked = address
    fill.done(db, fill.an_experiment("Told", ("fedot",), (1,), 1))
    content = notification(Store(db), Store(db).experiments.get(1))
    sender(f"{url}/hook")(json.dumps(content).encode())
    assert [(path, json.loads(body)) for path, body in asked] == [("/hook", content)]
    assert content["runs"][0]["personal_accuracy"] == round(100 * Store(db).runs.get([1])[0].last_test, 2)
    for path in ("/moved", "/broken"):
        with pytest.raises(OSError, match="302|500"):
            sender(f"{url}{path}")(b"{}")
    assert [path for path, _ in asked] == ["/hook", "/moved", "/broken"]


def test_what_goes_wrong_is_logged_once_and_hurts_nobody(db, queued, script, caplog):
    caplog.set_level(logging.INFO, on_finish.logger.name)
    watch = FinishWatch(Store(db), script("import sys; print('no mail here'); sys.exit(3)"))
    ids = queued()
    watch.look()
    Store(db).runs.stop(ids)
    watch.look()
    watch.look()
    wait_for(lambda: caplog.records)
    watch._sending.shutdown()
    (record,) = caplog.records
    assert "exit status 3: no mail here" in record.getMessage()


def test_experiments_that_ended_before_are_not_told(db, queued, script, tmp_path):
    told = tmp_path / "told"
    Store(db).runs.stop(queued())
    watch = FinishWatch(Store(db), script(f"open({str(told)!r}, 'w')"))
    watch.look()
    watch.look()
    watch._sending.shutdown()
    assert not told.exists()


@pytest.fixture
def telling(script, monkeypatch) -> Callable[[Path], list[str]]:
    """Start a new watch, as a new worker does; it looks once and returns the texts that it sent."""

    def look(db: Path) -> list[str]:
        texts: list[str] = []
        monkeypatch.setattr(on_finish, "run", lambda _, content: texts.append(json.loads(content)["text"]))
        watch = FinishWatch(Store(db), script(""))
        watch.look()
        watch._sending.shutdown()
        return texts

    return look


def test_the_next_worker_tells_once_of_what_ended_while_none_ran(db, queued, telling, tmp_path):
    first, second = queued(), queued()
    assert telling(db) == []
    Store(db).runs.stop(first)
    assert telling(db) == ["FedLens: a test: 1 stopped"]
    assert telling(db) == []
    Store(db).runs.stop(second)
    shutil.move(db.with_name("runs.db.unfinished"), tmp_path / "elsewhere")
    assert telling(db) == [], "without the file nothing is known"


def test_a_file_that_belongs_to_another_database_tells_nothing(db, queued, telling):
    assert queued() and telling(db) == []
    for path in db.parent.glob("runs.db*"):
        if path.name != "runs.db.unfinished":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    fill.done(db, fill.an_experiment("Another", ("fedot",), (1,), 1))
    assert telling(db) == []


@pytest.mark.parametrize("content", ["", "[1]", '{"a": "b"}', "\x00"])
def test_a_damaged_file_is_ignored_and_written_anew(db, queued, telling, caplog, content):
    ids = queued()
    db.with_name("runs.db.unfinished").write_text(content)
    assert telling(db) == [] and "cannot be read and is ignored" in caplog.text
    Store(db).runs.stop(ids)
    assert telling(db) == ["FedLens: a test: 1 stopped"]


def test_a_folder_that_cannot_be_written_keeps_no_worker_from_telling(db, queued, script, caplog):
    """A folder stands where the file belongs."""
    db.with_name("runs.db.unfinished").mkdir()
    ids = queued()
    watch = FinishWatch(Store(db), script("import sys; sys.exit(3)"))
    watch.look()
    Store(db).runs.stop(ids)
    watch.look()
    watch._sending.shutdown()
    assert "cannot be written" in caplog.text and "exit status 3" in caplog.text


@pytest.mark.parametrize("target", ["no-such-program-here --x", "https://", "https://[1", "'open", " "])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(FedLensError) as refused:
        sender(target)
    assert refused.value.field == "on-finish" and "\n" not in str(refused.value)


@pytest.mark.parametrize("target", ["https://me:secret@lens.example/x", "http://me:secret@", "say 'secret"])
def test_no_password_of_a_target_is_shown(db, monkeypatch, caplog, target):
    with pytest.raises(FedLensError) as refused:
        sender(target)
    monkeypatch.setenv(on_finish.VARIABLE, target)
    assert supervisor.serve(db, idle=0.0, tick=0.01, machines=lambda store: ThisMachine(["cpu"])) == 0
    assert "FEDLENS_ON_FINISH is ignored" in caplog.text
    assert "secret" not in str(refused.value) + caplog.text


@pytest.mark.parametrize("target", ["no-such-program-here", "http://[1"])
def test_a_wrong_target_in_the_environment_keeps_no_worker_from_its_queue(db, monkeypatch, caplog, target):
    monkeypatch.setenv(on_finish.VARIABLE, target)
    assert supervisor.serve(db, idle=0.0, tick=0.01, machines=lambda store: ThisMachine(["cpu"])) == 0
    assert "FEDLENS_ON_FINISH is ignored" in caplog.text
    with pytest.raises(FedLensError):
        supervisor.serve(db, on_finish="no-such-program-here")


@pytest.mark.slow
def test_a_worker_that_tells_follows_one_that_does_not(db, queued, script, tmp_path):
    """It also reports experiments that end during the handover."""
    told, first = tmp_path / "told", SupervisorLock(db)
    assert first.acquire()
    ids = queued()
    target = script(f"open({str(told)!r}, 'w')")
    command = ["fedcore", "worker", "--on-finish", target, "--idle", "0", "--db", str(db)]
    waiting = launcher.start_detached(command, tmp_path / "worker.log")
    wait_for(first.is_awaited)
    with pytest.raises(FedLensError, match="end the one that waits"):
        supervisor.serve(db, on_finish=target)
    Store(db).runs.stop(ids)
    first.release()
    assert waiting.wait(60) == 0 and told.exists()
