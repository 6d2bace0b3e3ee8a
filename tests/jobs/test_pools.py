"""The order of the queue, runs at once per device, and whether another fits into its memory."""

import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from fedcore.base import devices
from fedcore.base.devices import Device
from fedcore.base.errors import FedLensError
from fedcore.cli import main as cli
from fedcore.jobs import launcher
from fedcore.jobs import supervisor as worker
from fedcore.jobs.launcher import ThisMachine, next_fits
from fedcore.jobs.process import work
from fedcore.store import Store
from fedcore.store.database import reading, writing
from fedcore.store.liveness import new_owner
from tests.support import fake_engine
from tests.support.jobs import execute_next, row, wait_for

GIB = 2**30
CPU = Device("cpu", "a CPU", memory_total=16 * GIB, memory_used=4 * GIB, load=None)


def measured(db, run_id, peak):
    with writing(db) as database:
        database.execute("UPDATE runs SET peak_memory=? WHERE id=?", [peak, run_id])


@pytest.fixture
def machine(monkeypatch):
    """A machine with one CPU whose facts the test sets."""
    facts = {"cpu": CPU}
    monkeypatch.setattr("fedcore.base.devices.list_devices", lambda: list(facts.values()))
    return facts


@pytest.fixture
def supervisor(db, machine):
    """A supervisor whose runs do nothing; ``started`` lists them."""
    started = []

    def spawn(claimed, device):
        started.append(claimed.id)
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    made = worker.Supervisor(Store(db), ThisMachine(["cpu"], spawn))
    made.started = started
    yield made
    for child in made._children.values():
        child.job.process.communicate()


def test_one_run_at_a_time_unless_told_otherwise(db, queued, supervisor):
    queued(seeds=(1, 2, 3))
    supervisor.step()
    supervisor.step()
    assert supervisor.started == [1]


def test_a_change_of_slots_is_heeded_at_once(db, queued, supervisor):
    queued(seeds=(1, 2, 3))
    supervisor.step()
    measured(db, 1, GIB)
    Store(db).queue.set_slots("cpu", 2)
    supervisor.step()
    assert supervisor.started == [1, 2]
    Store(db).queue.set_slots("cpu", 3)
    supervisor.step()
    assert supervisor.started == [1, 2, 3]


def test_a_run_waits_for_memory(db, queued, supervisor, machine):
    """12 GiB are free and each run needs 7, so the second waits until the memory of the first is counted."""
    queued(seeds=(1, 2, 3))
    Store(db).queue.set_slots("cpu", 3)
    measured(db, 3, 7 * GIB)
    supervisor.step()
    assert supervisor.started == [1]
    with writing(db) as database:  # its memory is in the device's figure now
        database.execute("UPDATE runs SET rounds_done=1 WHERE id=1")
    machine["cpu"] = replace(CPU, memory_used=8 * GIB)
    supervisor.step()
    assert supervisor.started == [1, 2]
    machine["cpu"] = replace(CPU, memory_used=10 * GIB)
    supervisor.step()
    assert supervisor.started == [1, 2]


def test_what_was_never_measured_is_taken_to_need_half_of_the_device(db, queued, machine):
    queued(seeds=(1, 2))
    Store(db).jobs.claim(new_owner(), "cpu")
    assert not next_fits(Store(db), "cpu", ("auto",))  # 8 + 8 of 12 GiB
    with writing(db) as database:
        database.execute("UPDATE runs SET rounds_done=1 WHERE id=1")
    assert next_fits(Store(db), "cpu", ("auto",))
    machine["cpu"] = replace(CPU, memory_used=9 * GIB)
    assert not next_fits(Store(db), "cpu", ("auto",))


def test_another_setting_is_another_need(db, queued, machine):
    queued(seeds=(1,), methods=2)
    measured(db, 1, 20 * GIB)
    assert not next_fits(Store(db), "cpu", ("auto",))
    Store(db).queue.move([2])
    assert next_fits(Store(db), "cpu", ("auto",))


def test_runs_in_the_foreground_of_one_process_are_one(db, queued, make, machine):
    Store(db).experiments.create(make(seeds=(1, 2, 3, 4)), claimer=(new_owner(), "cpu"))
    queued(seeds=(9,))
    measured(db, 1, 5 * GIB)
    assert next_fits(Store(db), "cpu", ("auto",))  # 5 + 5 of 12 GiB


def test_slots_have_bounds(db):
    for number in (0, -1, 17):
        with pytest.raises(FedLensError, match="choose 1 to 16"):
            Store(db).queue.set_slots("cpu", number)
    assert Store(db).queue.slots() == {}


def test_a_run_records_the_most_memory_it_took(db, queued):
    (run_id,) = queued(rounds=2)
    execute_next(db, handler=fake_engine.training)
    with reading(db) as connection:
        (peak,) = connection.execute("SELECT peak_memory FROM runs WHERE id=?", [run_id]).fetchone()
    # Linux adds up the pages of its threads now and then only: a later answer may be a few pages lower
    assert peak > 10e6 and peak == pytest.approx(devices.peak_memory("cpu"), rel=0.01)


def test_runs_that_share_the_cpu_divide_its_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.delenv("FEDLENS_THREADS", raising=False)
    assert "FEDLENS_THREADS" not in devices.environment_for("cpu")
    assert devices.environment_for("cpu", 3)["FEDLENS_THREADS"] == "2"
    assert devices.environment_for("cpu", 99)["FEDLENS_THREADS"] == "1"
    assert "FEDLENS_THREADS" not in devices.environment_for("GPU-a", 3)
    monkeypatch.setenv("FEDLENS_THREADS", "5")  # the user's own wish
    assert "FEDLENS_THREADS" not in devices.environment_for("cpu", 3)


@pytest.mark.parametrize(
    ("moved", "move", "order"),
    [
        ([3], "top", [3, 1, 2, 4, 5]),
        ([3, 5], "top", [3, 5, 1, 2, 4]),
        ([3], "up", [1, 3, 2, 4, 5]),
        ([3, 4], "up", [1, 3, 4, 2, 5]),
        ([1], "up", [1, 2, 3, 4, 5]),
        ([3], "down", [1, 2, 4, 3, 5]),
        ([2, 3], "down", [1, 4, 2, 3, 5]),
        ([5], "down", [1, 2, 3, 4, 5]),
        ([1], "bottom", [2, 3, 4, 5, 1]),
    ],
)
def test_moving_within_the_queue(db, queued, moved, move, order):
    queued(seeds=(1, 2, 3, 4, 5))
    assert Store(db).queue.move(reversed(moved), move) == moved
    assert Store(db).queue.ids() == order
    (new,) = queued()
    assert Store(db).queue.ids() == [*order, new]  # whoever comes later waits behind all


def test_what_has_started_is_not_moved(db, queued):
    queued(seeds=(1, 2))
    Store(db).jobs.claim(new_owner(), "cpu")
    assert Store(db).queue.move([1, 2]) == [2]
    assert Store(db).queue.move([1]) == []


def test_a_process_leaves_its_experiment_for_what_was_moved_before_it(db, queued):
    first, second = queued(seeds=(1, 2)), queued(seeds=(3,))
    claimed = Store(db).jobs.claim("me", "cpu")
    assert claimed.id == first[0]
    Store(db).queue.move(second, "top")
    assert Store(db).jobs.claim("me", "cpu", experiment_id=1) is None
    assert Store(db).jobs.claim("another", "cpu").id == second[0]
    assert Store(db).jobs.claim("me", "cpu", experiment_id=1).id == first[1]


def test_the_command_shows_and_moves_the_queue(db, queued, capsys):
    queued(seeds=(1, 2, 3))
    assert cli.main(["queue", "3", "--move", "up", "--db", str(db)]) == 0
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()] == ["run", "1", "3", "2"]
    assert cli.main(["queue", "9", "--db", str(db)]) == 2
    assert "run 9 is not queued" in capsys.readouterr().err


def test_a_faulty_gpu_rests_and_the_other_goes_on(db, queued, monkeypatch, tmp_path):
    """It took one run after another and interrupted each: six within twenty seconds."""
    runs = queued(seeds=(1, 2, 3, 4, 5, 6), rounds=1)
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    fault = "CUDA error: uncorrectable ECC error encountered"
    met = []

    def spawn(claimed, gpu):
        def handler(job):
            met.append(gpu)
            if gpu == "GPU-a":
                raise RuntimeError(fault)
            return (yield from fake_engine.training(job))

        work(claimed, gpu, handler=handler, revive=lambda store: None)
        return subprocess.Popen([sys.executable, "-c", ""])

    crash = [sys.executable, "-c", "import os; os.abort()"]
    crashed = ThisMachine(["GPU-c"], lambda claimed, gpu: subprocess.Popen(crash))
    (run,) = queued(seeds=(9,))
    first = worker.Supervisor(Store(db), crashed)
    Store(db).queue.move([run])
    first.step()
    assert Store(db).jobs.reconcile(stale=0) == [run]  # a page looks before the supervisor
    wait_for(lambda: (first.step(), devices.rest_of("GPU-c"))[1])
    assert crashed.names() == ("tasks",) and devices.rest_of("GPU-c").endswith("ended with signal 6")

    machine = ThisMachine(["GPU-a", "GPU-b"], spawn)
    supervisor = worker.Supervisor(Store(db), machine)
    wait_for(lambda: (supervisor.step(), all(row(db, run).ended for run in runs))[1])
    assert [(row(db, run).state, row(db, run).device) for run in runs] == [("done", "GPU-b")] * 6
    assert met == ["GPU-a"] + ["GPU-b"] * 6
    (noted,) = [n.message for run in runs for n in row(db, run).notices if "queued again" in n.message]
    assert fault in noted
    assert machine.names() == ("GPU-b", "tasks")
    assert devices.rest_of("GPU-a").startswith("rests after a fault: the hardware of the GPU reports")

    for fault, seconds in (("it fell off the bus", 2 * launcher.FIRST_REST), ("", None)):
        monkeypatch.setattr(devices, "trial", lambda gpu, fault=fault: fault)
        machine._rests["GPU-a"] = before = replace(machine._rests["GPU-a"], until=time.monotonic())
        assert machine.names() == ("GPU-b", "tasks")  # is being tried
        wait_for(lambda before=before: machine._rests["GPU-a"].reason != before.reason)
        assert devices.rest_of("GPU-a") == (f"rests after a fault: {fault}" if fault else "")
        assert seconds is None or machine._rests["GPU-a"].seconds == seconds
    assert machine.names() == ("GPU-a", "GPU-b", "tasks")


@pytest.mark.parametrize("command", [["worker", "--ray"], ["run", "--demo", "--over", "2", "--ray"]])
def test_a_command_for_a_cluster_names_the_package_that_is_missing(command, db, monkeypatch, capsys):
    monkeypatch.setattr(launcher, "cluster", lambda: None)
    assert cli.main([*command, "--db", str(db)]) == 2
    assert "in a checkout of FedLens: pip install ./fedlens-ray" in capsys.readouterr().err


def test_a_package_for_a_cluster_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("ours", "types:SimpleNamespace", "fedlens.cluster")
    monkeypatch.setattr(launcher, "entry_points", lambda group: [point] if group == point.group else [])
    assert launcher.cluster.__wrapped__() is SimpleNamespace
