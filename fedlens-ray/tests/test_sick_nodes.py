"""A node that fails rests until it passes a trial, and its runs go on elsewhere without a person."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fedlens_ray import connection, node, nodes
from fedlens_ray.node import NodeReport
from fedlens_ray.nodes import ClusterWatch, Rest
from fedlens_ray.runs import Cluster

from fedcore.base.errors import Elsewhere
from fedcore.base.events import Event
from fedcore.jobs import launcher
from fedcore.jobs.supervisor import Supervisor
from fedcore.store import Store
from tests.support import fake_engine
from tests.support.cluster import LARGE, SMALL, Ray
from tests.support.jobs import execute_next, row, wait_for

NODES = [SMALL.node, replace(LARGE.node, gpus=0)]
FULL = "on the node small: the disk that holds /tmp is full; free some space"


class Engine:
    """Trains on every node but ``small``, which has a full disk."""

    device = "cpu"
    peak_memory = 0

    def __init__(self, ray: Any, reservation: Any, place: Any, key: str, shared: Any, failed: Any) -> None:
        self._place, self._failed = place, failed

    def __call__(self, *given: Any, **options: Any) -> Iterator[Event]:
        if self._place.name == "small":
            fault = Elsewhere(f"{FULL}, then resume: recorded rounds are kept")
            self._failed(fault)
            raise fault
        yield from fake_engine.train(*given, **options)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Which nodes were asked for a report, and whether with a trial; they answer at once."""
    asked: list[tuple[str, bool]] = []

    def ask(watch: ClusterWatch, place: connection.Node, needs: tuple[str, ...], trial: bool) -> NodeReport:
        asked.append((place.name, trial))
        return NodeReport((), node.versions())

    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=OSError),
        wait=lambda pending, timeout: (pending, []),
        get=lambda pending: pending,
        shutdown=lambda: None,
        util=Ray([SMALL, replace(LARGE, node=NODES[1])], room=1).util,
    )
    monkeypatch.setattr(connection, "connect", lambda address: ray)
    monkeypatch.setattr(connection, "list_nodes", lambda ray, before: NODES)
    monkeypatch.setattr(ClusterWatch, "_ask", ask)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "REPORT_SECONDS", 0.01)
    return asked


@pytest.fixture
def watch(reports: list[tuple[str, bool]]) -> Iterator[ClusterWatch]:
    watch = ClusterWatch("auto")
    wait_for(lambda: [s.problem for s in watch.states()] == [None, None])
    yield watch
    watch.close()


def problem(watch: ClusterWatch, name: str = "small") -> str | None:
    return next(state.problem for state in watch.states() if state.node.name == name)


def test_no_run_is_lost_to_a_node_that_fails_each_of_them(db, queued, watch):
    runs = queued(seeds=(1, 2, 3), rounds=1)
    used = Cluster(Store(db), watch, engine=Engine)
    supervisor = Supervisor(Store(db), used, tick=600)
    wait_for(lambda: (supervisor.step(), all(row(db, run).ended for run in runs))[1])
    supervisor.pause()  # does not take 600 s, as runs have ended
    rows = [row(db, run) for run in runs]
    assert [(run.state, run.device) for run in rows] == [("done", "large/cpu")] * 3
    assert problem(watch) == f"rests after a fault: {FULL}"
    noted = [n.message for run in rows for n in run.notices if "queued again" in n.message]
    assert noted == [f"{FULL}; after round 0 it was queued again by itself"], "the others never met that node"


def test_a_node_returns_once_it_has_passed_a_trial(watch, reports, monkeypatch):
    monkeypatch.setattr(launcher, "FIRST_REST", 0.2)
    watch.rest("1", "its disk is full")
    assert problem(watch) == "rests after a fault: its disk is full"
    assert problem(watch, "large") is None
    wait_for(lambda: problem(watch) is None)
    assert [asked for asked in reports if asked[1]] == [("small", True)]

    sick = NodeReport((), node.versions(), problem="its device cpu cannot compute")
    monkeypatch.setattr(ClusterWatch, "_ask", lambda watch, place, needs, trial: sick)
    watch.rest("1", "its disk is full")
    wait_for(lambda: problem(watch) == "rests after a fault: its device cpu cannot compute")
    assert watch._rests["1"].seconds >= 0.8, "each rest is twice as long as the one before"


def test_a_trial_is_no_answer_to_a_fault_that_came_after_it(watch, monkeypatch):
    def ask(watch: ClusterWatch, place: connection.Node, needs: tuple[str, ...], trial: bool) -> NodeReport:
        if trial:
            watch.rest(place.id, "its GPU fell off")
        return NodeReport((), node.versions())

    monkeypatch.setattr(ClusterWatch, "_ask", ask)
    watch._rests["1"] = Rest(until=0.0, seconds=60.0, reason="rests after a fault: its disk is full")
    wait_for(lambda: watch._rests["1"].until > 0)
    looked = watch._looked
    wait_for(lambda: watch._looked > looked + 0.05)
    assert problem(watch) == "rests after a fault: its GPU fell off"


def test_a_run_without_a_new_round_is_not_queued_a_second_time(db, queued):
    (run,) = queued(rounds=3)

    def handler(job: Any) -> Any:
        yield from ()
        raise Elsewhere("the node small is gone; resume continues after the last round")

    for outcome in ("queued", "interrupted"):
        assert execute_next(db, handler=handler, elsewhere=True) == row(db, run).state == outcome
    assert row(db, run).status_text == "the node small is gone; resume continues after the last round"
    assert [n.message for n in row(db, run).notices] == [
        "the node small is gone; after round 0 it was queued again by itself"
    ]
