"""Pages read the state of the nodes, without Ray, from a file that the worker writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

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
    Node("1", "small", cpus=4, gpus=0, memory=32 * GIB, is_local=True),
    NodeReport((PROCESSOR,), {}, missing=("/data/pacs",)),
    None,
)
LARGE = NodeState(
    Node("2", "large", cpus=32, gpus=1, memory=64 * GIB, is_local=False),
    NodeReport((CARD, PROCESSOR), {}, missing=(), readable=("/data/pacs",)),
    None,
    ("torch 2.9.0 instead of 2.8.0",),
)
RUN = QueuedRun(1, 1, "an experiment", "FedOT", 1, None, "auto", 10, None)


def test_pages_read_what_the_worker_wrote(db: Path):
    store = Store(db)
    assert cluster_nodes.read(store) is None
    cluster_nodes.write(store, [SMALL, LARGE])
    small, large = cluster_nodes.read(store) or []
    assert small.pools == ("small/cpu",) and small.missing == ("/data/pacs",)
    assert large.pools == ("large/gpu", "large/cpu") and large.notes == ("torch 2.9.0 instead of 2.8.0",)
    assert large.devices_of("large/gpu") == [CARD] and large.devices_of("large/cpu") == [PROCESSOR]
    cluster_nodes.clear(store)
    assert cluster_nodes.read(store) is None


def test_an_old_file_says_nothing_as_its_worker_is_gone(db: Path):
    store = Store(db)
    cluster_nodes.write(store, [SMALL])
    written = cluster_nodes._path(store).stat().st_mtime
    assert cluster_nodes.read(store, now=written + 1) is not None
    assert cluster_nodes.read(store, now=written + 60) is None


@pytest.mark.parametrize(
    ("run", "states", "expected"),
    [
        (RUN, [SMALL], "a free slot on small/cpu"),
        (RUN, [SMALL, LARGE], "a free slot on large/gpu"),  # the CPU is for those who ask for it
        (RUN._replace(requested_device="cpu"), [SMALL, LARGE], "a free slot on small/cpu or large/cpu"),
        (RUN._replace(requested_device="GPU-1"), [SMALL, LARGE], "a free slot on large/gpu"),
        (RUN._replace(requested_device="GPU-9"), [SMALL, LARGE], "a node with the device GPU-9"),
        (RUN._replace(needs=("/data/pacs",)), [SMALL], "a node that has the folder /data/pacs"),
        (RUN, [replace(SMALL, problem="it has not reported yet")], "a node that can be used"),
    ],
)
def test_what_a_queued_run_waits_for(db: Path, run: QueuedRun, states: list[NodeState], expected: str):
    cluster_nodes.write(Store(db), states)
    assert cluster_nodes.waits_for(run, cluster_nodes.read(Store(db)) or []) == expected


@pytest.mark.parametrize(
    ("run", "states", "expected"),
    [
        (RUN, [SMALL], "the run before it"),
        (RUN, [SMALL, LARGE], "2 GPUs; the nodes have 1"),
        (
            RUN._replace(requested_device="small"),
            [SMALL],
            "a worker that gives whole runs to the device small",
        ),
        (RUN._replace(needs=("/data/pacs",)), [SMALL], "the folder /data/pacs on every node"),
    ],
)
def test_what_a_run_over_two_devices_waits_for(
    db: Path, run: QueuedRun, states: list[NodeState], expected: str
):
    store = Store(db)
    assert cluster_nodes.read_over(store) is None
    cluster_nodes.write(store, states, over=2)
    assert cluster_nodes.read_over(store) == 2
    assert cluster_nodes.waits_for(run, cluster_nodes.read(store) or [], 2) == expected
