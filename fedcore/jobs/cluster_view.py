"""The nodes of a Ray cluster as pages show them, from a small file that the worker writes.

Pages never import Ray. The worker rewrites the file each time it has asked the nodes; pages ignore an old
one, so that they do not show a cluster after its worker has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.devices import CPU, Device
from fedcore.jobs.pools import NODE_KINDS
from fedcore.store import Store
from fedcore.store.queue import QueuedRun

if TYPE_CHECKING:
    from fedcore.jobs.cluster_watch import NodeState

NAME = "nodes.json"
FRESH_SECONDS = 20.0


@dataclass(frozen=True)
class NodeView:
    """A node as pages show it.

    Attributes:
        pools: names under which its runs are stored and its slots are set.
        missing: folders of data sets that queued runs need and that it cannot read.
        problem: the reason why runs cannot start there; None if they can.
        notes: differences of versions that its runs record.
    """

    name: str
    address: str
    cpus: int
    gpus: int
    pools: tuple[str, ...]
    devices: tuple[Device, ...]
    missing: tuple[str, ...]
    problem: str | None
    notes: tuple[str, ...]

    def devices_of(self, pool: str) -> list[Device]:
        """Return the devices of one of its pools."""
        return [d for d in self.devices if (d.id == CPU) == pool.endswith("/cpu")]


def write(store: Store, states: Sequence[NodeState], over: int | None = None) -> None:
    """Write the states of the nodes; a full disk is ignored, since pages then only show less.

    Args:
        over: devices over which each run is spread, if any.
    """
    nodes = [asdict(_view(state)) for state in states]
    path = _path(store)
    part = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"written": time.time(), "nodes": nodes, "over": over}), encoding="utf-8")
        part.replace(path)


def clear(store: Store) -> None:
    """Delete the file, as its worker leaves the cluster."""
    with suppress(OSError):
        _path(store).unlink()


def read(store: Store, now: float | None = None) -> list[NodeView] | None:
    """Return the nodes by name; None if no worker serves a cluster now.

    Args:
        now: seconds since 1970, default: the present.
    """
    try:
        content = json.loads(_path(store).read_text(encoding="utf-8"))
        if abs((time.time() if now is None else now) - content["written"]) > FRESH_SECONDS:
            return None
        return [_node(values) for values in content["nodes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_over(store: Store) -> int | None:
    """Return the number of devices over which the worker on a cluster spreads each run; None: it does not."""
    try:
        over = json.loads(_path(store).read_text(encoding="utf-8")).get("over")
    except (OSError, ValueError, AttributeError):
        return None
    return over if isinstance(over, int) else None


def waits_for(run: QueuedRun, nodes: Sequence[NodeView], over: int | None = None) -> str:
    """Say what a queued run waits for, in a few words.

    Args:
        over: devices over which each run is spread, if any.
    """
    usable = [node for node in nodes if node.problem is None]
    if not usable:
        return "a node that can be used"
    gpu = any(node.gpus for node in usable)
    if over is not None:
        return _waits_over(run, usable, over, gpu)
    pools = {pool: node for node in usable for pool in node.pools if _serves(pool, node, run, gpu)}
    if not pools:
        return f"a node with the device {run.requested_device}"
    with_data = [pool for pool, node in pools.items() if run.data_root not in node.missing]
    if not with_data:
        return f"a node that has the folder {run.data_root}"
    return "a free slot on " + " or ".join(with_data[:3]) + (" or another" if with_data[3:] else "")


def _waits_over(run: QueuedRun, usable: Sequence[NodeView], over: int, gpu: bool) -> str:
    """Say what a run that is spread over several devices waits for."""
    available = sum(node.gpus for node in usable) or sum(node.cpus for node in usable)
    if available < over:
        return f"{over} {'GPUs' if gpu else 'CPUs'}; the nodes have {available}"
    if run.requested_device not in (("auto", "gpu", "cuda") if gpu else ("auto", CPU)):
        return f"a worker that gives whole runs to the device {run.requested_device}"
    if any(run.data_root in node.missing for node in usable):
        return f"the folder {run.data_root} on every node"
    return "the run before it"


def _serves(pool: str, node: NodeView, run: QueuedRun, gpu_somewhere: bool) -> bool:
    wanted = run.requested_device
    if wanted in (pool, node.name):
        return True
    if pool.endswith("/cpu"):
        return wanted == CPU or (wanted == "auto" and not gpu_somewhere)
    return wanted in ("auto", "gpu", "cuda", *(d.id for d in node.devices_of(pool)))


def _path(store: Store) -> Path:
    return store.artifacts / NAME


def _view(state: NodeState) -> NodeView:
    node, report = state.node, state.report
    kinds = [kind for kind, number in zip(NODE_KINDS, (node.gpus, node.cpus), strict=True) if number]
    return NodeView(
        name=node.name,
        address=node.address,
        cpus=node.cpus,
        gpus=node.gpus,
        pools=tuple(f"{node.name}/{kind}" for kind in kinds),
        devices=report.devices if report else (),
        missing=report.missing if report else (),
        problem=state.problem,
        notes=state.notes,
    )


def _node(values: dict[str, object]) -> NodeView:
    fixed = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    fixed["devices"] = tuple(Device(**d) for d in values["devices"])  # type: ignore[attr-defined]
    return NodeView(**fixed)  # type: ignore[arg-type]
