"""The process that loads torch before there is a run gets the first one, and never outlives its worker."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs import launcher
from fedcore.jobs.launcher import ThisMachine
from fedcore.store import Store, liveness
from fedcore.store.database import reading
from fedcore.store.jobs import Claim
from tests.support.encoded import DIGITS
from tests.support.jobs import kill_processes, pid, row, wait_for

WAITS = "import sys; print(sys.stdin.readline(), flush=True)"


class Spawned:
    """Starts processes that wait as the real ones do; knows the claims that they were started for."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def __call__(self, claim: Claim, pool: str) -> subprocess.Popen[bytes]:
        self.claims.append(claim)
        return subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def waiting(machine: ThisMachine) -> subprocess.Popen[bytes]:
    assert machine._ahead is not None and machine._ahead.process is not None
    return machine._ahead.process


def torch_in(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(Path(found.path).name.startswith("libtorch_python") for found in process.memory_maps())
    return False


def test_it_gets_the_first_run_and_only_that(db, queued):
    (run_id,) = queued(seeds=(1,))
    spawned = Spawned()
    machine = ThisMachine(["cpu"], spawned)
    machine.load_ahead(Store(db))
    process, owner = waiting(machine), spawned.claims[0].owner
    claim = machine.claim(Store(db), "cpu", 0)
    assert claim.owner == owner, "its lock has been held since its beginning"
    launched = machine.launch(claim, "cpu")
    assert launched.process is process and pid(db, run_id) == process.pid
    assert process.stdout is not None and process.stdout.read().decode().split() == [str(run_id), "1"]
    assert process.wait(60) == 0
    assert len(spawned.claims) == 1
    queued()
    following = machine.claim(Store(db), "cpu", 0)
    assert following.owner != owner
    another = machine.launch(following, "cpu").process
    assert another is not process and spawned.claims[1] == following
    another.communicate()


def test_work_of_other_pools_leaves_it_alone(db, make):
    spawned = Spawned()
    machine = ThisMachine(["GPU-a", "cpu"], spawned)
    machine.load_ahead(Store(db))
    Store(db).tasks.submit("check", "a", {})
    Store(db).experiments.create(make(), device="cpu")
    for pool in (launcher.TASK_POOL, "cpu"):
        claim = machine.claim(Store(db), pool, 0)
        machine.launch(claim, pool).process.communicate()
    assert len({claim.owner for claim in spawned.claims}) == 3
    assert waiting(machine).poll() is None
    waiting(machine).communicate()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_run_starts_a_process_if_it_has_died(db, queued, noticed, monkeypatch):
    (run_id,) = queued()
    spawned = Spawned()
    machine = ThisMachine(["cpu"], spawned)
    machine.load_ahead(Store(db))
    dead = waiting(machine)
    dead.kill()
    dead.wait(60)
    if not noticed:  # it dies after the look at it
        monkeypatch.setattr(machine._ahead, "ended", lambda: False)
    claim = machine.claim(Store(db), "cpu", 0)
    assert (claim.owner == spawned.claims[0].owner) is not noticed
    process = machine.launch(claim, "cpu").process
    assert process is not dead and pid(db, run_id) == process.pid
    assert [c.id for c in spawned.claims] == [0, run_id]
    process.communicate()


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
