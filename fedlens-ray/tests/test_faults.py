"""A node, the head or the supervisor of a cluster dies: at most the current round is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fedlens_ray.nodes import ClusterWatch

from fedcore.jobs import launcher
from fedcore.store import Store
from tests.support.cluster import queue_fedot, step_until, supervisor_of, two_nodes, usable, watching
from tests.support.jobs import execute_next, recorded, row, wait_for

ROUNDS = 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple]]:
    db = tmp_path_factory.mktemp("here") / "runs.db"
    Store(db).prepare()
    (run_id,) = queue_fedot(db, ROUNDS)
    assert execute_next(db) == "done"
    return recorded(db, run_id)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    with two_nodes(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def watch(cluster: Any) -> Iterator[ClusterWatch]:
    with watching(cluster) as watch:
        yield watch


def test_a_run_goes_on_with_the_same_rows_when_its_node_has_returned(db, cluster, watch, expected):
    (run_id,) = queue_fedot(db, ROUNDS, device="beta")
    with supervisor_of(db, watch) as supervisor:
        step_until(supervisor, lambda: row(db, run_id).rounds_done >= 2)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        step_until(supervisor, lambda: row(db, run_id).status == "queued", 400)
        done = row(db, run_id).rounds_done
        assert [n.message for n in row(db, run_id).notices if "gone" in n.message] == [
            f"the node beta is gone; after round {done} it was queued again by itself"
        ]
        wait_for(lambda: usable(watch) == ["alpha"])
        cluster.add_node(num_cpus=1, node_name="beta")
        step_until(supervisor, lambda: row(db, run_id).ended, 400)
    assert row(db, run_id).state == "done"
    assert recorded(db, run_id) == expected


def worker_process(db: Path, address: str) -> subprocess.Popen:
    arguments = ["fedcore", "worker", "--ray", address, "--db", str(db)]
    return launcher.start_detached(arguments, db.parent / "worker.log")


def log_of(db: Path) -> str:
    return (db.parent / "worker.log").read_text()


def finish(db: Path, run_id: int, address: str) -> None:
    """Resume an interrupted run with a new worker, to its end."""
    worker = worker_process(db, address)
    try:
        wait_for(lambda: row(db, run_id).status == "interrupted")
        Store(db).runs.resume([run_id])
        wait_for(lambda: row(db, run_id).ended, 400)
        assert row(db, run_id).state == "done", log_of(db)
    finally:
        worker.terminate()
        worker.wait(60)


def test_a_head_that_dies_leaves_nothing_running_and_another_goes_on(db, tmp_path, expected):
    """Ray ends every process whose node is lost, including the worker."""
    (run_id,) = queue_fedot(db, ROUNDS)
    with two_nodes(tmp_path) as cluster:
        first = worker_process(db, cluster.address)
        try:
            wait_for(lambda: row(db, run_id).rounds_done >= 2 or row(db, run_id).ended, 400)
            cluster.head_node.kill_gcs_server(check_alive=False)
            cluster.head_node.kill_raylet(check_alive=False)
            wait_for(lambda: row(db, run_id).ended, 400)
            assert row(db, run_id).state == "interrupted", log_of(db)
            assert 2 <= row(db, run_id).rounds_done < ROUNDS
        finally:
            first.kill()
            first.wait(60)
    with two_nodes(tmp_path) as cluster:
        finish(db, run_id, cluster.address)
    assert recorded(db, run_id) == expected


def test_a_killed_supervisor_is_followed_by_another_and_rows_are_the_same(db, cluster, expected):
    (run_id,) = queue_fedot(db, ROUNDS)
    first = worker_process(db, cluster.address)
    try:
        wait_for(lambda: row(db, run_id).rounds_done >= 2 or row(db, run_id).ended, 400)
    finally:
        first.kill()
        first.wait(60)
    wait_for(lambda: row(db, run_id).ended, 400)
    assert row(db, run_id).state == "interrupted"
    assert 2 <= row(db, run_id).rounds_done < ROUNDS, log_of(db)
    finish(db, run_id, cluster.address)
    assert recorded(db, run_id) == expected
