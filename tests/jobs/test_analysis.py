"""Analyses as tasks: a trained run is restored from its checkpoint and analysed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs import analysis, job
from fedcore.jobs.job import Heartbeat
from fedcore.results.analyses import count_disagreement
from fedcore.store import Store, TaskRow
from fedcore.store.jobs import TASKS
from fedcore.store.liveness import new_owner
from tests.support.jobs import execute_next

EXPERIMENT = {
    "name": "to look into",
    "methods": [{"name": "promptfl", "config": {"context_length": 2}}],
    "data": {"name": "rotated-digits", "domains": ["rot0", "rot15"], "shots": 1},
    "rounds": 1,
}


@pytest.fixture
def trained(db: Path) -> int:
    experiment = parse(EXPERIMENT)
    (run_id,) = Store(db).experiments.create(experiment, plan(experiment).runs).run_ids
    assert execute_next(db) == "done"
    return run_id


def do(db: Path) -> TaskRow:
    """Execute the task that waits."""
    execute_next(db, TASKS)
    return max(Store(db).tasks.recent(), key=lambda task: task.finished_at or 0)


def test_a_trained_run_can_be_looked_into(db, trained):
    asked = analysis.submit(Store(db), trained, "predictions")
    assert analysis.submit(Store(db), trained, "predictions") == asked, "the same question is asked once"
    assert analysis.find(Store(db), trained, "predictions").status == "queued"
    task = do(db)
    assert (task.status, task.error) == ("done", None)
    assert task.result["round"] == 1
    assert task.result["classes"] == list(plan(parse(EXPERIMENT)).classes)
    arrays = task.arrays()
    right = arrays["label"] == arrays["predicted"]
    for cell in Store(db).cells.coded({trained: [1]}):
        chosen = (arrays["model"] == cell.model) & (arrays["test_set"] == cell.test_set)
        if chosen.any():
            assert (int(right[chosen].sum()), int(chosen.sum())) == (cell.correct, cell.total)
    assert set(arrays["model"].tolist()) == {0, 1, 2}

    analysis.submit(Store(db), trained, "nearest_words", 1)
    words = do(db)
    assert [row["position"] for row in words.result["rows"]] == [1, 2]

    analysis.submit(Store(db), trained, "evidence", 1, 1)
    maps = do(db).arrays()
    assert maps["pixels"].shape[0] == 8
    assert np.isfinite(maps["map/prediction"].astype(float)).all()


def test_a_run_without_a_checkpoint_says_so(db, trained):
    for path in Store(db).runs.log_path(trained).parent.glob("round-*"):
        path.unlink()
    analysis.submit(Store(db), trained, "feature_space", 1, 1)
    task = do(db)
    assert task.status == "failed"
    assert f"run {trained} has no checkpoint" in task.error


def test_a_run_that_has_gone_on_is_asked_anew(db, trained):
    analysis.submit(Store(db), trained, "predictions")
    from fedcore.store.database import writing

    with writing(db) as database:
        database.execute("UPDATE runs SET rounds_done = 2 WHERE id=?", [trained])
    assert analysis.find(Store(db), trained, "predictions") is None


def test_the_images_on_which_two_runs_disagree_follow_from_the_recorded_cells(db):
    data = {"name": "rotated-digits", "domains": ["rot0", "rot75"], "shots": 2}
    methods = [{"name": "promptfl", "config": {"context_length": 2}}, {"name": "zero-shot"}]
    experiment = parse(
        {**EXPERIMENT, "methods": methods, "data": data, "rounds": 2, "keep_checkpoints": "all"}
    )
    first, second = Store(db).experiments.create(experiment, plan(experiment).runs).run_ids
    owner = new_owner()
    with Heartbeat(Store(db)) as heartbeat:
        for _ in range(2):
            assert job.execute(Store(db).jobs.claim(owner, "cpu"), heartbeat) == "done"
    analysis.submit_disagreement(Store(db), first, second, 1, 2)
    assert analysis.find_disagreement(Store(db), second, first, 1, 2) is None
    task = do(db)
    assert (task.status, task.error) == ("done", None)
    arrays = task.arrays()
    found = count_disagreement(arrays)
    for run_id, right in ((first, found.only_first), (second, found.only_second)):
        last = Store(db).runs.get([run_id])[0].rounds_done
        cells = Store(db).cells.coded({run_id: [last]})
        cell = next(c for c in cells if (c.model, c.test_set) == (1, 2))
        assert (cell.correct, cell.total) == (found.both_right + right, found.total)
    analysis.submit_disagreement(Store(db), first, second, 1, 2, (1, None))
    earlier = do(db)
    assert (earlier.result["round"], earlier.result["other_round"]) == (1, task.result["other_round"])
    assert analysis.find_disagreement(Store(db), first, second, 1, 2).id == task.id, "the newest has its own"
    shown = arrays["shown"]
    assert shown.size == min(6, found.only_first) + min(6, found.only_second) > 0
    assert arrays["first/pixels"].shape[0] == arrays["second/map"].shape[0] == shown.size
    assert ((arrays["first"] == arrays["label"]) != (arrays["second"] == arrays["label"]))[shown].all()
