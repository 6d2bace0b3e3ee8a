"""kill -9 of a job, its supervisor or both: no row still says "running", and a resume changes no number."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fedcore.base.events import Event
from fedcore.jobs import job
from fedcore.jobs.job import Heartbeat
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store
from fedcore.store.database import run_folder
from fedcore.store.jobs import RUNS
from fedcore.store.liveness import new_owner
from tests.support import fake_engine
from tests.support.jobs import execute_next, pid, recorded, row, wait_for

ROUNDS = 12
SLOW = {"rounds": ROUNDS, "seconds": 0.1}


def in_the_middle(db: Path, run_id: int) -> int:
    """Wait until a run has recorded three rounds; returns its process."""
    wait_for(lambda: row(db, run_id).rounds_done >= 3)
    return pid(db, run_id)


def uninterrupted(db: Path, queued: Callable[..., list[int]]) -> dict:
    """Execute the same run without an interruption, in this process; returns its rows."""
    (run_id,) = queued(rounds=ROUNDS, seconds=0)
    assert execute_next(db, number=run_id, handler=fake_engine.training) == "done"
    return recorded(db, run_id)


def leave_alone(supervise: Callable[[], subprocess.Popen], db: Path, run_id: int) -> int:
    """Kill a new supervisor with -9 while its run trains on; returns the run's process."""
    supervisor = supervise()
    worker_pid = in_the_middle(db, run_id)
    supervisor.kill()
    supervisor.wait(5)
    return worker_pid


def test_job_killed_is_marked_with_its_signal_and_resumes_to_the_same_rows(db, queued, step_until):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(**SLOW)
    step_until()
    process = psutil.Process(in_the_middle(db, run_id))
    (owner,) = {live["owner"] for live in Store(db).jobs.live(RUNS)}
    assert owner in process.cmdline()
    process.kill()
    step_until(lambda: row(db, run_id).status == "interrupted")
    assert "signal 9" in row(db, run_id).status_text
    done = row(db, run_id).rounds_done
    assert 3 <= done < ROUNDS
    (later,) = queued(rounds=1)
    step_until(lambda: row(db, later).status == "done")
    assert row(db, run_id).status == "interrupted"  # nobody queues it again unasked

    assert Store(db).runs.resume([run_id]) == [run_id]
    step_until(lambda: row(db, run_id).status == "done")
    assert row(db, run_id).attempt == 2
    assert recorded(db, run_id) == expected
    assert f"resuming after round {done}" in Store(db).runs.log_path(run_id).read_text()


def test_supervisor_killed_leaves_the_job_to_the_next_supervisor(db, queued, supervise):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(**SLOW)
    worker_pid = leave_alone(supervise, db, run_id)
    supervise()
    before = row(db, run_id).rounds_done
    wait_for(lambda: row(db, run_id).rounds_done > before)
    assert pid(db, run_id) == worker_pid  # the same process went on
    wait_for(lambda: row(db, run_id).status == "done")
    assert row(db, run_id).attempt == 1
    assert recorded(db, run_id) == expected


@pytest.mark.slow
def test_adopted_job_killed_is_marked_by_the_new_supervisor(db, queued, supervise):
    (run_id,) = queued(**SLOW)
    worker_pid = leave_alone(supervise, db, run_id)
    supervise()
    os.kill(worker_pid, signal.SIGKILL)
    wait_for(lambda: row(db, run_id).status == "interrupted")
    assert row(db, run_id).attempt == 1  # marked, not queued again
    assert recorded(db, run_id)  # what it had recorded stays


def test_both_killed_shows_interrupted_at_once_and_resumes_to_the_same_rows(db, queued, supervise):
    expected = uninterrupted(db, queued)
    (run_id,) = queued(**SLOW)
    worker_pid = leave_alone(supervise, db, run_id)
    assert SupervisorLock(db).is_free(), "the lock goes with the process that held it"
    os.kill(worker_pid, signal.SIGKILL)
    wait_for(lambda: row(db, run_id).state == "interrupted")
    assert row(db, run_id).status == "running"  # nobody wrote it, everybody sees it

    assert Store(db).jobs.reconcile() == [run_id]
    assert row(db, run_id).status == "interrupted"
    Store(db).runs.resume([run_id])
    assert execute_next(db, handler=fake_engine.training) == "done"
    assert recorded(db, run_id) == expected


def test_a_claim_whose_supervisor_died_before_starting_a_process_goes_stale(db, queued):
    (run_id,) = queued()
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    assert claimed is not None
    assert row(db, run_id).state == "running"
    assert Store(db).jobs.reconcile(stale=30) == []
    assert Store(db).jobs.reconcile(stale=0) == [run_id]


def test_a_checkpoint_ahead_of_the_database_is_not_used(db, queued):
    """The job dies between saving a round and recording it: the round is trained again."""
    expected = uninterrupted(db, queued)
    (run_id,) = queued(rounds=ROUNDS, seconds=0)

    def die_before_recording(event: Event) -> None:
        if getattr(event, "round", 0) == 5:
            raise KeyboardInterrupt

    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    with pytest.raises(KeyboardInterrupt), Heartbeat(Store(db)) as heartbeat:
        job.execute(claimed, heartbeat, handler=fake_engine.training, listen=die_before_recording)
    assert row(db, run_id).rounds_done == 5
    (run_folder(db, run_id) / "round-6.safetensors").write_text("6 a state that was never recorded")
    claimed.finish("interrupted")
    Store(db).runs.resume([run_id])
    assert Store(db).runs.checkpoints(run_id)[0][0] == 5
    assert execute_next(db, handler=fake_engine.training) == "done"
    assert recorded(db, run_id) == expected
