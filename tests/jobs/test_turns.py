"""The runs of one process train in turn: each measures what it measures alone, whatever befalls another."""

import itertools
import os
import signal
import time
from functools import partial
from types import SimpleNamespace

import pytest

from fedcore.base import devices
from fedcore.base.errors import Locked
from fedcore.base.events import RoundFinished
from fedcore.config import parse
from fedcore.config.experiment import dumps, loads
from fedcore.jobs import handlers, launcher, process, turns
from fedcore.jobs.job import Heartbeat
from fedcore.jobs.launcher import LocalJob
from fedcore.store import Store
from fedcore.store.database import reading
from fedcore.store.jobs import RUNS
from fedcore.store.liveness import new_owner
from tests.support import fake_engine
from tests.support.encoded import DIGITS
from tests.support.jobs import execute_next, pid, recorded, row, wait_for

ROUNDS = 6


@pytest.fixture(autouse=True)
def every_round(monkeypatch):
    """A turn lasts one round, and stops are looked for after every event."""
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.0)


@pytest.fixture
def work(db):
    """Claim the next run and execute it and those that follow; the rounds in the order of their recording."""

    def go(engine=fake_engine.train, between=lambda run_id, round_: None):
        order = []

        def training(job):
            for event in handlers.train(job, engine=engine):
                if isinstance(event, RoundFinished):
                    order.append((job.id, event.round))
                yield event
                if isinstance(event, RoundFinished):  # it is this run's turn again
                    between(job.id, event.round)
            return {}

        process.work(
            Store(db).jobs.claim(new_owner(), "cpu"),
            "cpu",
            handler=training,
            beat_seconds=0.1,
            revive=lambda store: None,
        )
        return order

    return go


@pytest.fixture
def alone(tmp_path):
    """What a run of an experiment measures in a process of its own."""

    def of(chosen, index, engine=fake_engine.train, encodings=lambda folder: None):
        path = tmp_path / f"alone-{index}" / "runs.db"
        path.parent.mkdir()
        encodings(path.parent / "artifacts")
        Store(path).prepare()
        Store(path).experiments.create(chosen)
        execute_next(path, number=index + 1, handler=partial(handlers.train, engine=engine))
        return recorded(path, index + 1)

    return of


def stepping(db):
    return [row["id"] for row in Store(db).jobs.live(RUNS) if row["pid"]]


def test_runs_grow_round_by_round_and_measure_what_they_measure_alone(
    db, make, queued, work, alone, monkeypatch
):
    first, second, third = queued(rounds=ROUNDS, seeds=(1, 2, 3), seconds=0.01)
    ticks = itertools.count()  # every step takes one second, however busy the machine is
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=time.sleep))
    order = work()
    begun = [order.index((run, 0)) for run in (first, second, third)]
    assert begun == [0, 1, 2], "every run shows its first round before any trains"
    furthest = dict.fromkeys((first, second, third), 0)
    for run, round_ in order:
        furthest[run] = round_
        if min(furthest.values()) < ROUNDS - 1:
            assert max(furthest.values()) - min(furthest.values()) <= 2
    chosen = make(rounds=ROUNDS, seeds=(1, 2, 3), seconds=0.01)
    for index, run in enumerate((first, second, third)):
        assert row(db, run).status == "done" and row(db, run).attempt == 1
        assert recorded(db, run) == alone(chosen, index)


def test_one_after_another_is_a_choice_that_a_file_keeps(db, make, work):
    chosen = make(rounds=2, seeds=(1, 2)).model_copy(update={"order": "one after another"})
    assert loads(dumps(chosen)).order == "one after another" and "after another" not in dumps(make())
    Store(db).experiments.create(chosen)
    assert work() == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def test_a_resting_run_says_so_and_its_clock_stands_still(db, queued, work):
    first, second = queued(rounds=3, seeds=(1, 2), seconds=0.1)
    seen = []

    def look(run, round_):
        other = row(db, first if run == second else second)
        if other.status == "running" and round_ == 1:
            seen.append((other.status_text, stepping(db)))
            time.sleep(0.5)  # of this run, not of the other

    work(between=look)
    assert ("waiting for its turn", [first]) in seen
    took = [row(db, run).elapsed() for run in (first, second)]
    assert all(0.3 <= seconds < 1.3 for seconds in took)


def test_a_stop_reaches_a_resting_run_while_another_trains(db, queued, work):
    first, second = queued(rounds=ROUNDS, seeds=(1, 2), seconds=0.02)

    def stop(run, round_):
        if (run, round_) == (first, 2):
            time.sleep(2)
            Store(db).runs.stop([second])

    work(between=stop)
    stopped = row(db, second)
    assert row(db, first).status == "done"
    assert (stopped.status, stopped.status_text) == ("stopped", "stopped while it waited for its turn")
    assert stopped.elapsed() < 2, "its rest is not its own time"
    done = row(db, second).rounds_done
    assert done < ROUNDS
    Store(db).runs.resume([second])
    work()
    assert row(db, second).status == "done" and len(recorded(db, second)["rounds"]) == ROUNDS + 1


def test_a_resting_run_that_is_killed_is_only_taken_from_its_process(db, queued, work):
    first, second = queued(rounds=ROUNDS, seeds=(1, 2), seconds=0.02)

    def kill(run, round_):
        if (run, round_) == (first, 2):
            time.sleep(2)
            Store(db).runs.stop([second])
            assert not launcher.force_stop(Store(db), second)
            assert row(db, second).status == "stopped" and row(db, second).elapsed() < 2

    work(between=kill)
    assert row(db, first).status == "done" and row(db, second).status == "stopped"


def test_a_resting_run_beats_while_another_trains(db, queued, work):
    """It looked dead to other machines after 30 s, and to file systems without locks."""
    first, second = queued(rounds=40, seeds=(1, 2), seconds=0.01)

    def beats():
        return next(r["heartbeat_at"] for r in Store(db).jobs.live(RUNS) if r["id"] == second)

    def look(run, round_):
        if (run, round_) == (first, 1):
            before = beats()
            wait_for(lambda: beats() > before)

    work(between=look)
    assert [row(db, run).status for run in (first, second)] == ["done", "done"]


def test_a_row_that_cannot_be_read_ends_its_run_and_not_the_process(db, queued, work, monkeypatch):
    first, second = queued(rounds=2, seeds=(1, 2))
    plain, seen = Heartbeat.watch, []

    def watch(self, claim):
        seen.append(claim.id)
        if claim.id == second and seen.count(second) == 2:  # after its first rest
            raise Locked("runs.db stays locked by another program")
        plain(self, claim)

    monkeypatch.setattr(Heartbeat, "watch", watch)
    work()
    assert [row(db, run).status for run in (first, second)] == ["done", "interrupted"]


def test_a_fault_of_one_run_does_not_touch_the_others(db, make, work, alone):
    broken = make(rounds=ROUNDS, methods=3, fail_at=2)
    Store(db).experiments.create(broken)
    work()
    assert [row(db, run).status for run in (1, 2, 3)] == ["failed", "done", "done"]
    assert [recorded(db, run) for run in (2, 3)] == [alone(broken, 1), alone(broken, 2)]


def test_while_one_run_waits_for_the_machine_the_others_go_on(db, queued, work, monkeypatch):
    monkeypatch.setattr("fedcore.jobs.job.RETRY_SECONDS", (3.0,))
    first, second = queued(rounds=ROUNDS, seeds=(1, 2), seconds=0.02)
    failures = [1]

    def engine(run, **options):
        for event in fake_engine.train(run, **options):
            if run.seed == 1 and getattr(event, "round", 0) == 2 and failures:
                failures.pop()
                raise MemoryError
            yield event

    order = work(engine=engine)
    assert [row(db, run).status for run in (first, second)] == ["done", "done"]
    assert order.index((second, ROUNDS)) < order.index((first, 2))


def test_a_run_of_higher_priority_goes_before_the_resting_ones(db, make, queued, work, alone):
    first, second = queued(rounds=ROUNDS, seeds=(1, 2), seconds=0.02)
    other = make(rounds=1, seeds=(9,))

    def overtake(run, round_):
        if (run, round_) == (first, 2):
            (third,) = Store(db).experiments.create(other).run_ids
            Store(db).queue.move([third], "top")

    work(between=overtake)
    states = {run: row(db, run).status for run in (1, 2, 3)}
    assert sorted(states.values()) == ["done", "queued", "queued"] and states[3] == "queued"
    work()
    assert row(db, 3).status == "done"
    work()
    chosen = make(rounds=ROUNDS, seeds=(1, 2), seconds=0.02)
    assert [recorded(db, run) for run in (first, second)] == [alone(chosen, 0), alone(chosen, 1)]


def test_a_run_joins_only_if_it_fits_into_memory(db, queued, work, monkeypatch):
    asked = []

    def fits(store, device, accepts, most):
        asked.append((store.jobs.next_run(accepts), most))

    monkeypatch.setattr(turns, "next_fits", fits)
    first, second = queued(rounds=2, seeds=(1, 2))
    assert work() == [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1), (second, 2)]
    assert {waiting for waiting, _ in asked} - {None} == {second} and all(most > 0 for _, most in asked)


def test_the_peak_memory_of_a_run_leaves_out_what_resting_runs_keep(db, queued, work, monkeypatch):
    in_use = {"now": 1000, "peak": 1000}
    monkeypatch.setattr(devices, "used_memory", lambda device: in_use["now"])
    monkeypatch.setattr(devices, "peak_memory", lambda device: in_use["peak"])
    monkeypatch.setattr(turns, "next_fits", lambda *_: True)
    monkeypatch.setattr(devices, "reset_peak_memory", lambda device: in_use.update(peak=in_use["now"]))
    needs = {1: (300, 50), 2: (20, 7)}  # seed -> bytes that it keeps, bytes that a round needs beside

    def engine(run, **options):
        for event in fake_engine.train(run, **options):
            if getattr(event, "round", -1) == 0:
                in_use["now"] += needs[run.seed][0]
            if isinstance(event, RoundFinished):
                in_use["peak"] = max(in_use["peak"], in_use["now"] + needs[run.seed][1])
            yield event
        in_use["now"] -= needs[run.seed][0]

    queued(rounds=3, seeds=(1, 2))
    work(engine=engine)
    with reading(db) as connection:
        peaks = [r[0] for r in connection.execute("SELECT peak_memory FROM runs ORDER BY id")]
    assert peaks == [1350, 1027]


def test_a_killed_process_ends_the_run_that_it_trained_and_the_others_go_on(db, make, supervise, alone):
    chosen = make(rounds=12, seeds=(1, 2, 3), seconds=0.16)
    Store(db).experiments.create(chosen)
    supervise()
    wait_for(lambda: min(row(db, run).rounds_done for run in (1, 2, 3)) >= 1)
    (trained,) = wait_for(lambda: stepping(db))
    os.kill(pid(db, trained), signal.SIGKILL)
    others = {1, 2, 3} - {trained}
    wait_for(lambda: all(row(db, run).ended for run in (1, 2, 3)))
    ended = {run: row(db, run).status for run in (1, 2, 3)}
    assert sorted(ended.values()) == ["done", "done", "interrupted"], ended
    (killed,) = (run for run, status in ended.items() if status == "interrupted")
    assert "signal 9" in row(db, killed).status_text
    Store(db).runs.resume([killed])
    wait_for(lambda: row(db, killed).status == "done")
    at_once = make(rounds=12, seeds=(1, 2, 3))
    for run in (*others, trained):
        assert recorded(db, run) == alone(at_once, run - 1)


def test_after_a_fault_of_the_process_each_run_has_its_own_state(db, queued, monkeypatch):
    """The first run, which rested, was marked as interrupted, and the one that trained was not."""
    runs = queued(rounds=ROUNDS, seeds=(1, 2, 3))
    Store(db).jobs.claim("another", "cpu", number=3)
    plain, others_wait = process.work, turns.Following.others_wait

    def work(claim, device, **options):
        given = {"handler": partial(handlers.train, engine=fake_engine.train), "continues": True}
        return plain(claim, device, **{**options, **given, "revive": lambda store: None})

    def fail(following):
        if stepping(db) == [2] and row(db, 2).rounds_done >= 1:
            raise Locked("runs.db stays locked by another program")
        return others_wait(following)

    monkeypatch.setattr(process, "work", work)
    monkeypatch.setattr(turns.Following, "others_wait", fail)
    assert process.run_process(Store(db).jobs.claim(new_owner(), "cpu"), "cpu") == 0
    assert [row(db, run).status for run in runs] == ["queued", "interrupted", "running"]
    assert row(db, 2).status_text.startswith("runs.db stays locked by another program")


def test_a_process_that_is_asked_to_end_queues_its_resting_runs(db, queued):
    runs = queued(rounds=400, seeds=(1, 2, 3), seconds=0.02)
    claim = Store(db).jobs.claim(new_owner(), "cpu")
    started = fake_engine.start(claim, "cpu")
    wait_for(lambda: min(row(db, run).rounds_done for run in runs) >= 1)
    assert LocalJob(Store(db), {"owner": claim.owner, "pid": started.pid}, started).terminate()
    assert started.wait(60) == 0
    assert sorted(row(db, run).status for run in runs) == ["interrupted", "queued", "queued"]


@pytest.mark.parametrize(
    "names",
    [
        ("fedot", "sdfed", "fedalign", "feddeap"),
        pytest.param(("fedot", "promptfl", "fedavg-lora"), marks=pytest.mark.slow),
    ],
    ids=["four", "baselines"],
)
def test_methods_in_turn_have_the_cells_of_each_alone(db, work, alone, encoded_digits, names):
    """On the real engine; the run before them has left another number of CPU threads behind."""
    import torch

    methods = [{"name": name} for name in names]
    chosen = parse({"rounds": 2, "data": DIGITS, "methods": methods, "test_sample": 20})
    encoded_digits(db.parent / "artifacts")
    Store(db).experiments.create(chosen)
    in_turn = work(
        engine=handlers.load_engine(), between=lambda run, round_: torch.set_num_threads(1 + run % 2)
    )
    assert [round_ for _, round_ in in_turn[: len(names)]] == [0] * len(names)
    for index in range(len(names)):
        assert row(db, index + 1).status == "done", row(db, index + 1).status_text
        assert recorded(db, index + 1) == alone(chosen, index, handlers.load_engine(), encoded_digits)
