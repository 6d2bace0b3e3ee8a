"""The process that loads torch before there is a run gets the first one, and stays for nothing else."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs import handlers, launcher, process
from fedcore.jobs.launcher import ThisMachine
from fedcore.jobs.supervisor import Supervisor
from fedcore.store import Store, liveness
from fedcore.store.database import reading
from fedcore.store.jobs import Claim
from tests.support.encoded import DIGITS
from tests.support.jobs import kill_processes, pid, row, wait_for

WAITS = "import sys; print(sys.stdin.readline(), flush=True)"


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that wait as the real ones do and print what they are told, with the real arguments."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        arguments: list[str], log: Path, environment: object, holder: object, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WAITS, *arguments]
        started.append(subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(launcher, "start_detached", start)
    yield started
    for one in started:
        for pipe in filter(None, (one.stdin, one.stdout)):
            pipe.close()
        one.kill()
        one.wait(60)


def waiting(machine: ThisMachine) -> subprocess.Popen[bytes] | None:
    return None if machine._ahead is None else machine._ahead.process


def option(started: subprocess.Popen[bytes], name: str) -> str | None:
    assert isinstance(started.args, list)
    return str(started.args[started.args.index(name) + 1]) if name in started.args else None


def ahead(db: Path, *devices: str) -> ThisMachine:
    machine = ThisMachine(devices or ["cpu"])
    machine.load_ahead(Store(db))
    return machine


def launch(db: Path, machine: ThisMachine, pool: str = "cpu") -> tuple[Claim, subprocess.Popen[bytes]]:
    claim = machine.claim(Store(db), pool, 0)
    assert claim is not None
    started = machine.launch(claim, pool).process
    assert started is not None
    return claim, started


def torch_in(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(Path(found.path).name.startswith("libtorch_python") for found in process.memory_maps())
    return False


def test_it_gets_the_first_run_and_only_that(db, queued, spawned):
    (run_id,) = queued(seeds=(1,))
    machine = ahead(db)
    (first,) = spawned
    claim, started = launch(db, machine)
    assert claim.owner == option(first, "--owner"), "its lock has been held since its beginning"
    assert started is first and pid(db, run_id) == first.pid
    assert first.stdout is not None and first.stdout.read().decode().split() == [str(run_id), "1"]
    queued()
    following, another = launch(db, machine)
    assert following.owner != claim.owner
    assert another is not first and option(another, "--owner") == following.owner


def test_it_is_started_without_a_claim(db, queued, spawned):
    queued(methods=2)
    launch(db, ahead(db))
    launch(db, ThisMachine(["cpu"]))
    with_claim = ["--claim" in started.args for started in spawned]
    assert with_claim == [False, True]


def test_tasks_leave_it_alone_and_a_run_of_another_pool_ends_it(db, make, spawned):
    machine = ahead(db, "GPU-a", "cpu")
    (first,) = spawned
    Store(db).tasks.submit("check", "a", {})
    launch(db, machine, launcher.TASK_POOL)
    assert waiting(machine) is first and first.poll() is None
    Store(db).experiments.create(make(), device="cpu")
    launch(db, machine)
    assert waiting(machine) is None and first.returncode == -signal.SIGKILL, "killed and reaped"


def test_a_run_gets_another_process_once_its_environment_has_changed(db, queued, spawned):
    queued()
    machine = ahead(db)
    (first,) = spawned
    Store(db).queue.set_slots("cpu", 2)  # each run has fewer threads now
    claim, started = launch(db, machine)
    assert started is not first and claim.owner != option(first, "--owner")
    assert waiting(machine) is None and first.returncode is not None


def test_a_run_that_a_user_starts_ends_it(db, make, spawned):
    machine = ahead(db)
    owner = liveness.new_owner()
    Store(db).experiments.create(make(), claimer=(owner, "cpu"))
    Supervisor(Store(db), machine).step()
    assert waiting(machine) is None and spawned[0].returncode is not None


def test_it_waits_for_ten_minutes(db, spawned, monkeypatch):
    machine = ahead(db)
    now = launcher.time.monotonic()
    monkeypatch.setattr(launcher.time, "monotonic", lambda: now + 590)
    machine.wait(0)
    assert waiting(machine) is spawned[0] and spawned[0].poll() is None
    monkeypatch.setattr(launcher.time, "monotonic", lambda: now + 610)
    machine.wait(0)
    assert waiting(machine) is None and spawned[0].returncode is not None


def test_it_is_reaped_if_it_dies(db, spawned):
    machine = ahead(db)
    spawned[0].kill()
    wait_for(lambda: (machine.wait(0), waiting(machine) is None)[1])
    assert spawned[0].returncode == -signal.SIGKILL


def test_a_run_starts_a_process_if_it_has_died_unnoticed(db, queued, spawned):
    (run_id,) = queued()
    machine = ahead(db)
    (dead,) = spawned
    dead.kill()
    dead.wait(60)
    claim, started = launch(db, machine)
    assert claim.owner == option(dead, "--owner")
    assert started is not dead and pid(db, run_id) == started.pid
    assert option(started, "--claim") == "train" and waiting(machine) is None


def test_a_run_stays_queued_while_its_log_cannot_be_made(db, queued, spawned, monkeypatch):
    (run_id,) = queued()
    supervisor = Supervisor(Store(db), machine := ahead(db))

    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", full)
        supervisor.step()
    assert row(db, run_id).status == "queued" and waiting(machine) is spawned[0]
    claim, started = launch(db, machine)
    assert started is spawned[0] and claim.attempt == 1
    assert (claim.folder / launcher.PROCESS_LOG).exists()


@pytest.mark.parametrize("has_run", [True, False])
def test_the_error_of_torch_is_met_by_the_run_that_waits_for_it_and_by_no_later_one(db, monkeypatch, has_run):
    def broken() -> None:
        raise ImportError("libtorch.so: cannot open")

    monkeypatch.setattr(handlers, "load_engine", broken)
    monkeypatch.setattr(process.os, "dup2", lambda *_: None)
    reading, writing = os.pipe()
    folder = Store(db).artifacts
    monkeypatch.setattr(Claim, "folder", folder)
    folder.mkdir()
    owner = liveness.new_owner()
    with os.fdopen(reading) as given, os.fdopen(writing, "w") as run:
        monkeypatch.setattr(sys, "stdin", given)
        if has_run:
            print("7 2", file=run, flush=True)
            assert process.loaded_ahead(db, owner) == Claim(db, "train", 7, owner, 2)
            liveness.let_go(db, owner)
        else:
            with pytest.raises(ImportError, match="libtorch"):
                process.loaded_ahead(db, owner)
    assert not locks(db)


@pytest.fixture
def loaded(db: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A worker as the dashboard starts it before there is work, and its process, which has loaded torch."""
    started = launcher.start_detached(["fedcore", "worker", "--ahead", "--db", str(db)], tmp_path / "log")

    def torch_loaded() -> psutil.Process | None:
        below = psutil.Process(started.pid).children()
        return next(filter(torch_in, below), None)

    yield started, wait_for(torch_loaded)
    kill_processes(db)
    started.wait(60)


def locks(db: Path) -> list[Path]:
    return list(liveness.lock_folder(db).glob("*.lock"))


def test_it_trains_the_first_run(db, loaded, encoded_digits):
    owner = loaded[1].cmdline()[loaded[1].cmdline().index("--owner") + 1]
    encoded_digits(db.parent / "artifacts")
    chosen = parse({"rounds": 1, "data": DIGITS, "methods": [{"name": "zero-shot"}]})
    (run_id,) = Store(db).experiments.create(chosen, plan(chosen).runs).run_ids
    wait_for(lambda: row(db, run_id).ended)
    assert row(db, run_id).status == "done"
    with reading(db) as connection:
        assert connection.execute("SELECT owner FROM runs").fetchone()[0] == owner
    log = Store(db).runs.log_path(run_id).with_name(launcher.PROCESS_LOG)
    assert f"run {run_id}: done" in log.read_text()
    wait_for(lambda: not locks(db))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_worker_and_leaves_nothing(db, loaded, how):
    worker, process = loaded
    assert len(locks(db)) == 1
    worker.send_signal(how)
    worker.wait(60)
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    assert not locks(db)
    assert not list((db.parent / "artifacts").glob("run-*"))
