"""A thread that keeps the connection to a Ray cluster and the states of its nodes."""

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
from fedcore.cluster.transfer import marked
from fedcore.errors import first_line

LOOK_SECONDS = 1.0
REPORT_SECONDS = 5.0
SILENT_SECONDS = 20.0
"""After this time without an answer from the head, or from a node, no run is started there."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeState:
    """The state of a node.

    Attributes:
        report: the newest; None before the first.
        problem: the reason why runs cannot start there, in one line; None if they can.
        notes: differences of versions that a run records, but that do not exclude the node.
    """

    node: Node
    report: NodeReport | None = None
    problem: str | None = "it has not reported yet"
    notes: tuple[str, ...] = ()


class ClusterWatch:
    """Watches the nodes of a cluster in a separate thread, since calls to a lost head block for a long time.

    Args:
        address: of the head, or ``auto``.
        folders: returns the folders of the data sets that queued runs will read.
        shared: the shared folder for checkpoints, which nodes must be able to write; None: none is used.
        listen: called with the states after each update, in the thread.

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
        """Return the state of a node; None if it has left."""
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
            except Exception as error:  # noqa: BLE001 - Ray's have no common class, and the thread must live on
                if str(error) != reported:
                    logger.error("the nodes cannot be looked at: %s", first_line(error))
                reported = str(error)

    def _look(self) -> None:
        """Ask Ray for its nodes, and the nodes for reports, without waiting for the reports."""
        nodes = {n.id: n for n in connection.list_nodes(self.ray)}
        self._states = {i: replace(self._states.get(i, NodeState(n)), node=n) for i, n in nodes.items()}
        self._asked = {i: asked for i, asked in self._asked.items() if i in nodes}
        folders = tuple(self._folders())
        for node_id in nodes:
            self._receive(node_id, folders)
        self._looked = time.monotonic()
        self._listen(self.states())

    def _receive(self, node_id: str, folders: tuple[str, ...]) -> None:
        """Take the report of a node if it has arrived, and request the next one if it is due.

        A report is due after a while, and at once if runs with other folders were queued.
        """
        asked, requested, pending = self._asked.get(node_id, (0.0, (), None))
        if pending is not None and self.ray.wait([pending], timeout=0)[0]:
            self._states[node_id] = self._described(self._states[node_id].node, pending)
            self._asked[node_id] = (asked, requested, None)
            pending = None
        elif self._states[node_id].report is not None and time.monotonic() - asked > SILENT_SECONDS:
            problem = f"it has not answered for {SILENT_SECONDS:.0f} s; is its network down?"
            self._states[node_id] = replace(self._states[node_id], problem=problem)
        due = time.monotonic() - asked >= REPORT_SECONDS or not set(folders) <= set(requested)
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
        """Compare a node's report with this machine."""
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
