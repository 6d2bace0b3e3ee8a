"""The supervisor needs no process: whatever can start a job and tell how it ended may stand in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from fedcore.jobs import job
from fedcore.jobs.handlers import HANDLERS
from fedcore.jobs.job import Heartbeat
from fedcore.jobs.launcher import LaunchedJob
from fedcore.jobs.supervisor import Supervisor
from fedcore.store import Store
from fedcore.store.jobs import TRAINING, Claim
from fedcore.store.tasks import TaskKind
from tests.support import fake_engine
from tests.support.jobs import wait_for


class Thread:
    """A job in a thread, as the watcher of a remote task would be."""

    def __init__(self, claim: Claim) -> None:
        self._thread = threading.Thread(target=self._work, args=(claim,))
        self._thread.start()

    def _work(self, claim: Claim) -> None:
        handler = fake_engine.training if claim.kind == TRAINING else fake_engine.handle
        with Heartbeat(Store(claim.db)) as heartbeat:
            job.execute(claim, heartbeat, handler=handler)

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def exit_reason(self) -> str | None:
        return None

    def terminate(self) -> bool:
        return True


class ThreadLauncher:
    """Starts every job as a thread of this process."""

    def launch(self, claim: Claim, pool: str) -> LaunchedJob:
        return Thread(claim)

    def adopt(self, store: Store, row: Mapping[str, Any]) -> LaunchedJob:
        raise AssertionError("every job here is ours")


def test_jobs_that_are_no_processes_are_supervised(db: Path, queued: Callable[..., list[int]]) -> None:
    store = Store(db)
    first, second = queued(seeds=(1, 2), rounds=2)
    task = store.tasks.submit("check", "a", {"result": 3})
    supervisor = Supervisor(store, device_ids=["cpu"], launcher=ThreadLauncher())
    wait_for(lambda: not supervisor.step())
    assert [run.state for run in store.runs.get([first, second])] == ["done", "done"]
    assert [run.rounds_done for run in store.runs.get([first, second])] == [2, 2]
    assert store.tasks.get(task).result == {"sum": 3}


def test_every_kind_of_job_has_a_handler() -> None:
    assert set(HANDLERS) == {TRAINING, *get_args(TaskKind)}
