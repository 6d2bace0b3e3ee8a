"""A Ray cluster of two nodes on this machine, each with one CPU, and a supervisor that uses it."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import psutil
import pytest
from fedlens_ray.connection import SETTINGS, Node
from fedlens_ray.node import NodeReport
from fedlens_ray.nodes import ClusterWatch, NodeState
from fedlens_ray.runs import Cluster
from fedlens_ray.stream import RemoteEngine

from fedcore.base.devices import Device
from fedcore.base.files import PROJECT
from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs.supervisor import Supervisor
from fedcore.store import Store
from fedcore.store.runs import QueuedRun
from tests.support import own_methods
from tests.support.jobs import wait_for

GIB = 2**30
PROCESSOR = Device("cpu", "a processor", 64 * GIB, 10 * GIB, 0.5)
CARD = Device("GPU-1", "a card", 80 * GIB, 1 * GIB, 0.0)
SMALL = NodeState(
    Node("1", "small", cpus=4, gpus=0, memory=32 * GIB, is_local=True), NodeReport((PROCESSOR,), {}), None
)
LARGE = NodeState(
    Node("2", "large", cpus=32, gpus=1, memory=64 * GIB, is_local=False),
    NodeReport((CARD, PROCESSOR), {}, readable=("/data/pacs",)),
    None,
    ("torch 2.9.0 instead of 2.8.0",),
)
RUN = QueuedRun(1, 1, "an experiment", "FedOT", 1, None, "auto", 10, None)

OWN_METHOD = inspect.getsource(own_methods).replace("class BiasMethod", "@method\nclass BiasMethod")
OWN_METHOD = OWN_METHOD.replace("import About,", "import About, method,").replace("test-bias", "sent-bias")
"""A user's method file, which travels with its run."""
START_ATTEMPTS = 3
"""A node gives up if it has not started within 30 seconds, as on a machine with much other work."""
TOKEN = "a-token-of-the-tests-that-is-long-enough"


def settings(cache: Path) -> dict[str, str]:
    """The environment variables of the processes of a cluster, with the folder of their encodings."""
    return {**SETTINGS, "RAY_AUTH_TOKEN": TOKEN, "FEDLENS_CACHE": str(cache), "PYTHONPATH": str(PROJECT)}


def queue_fedot(db: Path, rounds: int, seeds: Sequence[int] = (1,), device: str = "auto") -> tuple[int, ...]:
    """FedOT with momentum kept across rounds: shared, local and optimiser state must all travel."""
    config = {"lr": 0.01, "optimiser_state": "kept"}
    chosen = parse({"rounds": rounds, "seeds": [*seeds], "methods": [{"name": "fedot", "config": config}]})
    return Store(db).experiments.create(chosen, plan(chosen).runs, device=device).run_ids


@contextmanager
def two_nodes(cache: Path) -> Iterator[Any]:
    """Start a head and a node with one CPU each, and leave nothing behind.

    Args:
        cache: folder in which a node keeps its encodings.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(cache).items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster as RayCluster

        head = {"num_cpus": 1, "node_name": "alpha", "include_dashboard": False}
        cluster: Any = RayCluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1, node_name="beta")
            yield cluster
        finally:
            cluster.shutdown()


def _begin(command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a node's processes; returns once it runs, or has given up."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment
        )
    wait_for(
        lambda: "Ray runtime started" in log.read_text(errors="replace") or process.poll() is not None, 300
    )
    return process


@contextmanager
def ray_start(
    log: Path,
    *arguments: str,
    before: tuple[str, ...] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a node's processes, and end these only: ``ray stop`` ends every node of a machine."""
    command = [*before, sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--block"]
    for _ in range(START_ATTEMPTS):
        process = _begin(command, log, {**os.environ, **variables})
        if process.poll() is None:
            break
    family: list[psutil.Process] = []
    try:
        assert process.poll() is None, log.read_text(errors="replace")[-500:]
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            family = [*parent.children(recursive=True), parent]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, 20)
        process.wait(20)


@contextmanager
def supervisor_of(
    db: Path,
    watch: ClusterWatch,
    engine: type[RemoteEngine] = RemoteEngine,
    shared: Path | None = None,
    over: int | None = None,
) -> Iterator[Supervisor]:
    """A supervisor in this process, whose runs start on the nodes."""
    used = Cluster(Store(db), watch, over, engine, shared)
    supervisor = Supervisor(Store(db), used)
    try:
        yield supervisor
    finally:
        supervisor._end_children()
        watch.listen = lambda states: used.reservations.reconcile([])
        wait_for(lambda: not (used.reservations._idle or used.reservations._over))


def step_until(supervisor: Supervisor, condition: Any, seconds: float = 800.0) -> None:
    """Let the supervisor work until a condition holds."""

    def stepped() -> object:
        supervisor.step()
        return condition()

    wait_for(stepped, seconds)


@contextmanager
def watching(cluster: Any) -> Iterator[ClusterWatch]:
    """A watch over a cluster of two nodes, once runs may start on both."""
    watch = ClusterWatch(cluster.address)
    try:
        wait_for(lambda: len(usable(watch)) == 2)
        yield watch
    finally:
        watch.close()


def usable(watch: ClusterWatch) -> list[str]:
    """The names of the nodes on which runs may start."""
    return [state.node.name for state in watch.states() if state.problem is None]


class Ray:
    """A stand-in for Ray that has ``room`` for some reservations, in the order of the requests."""

    def __init__(self, nodes: Sequence[NodeState], room: int = 99) -> None:
        self.nodes, self.room = nodes, room
        self.groups: list[SimpleNamespace] = []
        self.util = SimpleNamespace(
            placement_group=self.make, remove_placement_group=self.remove, placement_group_table=self.table
        )

    def make(self, bundles: Any, strategy: str, bundle_label_selector: Any) -> SimpleNamespace:
        others = (bundle_label_selector or [{"ray.io/node-id": "!in()"}])[0]["ray.io/node-id"]
        without = others.removeprefix("!in(").removesuffix(")").split(",")
        places = [state.node.id for state in self.nodes if state.node.id not in without]
        self.groups.append(SimpleNamespace(bundles=bundles, strategy=strategy, places=places))
        return self.groups[-1]

    def remove(self, group: SimpleNamespace) -> None:
        self.groups = [g for g in self.groups if g is not group]

    def table(self, group: SimpleNamespace) -> dict[str, Any]:
        if not any(g is group for g in self.groups):
            return {"state": "REMOVED"}
        has_room = [id(g) for g in self.groups].index(id(group)) < self.room
        state = "INFEASIBLE" if not group.places else "FINISHED" if has_room else "NO_RESOURCES"
        nodes = {i: (group.places * 9)[i] if group.places else "" for i in range(len(group.bundles))}
        return {
            "state": "CREATED" if state == "FINISHED" else "PENDING",
            "stats": {"scheduling_state": state},
            "bundles_to_node_id": nodes,
        }
