import errno
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.jobs import job, launcher
from fedcore.jobs import supervisor as worker
from fedcore.jobs.handlers import HANDLERS
from fedcore.jobs.job import Heartbeat
from fedcore.jobs.launcher import LaunchedJob, ThisMachine, start_detached
from fedcore.jobs.supervisor import Supervisor, SupervisorLock
from fedcore.store import Store, liveness
from fedcore.store.jobs import TRAINING, Claim, Jobs
from fedcore.store.liveness import new_owner
from fedcore.store.tasks import TaskKind
from tests.support import fake_engine
from tests.support.jobs import wait_for


def statuses(db, ids) -> list[str]:
    return [r.status for r in Store(db).runs.get(ids)]


def test_the_queue_is_worked_off_by_one_process_per_experiment(db, queued, step_until):
    first, second = queued(methods=3, rounds=2, seconds=0.02), queued(rounds=2)
    step_until(lambda: set(statuses(db, first + second)) == {"done"})
    assert len(list((db.parent / "artifacts").glob("run-*/process.log"))) == 2


def test_one_supervisor_per_database_the_second_says_so_and_exits_0(db, monkeypatch, caplog):
    caplog.set_level(logging.INFO, worker.logger.name)
    monkeypatch.setattr(worker, "LOCK_SECONDS", 0.0)
    first = SupervisorLock(db)
    assert first.acquire()
    assert worker.serve(db) == 0
    assert f"a worker is serving {db} already" in caplog.text
    first.release()
    here = ThisMachine(["cpu"])
    assert worker.serve(db, idle=0.0, tick=0.01, machines=lambda _: here) == 0, "an idle one leaves"
    assert SupervisorLock(db).is_free()


def test_a_look_at_the_queue_opens_the_database_once(db, monkeypatch):
    supervisor = Supervisor(Store(db), ThisMachine(["cpu"]))
    supervisor.step()  # the first one also checks the version of the tables
    opened, connect = [], sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: opened.append(a[0]) or connect(*a, **k))
    supervisor.step()
    assert len(opened) == 1


def test_a_supervisor_of_a_deleted_database_leaves(db):
    lock = SupervisorLock(db)
    assert lock.acquire()
    supervisor = worker.Supervisor(Store(db), ThisMachine(["cpu"]), tick=0.01, idle=0.05)
    for file in db.parent.glob(f"{db.name}*"):
        if file.is_file() and file != lock.path:
            file.unlink()
    supervisor.run(lock)
    assert SupervisorLock(db).is_free() and not db.exists()


def test_before_leaving_it_looks_once_more_without_the_lock(db, queued):
    """A run that was queued while the lock was still held started no worker, and must not be forgotten."""
    lock = SupervisorLock(db)
    assert lock.acquire()
    supervisor = worker.Supervisor(Store(db), fake_engine.MACHINE)
    queued()
    assert not supervisor._leave(lock)
    assert not SupervisorLock(db).is_free()
    Store(db).runs.stop([1])
    assert supervisor._leave(lock)
    assert SupervisorLock(db).is_free()


def test_slots_and_devices(db, queued):
    """Every device has its slots; 'auto' goes to a GPU if there is one, 'cpu' never does."""
    queued(seeds=(1, 2, 3, 4))
    (on_cpu,) = Store(db).experiments.create(Store(db).experiments.all()[0].config, device="cpu").run_ids[:1]
    spawned = []

    def spawn(claimed, device):
        spawned.append((claimed.id, device))
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    devices = ["GPU-a", "GPU-b", "cpu"]
    supervisor = worker.Supervisor(Store(db), ThisMachine(devices, spawn))
    try:
        assert supervisor.step()
        assert spawned == [(1, "GPU-a"), (2, "GPU-b"), (on_cpu, "cpu")]
        assert supervisor.step()
        assert len(spawned) == 3  # all are busy
    finally:
        for child in supervisor._children.values():
            child.job.process.communicate()


def test_a_process_that_cannot_be_started_fails_its_run(db, queued):
    (run_id,) = queued()

    def spawn(claimed, device):
        raise PermissionError(errno.EACCES, "Permission denied")

    worker.Supervisor(Store(db), ThisMachine(["cpu"], spawn)).step()
    (run,) = Store(db).runs.get([run_id])
    assert (run.status, run.status_text) == ("failed", "its process could not be started: Permission denied")


def test_a_process_that_cannot_be_started_at_present_is_started_later(db, queued, monkeypatch, caplog):
    (run_id,) = queued(rounds=1)
    causes = (errno.ENOMEM, errno.EMFILE, errno.EAGAIN, errno.ENOSPC)
    errors = iter([OSError(cause, os.strerror(cause)) for cause in causes for _ in range(2)])

    def spawn(claimed, device):
        error = next(errors, None)
        if error is not None:
            raise error
        return fake_engine.start(claimed, device)

    monkeypatch.setattr(worker, "START_PAUSE_SECONDS", 0.05)
    supervisor = worker.Supervisor(Store(db), ThisMachine(["cpu"], spawn))
    supervisor.step()
    assert statuses(db, [run_id]) == ["queued"]
    wait_for(lambda: (supervisor.step(), statuses(db, [run_id]) == ["done"])[1])
    said = [line for line in caplog.messages if "limit" in line or "full" in line or "used" in line]
    assert len(said) == 2, "each kind once: what is used up, and the disk that is full"
    assert Store(db).runs.get([run_id])[0].attempt == 1


def test_a_process_that_ends_at_once_is_reported_with_its_exit_status(db, queued):
    (run_id,) = queued()
    log = db.parent / "log"
    start = ThisMachine(["cpu"], lambda claimed, pool: start_detached(["no_such_module"], log))
    supervisor = worker.Supervisor(Store(db), start)
    supervisor.step()
    wait_for(lambda: (supervisor.step(), statuses(db, [run_id]) == ["interrupted"])[1])
    assert "exit status 1" in Store(db).runs.get([run_id])[0].status_text
    assert "no_such_module" in log.read_text()


def test_a_run_in_the_foreground_takes_the_slot(db, queued, make):
    owner = new_owner()
    Store(db).experiments.create(make(), claimer=(owner, "cpu"))
    (waiting,) = queued()
    spawned = []
    refused = ThisMachine(["cpu"], lambda claimed, pool: spawned.append(claimed))
    supervisor = worker.Supervisor(Store(db), refused)
    supervisor.step()
    assert spawned == []
    assert statuses(db, [waiting]) == ["queued"]


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """The commands of detached processes, none of which is really started."""
    commands: list[list[str]] = []
    handle = Mock(poll=lambda: None)
    monkeypatch.setattr(worker.launcher, "start_detached", lambda c, *_: commands.append(c) or handle)
    monkeypatch.setattr(worker, "_STARTED", {})
    return commands


def test_ensure_worker_starts_one_only_when_there_is_work(db, queued, monkeypatch, started):
    assert not worker.ensure_worker(Store(db))
    queued()
    assert worker.ensure_worker(Store(db))
    assert started == [["fedcore", "worker", "--db", str(db)]]
    assert not worker.ensure_worker(Store(db))  # it is given time to take the lock
    monkeypatch.setattr(worker, "RESTART_SECONDS", 0)
    lock = SupervisorLock(db)
    assert lock.acquire()
    assert not worker.ensure_worker(Store(db))
    lock.release()
    assert worker.ensure_worker(Store(db))
    assert len(started) == 2


def test_ensure_worker_starts_one_ahead_of_work_where_a_page_expects_it(db, started):
    assert worker.ensure_worker(Store(db), ahead=True)
    assert started == [["fedcore", "worker", "--ahead", "--db", str(db)]]


def test_ensure_worker_comes_for_dead_rows_and_tasks_too(db, queued, monkeypatch, started):
    (run_id,) = queued()
    Store(db).jobs.claim(new_owner(), "cpu")
    assert not worker.ensure_worker(Store(db))
    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "orphans", lambda self, table: [run_id])
        assert worker.ensure_worker(Store(db))
    monkeypatch.setattr(worker, "_STARTED", {})
    Store(db).tasks.submit("check", "a", {})
    assert worker.ensure_worker(Store(db))


def test_force_stop_only_escalates(db, queued):
    (run_id,) = queued()
    with pytest.raises(FedLensError, match="stop it first"):
        launcher.force_stop(Store(db), run_id)
    Store(db).jobs.claim(new_owner(), "cpu").begin()
    with pytest.raises(FedLensError, match="stop it first"):
        launcher.force_stop(Store(db), run_id)


def test_force_stop_kills_what_does_not_heed(db, queued):
    (run_id,) = queued()
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    code = "import signal, time; signal.signal(15, lambda *a: 0); time.sleep(60)"
    lock = liveness.hold(db, claimed.owner)
    deaf = subprocess.Popen([sys.executable, "-c", code], pass_fds=[lock])
    liveness.let_go(db, claimed.owner, keep_file=True)
    claimed.update("pid=:pid", pid=deaf.pid)
    Store(db).runs.stop([run_id])
    assert launcher.force_stop(Store(db), run_id)
    assert deaf.wait(5) == -9
    assert statuses(db, [run_id]) == ["stopped"]


def test_devices_of_this_machine():
    found = devices.list_devices()
    assert found[-1].id == "cpu"
    assert 0 < found[-1].memory_used < found[-1].memory_total
    assert devices.accepts("cpu", None) == ("cpu", "auto")
    assert devices.accepts("cpu", "GPU-a") == ("cpu",)
    assert "auto" in devices.accepts("GPU-a", "GPU-a")
    assert devices.environment_for("GPU-a")["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert devices.environment_for("cpu")["CUDA_VISIBLE_DEVICES"] == ""
    assert (devices.torch_name("cpu"), devices.torch_name("GPU-a")) == ("cpu", "cuda")


def test_is_torch_built_with_cuda_is_read_right():
    import torch

    assert devices.torch_has_cuda() == (torch.version.cuda is not None)


def test_a_supervisor_outlives_a_full_disk(db, queued, monkeypatch):
    (run_id,) = queued(rounds=1)
    answers = iter([FedLensError("the disk is full", "db"), FedLensError("the disk is full", "db")])
    plain = ThisMachine.claim

    def sometimes(*args, **kwargs):
        error = next(answers, None)
        if error is not None:
            raise error
        return plain(*args, **kwargs)

    monkeypatch.setattr(ThisMachine, "claim", sometimes)
    supervisor = worker.Supervisor(Store(db), fake_engine.MACHINE)
    assert supervisor.step() and statuses(db, [run_id]) == ["queued"]
    assert supervisor.step() and statuses(db, [run_id]) == ["queued"]
    assert supervisor.step()
    wait_for(lambda: statuses(db, [run_id]) == ["done"])
    wait_for(lambda: not supervisor.step())


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


class ThreadMachine(ThisMachine):
    """Starts every job as a thread of this process, to show that the supervisor needs no processes."""

    def launch(self, claim: Claim, pool: str) -> LaunchedJob:
        return Thread(claim)

    def adopt(self, store: Store, row: Mapping[str, Any]) -> LaunchedJob:
        raise AssertionError("every job here is ours")

    def wait(self, seconds: float) -> None:
        raise AssertionError("the test takes each step itself")


def test_jobs_that_are_no_processes_are_supervised(db: Path, queued: Callable[..., list[int]]) -> None:
    store = Store(db)
    first, second = queued(seeds=(1, 2), rounds=2)
    task = store.tasks.submit("check", "a", {"result": 3})
    supervisor = Supervisor(store, ThreadMachine(["cpu"]))
    wait_for(lambda: not supervisor.step())
    assert [run.state for run in store.runs.get([first, second])] == ["done", "done"]
    assert [run.rounds_done for run in store.runs.get([first, second])] == [2, 2]
    assert store.tasks.get(task).result == {"sum": 3}


def test_every_kind_of_job_has_a_handler() -> None:
    assert set(HANDLERS) == {TRAINING, *get_args(TaskKind)}
