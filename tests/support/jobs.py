import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedcore.config import Experiment, parse
from fedcore.jobs import job, launcher
from fedcore.jobs.job import Heartbeat
from fedcore.jobs.supervisor import Supervisor
from fedcore.store import RunRow, Store
from fedcore.store.database import reading
from fedcore.store.jobs import RUNS, JobTable
from fedcore.store.liveness import new_owner
from tests.support import fake_engine


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    Store(path).prepare()
    return path


@pytest.fixture
def make() -> Callable[..., Experiment]:
    """An experiment of one or more methods; keyword arguments go to the first method's config."""

    def build(
        rounds: int = 4, seeds: tuple[int, ...] = (1,), methods: int = 1, **config: object
    ) -> Experiment:
        names = ["fedot", "promptfl", "zero-shot"][:methods]
        entries = [{"name": n, "config": config if i == 0 else {"seconds": 0}} for i, n in enumerate(names)]
        return parse({"name": "a test", "methods": entries, "rounds": rounds, "seeds": list(seeds)})

    return build


@pytest.fixture
def queued(db: Path, make: Callable[..., Experiment]) -> Callable[..., list[int]]:
    """Queue an experiment; returns the ids of its runs."""

    def build(**options: object) -> list[int]:
        return list(Store(db).experiments.create(make(**options)).run_ids)

    return build


@pytest.fixture
def supervise(db: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start supervisors with the fake engine; whatever still lives at the end is killed, jobs included."""
    started: list[subprocess.Popen[bytes]] = []

    def start(idle: float = 60.0) -> subprocess.Popen[bytes]:
        log = tmp_path / "supervisor.log"  # not beside the database, whose disk may be full
        arguments = ["tests.support.fake_engine", "supervisor", str(db), str(idle)]
        started.append(launcher.start_detached(arguments, log))
        return started[-1]

    yield start
    for handle in started:
        handle.kill()
        handle.wait(60)
    kill_processes(db)


@pytest.fixture
def step_until(db: Path) -> Iterator[Callable[..., None]]:
    """Let a supervisor of this process work until a condition holds, by default once.

    Its jobs are processes of the fake engine. A test that kills or ends the supervisor needs ``supervise``.
    """
    supervisor = Supervisor(Store(db), fake_engine.MACHINE)

    def step(condition: Callable[[], object] = lambda: True) -> None:
        wait_for(lambda: (supervisor.step(), condition())[1])

    yield step
    kill_processes(db)


def kill_processes(db: Path) -> None:
    """Kill every process whose command line names a database."""
    for process in psutil.process_iter(["cmdline"]):
        if str(db) in (process.info["cmdline"] or []):
            process.kill()


POLL_SECONDS = 0.05


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> object:
    """Ask until it is true; its last answer."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(POLL_SECONDS)
    return answer


def execute_next(
    db: Path, table: JobTable = RUNS, number: int | None = None, look_seconds: float = 0.05, **options: Any
) -> str:
    """Claim the next queued job, execute it in this process, and return its outcome."""
    claim = Store(db).jobs.claim(new_owner(), "cpu", table, number=number)
    assert claim is not None
    with Heartbeat(Store(db), look_seconds=look_seconds) as heartbeat:
        return job.execute(claim, heartbeat, **options)


def recorded(db: Path, run_id: int) -> dict[str, list[tuple[object, ...]]]:
    """All that a run measured: what two runs of one config must agree in."""
    tables = ("accuracy", "scores", "client_rounds", "diagnostics", "entities")
    with reading(db) as connection:
        found = {
            t: [tuple(r)[1:] for r in connection.execute(f"SELECT * FROM {t} WHERE run_id=?", [run_id])]
            for t in tables
        }
        found["rounds"] = [
            tuple(r)
            for r in connection.execute(
                "SELECT round, train_loss, bytes_up FROM rounds WHERE run_id=?", [run_id]
            )
        ]
    return found


def row(db: Path, run_id: int) -> RunRow:
    return Store(db).runs.get([run_id])[0]


def pid(db: Path, run_id: int) -> int:
    with reading(db) as connection:
        return int(connection.execute("SELECT pid FROM runs WHERE id=?", [run_id]).fetchone()[0])
