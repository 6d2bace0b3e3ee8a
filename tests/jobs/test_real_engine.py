"""The engine under the job model: killed and stopped runs end with the bits of an uninterrupted one."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs import handlers
from fedcore.jobs.launcher import ThisMachine
from fedcore.jobs.supervisor import Supervisor
from fedcore.store import Store
from tests.support import fake_engine
from tests.support.encoded import DIGITS
from tests.support.jobs import execute_next, pid, recorded, row, wait_for

ROUNDS = 10


def queue(db: Path) -> int:
    """FedOT with momentum kept across rounds: shared, local and optimiser state must all come back."""
    config = {"lr": 0.01, "optimiser_state": "kept"}
    chosen = parse({"rounds": ROUNDS, "data": DIGITS, "methods": [{"name": "fedot", "config": config}]})
    return Store(db).experiments.create(chosen, plan(chosen).runs).run_ids[0]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, encoded_digits) -> dict[str, list[tuple]]:
    """Everything that an uninterrupted run measured."""
    db = tmp_path_factory.mktemp("uninterrupted") / "runs.db"
    Store(db).prepare()
    encoded_digits(db.parent / "artifacts")
    run_id = queue(db)
    assert execute_next(db, number=run_id) == "done"
    rows = recorded(db, run_id)
    assert len(rows["rounds"]) == ROUNDS + 1
    return rows


@pytest.mark.slow
def test_a_run_that_is_killed_then_stopped_ends_like_an_uninterrupted_one(db, expected, monkeypatch):
    """The first job process is the real one, started by a supervisor, killed with signal 9, resumed here."""
    monkeypatch.setenv("FEDLENS_THREADS", "1")
    run_id = queue(db)
    supervisor = Supervisor(Store(db), ThisMachine(["cpu"]))
    try:
        assert supervisor.step()
        wait_for(lambda: row(db, run_id).rounds_done >= 2 or row(db, run_id).ended, 240)
        os.kill(pid(db, run_id), signal.SIGKILL)
        wait_for(lambda: not supervisor.step())
    finally:
        for child in supervisor._children.values():
            child.job.process.kill()
    assert Store(db).jobs.reconcile() == []  # the supervisor has said it already
    assert row(db, run_id).status == "interrupted" and "signal 9" in row(db, run_id).status_text
    killed_after = row(db, run_id).rounds_done
    assert 2 <= killed_after < ROUNDS - 2

    def stop_two_rounds_later(event: object) -> None:
        if getattr(event, "round", 0) == killed_after + 2:
            Store(db).runs.stop([run_id])

    Store(db).runs.resume([run_id])
    assert execute_next(db, number=run_id, listen=stop_two_rounds_later) == "stopped"
    assert killed_after + 2 <= row(db, run_id).rounds_done < ROUNDS
    Store(db).runs.resume([run_id])
    assert execute_next(db, number=run_id) == "done"
    assert Store(db).runs.log_path(run_id).read_text().count("resuming after round") == 2
    assert recorded(db, run_id) == expected


def test_no_round_is_deleted_for_the_checkpoint_of_another_run(db, encoded_digits):
    """Rounds after a checkpoint must not be deleted before the engine has accepted it."""
    encoded_digits(db.parent / "artifacts")
    run_id = queue(db)

    def ends_in_round_6(run, **options):
        for event in fake_engine.train(run, **options):
            if getattr(event, "round", 0) == 6:
                raise ZeroDivisionError("the attempt ends here")
            yield event

    assert (
        execute_next(db, number=run_id, handler=partial(handlers.train, engine=ends_in_round_6)) == "failed"
    )
    before = recorded(db, run_id)
    assert len(before["rounds"]) == 6
    folder = Store(db).runs.folder(run_id)
    for newer in (5, 6):
        (folder / f"round-{newer}.safetensors").unlink()
    Store(db).runs.resume([run_id])
    assert (
        execute_next(db, number=run_id) == "failed"
    )  # the real engine: the fake one's checkpoint is another run's
    assert "was made with another config" in row(db, run_id).status_text
    assert recorded(db, run_id) == before and row(db, run_id).rounds_done == 5
    assert not [n for n in row(db, run_id).notices if "trained again" in n.message]
