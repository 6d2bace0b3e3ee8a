"""The watch over the nodes of a cluster, what pages read of it, their names, and the worker that joins it."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fedlens_ray import connection, node, nodes
from fedlens_ray.node import NodeReport
from fedlens_ray.nodes import ClusterWatch

from fedcore.base.errors import FedLensError
from fedcore.cli.main import main
from fedcore.store import Store
from tests.support.cluster import CARD, LARGE, PROCESSOR, SMALL
from tests.support.jobs import wait_for


class Ray:
    """A stand-in for Ray: nodes report at once; ``fails`` is raised instead of the next list of nodes."""

    exceptions = SimpleNamespace(RayError=OSError)
    shutdown = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.fails: Exception | None = None

    def wait(self, pending: list[object], timeout: float) -> tuple[list[object], list[object]]:
        return pending, []

    def get(self, pending: NodeReport) -> NodeReport:
        return pending


@pytest.fixture
def watched(monkeypatch) -> Iterator[tuple[Ray, list[str], ClusterWatch]]:
    """A watch of one node, whose folders of data are in the list."""
    ray, folders = Ray(), ["/data/a"]

    def list_nodes(_: Ray, before: object) -> list[connection.Node]:
        failure, ray.fails = ray.fails, None
        if failure is not None:
            raise failure
        return [SMALL.node]

    def ask(_: ClusterWatch, place: connection.Node, asked: tuple[str, ...], trial: bool) -> NodeReport:
        ray.asked.append(asked)
        return NodeReport((), node.versions(), readable=asked)

    monkeypatch.setattr(connection, "connect", lambda address: ray)
    monkeypatch.setattr(connection, "list_nodes", list_nodes)
    monkeypatch.setattr(ClusterWatch, "_ask", ask)
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "REPORT_SECONDS", 600.0)
    watch = ClusterWatch("auto", needs=lambda: tuple(folders))
    yield ray, folders, watch
    watch.close()


def test_nodes_are_asked_at_once_for_the_folder_of_a_run_that_was_queued(watched):
    ray, folders, watch = watched
    wait_for(lambda: watch.states() and watch.states()[0].report)
    folders.append("/data/b")
    wait_for(lambda: (report := watch.states()[0].report) and report.readable == ("/data/a", "/data/b"))
    assert ray.asked == [("/data/a",), ("/data/a", "/data/b")]


def test_a_node_with_another_commit_gets_no_runs(watched, monkeypatch):
    _, folders, watch = watched
    wait_for(watch.states)
    other = NodeReport((), node.versions() | {"code": "0123"})
    monkeypatch.setattr(watch, "_ask", lambda *_: other)
    folders.append("/data/b")
    wait_for(lambda: "other code of FedLens (0123 instead of" in (watch.states()[0].problem or ""))
    monkeypatch.setenv("FEDLENS_MIXED_CODE", "1")
    folders.append("/data/c")
    wait_for(lambda: watch.states()[0].problem is None)
    assert watch.states()[0].notes == (f"code 0123 instead of {node.code()}",), "the page shows it"


def test_a_node_that_does_not_answer_is_left_until_it_does(watched, monkeypatch):
    ray, _, watch = watched
    wait_for(lambda: watch.states() and watch.states()[0].report)
    answers = threading.Event()
    monkeypatch.setattr(ray, "wait", lambda pending, timeout: (pending if answers.is_set() else [], []))
    monkeypatch.setattr(nodes, "REPORT_SECONDS", 0.0)
    silent = watch.states()[0].node
    monkeypatch.setattr(watch, "_asked", {silent.id: (time.monotonic() - 25, ("/data/a",), False, object())})
    wait_for(lambda: "has not answered for 20 s" in (watch.states()[0].problem or ""))
    answers.set()
    monkeypatch.setattr(ray, "get", lambda pending: NodeReport((), node.versions()))
    wait_for(lambda: watch.states()[0].problem is None)


def test_whatever_goes_wrong_in_one_look_the_next_is_taken(watched, caplog):
    ray, folders, watch = watched
    wait_for(watch.states)
    ray.fails = RuntimeError("the connection was reset")
    wait_for(lambda: "the connection was reset" in caplog.text)
    folders.append("/data/b")
    wait_for(lambda: (report := watch.states()[0].report) and report.readable == ("/data/a", "/data/b"))


def described(*nodes: tuple[str, str, int]) -> list[dict[str, object]]:
    """Nodes as Ray describes them: id, host, port."""
    return [
        {
            "NodeID": i,
            "NodeName": "a",
            "NodeManagerAddress": "a",
            "NodeManagerHostname": host,
            "NodeManagerPort": port,
        }
        for i, host, port in nodes
    ]


def test_a_node_that_is_started_again_has_its_name():
    names = connection._names(described(("1", "far", 7), ("2", "near", 8)), {})
    assert names == {"1": "far", "2": "near"}
    both = connection._names(described(("1", "far", 7), ("2", "near", 8), ("3", "far", 5)), names)
    assert both == names | {"3": "far-2"}, "the old one is not given up yet"
    assert connection._names(described(("3", "far", 5), ("2", "near", 8)), both)["3"] == "far"
    on_one = connection._names(described(("1", "here", 7), ("2", "here", 8)), {})
    assert on_one == {"1": "here", "2": "here-2"}
    assert connection._names(described(("2", "here", 8), ("4", "here", 3)), on_one) == {
        "2": "here-2",
        "4": "here",
    }


def test_a_worker_without_a_token_says_how_to_get_one(db, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*connection.SETTINGS, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
    assert main(["worker", "--db", str(db), "--ray"]) == 2
    assert "ray get-auth-token --generate" in capsys.readouterr().err
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray" / "auth_token"
    token.write_text("secret")
    token.chmod(0o644)  # as Ray writes it
    assert main(["worker", "--db", str(db), "--ray"]) == 2
    assert f"other accounts can read Ray's token, and with it run programs as you: `chmod 600 {token}`" in (
        capsys.readouterr().err
    )


def processes(*given: tuple[str, int, str]) -> list[SimpleNamespace]:
    """Processes as psutil lists them: name, user id, and the address of their cluster."""
    return [
        SimpleNamespace(
            info={"name": name, "uids": (uid,) * 3, "cmdline": [name, f"--gcs-address={address}"]}
        )
        for name, uid, address in given
    ]


def test_the_cluster_of_this_machine_is_one_that_this_account_has_started(monkeypatch):
    """A stand-in for a node that another account has started would receive the token."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ours, theirs = os.getuid(), os.getuid() + 1
    running = processes(("raylet", theirs, "10.0.0.9:1"), ("bash", ours, "10.0.0.8:1"))
    monkeypatch.setattr(connection.psutil, "process_iter", lambda attributes: running)
    with pytest.raises(FedLensError, match="your account has started no node of a Ray cluster"):
        connection.resolve("auto")
    running += processes(("raylet", ours, "10.0.0.1:1"), ("raylet", ours, "10.0.0.1:1"))
    assert connection.resolve("auto") == "10.0.0.1:1"
    running += processes(("raylet", ours, "10.0.0.2:1"))
    with pytest.raises(FedLensError, match=r"several Ray clusters .* \(10.0.0.1:1, 10.0.0.2:1\)"):
        connection.resolve("auto")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:1")
    assert connection.resolve("auto") == "10.0.0.2:1"
    assert connection.resolve("10.0.0.9:1") == "10.0.0.9:1", "what the user gives is used as it is"


def test_pages_read_what_the_worker_wrote(db: Path):
    store = Store(db)
    assert nodes.read(store) is None
    nodes.write(store, nodes.ClusterView([SMALL, LARGE]))
    small, large = nodes.read(store).nodes
    assert small.pools == ("small/cpu",)
    assert large.pools == ("large/gpu", "large/cpu") and large.notes == ("torch 2.9.0 instead of 2.8.0",)
    assert large.devices_of("large/gpu") == [CARD] and large.devices_of("large/cpu") == [PROCESSOR]
    nodes.clear(store)
    assert nodes.read(store) is None


def test_an_old_file_says_nothing_as_its_worker_is_gone(db: Path):
    store = Store(db)
    nodes.write(store, nodes.ClusterView([SMALL], over=2, waits={7: "4 CPUs"}))
    view = nodes.read(store)
    assert (view.over, view.waits) == (2, {7: "4 CPUs"})
    written = nodes._path(store).stat().st_mtime
    assert nodes.read(store, now=written + 1) is not None
    assert nodes.read(store, now=written + 60) is None
