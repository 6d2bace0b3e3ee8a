"""Pages read the state of the nodes, without Ray, from a file that the worker writes."""

from pathlib import Path

from fedcore.cluster.connection import Node
from fedcore.cluster.node import NodeReport
from fedcore.devices import Device
from fedcore.jobs import cluster_nodes
from fedcore.jobs.cluster_nodes import NodeState
from fedcore.store import Store
from fedcore.store.queue import QueuedRun

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


def test_pages_read_what_the_worker_wrote(db: Path):
    store = Store(db)
    assert cluster_nodes.read(store) is None
    cluster_nodes.write(store, [SMALL, LARGE])
    small, large = cluster_nodes.read(store).nodes
    assert small.pools == ("small/cpu",)
    assert large.pools == ("large/gpu", "large/cpu") and large.notes == ("torch 2.9.0 instead of 2.8.0",)
    assert large.devices_of("large/gpu") == [CARD] and large.devices_of("large/cpu") == [PROCESSOR]
    cluster_nodes.clear(store)
    assert cluster_nodes.read(store) is None


def test_an_old_file_says_nothing_as_its_worker_is_gone(db: Path):
    store = Store(db)
    cluster_nodes.write(store, [SMALL], over=2, waits={7: "4 CPUs"})
    view = cluster_nodes.read(store)
    assert (view.over, view.waits) == (2, {7: "4 CPUs"})
    written = cluster_nodes._path(store).stat().st_mtime
    assert cluster_nodes.read(store, now=written + 1) is not None
    assert cluster_nodes.read(store, now=written + 60) is None
