"""A run continues from its newest intact checkpoint; recorded rounds are never deleted silently."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fedcore.base.progress import Progress
from fedcore.engine import checkpoint
from fedcore.jobs import handlers
from fedcore.store import Store
from fedcore.store.database import held_open
from fedcore.store.jobs import Claim
from fedcore.store.liveness import new_owner
from tests.support import fake_engine, fill
from tests.support.jobs import execute_next, recorded
from tools.faults.power import noting_commits


def mended(run, **options):
    """The fake engine without the failure of the first attempt."""
    method = run.method.model_copy(update={"config": {}})
    return fake_engine.train(run.model_copy(update={"method": method}), **options)


def execute(db: Path, engine=fake_engine.train) -> str:
    return execute_next(db, handler=partial(handlers.train, engine=engine))


@pytest.fixture
def interrupted(db, queued) -> tuple[int, Path, dict]:
    """A run of 6 rounds that failed in the 4th, its folder, and the rows of a run that did not fail."""
    (whole,) = queued(rounds=6)
    assert execute(db) == "done"
    (run_id,) = queued(rounds=6, fail_at=4)
    assert execute(db) == "failed"
    return run_id, Store(db).runs.folder(run_id), recorded(db, whole)


def notices(db: Path, run_id: int) -> list[str]:
    return [n.message for n in Store(db).runs.get([run_id])[0].notices if n.message != "a remark"]


def test_what_passes_between_two_attempts_is_not_counted_as_time_of_the_run(db, queued, monkeypatch) -> None:
    """A run that was stopped on Friday and resumed on Monday has not trained for three days."""
    (run_id,) = queued()
    store, day, now = Store(db), 86_400.0, 1e9
    monkeypatch.setattr("time.time", lambda: now)

    def begun() -> Claim:
        claim = store.jobs.claim(new_owner(), "cpu")
        assert claim is not None
        claim.begin()
        return claim

    def elapsed() -> float | None:
        return store.runs.get([run_id])[0].elapsed()

    first = begun()
    now += 20
    first.finish("failed", error="a fault")
    now += day
    assert elapsed() == 20
    store.runs.resume([run_id])
    now += day
    assert elapsed() == 20, "it waits in the queue"
    store.runs.stop([run_id])
    now += day
    store.runs.resume([run_id])
    second = begun()
    second.give_back()
    now += day
    second = begun()
    now += 5
    second.progress(Progress("training", 1, 6))
    now += day
    assert store.jobs.reconcile(gone=[second.owner]) == [run_id]
    assert elapsed() == 25, "the machine was off for a day before anyone saw that the process was gone"
    store.runs.resume([run_id], restart=True)
    now += day
    assert elapsed() is None
    third = begun()
    now += 7
    third.finish("done")
    assert elapsed() == 7


def flip_last_bit(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip_last_bit,
    "cut off": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "deleted": lambda path: path.unlink(),
    "of another round": lambda path: path.write_bytes(path.with_stem("round-2").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_checkpoint_is_skipped_with_a_notice(db, interrupted, damage):
    run_id, folder, expected = interrupted
    DAMAGE[damage](folder / "round-3.safetensors")
    Store(db).runs.resume([run_id])
    assert execute(db, mended) == "done"
    assert recorded(db, run_id) == expected
    (said,) = notices(db, run_id)
    assert said.endswith("; the run continues after round 2, and round 3 is trained again")


@pytest.mark.parametrize("damage", [flip_last_bit, Path.unlink])
def test_without_an_intact_checkpoint_recorded_rounds_are_kept_and_the_remedy_is_named(
    db, interrupted, damage
):
    run_id, folder, expected = interrupted
    before = recorded(db, run_id)
    for path in folder.glob("round-*"):
        damage(path)
    Store(db).runs.resume([run_id])
    assert execute(db, mended) == "failed"
    assert recorded(db, run_id) == before and before["accuracy"]
    text = Store(db).runs.get([run_id])[0].status_text
    assert f"the 3 recorded rounds of run {run_id} cannot be continued" in text
    assert f"`fedlens resume {run_id} --restart`" in text
    Store(db).runs.resume([run_id], restart=True)
    assert execute(db, mended) == "done"
    assert recorded(db, run_id) == expected


def test_a_run_that_recorded_only_round_0_begins_again_and_says_so(db, queued):
    (run_id,) = queued(rounds=2, fail_at=1)
    assert execute(db) == "failed"
    (Store(db).runs.folder(run_id) / "round-0.safetensors").write_bytes(b"?")
    Store(db).runs.resume([run_id])
    assert execute(db, mended) == "done"
    assert [n for n in notices(db, run_id) if "only round 0 was recorded, so the run begins again" in n]


def test_until_a_round_is_recorded_two_older_checkpoints_stay(db, queued):
    """A run killed between saving round 4 and recording it can fall back from round 3 to round 2."""
    (run_id,) = queued(rounds=6)

    def killed(run, **options):
        for event in fake_engine.train(run, **options):
            if getattr(event, "round", 0) == 4:
                raise KeyboardInterrupt
            yield event

    with pytest.raises(KeyboardInterrupt):
        execute(db, killed)
    names = sorted(path.name for path in Store(db).runs.folder(run_id).glob("round-*"))
    assert names == [f"round-{i}.safetensors" for i in (2, 3, 4)]
    assert [r for r, _ in Store(db).runs.checkpoints(run_id)] == [3, 2]
    assert checkpoint.newest_intact(Store(db).runs.checkpoints(run_id))[0][0] == 3


def test_a_damaged_round_ends_the_resume_and_the_remedy_is_named(db, interrupted):
    """One flipped bit of a score stayed in the rows of the resumed run, without a word."""
    run_id, _, expected = interrupted
    fill.alter(db, f"UPDATE scores SET personal_mean=personal_mean/2 WHERE run_id={run_id} AND round=2")
    Store(db).runs.resume([run_id])
    assert execute(db, mended) == "failed"
    text = Store(db).runs.get([run_id])[0].status_text
    assert f"run {run_id}, round 2 differs from what was recorded" in text
    assert f"`fedlens resume {run_id} --restart`" in text
    Store(db).runs.resume([run_id], restart=True)
    assert execute(db, mended) == "done"
    assert recorded(db, run_id) == expected


def test_after_a_power_failure_the_rounds_of_the_log_have_their_checkpoints(db, interrupted, tmp_path):
    """The log may end behind any commit that follows the last synced one; older checkpoints are gone."""
    run_id, _, expected = interrupted
    sizes: list[int] = []

    def note(size: int, synced: bool) -> None:
        if synced:
            sizes.clear()
        sizes.append(size)

    Store(db).runs.resume([run_id], restart=True)
    with pytest.MonkeyPatch.context() as patch, held_open(db):
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=noting_commits(note)))
        assert execute(db) == "failed"
        for name in ("runs.db", "runs.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / f"{name}.whole")
    assert sizes
    for number, size in enumerate(sizes):
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "artifacts", folder / "artifacts")
        after = Path(shutil.copy(tmp_path / "runs.db.whole", folder / "runs.db"))
        os.truncate(shutil.copy(tmp_path / "runs.db-wal.whole", folder / "runs.db-wal"), size)
        Store(after).jobs.reconcile(stale=-1)
        Store(after).runs.resume([run_id])
        assert execute(after, mended) == "done", Store(after).runs.get([run_id])[0].status_text
        assert recorded(after, run_id) == expected
