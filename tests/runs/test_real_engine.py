"""The engine itself under the job model: killed and stopped runs end with the bits of an uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedcore.config import Experiment, parse
from fedcore.engine.plan import plan
from fedcore.runs import processes, queries, store
from tests.runs.conftest import recorded, wait_for
from tests.runs.test_kill import pid, row

ROUNDS = 8


@pytest.fixture
def worker(db: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen]:
    """The real supervisor; whatever it started is killed at the end."""
    monkeypatch.setenv("FEDLENS_THREADS", "1")
    handle = processes.start(["fedcore", "worker", "--db", str(db)], db.parent / "worker.log")
    yield handle
    handle.kill()
    handle.wait(10)
    for process in psutil.process_iter(["cmdline"]):
        if str(db) in (process.info["cmdline"] or []):
            process.kill()


def experiment(method: str, **config: object) -> Experiment:
    return parse({"name": method, "rounds": ROUNDS, "methods": [{"name": method, "config": config}]})


def queue(db: Path, chosen: Experiment) -> int:
    (run_id,) = store.create_experiment(db, chosen, plan(chosen).runs).run_ids
    return run_id


def done(db: Path, run_id: int) -> None:
    wait_for(lambda: row(db, run_id).ended, 240)
    assert row(db, run_id).status == "done", queries.error_text(db, run_id)


def test_killed_and_stopped_runs_end_like_uninterrupted_ones(db, worker):
    """FedOT with momentum kept across rounds: shared, local and optimiser state must all come back."""
    chosen = experiment("fedot", lr=0.01, optimiser_state="kept")
    expected_id = queue(db, chosen)
    done(db, expected_id)
    expected = recorded(db, expected_id)
    assert len(expected["rounds"]) == ROUNDS + 1

    killed = queue(db, chosen)
    wait_for(lambda: row(db, killed).rounds_done >= 2, 120)
    os.kill(pid(db, killed), signal.SIGKILL)
    wait_for(lambda: row(db, killed).status == "interrupted", 30)
    stopped = queue(db, chosen)
    wait_for(lambda: row(db, stopped).rounds_done >= 3, 120)
    store.stop(db, [stopped])
    wait_for(lambda: row(db, stopped).status == "stopped", 30)
    assert 0 < row(db, killed).rounds_done < ROUNDS
    assert 0 < row(db, stopped).rounds_done < ROUNDS

    store.resume(db, [killed, stopped])
    for run_id in (killed, stopped):
        done(db, run_id)
        assert row(db, run_id).attempt == 2
        assert recorded(db, run_id) == expected
