"""How far runs are, in words."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.base.events import Started
from fedcore.base.progress import duration
from fedcore.results import progress
from fedcore.store import Store
from tests.support import fill


def test_time_left_is_the_pace_of_the_last_rounds(filled: Path) -> None:
    runs = Store(filled).runs.of_experiments([2])
    found = {p.run.label: p for p in progress.run_progress(Store(filled), runs)}
    assert found["FedOT"].share == pytest.approx(7 / 20)
    assert found["FedOT"].seconds_left == pytest.approx(13 * (0.8 + 0.05 + 0.2))
    assert "left" in found["FedOT"].text
    assert found["FedAlign"].text == "position 1 in the queue"
    assert "CUDA out of memory" in found["PromptFL"].text


def test_durations_in_words() -> None:
    assert duration(42.4) == "42 s"
    assert duration(200) == "3 min 20 s"
    assert duration(7500) == "2 h 05 min"
    assert duration(None) == ""


def test_the_token_changes_with_a_round_and_only_then(db: Path) -> None:
    created, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=5))
    assert [t[1] for t in progress.newest_snapshot(Store(db), created.run_ids)] == [-1]
    fill.train(writers[0], until=0)
    assert [t[1] for t in progress.newest_snapshot(Store(db), created.run_ids)] == [0], "round 0 is news"
    writers[0].write_round(fill.a_round("fedot", 1, 1, 5))
    before = progress.newest_snapshot(Store(db), created.run_ids)
    writers[0].claim.update("status_text='something else'")
    assert progress.newest_snapshot(Store(db), created.run_ids) == before
    writers[0].write_round(fill.a_round("fedot", 1, 2, 5))
    assert progress.newest_snapshot(Store(db), created.run_ids) != before


def test_another_database_in_the_place_of_the_file_is_news(tmp_path: Path) -> None:
    """Its runs have the same numbers, rounds and attempts, so that cached charts would be shown for them."""
    snapshots, digests = [], []
    for name in ("first", "second"):
        db = tmp_path / name / "runs.db"
        db.parent.mkdir()
        created, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=5))
        fill.train(writers[0], until=1)
        snapshots.append(progress.newest_snapshot(Store(db), created.run_ids))
        digests.append(Store(db).runs.digest())
    assert [shown[:2] for shown in snapshots[0]] == [shown[:2] for shown in snapshots[1]]
    assert snapshots[0] != snapshots[1]
    assert digests[0] != digests[1]


def test_a_quick_run_is_shown_in_steps_and_a_slow_one_as_it_comes() -> None:
    def seen(arrivals: list[int]) -> list[int]:
        shown, draws, found = ((7, -1, (0.0, 1)),), {}, []
        for new in arrivals:
            target = progress.next_snapshot(shown, ((7, new, (0.0, 1)),), draws, 4)
            if target != shown:
                draws = {7: draws.get(7, 0) + 1}
                found.append(target[0][1])
            shown = target
        return found

    assert seen([10] * 6) == [2, 5, 8, 10]
    assert seen([0, 1, 2, 3, 4, 9]) == [0, 1, 2, 3, 4, 9]
    assert seen([0, 0, 6, 6, 6, 6]) == [0, 2, 4, 6]


def test_the_list_shows_the_best_method_of_an_experiment(filled: Path) -> None:
    store = Store(filled)
    found = {i.row.id: i for i in progress.summaries_of(store, store.experiments.all())}
    assert found[1].best_text == "FedOT"
    assert found[1].state == "done"
    assert len(found[1].curve) == 11
    assert found[2].state == "running"
    assert progress.matches(found[2], "middle fedot", ["failed"])
    assert not progress.matches(found[1], "", ["failed"])
    assert not progress.matches(found[1], "nowhere", [])


@pytest.mark.parametrize(("validated", "shown"), [(True, "PromptFL"), (False, "FedOT *")])
def test_a_method_that_is_shown_by_its_test_accuracy_is_marked_as_not_selected(
    db: Path, validated: bool, shown: str
) -> None:
    """FedOT is far ahead on the test samples, PromptFL on the validation samples, if there are any."""
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=4))
    for writer in writers:
        method = fill.config_of(writer).method.name
        share = {"fedot": 0.3, "promptfl": 0.6}[method]
        writer.started(Started(entities=fill.entities(), rounds_total=4, environment={"device": "cpu"}))
        for round_ in range(5):
            row = fill.a_round(method, 1, round_, 4)
            cells = [c._replace(correct=round(share * c.total)) if c.split == 1 else c for c in row.cells]
            writer.write_round(replace(row, cells=tuple(c for c in cells if validated or c.split != 1)))
        writer.claim.finish("done")
    (item,) = progress.summaries_of(Store(db), Store(db).experiments.all())
    tests = {r.label: r.last_test for r in item.row.runs}
    assert tests["FedOT"] > tests["PromptFL"]
    assert item.best_text == shown
    assert item.last == pytest.approx(100 * tests["PromptFL" if validated else "FedOT"])
    assert len(item.curve) == 5 and item.best_run is not None


def test_a_run_that_failed_early_does_not_lower_the_mean_of_the_finished_ones(db: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=4)
    _, writers = fill.start(db, experiment)
    for writer, rounds, state in zip(writers, (4, 0), ("done", "failed"), strict=True):
        writer.started(Started(entities=fill.entities(), rounds_total=4, environment={"device": "cpu"}))
        for round_ in range(rounds + 1):
            writer.write_round(fill.a_round("fedot", 1, round_, 4))
        (item,) = progress.summaries_of(Store(db), Store(db).experiments.all())
        assert len(item.curve) == 5, "a run in training does not cut the curve of the finished one"
        writer.claim.finish(state)
    (item,) = progress.summaries_of(Store(db), Store(db).experiments.all())
    done, failed = item.row.runs
    assert failed.last_test < done.last_test
    assert (item.last, item.worst) == pytest.approx((100 * done.last_test, 100 * done.worst_client))
    assert len(item.curve) == 5
