"""Runs start on nodes that have the device, the folders, the memory and a slot."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedcore.cli.main import main
from fedcore.cluster import connection, executor, node
from fedcore.cluster.node import NodeReport
from fedcore.errors import FedLensError
from fedcore.jobs import cluster_nodes, process
from fedcore.jobs.cluster import CPU, GPU, ClusterLauncher, ClusterPools, NodePool, cluster_capacity
from fedcore.jobs.cluster_nodes import ClusterWatch, NodeState
from fedcore.jobs.pools import TASK_POOL, SpreadPools
from fedcore.store import Store
from tests.cluster.test_view import GIB, LARGE, SMALL
from tests.support.jobs import wait_for


class Watch:
    """A stand-in for the thread that watches a cluster."""

    def __init__(self, *states: NodeState) -> None:
        self._states = {state.node.id: state for state in states}

    def states(self) -> list[NodeState]:
        return list(self._states.values())


def test_gpus_come_first_and_a_node_that_cannot_be_used_has_no_pool():
    broken = replace(SMALL, problem="it has FedLens 0.0, the worker 0.1; install the same")
    assert list(ClusterPools(Watch(SMALL, LARGE)).names()) == [
        "large/gpu", "small/cpu", "large/cpu", TASK_POOL,
    ]  # fmt: skip
    assert list(ClusterPools(Watch(broken, LARGE)).names()) == ["large/gpu", "large/cpu", TASK_POOL]


def test_a_run_waits_for_a_node_that_has_its_data(db, queued):
    store, pools = Store(db), ClusterPools(Watch(SMALL, LARGE))
    (run_id,) = queued()
    with store.queue._file.writing() as database:
        database.execute("UPDATE runs SET config=json_set(config, '$.data.root', '/data/pacs')")
    assert store.queue.needs() == ["/data/pacs"]
    alone = ClusterPools(Watch(SMALL))
    assert alone.claim(store, "small/cpu", 0) is None
    claimed = pools.claim(store, "large/gpu", 0)
    assert claimed is not None and claimed.id == run_id
    assert store.runs.get([run_id])[0].device == "large/gpu"


def test_a_run_waits_until_a_node_was_asked_for_the_folder_of_its_data(db, queued):
    store = Store(db)
    queued()
    with store.queue._file.writing() as database:
        database.execute("UPDATE runs SET config=json_set(config, '$.data.root', '/data/new')")
    assert ClusterPools(Watch(LARGE)).claim(store, "large/gpu", 0) is None, "queued since the last report"
    asked = replace(LARGE, report=replace(LARGE.report, readable=("/data/new",)))
    assert ClusterPools(Watch(asked)).claim(store, "large/gpu", 0) is not None


def test_runs_over_several_devices_come_one_by_one_once_there_are_enough(db, queued):
    store = Store(db)
    first, second = queued(rounds=1), queued(rounds=2)
    states = [replace(LARGE, problem="it has not reported yet")]
    pools = SpreadPools(2, lambda: cluster_capacity(states))
    device, tasks = pools.names()
    assert tasks == TASK_POOL and pools.claim(store, device, 0) is None
    states = [SMALL]
    claimed = pools.claim(store, device, 0)
    assert claimed is not None and claimed.id == first[0]
    assert pools.claim(store, device, 1) is None, "one at a time"
    with store.queue._file.writing() as database:
        database.execute("UPDATE runs SET requested_device='cpu' WHERE id=?", second)
    states = [SMALL, LARGE, replace(LARGE, node=replace(LARGE.node, id="3"))]
    assert pools.claim(store, device, 0) is None, "it asked for a CPU, and here are GPUs"
    held = [replace(state, node=replace(state.node, free_gpus=0.5)) for state in states]
    assert cluster_capacity(held, only_free=True).count == 0, "other jobs of the cluster hold them"
    with pytest.raises(FedLensError, match="the cluster has 2 GPUs, not 3") as refused:
        cluster_capacity(states).check(3)
    assert refused.value.field == "over"


class Ray:
    """A stand-in for Ray: nodes report at once; ``fails`` is raised instead of the next list of nodes."""

    exceptions = SimpleNamespace(RayError=OSError)

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
        return NodeReport((), node.versions(), missing=(), readable=asked)

    monkeypatch.setattr(connection, "connect", lambda address: ray)
    monkeypatch.setattr(connection, "list_nodes", list_nodes)
    monkeypatch.setattr(connection, "disconnect", lambda: None)
    monkeypatch.setattr(ClusterWatch, "_ask", ask)
    monkeypatch.setattr(cluster_nodes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(cluster_nodes, "REPORT_SECONDS", 600.0)
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
    other = NodeReport((), node.versions() | {"code": "0123"}, missing=())
    monkeypatch.setattr(watch, "_ask", lambda *_: other)
    folders.append("/data/b")
    wait_for(lambda: "other code of FedLens (0123 instead of" in (watch.states()[0].problem or ""))
    assert ClusterPools(watch).names() == (TASK_POOL,)
    monkeypatch.setenv("FEDLENS_MIXED_CODE", "1")
    folders.append("/data/c")
    wait_for(lambda: watch.states()[0].problem is None)
    assert watch.states()[0].notes == (f"code 0123 instead of {node.code()}",), "the page shows it"


def test_a_node_that_does_not_answer_is_left_until_it_does(watched, monkeypatch):
    ray, _, watch = watched
    wait_for(lambda: watch.states() and watch.states()[0].report)
    answers = threading.Event()
    monkeypatch.setattr(ray, "wait", lambda pending, timeout: (pending if answers.is_set() else [], []))
    monkeypatch.setattr(cluster_nodes, "REPORT_SECONDS", 0.0)
    silent = watch.states()[0].node
    monkeypatch.setattr(watch, "_asked", {silent.id: (time.monotonic() - 25, ("/data/a",), False, object())})
    wait_for(lambda: "has not answered for 20 s" in (watch.states()[0].problem or ""))
    answers.set()
    monkeypatch.setattr(ray, "get", lambda pending: NodeReport((), node.versions(), missing=()))
    wait_for(lambda: watch.states()[0].problem is None)


def test_whatever_goes_wrong_in_one_look_the_next_is_taken(watched, caplog):
    ray, folders, watch = watched
    wait_for(watch.states)
    ray.fails = RuntimeError("the connection was reset")
    wait_for(lambda: "the connection was reset" in caplog.text)
    folders.append("/data/b")
    wait_for(lambda: (report := watch.states()[0].report) and report.readable == ("/data/a", "/data/b"))


def test_a_run_goes_to_the_node_that_it_asks_for(db, make):
    store, pools = Store(db), ClusterPools(Watch(SMALL, LARGE))
    (run_id,) = store.experiments.create(make(), device="small").run_ids
    assert pools.claim(store, "large/gpu", 0) is None
    claimed = pools.claim(store, "small/cpu", 0)
    assert claimed is not None and claimed.id == run_id


def test_experiments_of_one_priority_take_turns(db, queued):
    store, pools = Store(db), ClusterPools(Watch(SMALL))
    first, second = queued(seeds=(1, 2, 3)), queued(seeds=(4, 5, 6))
    with store.queue._file.writing() as database:
        database.execute("UPDATE runs SET priority=1 WHERE id=?", [first[2]])
    claimed = [pools.claim(store, "small/cpu", 0) for _ in range(6)]
    assert [c.id for c in claimed if c] == [first[2], second[0], first[0], second[1], first[1], second[2]]


def test_a_node_that_another_job_of_the_cluster_holds_gets_no_run(db, queued):
    """It would say 'running, starting' for as long as that job takes."""
    held = replace(SMALL, node=replace(SMALL.node, free_cpus=3.0))
    free = replace(SMALL, node=replace(SMALL.node, id="3", name="other"))
    store, pools = Store(db), ClusterPools(Watch(held, free))
    (run_id,) = queued()
    assert pools.claim(store, "small/cpu", 0) is None
    claimed = pools.claim(store, "other/cpu", 0)
    assert claimed is not None and claimed.id == run_id
    assert cluster_nodes._view(held).notes == ("3 of 4 CPUs free in Ray",)


def test_the_processes_of_a_spread_run_go_where_devices_are_free(monkeypatch):
    first, second = (
        replace(SMALL.node, id=i, cpus=2, free_cpus=free) for i, free in (("1", 1.0), ("2", 2.0))
    )
    monkeypatch.setattr(executor, "connect", lambda address: None)
    monkeypatch.setattr(executor, "list_nodes", lambda ray: [first, second])
    placed: list[list[connection.Node]] = []
    monkeypatch.setattr(executor, "_actors", lambda ray, places, *_: placed.append(places))
    for count in (3, 4):
        executor.over_nodes("auto", count).start(None, None, {}, None)
    assert [[node.id for node in places] for places in placed] == [["1", "2", "2"], ["1", "2", "1", "2"]]
    with pytest.raises(FedLensError, match="the cluster has 4 CPUs, not 5; give --over 4"):
        executor.over_nodes("auto", 5)


def test_a_queued_spread_run_leaves_nodes_that_were_refused(db, monkeypatch):
    """The pool counts the other nodes only; on a refused one the run would be interrupted."""
    refused = replace(SMALL, node=replace(SMALL.node, name="other", cpus=2), problem="other code")
    usable = replace(SMALL, node=replace(SMALL.node, id="2", cpus=2, free_cpus=2.0))
    store = Store(db)
    cluster_nodes.write(store, [refused, usable], over=2)
    monkeypatch.setattr(executor, "connect", lambda address: None)
    monkeypatch.setattr(executor, "list_nodes", lambda ray: [refused.node, usable.node])
    with pytest.raises(FedLensError, match="the cluster has 2 CPUs, not 3"):
        next(process.spread_later(3, "auto")(SimpleNamespace(store=store)))


def described(*nodes: tuple[str, str, int]) -> list[dict[str, object]]:
    """Nodes as Ray describes them: id, host, port."""
    return [{"NodeID": i, "NodeName": "a", "NodeManagerAddress": "a", "NodeManagerHostname": host,
             "NodeManagerPort": port} for i, host, port in nodes]  # fmt: skip


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


def test_runs_share_a_node_as_slots_and_memory_allow(db, queued):
    store, pools = Store(db), ClusterPools(Watch(LARGE))
    queued(seeds=(1, 2, 3))
    assert pools.claim(store, "large/gpu", 0) is not None
    assert pools.claim(store, "large/gpu", 1) is None
    store.queue.set_slots("large/gpu", 2)
    with store.queue._file.writing() as database:
        database.execute("UPDATE runs SET peak_memory=? WHERE id=1", [50 * GIB])
    assert pools.claim(store, "large/gpu", 1) is None  # twice 50 of 80 GiB
    with store.queue._file.writing() as database:
        database.execute("UPDATE runs SET peak_memory=? WHERE id=1", [30 * GIB])
    assert pools.claim(store, "large/gpu", 1) is not None


def test_what_a_run_asks_of_its_node():
    four = replace(LARGE.node, gpus=4)
    assert (
        NodePool(four, GPU, LARGE.report).share({}).gpus == 1
        and NodePool(four, GPU, LARGE.report).share({}).cpus == 8
    )
    assert NodePool(four, GPU, LARGE.report).capacity({"large/gpu": 2}) == 8
    assert NodePool(four, GPU, LARGE.report).share({"large/gpu": 2}).gpus == 0.5
    shared = NodePool(four, CPU, LARGE.report).share({"large/cpu": 2}, memory=100 * GIB)
    assert (shared.cpus, shared.gpus, shared.memory) == (16, 0, 32 * GIB)


def test_a_node_that_leaves_between_claim_and_start_gives_the_run_back(db, queued):
    (run_id,) = queued()
    pools = ClusterPools(Watch(SMALL))
    claimed = pools.claim(Store(db), "small/cpu", 0)
    with pytest.raises(OSError, match="has left"):
        ClusterLauncher(ClusterPools(Watch()), None).launch(claimed, "small/cpu")
    assert claimed.id == run_id


def test_a_worker_without_ray_or_without_a_token_says_how_to_get_them(db, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(connection, "is_installed", lambda: False)
    assert main(["worker", "--ray", "--db", str(db)]) == 2
    assert 'install it with: pip install "ray[default]>=2.52,<3"' in capsys.readouterr().err
    monkeypatch.setattr(connection, "is_installed", lambda: True)
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
