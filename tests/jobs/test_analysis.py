"""Analyses as tasks: a trained run is restored from its checkpoint and analysed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs import analysis
from fedcore.results.analyses import count_disagreement
from fedcore.store import Store, TaskRow
from fedcore.store.database import writing
from fedcore.store.jobs import TASKS
from tests.support.encoded import DIGITS
from tests.support.jobs import execute_next

EXPERIMENT = parse(
    {
        "name": "to look into",
        "methods": [{"name": "promptfl", "config": {"context_length": 2}}, {"name": "zero-shot"}],
        "data": DIGITS,
        "rounds": 2,
        "keep_checkpoints": "all",
    }
)
TRAINED, OTHER = 1, 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, encoded_digits: Callable[[Path], Path]) -> Path:
    """A folder in which the two runs of the experiment were trained."""
    db = tmp_path_factory.mktemp("trained") / "runs.db"
    Store(db).prepare()
    encoded_digits(db.parent / "artifacts")
    Store(db).experiments.create(EXPERIMENT, plan(EXPERIMENT).runs)
    assert [execute_next(db) for _ in (TRAINED, OTHER)] == ["done", "done"]
    return db.parent


@pytest.fixture
def db(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path, dirs_exist_ok=True) / "runs.db"


def do(db: Path) -> TaskRow:
    """Execute the task that waits."""
    execute_next(db, TASKS)
    return max(Store(db).tasks.recent(), key=lambda task: task.finished_at or 0)


def test_a_trained_run_can_be_looked_into(db):
    asked = analysis.submit(Store(db), TRAINED, "predictions")
    assert analysis.submit(Store(db), TRAINED, "predictions") == asked, "the same question is asked once"
    assert analysis.find(Store(db), TRAINED, "predictions").status == "queued"
    task = do(db)
    assert (task.status, task.error) == ("done", None)
    assert task.result["round"] == 2
    assert task.result["classes"] == list(plan(EXPERIMENT).classes)
    arrays = task.arrays()
    right = arrays["label"] == arrays["predicted"]
    for cell in Store(db).cells.coded({TRAINED: [2]}):
        chosen = (arrays["model"] == cell.model) & (arrays["test_set"] == cell.test_set)
        if chosen.any():
            assert (int(right[chosen].sum()), int(chosen.sum())) == (cell.correct, cell.total)
    assert set(arrays["model"].tolist()) == {0, 1, 2}

    analysis.submit(Store(db), TRAINED, "nearest_words", 1)
    words = do(db)
    assert [row["position"] for row in words.result["rows"]] == [1, 2]

    analysis.submit(Store(db), TRAINED, "evidence", 1, 1)
    maps = do(db).arrays()
    assert maps["pixels"].shape[0] == 8
    assert np.isfinite(maps["map/prediction"].astype(float)).all()


def test_a_run_without_a_checkpoint_says_so(db):
    for path in Store(db).runs.log_path(TRAINED).parent.glob("round-*"):
        path.unlink()
    analysis.submit(Store(db), TRAINED, "feature_space", 1, 1)
    task = do(db)
    assert task.status == "failed"
    assert f"run {TRAINED} has no checkpoint" in task.error


def test_a_run_that_has_gone_on_is_asked_anew(db):
    analysis.submit(Store(db), TRAINED, "predictions")
    with writing(db) as database:
        database.execute("UPDATE runs SET rounds_done = 3 WHERE id=?", [TRAINED])
    assert analysis.find(Store(db), TRAINED, "predictions") is None


def test_the_images_on_which_two_runs_disagree_follow_from_the_recorded_cells(db):
    first, second = TRAINED, OTHER
    analysis.submit(Store(db), first, analysis.Against(second), 1, 2)
    assert analysis.find(Store(db), second, analysis.Against(first), 1, 2) is None
    task = do(db)
    assert (task.status, task.error) == ("done", None)
    arrays = task.arrays()
    found = count_disagreement(arrays)
    for run_id, right in ((first, found.only_first), (second, found.only_second)):
        last = Store(db).runs.get([run_id])[0].rounds_done
        cells = Store(db).cells.coded({run_id: [last]})
        cell = next(c for c in cells if (c.model, c.test_set) == (1, 2))
        assert (cell.correct, cell.total) == (found.both_right + right, found.total)
    analysis.submit(Store(db), first, analysis.Against(second, (1, None)), 1, 2)
    earlier = do(db)
    assert (earlier.result["round"], earlier.result["other_round"]) == (1, task.result["other_round"])
    newest = analysis.find(Store(db), first, analysis.Against(second), 1, 2)
    assert newest.id == task.id, "the newest has its own"
    shown = arrays["shown"]
    assert shown.size == sum(min(12, n) for n in (found.only_first, found.only_second, found.both_wrong)) > 12
    assert arrays["first/pixels"].shape[0] == arrays["second/map"].shape[0] == shown.size
    assert not ((arrays["first"] == arrays["label"]) & (arrays["second"] == arrays["label"]))[shown].any()
    for name in ("first", "second"):
        assert arrays[f"{name}/probability"].shape == shown.shape
        assert (arrays[f"{name}/probability"] > 0.1).all(), "the likeliest of ten classes"
