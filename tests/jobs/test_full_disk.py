"""A disk fills while a run trains: no recorded round is lost, all say why, and the run can continue."""

import sqlite3

import pytest

from fedcore.base.errors import DiskFull
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store
from tests.jobs.test_kill import uninterrupted
from tests.support.jobs import recorded, row, wait_for

ROUNDS = 12


@pytest.fixture
def db(small_disk):
    path = small_disk.path / "runs.db"
    Store(path).prepare()
    return path


@pytest.fixture
def supervisor_log(tmp_path):
    return lambda: (tmp_path / "supervisor.log").read_text()


@pytest.mark.slow
def test_a_disk_that_fills_stops_runs_and_lets_them_go_on(db, queued, supervise, small_disk, supervisor_log):
    expected = uninterrupted(db, queued)
    (first,), (second,) = queued(rounds=ROUNDS, seconds=0.1), queued(rounds=2)
    handle = supervise()
    wait_for(lambda: row(db, first).rounds_done >= 3)
    small_disk.fill()
    wait_for(lambda: row(db, first).state == "stopped")
    run = row(db, first)
    assert run.status_text.startswith("the disk that holds") and "then resume" in run.status_text
    # what the stopped run deletes can make room for a moment, in which the next one begins
    wait_for(lambda: "full" in supervisor_log() or row(db, second).ended)
    waited = not row(db, second).ended
    assert handle.poll() is None
    assert recorded(db, first)["rounds"]

    small_disk.empty()
    if row(db, second).state == "stopped":
        assert "then resume" in row(db, second).status_text
        Store(db).runs.resume([second])
    wait_for(lambda: row(db, second).status == "done")
    log = supervisor_log()
    assert log.count("free some space") == log.count("recovered; resuming the queue") >= waited, log
    Store(db).runs.resume([first])
    wait_for(lambda: row(db, first).status == "done")
    assert recorded(db, first) == expected


def test_a_full_disk_still_shows_what_was_recorded_and_says_why_nothing_can_be_added(db, make, small_disk):
    """SQLite cannot create its shared memory file again on a full disk."""
    store = Store(db)
    store.experiments.create(make())
    with sqlite3.connect(db) as connection:  # the last one to leave removes WAL and shared memory
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert not db.with_name("runs.db-shm").exists()
    small_disk.fill()
    assert [e.name for e in store.experiments.all()] == ["a test"]
    with pytest.raises(DiskFull, match="is full; free some space"):
        store.experiments.create(make())
    small_disk.empty()
    assert store.experiments.create(make()).experiment_id == 2


@pytest.mark.slow
def test_a_supervisor_that_starts_on_a_full_disk_waits_for_room(db, queued, supervise, small_disk):
    (run_id,) = queued(rounds=1)
    small_disk.fill()
    handle = supervise()
    wait_for(lambda: not SupervisorLock(db).is_free())
    assert handle.poll() is None and row(db, run_id).status == "queued"
    small_disk.empty()
    wait_for(lambda: row(db, run_id).status == "done")
