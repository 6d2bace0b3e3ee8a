from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.base.events import MEASURES
from fedcore.results.comparison import compare
from fedcore.results.leaderboard import board, board_settings
from fedcore.store import Recorder, Store, liveness
from fedcore.store.writer import RunWriter


def test_the_example_of_the_module(db):
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
    assert [r["train_loss"] for r in Store(db).rounds.measured([found.id])] == [1, 1 / 2, 1 / 3]


def test_a_round_that_could_not_be_written_is_recorded_with_its_names_later(db, monkeypatch):
    with Recorder(db, method="mine", seed=1) as run:
        with monkeypatch.context() as locked:
            locked.setattr(RunWriter, "write_round", Mock(side_effect=FedLensError("the database is locked")))
            with pytest.raises(FedLensError, match="is locked"):
                run.round(1, {("a", "a"): (1, 2)})
        run.round(1, {("a", "a"): (1, 2)})
    (cell,) = Store(db).cells.at_rounds({1: [1]})
    assert (cell.model, cell.test_set, cell.correct) == ("a", "a", 1)


def test_it_joins_an_experiment_and_its_setting(db, queued):
    queued(rounds=3)
    for seed, key in ((2, "a test"), (3, 1)):
        with Recorder(db, method="mine", seed=seed, experiment=key) as run:
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
    assert [r["train_loss"] for r in Store(db).rounds.measured([run.run_id])] == [
        0.5
    ] * 3  # kept by the second call


def test_a_second_recording_of_a_run_is_refused_before_it_counts_instead_of_the_first(db):
    """Three seeds were recorded again with another learning rate, and replaced the first three in silence."""

    def record(seed: int, correct: int, **more: object) -> None:
        about = {"method": "probe", "dataset": "rotated-digits", "experiment": "Probes"}
        with Recorder(db, seed=seed, **about, **more) as run:
            run.round(1, {("a", "a"): (correct, 100)})

    def means() -> list[tuple[int, float]]:
        stats = [row.stats["personal"] for row in compare(Store(db), [1]).rows]
        return sorted((stat.n, stat.mean) for stat in stats)

    for seed in (1, 2, 3):
        record(seed, 80)
    for _ in range(2):
        with pytest.raises(
            FedLensError, match=r"'Probes' has 'probe' with seed 1 already \(run 1, done\)"
        ) as told:
            record(1, 60)
        assert "config=, another label=, or replace=True" in str(told.value)
    assert means() == [(3, 80.0)] and len(Store(db).runs.of_experiments([1])) == 3
    record(1, 50, replace=True)
    assert means() == [(3, 70.0)] and len(Store(db).runs.of_experiments([1])) == 4
    for more in ({"label": "larger"}, {"config": {"lr": (0.1, 1)}}, {"held_out": "rot0"}):
        record(1, 60, **more)
        with pytest.raises(FedLensError, match="with seed 1 already"):
            record(1, 60, **more)
        assert (1, 60.0) in means() or "held_out" in more


def test_what_failed_or_was_killed_may_be_recorded_again_and_what_runs_may_not(db):
    about = {"method": "mine", "seed": 1, "dataset": "rotated-digits", "experiment": "Mine"}
    for _ in range(2):
        Recorder(db, **about).fail("gave up")
    run = Recorder(db, **about)
    with pytest.raises(FedLensError, match=r"already \(run 3, running\)"):
        Recorder(db, **about)
    liveness.let_go(db, run._claim.owner, keep_file=True)  # as if its process were killed
    Recorder(db, **about).fail("gave up")


def test_a_round_that_is_recorded_twice_is_refused(db):
    with Recorder(db, method="mine", seed=1) as run:
        run.round(1, {("global", "a"): (1, 4), ("global", "b"): (1, 4)}, loss=0.5, diagnostics={"norm": 2})
        for again, said in (
            ({"accuracy": {("c", "a"): (1, 4), ("global", "a"): (2, 4)}}, "model 'global' on 'a' already"),
            ({"accuracy": {("global", "a"): (1, 4)}}, "give each cell of a round once"),
            ({"accuracy": {}, "loss": 0.7}, "round 1: loss was 0.5 and is 0.7; give it once"),
            ({"accuracy": {}, "loss": float("nan")}, "loss was 0.5 and is nan"),
            ({"accuracy": {}, "diagnostics": {"norm": 3}}, "diagnostic 'norm' was 2.0 and is 3.0"),
        ):
            with pytest.raises(FedLensError, match=said):
                run.round(1, **again)
        run.round(1, {("b", "b"): (3, 4)}, loss=0.5)  # the global model served b, in place of its own
        run.round(1, {("a", "a"): (3, 4)})
        run.round(1, {("a", "a"): (1, 4)}, stage="before_aggregation")
        with pytest.raises(FedLensError, match="model 'a' on 'a' already"):
            run.round(1, {("a", "a"): (3, 4)})
        run.round(2, {("a", "a"): (1, 4)}, loss=0.7)
    first, _ = Store(db).rounds.mean_accuracy([run.run_id])
    assert (first.personal_mean, first.global_mean) == (0.75, 0.25)
    assert [r["train_loss"] for r in Store(db).rounds.measured([run.run_id])] == [0.5, 0.7]


def test_a_round_that_was_refused_can_be_given_again(db):
    """Its names were taken for known, and the corrected round had cells of nameless clients."""
    with Recorder(db, method="mine", seed=1) as run:
        with pytest.raises(FedLensError, match="diagnostics is"):
            run.round(1, {("a", "a"): (1, 4)}, diagnostics=[0.5])
        run.round(1, {("a", "a"): (1, 4)})
    assert [e.name for e in Store(db).cells.entities(run.run_id)] == ["global", "a"]


BAD_ROUNDS = [
    ({"number": -1, "accuracy": {}}, "round is '-1'; give a whole number from 0"),
    ({"number": 1, "accuracy": {("a", "a"): (5, 4)}}, "5 correct of 4; total is at least 1"),
    ({"number": 1, "accuracy": {("a", "a"): (0, 0)}}, "0 correct of 0; total is at least 1"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "split": "dev"}, "no split 'dev'"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "stage": "later"}, "no stage 'later'"),
    ({"number": 1, "accuracy": {("global", "global"): (1, 2)}}, "a test set cannot be called 'global'"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "bytes_up": -5}, "bytes_up is '-5'"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "loss": "0.5"}, "loss is '0.5'; give a number"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "loss": 10**400}, "loss is '1000*'; give a number"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "diagnostics": [0.5]}, "diagnostics is .0.5.; give"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "loss": True}, "loss is 'True'; give a number"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "seconds": [3]}, "seconds is '.3.'; give a number"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "diagnostics": {"kappa": "x"}}, "kappa is 'x'"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "bytes_down": 5.5}, "bytes_down is '5.5'"),
    ({"number": 1, "accuracy": {("a", "a"): (1, 2)}, "seconds": -1.0}, "seconds is -1.0"),
]


def test_bad_rounds_are_refused(db):
    run = Recorder(db, method="mine", seed=1)
    for arguments, message in BAD_ROUNDS:
        with pytest.raises(FedLensError, match=message):
            run.round(**arguments)
    run.finish()
    assert Store(db).rounds.measured([run.run_id]) == []


def test_traffic_may_be_a_float_without_decimals_and_a_length_is_not_negative(db):
    with Recorder(db, method="mine", seed=1) as run:
        run.round(1, {("a", "a"): (1, 2)}, bytes_up=4.0 * 10)
    assert [r["bytes_up"] for r in Store(db).rounds.measured([run.run_id])] == [40]
    with pytest.raises(FedLensError, match="rounds_total is '-3'; give a whole number"):
        Recorder(db, method="mine", seed=2, rounds_total=-3)


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
    assert Store(db).runs.resume([1]) == Store(db).runs.resume([1], restart=True) == []


def test_parts_of_a_round_are_put_together(db):
    with Recorder(db, method="mine", seed=1) as run:
        run.round(1, {("a", "a"): (1, 2)}, split="validation", loss=0.5)
        run.round(1, {("a", "a"): (1, 2)}, bytes_up=1000, seconds=3)
        run.round(1, {("a", "a"): (1, 2)}, split="train")
        run.round(2, {("a", "a"): (1, 2)})
    row, unmeasured = Store(db).rounds.measured([run.run_id])
    assert (row["train_loss"], row["bytes_up"], row["seconds_train"]) == (0.5, 1000, 3)
    assert {unmeasured[measure] for measure in MEASURES} == {None}, "not zero"


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


def test_a_nameless_method_and_values_that_cannot_be_stored_are_refused(db):
    with pytest.raises(FedLensError, match="needs the name of its method"):
        Recorder(db, method=" ", seed=1)
    with pytest.raises(FedLensError, match="lr: float32 is not a type that can be stored"):
        Recorder(db, method="mine", seed=1, config={"lr": np.float32(0.1)})
    assert not Store(db).experiments.all()


def test_whole_numbers_of_other_libraries_are_counts(db):
    pairs = (
        (np.int64(3), np.int32(4)),
        (torch.tensor(3), torch.tensor(4)),
        np.array([3, 4]),
        torch.tensor([3, 4]),
    )
    with Recorder(db, method="mine", seed=1) as run:
        for number, pair in enumerate(pairs, 1):
            run.round(number, {("a", "a"): pair})
    assert [m.personal_mean for m in Store(db).rounds.mean_accuracy([run.run_id])] == [3 / 4] * len(pairs)


NO_COUNTS = {
    "percentage of 100": ((93.5, 100), "93.5"),
    "share of 1": ((0.91, 1), "0.91"),
    "boolean": ((True, 1), "True"),
    "boolean of numpy": ((np.bool_(True), 1), "True"),
    "boolean of torch": ((torch.tensor(True), 1), "True"),
    "not a number": ((float("nan"), 4), "nan"),
    "float of numpy": ((np.float64(3), 4), "3.0"),
    "float of torch": ((torch.tensor(3.0), 4), "3.0"),
}


def test_what_is_no_count_is_refused(db):
    run = Recorder(db, method="mine", seed=1)
    for pair, shown in NO_COUNTS.values():
        with pytest.raises(FedLensError, match="model 'a' on 'a': ") as recorded:
            run.round(1, {("a", "a"): pair})
        assert f"correct is '{shown}'; give a whole number from 0 to 1,000,000,000,000" in str(recorded.value)
    for accuracy in (93.5, {("a", "a"): 93.5}, {("a", "a"): np.float32(0.9)}, {"ab": (1, 2)}):
        with pytest.raises(
            FedLensError, match=r"give (counts: )?\{\(model, test set\): \(correct, total\)\}"
        ):
            run.round(1, accuracy)
    with pytest.raises(FedLensError, match="round is '1.5'; give a whole number"):
        run.round(1.5, {("a", "a"): (1, 2)})
    run.finish()
    assert Store(db).rounds.measured([run.run_id]) == []


def test_an_unknown_data_set_is_said_at_once_and_kept(db):
    with pytest.warns(UserWarning, match="knows no data set 'rotated-digit'.* did you mean 'rotated-digits'"):
        run = Recorder(db, method="mine", seed=1, dataset="rotated-digit", experiment="Mine")
    run.finish()
    (row,) = Store(db).runs.get([run.run_id])
    assert "did you mean 'rotated-digits'?" in row.notices[0].message
    assert Store(db).runs.config(run.run_id).data.name == "rotated-digit", "it may be the user's own data"


def test_a_name_of_several_experiments_is_said_with_the_number_chosen(db, queued):
    for _ in range(3):
        queued()
    with pytest.warns(UserWarning, match=r"3 experiments are called 'a test'; .* number 3 \(.*: 2, 1\)"):
        run = Recorder(db, method="mine", seed=1, experiment="a test")
    assert run.experiment_id == 3
    run.finish()


def test_its_last_round_is_its_length_from_the_first_round_on(db, queued):
    queued(rounds=20)

    def lengths() -> tuple[int, int]:
        (row,) = Store(db).runs.get([run.run_id])
        return row.rounds_total, Store(db).runs.config(run.run_id).rounds

    run = Recorder(db, method="mine", seed=1, experiment="a test")
    assert lengths() == (0, 0)
    for t in (0, 1, 5, 3):
        run.round(t, {("a", "a"): (1, 2)})
    assert lengths() == (5, 5)
    run.fail("gave up")
    assert lengths() == (5, 5)
    run = Recorder(db, method="mine", seed=1, experiment="a test", rounds_total=4)
    run.round(1, {("a", "a"): (1, 2)})
    assert lengths() == (4, 4)
    run.finish()
    assert lengths() == (1, 1)


def test_the_leaderboard_offers_a_setting_of_recorded_runs(db):
    for method, bonus in (("mine", 0), ("theirs", 1)):
        for seed in (1, 2):
            with Recorder(db, method=method, seed=seed, dataset="shapes", experiment="Mine") as run:
                for t in (1, 2):
                    run.round(t, {("a", "a"): (t + bonus, 10), ("b", "b"): (t, 10)})
    store = Store(db)
    (setting,) = board_settings(store, store.runs.of_experiments([1]))
    assert setting.rounds == 2
    assert [g.label for g in board(store, setting, "personal").rows] == ["theirs", "mine"]


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"domain_sets": "sketch"}, "domain_sets", r"'sketch' is no list; give the names of test sets"),
        ({"domain_sets": [1]}, "domain_sets", "1 is no name"),
        ({"domains": ["a"]}, "domains", r"\['a'\] is no table of names; give {client: domain}"),
        ({"domains": {"a": 3}}, "domains", "is no table of names"),
        ({"method": 3}, "method", r"needs the name of its method \(got 3\)"),
        ({"dataset": 3}, "dataset", "3 is no name; give a text"),
    ],
)
def test_what_describes_a_run_is_checked(db, given, field, message):
    """The letters of a text were the names of domains, and numbers became names."""
    with pytest.raises(FedLensError, match=message) as caught:
        Recorder(db, **({"method": "mine", "seed": 1, "dataset": "rotated-digits"} | given))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "accuracy", "said"),
    [
        (
            {"domain_sets": ["Sketch"]},
            {("a", "a"): (1, 2), ("a", "sketch"): (1, 2)},
            "domain_sets names Sketch, but",
        ),
        (
            {"domains": {"A": "photo"}},
            {("a", "a"): (1, 2)},
            "domains names A, but the recorded names were global, a",
        ),
        (
            {},
            {("Global", "a"): (1, 2)},
            "no model has the name of a test set, so there is no personal accuracy",
        ),
        ({}, {}, "the run has ended without an accuracy; call round before finish"),
    ],
)
def test_a_name_that_fits_nothing_is_said_at_the_end_and_kept(db, options, accuracy, said):
    run = Recorder(db, method="mine", seed=1, dataset="rotated-digits", **options)
    run.round(1, accuracy)
    with pytest.warns(UserWarning, match=said):
        run.finish()
    (row,) = Store(db).runs.get([run.run_id])
    assert [said in notice.message for notice in row.notices] == [True]


def test_a_doubt_at_the_end_points_to_the_line_of_the_script(db):
    run = Recorder(db, method="mine", seed=1, dataset="rotated-digits")
    with pytest.warns(UserWarning, match="without an accuracy") as from_finish:
        run.finish()
    with (
        pytest.warns(UserWarning, match="without an accuracy") as from_with,
        Recorder(db, method="mine", seed=2, dataset="rotated-digits"),
    ):
        pass
    assert {warning.filename for warning in [*from_finish, *from_with]} == {__file__}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("left_out", ["photo", "sketch"])
def test_one_table_of_domains_serves_all_runs_that_leave_one_out(db, left_out):
    clients = {"a": "photo", "b": "sketch"}
    own = {(c, c): (1, 2) for c, domain in clients.items() if domain != left_out}
    with Recorder(
        db,
        method="mine",
        seed=1,
        dataset="rotated-digits",
        held_out=left_out,
        domains=clients,
        domain_sets=["photo", "sketch"],
    ) as run:
        run.round(1, {**own, ("global", left_out): (1, 2)})
    (row,) = Store(db).runs.get([run.run_id])
    assert not row.notices


def test_a_number_that_is_not_finite_is_said(db):
    """It became unknown without a word."""
    with (
        Recorder(db, method="mine", seed=1, dataset="rotated-digits") as run,
        pytest.warns(
            UserWarning, match="round 1: loss is nan, diagnostic 'norm' is inf, which is recorded as"
        ),
    ):
        run.round(1, {("a", "a"): (1, 2)}, loss=float("nan"), diagnostics={"norm": float("inf")})


def test_a_run_that_has_ended_says_so(db):
    run = Recorder(db, method="mine", seed=1, dataset="rotated-digits")
    run.round(1, {("a", "a"): (1, 2)})
    run.finish()
    for again in (lambda: run.round(2, {("a", "a"): (2, 2)}), run.finish, lambda: run.fail("x")):
        with pytest.raises(FedLensError, match="run 1 has ended, so nothing can be recorded for it"):
            again()
    assert [row.state for row in Store(db).runs.of_experiments([1])] == ["done"]


def test_names_with_spaces_at_their_ends_are_refused(db):
    """A model and a test set that look alike would not be a client's own."""
    run = Recorder(db, method="mine", seed=1, dataset="rotated-digits")
    for name in ("a ", ""):
        with pytest.raises(FedLensError, match="is no name of a model or test set"):
            run.round(1, {(name, "a"): (1, 2)})


def test_models_tested_on_different_samples_of_one_test_set_are_said_once(db):
    run = Recorder(db, method="mine", seed=1, dataset="rotated-digits")
    with pytest.warns(UserWarning, match="round 1: test set 'a' has 2 samples for model 'a' and 20 for 'b'"):
        run.round(1, {("a", "a"): (1, 2), ("b", "a"): (1, 20)})
    run.round(2, {("a", "a"): (1, 2), ("b", "a"): (1, 20)})
    run.round(3, {("a", "a"): (1, 4), ("b", "a"): (1, 4)})
    run.finish()
    (row,) = Store(db).runs.get([run.run_id])
    assert len(row.notices) == 1
