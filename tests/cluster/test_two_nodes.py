"""Runs on a real Ray cluster of two nodes: the rows of a run there are those of a run on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs.cluster_watch import ClusterWatch
from fedcore.jobs.heartbeat import Heartbeat
from fedcore.jobs.job import execute
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from tests.support.cluster import step_until, supervisor_of, two_nodes
from tests.support.jobs import recorded, row, wait_for

ROUNDS = 6


def queue(db: Path, seeds: tuple[int, ...] = (1,), rounds: int = ROUNDS) -> tuple[int, ...]:
    """FedOT with momentum kept across rounds: shared, local and optimiser state must all travel."""
    config = {"lr": 0.01, "optimiser_state": "kept"}
    chosen = parse({"rounds": rounds, "seeds": list(seeds), "methods": [{"name": "fedot", "config": config}]})
    return Store(db).experiments.create(chosen, plan(chosen).runs).run_ids


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWatch]:
    with two_nodes(tmp_path_factory.mktemp("cluster")) as cluster:
        watch = ClusterWatch(cluster.address)
        try:
            wait_for(lambda: sum(state.problem is None for state in watch.states()) == 2)
            yield watch
        finally:
            watch.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[tuple]]]:
    """All that uninterrupted runs measured on this machine, by seed."""
    db = tmp_path_factory.mktemp("here") / "runs.db"
    Store(db).prepare()
    for run_id in queue(db, (1, 2)):
        claimed = Store(db).jobs.claim(new_owner(), "cpu")
        assert claimed is not None and claimed.id == run_id
        with Heartbeat(Store(db)) as heartbeat:
            assert execute(claimed, heartbeat) == "done"
    return {seed: recorded(db, seed) for seed in (1, 2)}


def test_two_runs_on_two_nodes_have_the_rows_of_runs_here(db, watch, expected):
    first, second = queue(db, (1, 2))
    with supervisor_of(db, watch) as supervisor:
        step_until(supervisor, lambda: row(db, first).ended and row(db, second).ended)
    runs = [row(db, first), row(db, second)]
    assert [(run.state, run.status_text) for run in runs] == [("done", None)] * 2
    assert {run.device for run in runs} == {"alpha/cpu", "beta/cpu"}
    assert recorded(db, first) == expected[1]
    assert recorded(db, second) == expected[2]
