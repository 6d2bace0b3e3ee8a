import json
import math
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedcore.base.events import (
    AFTER_AGGREGATION,
    MEASURES,
    Cell,
    ClientRound,
    Diagnostic,
    Entity,
    Notice,
    RoundFinished,
    Started,
)
from fedcore.base.files import PROJECT
from fedcore.base.progress import Progress
from fedcore.config import expand
from fedcore.store import Store
from fedcore.store.damage import SUMMARY
from fedcore.store.database import reading, writing
from fedcore.store.experiments import Draw, best_draw
from fedcore.store.jobs import LostClaim
from fedcore.store.liveness import new_owner
from fedcore.store.writer import RunWriter, insert_round, update_summary
from tests.support import fill


@pytest.fixture
def writer(db, queued) -> RunWriter:
    queued(rounds=5)
    found = Store(db).jobs.claim(new_owner(), "cpu")
    assert found is not None
    return RunWriter(found)


ENTITIES = (
    Entity(0, "global", "global"),
    Entity(1, "client", "ann", domain="photo", samples=10, class_counts=(4, 6)),
    Entity(2, "client", "bob", domain="photo", samples=30, class_counts=(15, 15)),
    Entity(3, "domain", "photo", domain="photo", samples=40),
)


MEASURED = dict.fromkeys(MEASURES, 1) | {"train_loss": 0.5}


def round_(number: int, cells: list[tuple], **more: object) -> RoundFinished:
    """cells: (split, model, test_set, correct, total)."""
    made = tuple(Cell(s, AFTER_AGGREGATION, m, t, c, n, 0.5) for s, m, t, c, n in cells)
    return RoundFinished(**MEASURED | {"round": number}, cells=made, **more)


def test_claim_takes_by_priority_then_age_and_only_what_the_device_serves(db, queued):
    a, b, c = queued(seeds=(1, 2, 3))
    (d,) = [*Store(db).experiments.create(Store(db).experiments.all()[0].config, device="GPU-1").run_ids][:1]
    Store(db).queue.move([c])
    taken = [Store(db).jobs.claim("me", "cpu") for _ in range(3)]
    assert [claimed.id for claimed in taken] == [c, a, b]
    assert {claimed.attempt for claimed in taken} == {1}
    Store(db).runs.stop([r.id for r in Store(db).runs.of_experiments([2]) if r.id != d])
    assert Store(db).jobs.claim("me", "cpu", accepts=("GPU-1",)).id == d
    assert Store(db).jobs.claim("me", "cpu", accepts=("auto", "cpu", "GPU-1")) is None


def test_two_processes_never_claim_the_same_run(db, queued):
    ids = queued(seeds=tuple(range(1, 41)))
    code = (
        "import sys\nfrom fedcore.store import Store\njobs = Store(sys.argv[1]).jobs\n"
        "while (claimed := jobs.claim(sys.argv[2], 'cpu')): print(claimed.id)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(db), f"owner-{i}"], cwd=PROJECT, stdout=subprocess.PIPE
        )
        for i in range(2)
    ]
    taken = [sorted(map(int, racer.communicate(timeout=60)[0].split())) for racer in racers]
    assert sorted(taken[0] + taken[1]) == ids
    with reading(db) as connection:
        owners = {r[0]: r[1] for r in connection.execute("SELECT id, owner FROM runs")}
    assert all(owners[i] == f"owner-{n}" for n, mine in enumerate(taken) for i in mine)


WRITES = (
    lambda writer: writer.claim.begin(),
    lambda writer: writer.claim.progress(Progress("hello", 1, 2)),
    lambda writer: writer.notice("hello", True),
    lambda writer: writer.started(Started(entities=ENTITIES, rounds_total=5, environment={})),
    lambda writer: writer.write_round(round_(1, [(2, 1, 1, 5, 10)])),
    lambda writer: writer.rewind(None),
    lambda writer: writer.claim.finish("done"),
)


def test_every_write_of_a_process_that_lost_the_run_is_refused(writer):
    with reading(writer.claim.db) as connection:
        before = [tuple(r) for r in connection.execute("SELECT * FROM runs")]
    for change in ({"owner": "somebody else"}, {"attempt": 2}):
        for write in WRITES:
            with pytest.raises(LostClaim):
                write(RunWriter(replace(writer.claim, **change)))
            with reading(writer.claim.db) as connection:
                assert [tuple(r) for r in connection.execute("SELECT * FROM runs")] == before
                for table in ("rounds", "accuracy", "scores", "entities"):
                    assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0


def test_a_process_declared_dead_cannot_write_when_it_wakes_up(writer):
    writer.claim.finish("interrupted")
    with pytest.raises(LostClaim):
        writer.write_round(round_(1, [(2, 1, 1, 5, 10)]))


def test_summary_selects_on_validation_and_takes_the_earliest_of_equals(writer):
    writer.started(Started(entities=ENTITIES, rounds_total=5, environment={}))
    validation = {0: 3, 1: 7, 2: 8, 3: 8, 4: 6}
    test = {0: 1, 1: 10, 2: 5, 3: 9, 4: 2}  # the best test round is 1: it must not be chosen
    for number in validation:
        cells = [(1, 1, 1, validation[number], 10), (1, 2, 2, validation[number], 10)]
        cells += [(2, 1, 1, test[number], 10), (2, 2, 2, max(0, test[number] - 1), 10)]
        writer.write_round(round_(number, cells))
    (run,) = Store(writer.claim.db).runs.get([writer.run_id])
    assert (run.rounds_done, run.best_round) == (4, 2)
    assert run.best_test == pytest.approx((0.5 + 0.4) / 2)
    assert run.last_test == pytest.approx((0.2 + 0.1) / 2)
    assert run.worst_client == pytest.approx(0.1)


def test_the_last_bits_of_a_mean_do_not_choose_the_round(db):
    """60 + 29 + 20 of 60 each is 60 + 28 + 21, but the means of the shares differ in their last bit."""
    entities = (Entity(0, "global", "global"), *(Entity(i, "client", f"client {i}") for i in (1, 2, 3)))
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    writer.started(Started(entities=entities, rounds_total=2, environment={}))
    for number, right in ((1, (60, 29, 20)), (2, (60, 28, 21))):
        cells = [(split, c, c, n, 60) for split in (1, 2) for c, n in enumerate(right, 1)]
        writer.write_round(round_(number, cells))
    first, second = (row.personal_mean for row in Store(db).rounds.mean_accuracy([1], split=1))
    assert first < second < first + 1e-15
    (run,) = Store(db).runs.get([writer.run_id])
    assert run.best_round == 1


def test_round_0_is_never_the_best_where_there_are_others(writer):
    """It is before training; a run that does not train has no other."""
    writer.started(Started(entities=ENTITIES, rounds_total=2, environment={}))
    for number, right in ((0, 9), (1, 6), (2, 7)):
        cells = [(split, c, c, right, 10) for split in (1, 2) for c in (1, 2)]
        writer.write_round(round_(number, cells))
        (run,) = Store(writer.claim.db).runs.get([writer.run_id])
        assert run.best_round == number, "each in turn"
    assert run.best_test == pytest.approx(0.7)


def test_the_summary_after_each_round_is_that_of_all_rounds(writer):
    """It is updated from the new round and the best one before it; a round may be written twice."""
    draws, db = np.random.default_rng(7), writer.claim.db
    writer.started(Started(entities=ENTITIES, rounds_total=40, environment={}))
    for number in (0, *range(1, 30), 3, 17, *range(30, 41)):
        right = int(draws.integers(1, 9))
        writer.write_round(round_(number, [(split, c, c, right, 10) for split in (1, 2) for c in (1, 2)]))
        with reading(db) as connection:
            expected = tuple(connection.execute(SUMMARY, {"run": writer.run_id}).fetchone())
        (run,) = Store(db).runs.get([writer.run_id])
        assert (run.last_test, run.worst_client, run.best_round, run.best_test) == expected


def test_the_work_of_writing_a_round_does_not_grow_with_the_rounds(writer):
    """Counted in steps of SQLite's machine."""
    writer.started(Started(entities=ENTITIES, rounds_total=400, environment={}))
    cells = [(split, c, c, 6, 10) for split in (1, 2) for c in (1, 2)]
    steps = []
    with writing(writer.claim.db) as database:
        for number in range(400):
            done: list[int] = []
            database.set_progress_handler(lambda done=done: done.append(1), 1)
            insert_round(database, writer.run_id, round_(number, cells))
            update_summary(database, writer.run_id, number)
            steps.append(len(done))
        database.set_progress_handler(None, 1)
    assert max(steps[-50:]) < 1.1 * max(steps[5:55])


def test_without_validation_no_round_is_chosen_and_without_global_model_there_is_no_global_mean(writer):
    writer.started(Started(entities=ENTITIES, rounds_total=5, environment={}))
    writer.write_round(round_(1, [(2, 1, 1, 5, 10)]))
    writer.write_round(round_(2, []))  # not evaluated
    (run,) = Store(writer.claim.db).runs.get([writer.run_id])
    assert (run.last_test, run.best_round, run.best_test, run.rounds_done) == (0.5, None, None, 2)
    (point,) = Store(writer.claim.db).rounds.mean_accuracy([writer.run_id])
    assert (point.personal_mean, point.global_mean) == (0.5, None)


def of_numpy(value: Any) -> Any:
    """The same record with numpy's numbers in the place of Python's."""
    if is_dataclass(value):
        return replace(value, **{f.name: of_numpy(getattr(value, f.name)) for f in fields(value) if f.init})
    if isinstance(value, tuple):
        made = map(of_numpy, value)
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if isinstance(value, dict):
        return {key: of_numpy(inner) for key, inner in value.items()}
    kinds = {int: np.int64, float: np.float32}
    return kinds[type(value)](value) if type(value) in kinds else value


def test_numpy_and_other_numbers_are_cast(writer):
    ann = ClientRound(client=1, steps=8, train_loss=0.5, bytes_up=9, bytes_down=10)
    recorded = (Diagnostic("d", 1.5, client_a=1), Diagnostic("nan", float("nan")))
    event = round_(1, [(2, 1, 1, 3, 4)], clients=(ann,), diagnostics=recorded)
    writer.started(of_numpy(Started(entities=ENTITIES, rounds_total=5, environment={"threads": 2})))
    writer.write_round(of_numpy(event))
    store, run_id = Store(writer.claim.db), writer.run_id
    (row,) = store.rounds.measured([run_id])
    assert dict(row) == {"run_id": run_id, "round": 1, **MEASURED}
    assert [accuracy[1:] for accuracy in store.cells.own_accuracy(run_id)] == [(1, 3, 4, 0.5)]
    assert store.rounds.clients(run_id) == [(1, 1, 8, 0.5, 9, 10)]
    assert store.diagnostics.of_run(run_id, "d") == [(1, 1, -1, 1.5)]
    assert store.diagnostics.of_run(run_id, "nan") == [(1, -1, -1, None)]
    with reading(store.path) as connection:
        stored = connection.execute("SELECT class_counts FROM entities WHERE entity=1").fetchone()[0]
    assert json.loads(stored) == [4, 6]
    assert math.isclose(store.runs.get([run_id])[0].last_test, 0.75)


def test_impossible_counts_leave_no_part_of_the_round(writer):
    writer.started(Started(entities=ENTITIES, rounds_total=5, environment={}))
    with pytest.raises(Exception, match="CHECK"):
        writer.write_round(round_(1, [(2, 1, 1, 5, 10), (2, 2, 2, 11, 10)]))
    with reading(writer.claim.db) as connection:
        assert connection.execute("SELECT count(*) FROM rounds").fetchone()[0] == 0
        assert connection.execute("SELECT count(*) FROM accuracy").fetchone()[0] == 0
    assert Store(writer.claim.db).runs.get([writer.run_id])[0].rounds_done == 0


def test_rewind_forgets_what_has_no_checkpoint(writer):
    writer.started(Started(entities=ENTITIES, rounds_total=5, environment={}))
    for number in range(4):
        writer.write_round(round_(number, [(1, 1, 1, number, 10), (2, 1, 1, number, 10)]))
    writer.rewind(1)
    (run,) = Store(writer.claim.db).runs.get([writer.run_id])
    assert (run.rounds_done, run.best_round, run.last_test) == (1, 1, 0.1)
    assert Store(writer.claim.db).rounds.evaluated(writer.run_id) == [0, 1]
    assert len(Store(writer.claim.db).cells.entities(writer.run_id)) == 4
    writer.rewind(None)
    (run,) = Store(writer.claim.db).runs.get([writer.run_id])
    assert (run.rounds_done, run.best_round, run.last_test) == (0, None, None)
    assert Store(writer.claim.db).cells.entities(writer.run_id) == []


def notices(writer: RunWriter) -> tuple[Notice, ...]:
    return Store(writer.claim.db).runs.get([writer.run_id])[0].notices


def test_what_a_resumed_run_says_again_is_kept_once(writer):
    texts = ["classes took the prompt: 'ä', \"b\"", "out of memory", "classes took the prompt: 'ä', \"b\""]
    for text in texts:
        writer.notice(text, True)
    writer.notice("out of memory", False)
    stored = [(n.message, n.repeats_exactly) for n in notices(writer)]
    assert stored == [(texts[0], True), ("out of memory", True), ("out of memory", False)]


def test_environment_is_stored_for_the_next_attempt(writer):
    assert Store(writer.claim.db).runs.environment(writer.run_id) == {}
    writer.started(Started(entities=ENTITIES, rounds_total=7, environment={"threads": 2, "chunk": 6}))
    assert Store(writer.claim.db).runs.environment(writer.run_id) == {"threads": 2, "chunk": 6}
    assert Store(writer.claim.db).runs.get([writer.run_id])[0].rounds_total == 7


def test_config_survives_the_database(writer, make):
    assert Store(writer.claim.db).runs.config(writer.run_id) == expand(make(rounds=5))[0]
    with reading(writer.claim.db) as connection:
        assert json.loads(connection.execute("SELECT config FROM runs").fetchone()[0])["seed"] == 1


def test_scores_from_counts_by_hand(db):
    """Own samples 1/2 and 3/4, all samples of the clients' classes 2/10 and 6/10: means .625 and .4.

    Neither another client's samples nor those of a domain are part of a mean.
    """
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    names = [(0, "global", "global"), (1, "client", "a"), (2, "client", "b"), (3, "domain", "d")]
    names += [(4, "classes", "classes of a"), (5, "classes", "classes of b")]
    writer.started(Started(entities=tuple(Entity(*n) for n in names), rounds_total=1, environment={}))
    counts = {
        (1, 1): (1, 2),
        (2, 2): (3, 4),
        (0, 1): (2, 2),
        (0, 2): (2, 4),
        (1, 2): (0, 4),
        (0, 3): (1, 8),
        (1, 4): (2, 10),
        (2, 5): (6, 10),
    }
    writer.write_round(RoundFinished(round=1, cells=tuple(fill.cell(*at, *n) for at, n in counts.items())))
    (point,) = Store(db).rounds.mean_accuracy([writer.run_id])
    assert point[2:] == pytest.approx((0.625, 4 / 6, 0.5, 0.75, 0.4), rel=1e-15)
    assert [(o.client, o.correct) for o in Store(db).cells.own_accuracy(writer.run_id)] == [(1, 1), (2, 3)]


def test_the_last_bits_of_a_mean_do_not_choose_the_draw(db, queued):
    (run,) = Store(db).runs.configs(queued()).values()
    means = [sum(n / 60 for n in right) / 3 for right in ((60, 29, 20), (60, 28, 21))]
    draws = [Draw(i, "FedOT", i, "done", run, mean, 1, None, None) for i, mean in enumerate(means, 1)]
    assert means[0] != means[1]
    for given in (draws, [replace(d, validation=mean) for d, mean in zip(draws, means[::-1], strict=True)]):
        best = best_draw(given)
        assert best is not None and best.number == 1
