"""A thread that keeps the connection to a Ray cluster and knows its nodes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcore.cluster import connection, node
from fedcore.cluster.connection import Node
from fedcore.cluster.node import NodeReport
from fedcore.cluster.parcel import marked
from fedcore.errors import first_line

LOOK_SECONDS = 1.0
REPORT_SECONDS = 5.0
SILENT_SECONDS = 20.0
"""After this long without an answer of the head, or of a node, no run is started there."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeState:
    """A node and what is known about it.

    Attributes:
        report: the newest; None before the first.
        problem: why no run starts there, in one line; None if runs may start.
        notes: differences of versions that a run notes and that do not keep it from the node.
    """

    node: Node
    report: NodeReport | None = None
    problem: str | None = "it has not reported yet"
    notes: tuple[str, ...] = ()


class ClusterWatch:
    """Knows the nodes of a cluster, from a thread of its own: a head that is gone lets callers wait.

    Args:
        address: of the head, or ``auto``.
        folders: returns the folders of the data sets that queued runs will read.
        shared: the folder through which checkpoints travel, which nodes have to see; None: there is none.
        listen: called with the states after each look, in the thread.

    Raises:
        FedLensError: when the cluster cannot be joined.
    """

    def __init__(
        self,
        address: str,
        folders: Callable[[], tuple[str, ...]] = tuple,
        listen: Callable[[list[NodeState]], None] = lambda states: None,
        shared: Path | None = None,
    ) -> None:
        with ExitStack() as opened:
            self._shared, self._marker = shared, opened.enter_context(marked(shared)) if shared else None
            self.ray = connection.connect(address)
            self._opened = opened.pop_all()
        self._folders, self._listen = folders, listen
        self._ours = node.versions()
        self._states: dict[str, NodeState] = {}
        self._asked: dict[str, tuple[float, tuple[str, ...], Any]] = {}
        self._looked = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._thread.start()

    def states(self) -> list[NodeState]:
        """Return the nodes by name; none while the head does not answer."""
        if time.monotonic() - self._looked > SILENT_SECONDS:
            return []
        return sorted(self._states.values(), key=lambda state: state.node.name)

    def state_of(self, node_id: str) -> NodeState | None:
        """Return what is known about a node; None when it has left."""
        return self._states.get(node_id)

    def close(self) -> None:
        """Leave the cluster."""
        self._end.set()
        self._thread.join(timeout=5)
        self._opened.close()
        connection.disconnect()

    def _watch(self) -> None:
        reported = None
        while not self._end.wait(0 if self._looked == 0 else LOOK_SECONDS):
            try:
                self._look()
                reported = None
            except Exception as error:  # noqa: BLE001 - Ray's have no common class, and nobody else would look
                if str(error) != reported:
                    logger.error("the nodes cannot be looked at: %s", first_line(error))
                reported = str(error)

    def _look(self) -> None:
        """Ask Ray for its nodes, and the nodes for reports, without waiting for these."""
        nodes = {n.id: n for n in connection.list_nodes(self.ray)}
        self._states = {i: replace(self._states.get(i, NodeState(n)), node=n) for i, n in nodes.items()}
        self._asked = {i: asked for i, asked in self._asked.items() if i in nodes}
        folders = tuple(self._folders())
        for node_id in nodes:
            self._receive(node_id, folders)
        self._looked = time.monotonic()
        self._listen(self.states())

    def _receive(self, node_id: str, folders: tuple[str, ...]) -> None:
        """Take the report of a node, where there is one, and ask for the next in time, or for new folders."""
        asked, known, pending = self._asked.get(node_id, (0.0, (), None))
        if pending is not None and self.ray.wait([pending], timeout=0)[0]:
            self._states[node_id] = self._described(self._states[node_id].node, pending)
            self._asked[node_id] = (asked, known, None)
            pending = None
        elif self._states[node_id].report is not None and time.monotonic() - asked > SILENT_SECONDS:
            problem = f"it has not answered for {SILENT_SECONDS:.0f} s; is its network down?"
            self._states[node_id] = replace(self._states[node_id], problem=problem)
        due = time.monotonic() - asked >= REPORT_SECONDS or not set(folders) <= set(known)
        if pending is None and due:
            self._asked[node_id] = (time.monotonic(), folders, self._ask(node_id, folders))

    def _ask(self, node_id: str, folders: tuple[str, ...]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        task = self.ray.remote(node.report).options(
            name="fedlens report", num_cpus=0, max_retries=0, scheduling_strategy=strategy
        )
        return task.remote(folders, os.getcwd(), self._marker)

    def _described(self, place: Node, pending: Any) -> NodeState:
        """Compare what a node reports with this machine."""
        try:
            report: NodeReport = self.ray.get(pending)
        except self.ray.exceptions.RayError as error:
            return NodeState(place, problem=f"FedLens does not answer there ({first_line(error)})")
        theirs = report.versions
        if theirs["fedlens"] != self._ours["fedlens"]:
            problem = (
                f"it has FedLens {theirs['fedlens']}, the worker {self._ours['fedlens']}; install the same"
            )
            return NodeState(place, report, problem)
        if not report.shares:
            problem = f"it does not see the folder {self._shared}, or cannot write there; mount it"
            return NodeState(place, report, problem)
        return NodeState(place, report, None, tuple(node.differences(self._ours, theirs)))
