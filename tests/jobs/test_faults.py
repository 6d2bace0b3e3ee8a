"""Jobs while the database is locked, a supervisor dies, or the machine fails for a moment."""

import errno
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import psutil
import pytest
import torch

from fedcore.base import devices
from fedcore.base.errors import SystemFault
from fedcore.base.files import PROJECT
from fedcore.config import expand, parse
from fedcore.config.identity import group_hash
from fedcore.jobs import handlers, job, launcher
from fedcore.jobs.process import run_local
from fedcore.store import Store, database
from tests.jobs.test_kill import ROUNDS, SLOW, in_the_middle, uninterrupted
from tests.support import fake_engine
from tests.support.jobs import execute_next, recorded, row, wait_for

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


@contextmanager
def locked(db):
    """Let another process hold the write lock of the database."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holder = subprocess.Popen([sys.executable, "-c", LOCK, str(db)], **pipes)
    try:
        assert holder.stdout.readline() == "locked\n"
        yield
    finally:
        holder.communicate("")


# --- a locked database


def test_a_run_waits_for_a_locked_database_and_goes_on(db, queued, monkeypatch):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(rounds=ROUNDS, seconds=0)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)  # after which a page gives up
    holding = locked(db)

    def lock_at_three(event) -> None:
        if getattr(event, "round", 0) == 3:
            holding.__enter__()
            threading.Timer(1.0, holding.__exit__, (None, None, None)).start()

    assert execute_next(db, handler=fake_engine.training, listen=lock_at_three) == "done"
    assert recorded(db, run_id) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [30, 120])
def test_a_run_outlives_a_locked_database_of_minutes(db, queued, supervise, seconds):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(**SLOW)
    supervise()
    worker = in_the_middle(db, run_id)
    with locked(db):
        before = row(db, run_id).rounds_done
        time.sleep(seconds)  # the fault itself is that it lasts
        assert (row(db, run_id).state, row(db, run_id).rounds_done) == ("running", before)
    wait_for(lambda: row(db, run_id).status == "done")
    assert (row(db, run_id).attempt, psutil.pid_exists(worker)) in [(1, True), (1, False)]
    assert recorded(db, run_id) == expected


IMPATIENT = """
import sys
from fedcore.jobs import job, process, supervisor
from fedcore.store import database, jobs
from fedcore.store.liveness import new_owner
from tests.support import fake_engine
database.BUSY_SECONDS = job.BUSY_SECONDS = 0.1
jobs.PATIENCE_SECONDS = 0.5
claim = jobs.Jobs(database.DatabaseFile(database.resolve(sys.argv[1]))).claim(new_owner(), "cpu")
job.load_handler = lambda kind: fake_engine.training
sys.exit(process.run_process(claim, "cpu"))
"""


def test_a_process_whose_end_stays_unrecorded_ends_and_trains_no_other_run(db, queued):
    first, second = queued(rounds=1000, seconds=0.02, seeds=(1, 2))
    process = subprocess.Popen([sys.executable, "-c", IMPATIENT, str(db)], cwd=PROJECT)
    try:
        in_the_middle(db, first)
        with locked(db):
            assert process.wait(90) == launcher.UNRECORDED_STATUS
            states = {row(db, run).state: run for run in (first, second)}
        assert states.keys() == {"interrupted", "queued"}  # one trained, the other waited for its turn
    finally:
        process.kill()
    ended = [states["interrupted"]]
    assert Store(db).jobs.reconcile() == ended
    assert Store(db).runs.resume(ended) == ended


# --- killed and stopped in the foreground

FOREGROUND = """
import sys
from fedcore.config import expand, parse
from fedcore.jobs.process import run_local
from fedcore.store import Store
from tests.support import fake_engine
experiment = parse({"name": "a test", "methods": [{"name": "fedot", "config": {"seconds": 0.1}}],
                    "rounds": int(sys.argv[2]), "seeds": [1, 2]})
from fedcore.config import expand
runs = expand(experiment)
run_local(Store(sys.argv[1]), experiment, runs, device="cpu", handler=fake_engine.training)
"""
STARTING_SECONDS = 240
"""A new interpreter imports everything: 1.3 s alone, 54 s beside some fifteen busy processes on two cores."""


@pytest.fixture
def foreground(db):
    """A process that trains two runs one by one, as ``fedlens run`` does."""
    process = subprocess.Popen([sys.executable, "-c", FOREGROUND, str(db), str(ROUNDS)], cwd=PROJECT)

    def in_round_three() -> bool:
        assert process.poll() is None, "it ended before anyone could look; its errors are above"
        return any(run.rounds_done >= 3 for run in Store(db).runs.get([1]))

    try:
        wait_for(in_round_three, STARTING_SECONDS)
        yield process
    finally:
        process.kill()
        process.wait(60)


def test_a_killed_foreground_run_shows_so_at_once_and_all_its_runs_can_be_resumed(db, queued, foreground):
    assert [row(db, i).state for i in (1, 2)] == ["running", "running"]
    foreground.kill()
    foreground.wait(60)
    assert [row(db, i).state for i in (1, 2)] == ["interrupted", "interrupted"]
    assert Store(db).jobs.reconcile() == [1, 2]
    Store(db).runs.resume([1, 2])
    assert [execute_next(db, number=i, handler=fake_engine.training) for i in (1, 2)] == ["done", "done"]
    expected = uninterrupted(db, queued)
    assert recorded(db, 1) == expected


@pytest.mark.slow
def test_killing_a_run_that_waits_in_the_foreground_leaves_the_one_that_trains(db, foreground):
    Store(db).runs.stop([2])
    assert not launcher.force_stop(Store(db), 2)
    assert row(db, 2).status == "stopped"
    done = row(db, 1).rounds_done
    wait_for(lambda: row(db, 1).rounds_done > done)
    wait_for(lambda: row(db, 1).status == "done")
    assert foreground.wait(90) == 0
    assert row(db, 2).status == "stopped" and row(db, 2).rounds_done == 0


# --- a machine that fails for a moment


def failing(run, error: OSError, times: list[int], **options):
    """Train as the fake engine does; the error comes before round 4 while ``times`` holds anything."""
    for event in fake_engine.train(run, **options):
        if getattr(event, "round", 0) == 4 and times:
            times.pop()
            raise error
        yield event


def test_a_failure_for_a_moment_is_tried_again_and_noted(db, queued, monkeypatch):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(rounds=ROUNDS, seconds=0)
    monkeypatch.setattr(job, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    engine = partial(failing, error=OSError(errno.EMFILE, "Too many open files"), times=[1, 2])
    assert execute_next(db, handler=partial(handlers.train, engine=engine)) == "done"
    assert recorded(db, run_id) == expected
    notices = [notice.message for notice in row(db, run_id).notices]
    assert [f"({i} of 3)" in text for i, text in enumerate(notices[1:], 1)] == [True, True]


def test_a_failure_that_stays_leaves_the_run_to_be_resumed(db, queued, monkeypatch):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(rounds=ROUNDS, seconds=0)
    monkeypatch.setattr(job, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    times = [1, 2, 3, 4]
    engine = partial(failing, error=OSError(errno.EIO, "Input/output error"), times=times)
    for outcome in ("interrupted", "done"):
        assert execute_next(db, handler=partial(handlers.train, engine=engine)) == outcome
        if outcome == "interrupted":
            assert times == [] and "input/output error" in row(db, run_id).status_text
            Store(db).runs.resume([run_id])
    assert recorded(db, run_id) == expected


def greedy(run, allocate, **options):
    """Train as the fake engine does, and ask for more memory than any machine has before round 4."""
    for event in fake_engine.train(run, **options):
        if getattr(event, "round", 0) == 4:
            allocate()
        yield event


@pytest.mark.parametrize("allocate", [lambda: bytearray(2**62), lambda: torch.empty(2**50)])
def test_a_run_without_memory_is_tried_again_and_then_interrupted(db, queued, monkeypatch, allocate):
    """It once failed for good, with the reason "MemoryError: "."""
    (run_id,) = queued(rounds=ROUNDS, seconds=0)
    monkeypatch.setattr(job, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    handler = partial(handlers.train, engine=partial(greedy, allocate=allocate))
    assert execute_next(db, handler=handler) == "interrupted"
    assert "the memory of this machine is used up" in row(db, run_id).status_text
    assert "(3 of 3)" in row(db, run_id).notices[-1].message


WITHOUT_MEMORY_FOR_TORCH = """
import resource, sys
from pathlib import Path
from fedcore.jobs import job, process
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from fedcore.base.errors import explain

def train(claimed):
    from fedcore.base.lazy import torch
    torch.zeros(1)
    yield

job.RETRY_SECONDS = (0.0, 0.0, 0.0)
assert "torch" not in sys.modules
assert explain(RuntimeError("could not create a primitive"), "x") is None
claim = Store(sys.argv[1]).jobs.claim(new_owner(), "cpu")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20,) * 2)
print("memory" in str(explain(RuntimeError("could not create a primitive"), "x")))
print(process.work(claim, "cpu", handler=train, revive=lambda store: None))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux' here")
def test_a_process_that_cannot_import_torch_trains_no_other_run(db, queued):
    """A half-imported torch must not train the next run of the experiment."""
    first, second = queued(methods=2, rounds=1)
    command = [sys.executable, "-c", WITHOUT_MEMORY_FOR_TORCH, str(db)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["True", "interrupted"], ended.stderr
    assert "the memory of this machine is used up" in row(db, first).status_text
    assert row(db, second).status == "queued"


# --- supervisors


@pytest.mark.slow
def test_a_run_that_trains_revives_a_supervisor_that_nobody_looks_for(db, queued, supervise):
    (first,) = queued(**SLOW)
    handle = supervise()
    in_the_middle(db, first)
    (second,) = queued(rounds=2)
    handle.kill()
    handle.wait(5)
    wait_for(lambda: row(db, second).status == "done")  # reading starts nothing
    assert [row(db, i).attempt for i in (first, second)] == [1, 1]


def test_a_supervisor_that_is_asked_to_end_interrupts_its_runs_and_is_not_revived(db, queued, supervise):
    (first,) = queued(**SLOW)
    handle = supervise()
    worker = in_the_middle(db, first)
    (second,) = queued(rounds=2)
    handle.send_signal(signal.SIGTERM)
    assert handle.wait(30) == 0
    wait_for(lambda: not psutil.pid_exists(worker))
    assert [row(db, i).status for i in (first, second)] == ["interrupted", "queued"]
    assert recorded(db, first)["rounds"], "its rounds stay"


def test_a_revived_supervisor_sees_what_the_first_one_saw(monkeypatch):
    monkeypatch.setenv(launcher.ENVIRONMENT_BEFORE, '{"CUDA_VISIBLE_DEVICES": null, "OMP_NUM_THREADS": "4"}')
    assert launcher.environment_before() == {
        "CUDA_VISIBLE_DEVICES": None,
        "OMP_NUM_THREADS": "4",
        launcher.ENVIRONMENT_BEFORE: None,
    }


# --- a time limit


def test_a_run_stops_at_its_time_limit_and_can_be_resumed(db, make, queued):
    expected = uninterrupted(db, queued)
    content = make(rounds=ROUNDS, seconds=0.1).model_dump() | {"time_limit": 0.005}
    limited = parse(content)
    (run_id,) = Store(db).experiments.create(limited).run_ids
    outcomes = []
    while not outcomes or outcomes[-1] != "done":
        outcomes.append(execute_next(db, handler=fake_engine.training))
        if outcomes[-1] == "stopped":
            assert "it reached its time limit of 0.005 minutes" in row(db, run_id).status_text
            Store(db).runs.resume([run_id])
    assert len(outcomes) > 1
    assert recorded(db, run_id) == expected
    config = Store(db).runs.config(run_id)
    assert group_hash(config) == group_hash(config.model_copy(update={"time_limit": None}))


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_gpu_rests_on_the_machine_that_has_it(db, queued, monkeypatch, tmp_path, elsewhere):
    """The recorder of a cluster's run let the GPU rest that its own variables named."""
    queued()
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    def broken(job):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        yield

    assert execute_next(db, handler=broken, device="GPU-a", elsewhere=elsewhere) == "queued"
    assert devices.rest_of("0") == ""
    assert bool(devices.rest_of("GPU-a")) is not elsewhere


def test_in_the_foreground_no_run_follows_one_that_made_the_gpu_unusable(db, make, monkeypatch):
    """A failed assertion on the GPU fails its run, and every later computation of the process."""
    chosen, begun = make(seeds=(1, 2)), []
    monkeypatch.setattr(devices, "answers", lambda device: False)

    def broken(job):
        begun.append(job.id)
        raise RuntimeError("CUDA error: device-side assert triggered")
        yield

    with pytest.raises(SystemFault, match="the GPU failed"):
        run_local(Store(db), chosen, expand(chosen), device="cpu", handler=broken)
    assert begun == [1] and row(db, 1).status == "failed"
