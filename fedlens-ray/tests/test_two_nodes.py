"""Runs on a real Ray cluster of two nodes: the rows of a run there are those of a run on this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fedlens_ray.nodes import ClusterWatch

from fedcore.config import parse
from fedcore.engine.clients.local import CHUNK
from fedcore.engine.plan import plan
from fedcore.engine.train import train
from fedcore.jobs import handlers
from fedcore.jobs.launcher import force_stop
from fedcore.jobs.process import run_local
from fedcore.methods import registry
from fedcore.store import Store
from tests.support.cluster import OWN_METHOD, queue_fedot, step_until, supervisor_of, two_nodes, watching
from tests.support.jobs import execute_next, recorded, row, wait_for

ROUNDS = 16
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests, beside which the images are encoded once."""
    path = tmp_path_factory.mktemp("cluster") / "runs.db"
    Store(path).prepare()
    return path


@pytest.fixture(scope="module")
def watch(db: Path) -> Iterator[ClusterWatch]:
    with two_nodes(Store(db).artifacts) as cluster, watching(cluster) as watch:
        yield watch


@pytest.fixture(scope="module")
def expected(db: Path) -> dict[int, dict[str, list[tuple]]]:
    """Everything that uninterrupted runs measured on this machine, by seed."""
    runs = queue_fedot(db, ROUNDS, seeds=(1, 2))
    assert [execute_next(db, number=run_id) for run_id in runs] == ["done", "done"]
    return {seed: recorded(db, run_id) for seed, run_id in enumerate(runs, 1)}


def test_two_runs_on_two_nodes_have_the_rows_of_runs_here(db, watch, expected):
    first, second = queue_fedot(db, ROUNDS, seeds=(1, 2))
    with supervisor_of(db, watch) as supervisor:
        step_until(supervisor, lambda: row(db, first).ended and row(db, second).ended)
    runs = [row(db, first), row(db, second)]
    assert [(run.state, run.status_text) for run in runs] == [("done", None)] * 2
    assert {run.device for run in runs} == {"alpha/cpu", "beta/cpu"}
    assert recorded(db, first) == expected[1]
    assert recorded(db, second) == expected[2]


CONNECTED = """
import sys
from fedlens_ray.connection import connect

ray = connect(sys.argv[1])
print(ray.get(ray.remote(num_cpus=0)(lambda: __import__("sys").path).remote()))
"""


def test_a_node_imports_nothing_from_the_folder_in_which_the_worker_was_started(watch, tmp_path):
    command = [sys.executable, "-P", "-c", CONNECTED, watch.ray.get_runtime_context().gcs_address]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "site-packages" in told.stdout and str(tmp_path) not in told.stdout


def worker_of(name: str) -> psutil.Process | None:
    """The process of the node that trains a run: Ray gives it the name of the task."""
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or [])
        if title.startswith("ray::") and name in title:
            return process
    return None


def test_a_run_that_is_killed_then_stopped_goes_on_with_the_same_rows(db, watch, expected, tmp_path, capfd):
    """Its checkpoints travel through a folder that both sides see."""
    store = Store(db)
    (run_id,) = queue_fedot(db, ROUNDS)
    with supervisor_of(db, watch, shared=tmp_path) as supervisor:
        step_until(supervisor, lambda: row(db, run_id).rounds_done >= 2)
        process = worker_of(f"run-{run_id}-1")
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        step_until(supervisor, lambda: row(db, run_id).ended)
        assert row(db, run_id).state == "interrupted"
        assert "was killed (the system does so when memory runs out); resume continues" in (
            row(db, run_id).status_text or ""
        )

        done = row(db, run_id).rounds_done
        store.runs.resume([run_id])
        step_until(supervisor, lambda: row(db, run_id).rounds_done >= done + 2)
        assert len(list(tmp_path.glob(f"fedlens-run-{run_id}-2-*"))) == 1
        store.runs.stop([run_id])
        step_until(supervisor, lambda: row(db, run_id).ended)
        assert row(db, run_id).state == "stopped"
        assert row(db, run_id).rounds_done < ROUNDS

        store.runs.resume([run_id])
        step_until(supervisor, lambda: row(db, run_id).ended)
    assert (row(db, run_id).state, row(db, run_id).attempt) == ("done", 3)
    assert recorded(db, run_id) == expected[1]
    assert list(tmp_path.iterdir()) == [], "what lies there goes with the run"
    assert "raylet" not in "".join(capfd.readouterr()), "Ray says at length what the run's row says"


def test_a_process_that_has_run_a_method_file_trains_nothing_else(db, watch, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN_METHOD)
    registry.load_file(file)
    chosen = parse({"rounds": 60, "methods": [{"name": "sent-bias", "file": str(file)}]})
    (run_id,) = Store(db).experiments.create(chosen, plan(chosen).runs).run_ids
    with supervisor_of(db, watch) as supervisor:
        step_until(supervisor, lambda: row(db, run_id).rounds_done >= 1)
        process = worker_of(f"run-{run_id}-1")
        assert process is not None
        step_until(supervisor, lambda: row(db, run_id).ended)
    assert (row(db, run_id).state, row(db, run_id).status_text) == ("done", None)
    wait_for(lambda: not process.is_running(), 400)


def test_killing_a_run_does_not_wait_for_its_node(db, watch):
    store = Store(db)
    (run_id,) = queue_fedot(db, ROUNDS)
    with supervisor_of(db, watch) as supervisor:
        step_until(supervisor, lambda: row(db, run_id).rounds_done >= 1)
        store.runs.stop([run_id])
        killed = force_stop(store, run_id) if row(db, run_id).status == "stopping" else True
        assert killed and row(db, run_id).state == "stopped"
        assert row(db, run_id).rounds_done < ROUNDS
        step_until(supervisor, lambda: not supervisor._children)


def test_a_queued_run_over_an_actor_on_each_node_has_the_rows_of_a_run_here(db, watch):
    chosen = parse({"rounds": 2, "methods": [{"name": "fedot", "config": {"optimiser_state": "kept"}}]})
    (run_id,) = Store(db).experiments.create(chosen, plan(chosen).runs).run_ids
    with supervisor_of(db, watch, over=2) as supervisor:
        step_until(supervisor, lambda: row(db, run_id).ended)
    assert (row(db, run_id).state, row(db, run_id).status_text) == ("done", None)
    assert any("2 processes train its clients" in notice.message for notice in row(db, run_id).notices)
    environment = Store(db).runs.environment(run_id)
    assert 1 <= environment["chunk"] < CHUNK, "small enough for both"

    def in_this_process(job):
        return handlers.train(job, lambda *given, **o: train(*given, **(o | {"environment": environment})))

    _, outcomes = run_local(Store(db), chosen, plan(chosen).runs, device="cpu", handler=in_this_process)
    (plain,) = outcomes
    assert recorded(db, run_id) == recorded(db, plain)
