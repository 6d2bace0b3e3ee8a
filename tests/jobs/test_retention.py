"""Which checkpoints a run keeps when it is done, and how those of finished runs are deleted."""

from functools import partial
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import RoundFinished
from fedcore.cli import main as cli
from fedcore.config import parse
from fedcore.config.identity import group_hash
from fedcore.jobs import handlers
from fedcore.jobs import retention as checkpoints
from fedcore.jobs.analysis import why_no_checkpoint
from fedcore.store import Store
from fedcore.store.database import writing
from fedcore.store.liveness import let_go
from tests.support import fake_engine, fill
from tests.support.jobs import execute_next, recorded

ROUNDS = 6


def execute(db: Path) -> str:
    return execute_next(db, handler=fake_engine.training)


@pytest.fixture
def queue(db, make):
    def build(keep: str, **options: object) -> int:
        content = make(rounds=ROUNDS, **options).model_dump() | {"keep_checkpoints": keep}
        (run_id,) = Store(db).experiments.create(parse(content)).run_ids
        return run_id

    return build


def rounds_on_disk(db: Path, run_id: int) -> list[int]:
    return sorted(round_ for round_, _ in Store(db).runs.checkpoints(run_id))


@pytest.mark.parametrize("keep", ["last", "best", "all", "none"])
def test_a_finished_run_keeps_what_it_was_asked_to_keep(db, queue, keep):
    run_id = queue(keep)
    assert execute(db) == "done"
    (run,) = Store(db).runs.get([run_id])
    assert run.best_round not in (None, ROUNDS), "else this test could not tell best from last"
    expected = {"last": [ROUNDS], "best": [run.best_round], "all": list(range(ROUNDS + 1)), "none": []}
    assert rounds_on_disk(db, run_id) == expected[keep]


def test_the_best_checkpoint_is_there_although_the_run_went_on(db, queue):
    run_id = queue("best", fail_at=ROUNDS)
    assert execute(db) == "failed"
    (run,) = Store(db).runs.get([run_id])
    assert rounds_on_disk(db, run_id) == sorted({run.best_round, ROUNDS - 2, ROUNDS - 1})


def test_a_damaged_score_deletes_no_best_checkpoint(db, queue):
    """It made another round the best, and the checkpoint of the best round was deleted."""
    run_id = queue("best")

    def damaging(config, **options):
        for event in fake_engine.train(config, **options):
            yield event
            if isinstance(event, RoundFinished) and event.round == ROUNDS - 1:
                (best,) = (run.best_round for run in Store(db).runs.get([run_id]))
                fill.alter(
                    db,
                    f"UPDATE scores SET personal_mean=0 WHERE run_id={run_id} AND split=1 AND round={best}",
                )
                kept.append(best)

    kept: list[int] = []
    assert execute_next(db, handler=partial(handlers.train, engine=damaging)) == "failed"
    assert kept[0] in rounds_on_disk(db, run_id)
    assert f"round {kept[0]} differs" in Store(db).runs.get([run_id])[0].status_text


def test_checkpoints_of_a_run_with_a_damaged_round_are_not_deleted_by_its_best_round(db, queue):
    run_id = queue("all")
    execute(db)
    before = rounds_on_disk(db, run_id)
    fill.alter(db, f"UPDATE scores SET personal_mean=0 WHERE run_id={run_id} AND split=1 AND round=3")
    with pytest.raises(FedLensError, match=f"round 3 differs .* the checkpoints of run {run_id} stay"):
        checkpoints.delete(Store(db), checkpoints.surplus(Store(db), "best"))
    assert rounds_on_disk(db, run_id) == before
    checkpoints.delete(Store(db), checkpoints.surplus(Store(db), "none"))
    assert rounds_on_disk(db, run_id) == []


def test_a_run_that_ended_before_it_was_marked_done_needs_no_checkpoint(db, queue, monkeypatch):
    """Its process is killed between deleting its checkpoints and recording its end."""
    run_id = queue("none")

    def killed(self, *args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedcore.store.jobs.Claim.finish", killed)
        with pytest.raises(KeyboardInterrupt):
            execute(db)
    before = recorded(db, run_id)
    assert rounds_on_disk(db, run_id) == [] and Store(db).runs.last_round(run_id) == ROUNDS
    assert Store(db).runs.get([run_id])[0].status == "running"
    with writing(db) as connection:
        (owner,) = connection.execute("SELECT owner FROM runs WHERE id=?", [run_id]).fetchone()
    let_go(db, owner)  # as the end of its process does
    Store(db).jobs.reconcile(stale=0)
    Store(db).runs.resume([run_id])
    assert execute(db) == "done"
    assert recorded(db, run_id) == before


def test_what_a_run_keeps_does_not_separate_it_from_others(db, queue):
    runs = [Store(db).runs.config(queue(keep)) for keep in ("last", "none")]
    assert len({group_hash(run) for run in runs}) == 1


def test_an_analysis_says_why_there_is_no_checkpoint(db, queue):
    none, last = queue("none"), queue("last")
    assert why_no_checkpoint(Store(db), none) == "its experiment keeps none (keep_checkpoints = none)"
    assert "trained elsewhere" in why_no_checkpoint(Store(db), last)


def test_checkpoints_of_finished_runs_are_shown_before_they_are_deleted(db, queue, capsys):
    everything, last, unfinished = queue("all"), queue("last"), queue("all", fail_at=3)
    assert [execute(db) for _ in range(3)] == ["done", "done", "failed"]

    def command(*arguments: object) -> str:
        assert cli.main(["checkpoints", *map(str, arguments), "--db", str(db)]) == 0
        return "".join(capsys.readouterr())

    shown = command()
    assert "0, 1, 2, 3, 4, 5, 6" in shown and "of 2 finished runs" in shown
    would = command("--keep", "last")
    assert ',"0, 1, 2, 3, 4, 5",' in would and "--delete would delete: " in would
    assert rounds_on_disk(db, everything) == list(range(ROUNDS + 1)), "nothing yet"
    assert "of 1 finished run" in command("--keep", "last", "--delete")
    assert rounds_on_disk(db, everything) == rounds_on_disk(db, last) == [ROUNDS]
    command("--keep", "none", last, "--delete")
    assert (rounds_on_disk(db, everything), rounds_on_disk(db, last)) == ([ROUNDS], [])
    assert "deleted" in command("--keep", "none", "--delete")
    assert rounds_on_disk(db, everything) == [] and rounds_on_disk(db, unfinished) == [0, 1, 2], (
        "its resume needs them"
    )
    assert cli.main(["checkpoints", "--delete", "--db", str(db)]) == 2


def test_a_quota_takes_the_oldest_runs_first_and_no_more_than_it_needs(db, queue, capsys):
    runs = [queue("last") for _ in range(3)]
    assert [execute(db) for _ in runs] == ["done"] * 3
    store = Store(db)
    one = checkpoints.finished(store)[0].size
    chosen = checkpoints.surplus(store, "none", checkpoints.artifacts_size(store) - one - 1)
    assert [c.run.id for c in chosen] == runs[:2]
    assert checkpoints.surplus(store, "none", checkpoints.artifacts_size(store)) == []
    assert cli.main(["checkpoints", "--quota", "0", "--delete", "--db", str(db)]) == 0
    assert "remain, more than the quota" in capsys.readouterr().err
    assert checkpoints.finished(store) == []


def test_a_run_that_was_restarted_since_is_left_alone(db, queue):
    run_id = queue("last")
    assert execute(db) == "done"
    chosen = checkpoints.surplus(Store(db), "none")
    with writing(db) as database:
        database.execute("UPDATE runs SET status='queued' WHERE id=?", [run_id])
    assert checkpoints.delete(Store(db), chosen) == 0 and rounds_on_disk(db, run_id) == [ROUNDS]


def test_a_run_without_its_best_checkpoint_keeps_its_newest(db, queue):
    run_id = queue("last")
    assert execute(db) == "done"
    assert Store(db).runs.get([run_id])[0].best_round != ROUNDS
    assert checkpoints.surplus(Store(db), "best") == []
    assert len(checkpoints.surplus(Store(db), "none")) == 1
