"""A Ray cluster is joined and left on the page Experiments, where its nodes are shown."""

from pathlib import Path

import pytest
from fedlens_ray import connection, nodes
from fedlens_ray.nodes import NODES
from streamlit.testing.v1 import AppTest

from fedcore.jobs import supervisor
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store
from tests.support.cluster import LARGE, SMALL
from tests.support.web.pages import Opened, button

HEAD = "10.0.0.1:6379"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The databases for which the page has started a worker."""
    paths: list[Path] = []
    monkeypatch.setattr(supervisor, "start_follower", lambda store: paths.append(store.path))
    return paths


def said(app: AppTest) -> str:
    return " ".join(element.value for element in [*app.caption, *app.error]).replace("\\", "")


def test_a_cluster_is_joined_and_left(open_page: Opened, filled: Path, started: list[Path]):
    store = Store(filled)
    app = open_page("experiments", queue="true")
    app.text_input(key="cluster_address").input("no address")
    button(app, "Connect").click().run()
    assert "host:port" in said(app) and not started
    app.text_input(key="cluster_address").input(HEAD)
    app.number_input(key="cluster_over").set_value(4)
    button(app, "Connect").click().run()
    assert connection.chosen(store.path) == (HEAD, 4) and started == [store.path]
    assert "as soon as runs are queued" in said(app)

    worker = SupervisorLock(filled)
    assert worker.acquire()
    assert "Joining the Ray cluster at" in said(app.run())
    connection.record_problem(
        store.path, HEAD, "there is no token; make one with `ray get-auth-token --generate`"
    )
    assert "There is no token; make one with `ray get-auth-token --generate`" in said(app.run())
    button(app, "Try again").click().run()
    assert connection.chosen(store.path) == (HEAD, 4)
    assert len(started) == 2 and connection.problem_of(store.path) is None
    button(app, "Disconnect").click().run()
    assert connection.chosen(store.path) is None
    assert button(app, "Connect")
    worker.release()


def test_nodes_with_fewer_cpus_than_runs_at_once_are_named(open_page: Opened, filled: Path):
    store = Store(filled)
    nodes.write(store, nodes.ClusterView([SMALL, LARGE]))
    store.queue.set_slots(f"{NODES}/cpu", 5)
    assert "A node trains no more runs at once than it has CPUs: small has 4." in said(
        open_page("experiments", queue="true")
    )


def test_a_run_that_is_spread_over_the_nodes_is_named_below_them(open_page: Opened, filled: Path):
    nodes.write(Store(filled), nodes.ClusterView([SMALL], over=2))
    app = open_page("experiments", queue="true")
    assert "Each run is spread over 2 devices; now: " in said(app)
    assert not [n for n in app.number_input if n.label.startswith("Runs at once")]
