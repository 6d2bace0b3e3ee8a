from __future__ import annotations

import pytest

from fedcore.errors import FedLensError
from fedcore.store import Recorder, Store
from fedcore.store.writer import MEASURES


def test_the_example_of_the_module(tmp_path):
    db = tmp_path / "runs.db"
    with Recorder(db, method="mine", seed=1, dataset="rotated-digits", experiment="My comparison") as run:
        for t in range(1, 4):
            counts = {("client_a", "client_a"): (t, 10), ("global", "client_a"): (2 * t, 10)}
            run.round(t, accuracy=counts, loss=1 / t)
    (row,) = Store(db).experiments.all()
    assert (row.name, row.config.data.name) == ("My comparison", "rotated-digits")
    (found,) = row.runs
    assert (found.method, found.state, found.origin, found.rounds_done, found.rounds_total) == (
        "mine",
        "done",
        "recorder",
        3,
        3,
    )
    assert [p.personal_mean for p in Store(db).rounds.mean_accuracy([found.id])] == [0.1, 0.2, 0.3]
    assert [p.global_mean for p in Store(db).rounds.mean_accuracy([found.id])] == [0.2, 0.4, 0.6]
    assert [r.train_loss for r in Store(db).rounds.of_runs([found.id])] == [1, 1 / 2, 1 / 3]


def test_it_joins_an_experiment_and_its_setting(db, queued):
    queued(rounds=3)
    for key in ("a test", 1):
        with Recorder(db, method="mine", seed=2, experiment=key) as run:
            run.round(1, {("a", "a"): (1, 2)})
        assert run.experiment_id == 1
    runs = Store(db).runs.of_experiments([1])
    assert [r.method for r in runs] == ["fedot", "mine", "mine"]
    assert runs[1].group_hash == runs[2].group_hash
    assert Store(db).runs.config(runs[1].id).data == Store(db).runs.config(runs[0].id).data


def test_an_unknown_experiment_id_is_an_error(db):
    with pytest.raises(FedLensError, match="no experiment 5"):
        Recorder(db, method="mine", seed=1, experiment=5)
    assert Store(db).experiments.all() == []


def test_a_global_model_alone_serves_every_client(db):
    with Recorder(db, method="fedavg", seed=1, domain_sets=["photo"]) as run:
        run.round(1, {("global", "a"): (3, 4), ("global", "b"): (1, 4), ("global", "photo"): (4, 8)})
    (point,) = Store(db).rounds.mean_accuracy([run.run_id])
    assert (point.personal_mean, point.personal_worst, point.global_mean) == (0.5, 0.25, 0.5)
    kinds = {e.name: e.kind for e in Store(db).cells.entities(run.run_id)}
    assert kinds == {"global": "global", "a": "client", "b": "client", "photo": "domain"}


def test_splits_of_one_round_come_in_several_calls(db):
    with Recorder(db, method="mine", seed=1) as run:
        for t, (validation, test) in enumerate([(5, 1), (9, 2), (7, 8)]):
            run.round(t, {("a", "a"): (validation, 10)}, split="validation", loss=0.5)
            run.round(t, {("a", "a"): (test, 10)})
    (row,) = Store(db).runs.get([run.run_id])
    assert (row.best_round, row.best_test, row.last_test) == (1, 0.2, 0.8)
    assert [r.train_loss for r in Store(db).rounds.of_runs([run.run_id])] == [
        0.5
    ] * 3  # kept by the second call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": -1, "accuracy": {}}, "below 0"),
        ({"number": 1, "accuracy": {("a", "a"): (5, 4)}}, "5 of 4 correct"),
        ({"number": 1, "accuracy": {("a", "a"): (0, 0)}}, "0 of 0 correct"),
        ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "split": "dev"}, "no split 'dev'"),
        ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "stage": "later"}, "no stage 'later'"),
    ],
)
def test_bad_rounds_are_refused(db, arguments, message):
    run = Recorder(db, method="mine", seed=1)
    with pytest.raises(FedLensError, match=message):
        run.round(**arguments)
    run.finish()
    assert Store(db).rounds.of_runs([run.run_id]) == []


def test_the_earlier_name_of_the_stage_goes_on_with_a_warning(db):
    with Recorder(db, method="mine", seed=1) as run:
        with pytest.warns(FutureWarning, match="now called stage"):
            run.round(1, {("a", "a"): (1, 2)}, point="local")
        run.round(1, {("a", "a"): (2, 2)}, stage="after_aggregation")
    shares = [Store(db).rounds.mean_accuracy([run.run_id], stage=s)[0].personal_mean for s in (0, 1)]
    assert shares == [0.5, 1.0]


def test_a_script_that_breaks_leaves_a_failed_run(db):
    def broken() -> None:
        with Recorder(db, method="mine", seed=1) as run:
            run.round(1, {("a", "a"): (1, 2)})
            raise OSError("no such data")

    with pytest.raises(OSError, match="no such data"):
        broken()
    (run,) = Store(db).runs.get([1])
    assert (run.state, run.status_text, run.rounds_done) == ("failed", "OSError: no such data", 1)


def test_recorded_runs_are_never_queued(db):
    Recorder(db, method="mine", seed=1).fail("gave up")
    assert Store(db).runs.resume([1]) == Store(db).runs.retry([1]) == []
    with pytest.raises(FedLensError, match="recorded results only"):
        Store(db).experiments.clone(1)


def test_parts_of_a_round_are_put_together(db):
    with Recorder(db, method="mine", seed=1) as run:
        run.round(1, {("a", "a"): (1, 2)}, split="validation", loss=0.5)
        run.round(1, {("a", "a"): (1, 2)}, bytes_up=1000, seconds=3)
        run.round(1, {("a", "a"): (1, 2)}, split="train")
    (row,) = Store(db).rounds.of_runs([run.run_id])
    assert (row.train_loss, row.bytes_up, row.seconds_train) == (0.5, 1000, 3)


def test_what_was_never_measured_is_not_zero(db):
    with Recorder(db, method="mine", seed=1) as run:
        run.round(1, {("a", "a"): (1, 2)})
    (row,) = Store(db).rounds.of_runs([run.run_id])
    assert {getattr(row, measure) for measure in MEASURES} == {None}


@pytest.mark.parametrize("field", ["dataset", "backbone"])
def test_another_setting_than_the_joined_experiments_is_refused(db, queued, field):
    queued()
    with pytest.raises(FedLensError, match="'something-else', but experiment 'a test' is on") as caught:
        Recorder(db, method="mine", seed=1, experiment="a test", **{field: "something-else"})
    assert caught.value.field == field
    assert [r.method for r in Store(db).runs.of_experiments([1])] == ["fedot"]
    Recorder(db, method="mine", seed=1, experiment="a test", dataset="rotated-digits").finish()
    assert [r.method for r in Store(db).runs.of_experiments([1])] == ["fedot", "mine"]


def test_joining_does_not_inherit_the_held_out_domain(db, make):
    Store(db).experiments.create(make().model_copy(update={"held_out": ("rot0",)}))
    for held_out in (None, "rot30"):
        Recorder(db, method="mine", seed=1, experiment="a test", held_out=held_out).finish()
    assert [r.held_out for r in Store(db).runs.of_experiments([1])] == ["rot0", None, "rot30"]


def test_the_former_import_still_works_with_a_warning():
    with pytest.warns(FutureWarning, match="fedcore.runs is now called fedcore.store"):
        from fedcore.runs import Recorder as former
    assert former is Recorder
