"""The nodes of a Ray cluster: a thread of the worker watches them, and pages show what it wrote to a file.

Pages never import Ray. The worker rewrites the file each time it has asked the nodes; pages ignore an old
one, so that they do not show a cluster after its worker has ended.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedcore.base.devices import CPU, Device
from fedcore.base.errors import Elsewhere, first_line
from fedcore.engine.environment import other_code
from fedcore.jobs.launcher import Rest
from fedcore.store import Store
from fedlens_ray import connection, node
from fedlens_ray.connection import Node
from fedlens_ray.node import NodeReport, marked

NAME = "nodes.json"
NODE_KINDS = GPU_OF_NODE, CPU_OF_NODE = ("gpu", "cpu")
"""Kinds of devices of nodes; the device of a run on the node ``alpha`` is ``alpha/gpu``."""
NODES = "nodes"
"""In the settings of the number of runs at once, ``nodes/gpu`` is each GPU of a cluster."""
FRESH_SECONDS = 20.0
LOOK_SECONDS = 0.5
REPORT_SECONDS = 5.0
SILENT_SECONDS = 20.0
"""After this time without an answer from the head, or from a node, no run is started there."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeState:
    """A node with its newest report, why runs cannot start there, and the other versions that it has."""

    node: Node
    report: NodeReport | None = None
    problem: str | None = "it has not reported yet"
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def text(self) -> str:
        """What pages say about it."""
        return self.problem or "; ".join(("ready", *self.notes, *self.node.held))

    @property
    def pools(self) -> tuple[str, ...]:
        """Names under which its runs are stored and its slots are set."""
        kinds = zip(NODE_KINDS, (self.node.gpus, self.node.cpus), strict=True)
        return tuple(f"{self.name}/{kind}" for kind, number in kinds if number)

    def devices_of(self, pool: str) -> list[Device]:
        found = self.report.devices if self.report else ()
        return [d for d in found if (d.id == CPU) == pool.endswith("/cpu")]


class ClusterWatch:
    """Watches the nodes of a cluster in a separate thread, since calls to a lost head block for a long time.

    Args:
        needs: returns the folders and weights that queued runs will read.
        shared: the shared folder for checkpoints, which nodes must be able to write.

    Attributes:
        listen: called with the states after each look, in the thread.
    """

    def __init__(
        self, address: str, needs: Callable[[], tuple[str, ...]] = tuple, shared: Path | None = None
    ) -> None:
        with ExitStack() as opened:
            self._marker = opened.enter_context(marked(shared)) if shared else None
            self.ray = connection.connect(address)
            self._opened = opened.pop_all()
        self._needs = needs
        self.listen: Callable[[list[NodeState]], None] = lambda states: None
        self._ours = node.versions()
        self._states: dict[str, NodeState] = {}
        self._asked: dict[str, tuple[float, tuple[str, ...], bool, Any]] = {}
        self._reporters: dict[str, Any] = {}
        self._rests: dict[str, Rest] = {}
        self._looked = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._thread.start()

    def states(self) -> list[NodeState]:
        """Return the nodes by name; none while the head does not answer."""
        if time.monotonic() - self._looked > SILENT_SECONDS:
            return []
        states = sorted(self._states.values(), key=lambda state: state.name)
        rests = {i: rest for i, rest in tuple(self._rests.items()) if rest.reason}
        return [replace(s, problem=rests[s.node.id].reason) if s.node.id in rests else s for s in states]

    def rest(self, node_id: str, reason: str) -> Rest:
        """Start no runs on a node after a fault, until it has rested and passed a trial."""
        rest = self._rests[node_id] = Rest.after(self._rests.get(node_id), reason)
        return rest

    def close(self) -> None:
        self._end.set()
        self._thread.join(timeout=5)
        self._opened.close()
        self.ray.shutdown()  # which ends the tasks of this process that still run

    def _watch(self) -> None:
        reported = None
        while not self._end.wait(LOOK_SECONDS):
            try:
                # Ask Ray for its nodes, and the nodes for reports, without waiting for the reports.
                names = {node_id: state.node.name for node_id, state in self._states.items()}
                nodes = {n.id: n for n in connection.list_nodes(self.ray, names)}
                states = {i: replace(self._states.get(i, NodeState(n)), node=n) for i, n in nodes.items()}
                self._states = states
                for gone in self._reporters.keys() - nodes.keys():
                    del self._reporters[gone]
                    self._asked.pop(gone, None)
                needs = tuple(self._needs())
                for node_id in nodes:
                    self._receive(node_id, needs)
                self._looked = time.monotonic()
                self.listen(self.states())
                reported = None
            except Exception as error:  # noqa: BLE001 - Ray's have no common class, and the thread must live on
                if str(error) != reported:
                    logger.error("the nodes cannot be looked at: %s", first_line(error))
                reported = str(error)

    def _receive(self, node_id: str, needs: tuple[str, ...]) -> None:
        """Take the report of a node if it has arrived, and request the next one if it is due.

        A report is due after a while, and at once if runs with other needs were queued. With the first one,
        and at the end of a rest, the node's devices are tried.
        """
        asked, requested, trial, pending = self._asked.get(node_id, (0.0, (), False, None))
        rest = self._rests.get(node_id)
        if pending is not None and self.ray.wait([pending], timeout=0)[0]:
            state = self._described(self._states[node_id].node, pending)
            self._states[node_id] = state
            self._asked[node_id] = (asked, requested, trial, None)
            pending = None
            if trial and rest is not None and rest.until <= asked:  # no fault came after the question
                if state.problem is None:
                    rest = self._rests[node_id] = replace(rest, reason=None)
                else:
                    rest = self.rest(node_id, state.problem)
        elif self._states[node_id].report is not None and time.monotonic() - asked > SILENT_SECONDS:
            problem = f"it has not answered for {SILENT_SECONDS:.0f} s; is its network down?"
            self._states[node_id] = replace(self._states[node_id], problem=problem)
        due = time.monotonic() - asked >= REPORT_SECONDS or not set(needs) <= set(requested)
        if pending is None and due:
            is_over = rest is not None and rest.reason is not None and rest.until <= time.monotonic()
            node = self._states[node_id].node
            trial = is_over or (node.gpus > 0 and self._states[node_id].report is None)
            self._asked[node_id] = (time.monotonic(), needs, trial, self._ask(node, needs, trial))

    def _ask(self, place: Node, needs: tuple[str, ...], trial: bool) -> Any:
        reporter = self._reporters.get(place.id)
        if reporter is None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            strategy = NodeAffinitySchedulingStrategy(place.id, soft=False)
            made = self.ray.remote(node.Reporter).options(num_cpus=0, scheduling_strategy=strategy)
            reporter = self._reporters[place.id] = made.remote()
        return reporter.report.remote(needs, os.getcwd(), self._marker, place.gpus, trial)

    def _described(self, place: Node, pending: Any) -> NodeState:
        """Compare a node's report with this machine."""
        try:
            report: NodeReport = self.ray.get(pending)
        except self.ray.exceptions.RayError as error:
            self._reporters.pop(place.id, None)
            cause = getattr(error, "cause", None)  # what FedLens raised there, or the import of it
            why = first_line(cause) if cause else f"Ray calls it {type(error).__name__}"
            return NodeState(place, problem=f"FedLens does not answer there ({why})")
        theirs = report.versions
        try:
            other_code("it", theirs["code"])
        except Elsewhere as refused:
            return NodeState(place, report, str(refused))
        return NodeState(place, report, report.problem, tuple(node.differences(self._ours, theirs)))


@dataclass(frozen=True)
class ClusterView:
    """A cluster as pages show it.

    Attributes:
        over: devices over which the worker spreads each run; None: one device trains it.
        waits: what the next queued runs wait for, by id; the others wait for these.
        written: time, in seconds since 1970.
    """

    nodes: list[NodeState]
    over: int | None = None
    shared: str | None = None
    waits: dict[int, str] = field(default_factory=dict)
    written: float = field(default_factory=time.time)


_VIEW = TypeAdapter(ClusterView)


def write(store: Store, view: ClusterView) -> None:
    """Write the cluster for pages; a full disk is ignored, since pages then only show less."""
    path = _path(store)
    part = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(_VIEW.dump_json(view))
        part.replace(path)


def clear(store: Store) -> None:
    """Delete the file, as its worker leaves the cluster."""
    with suppress(OSError):
        _path(store).unlink()


def read(store: Store, now: float | None = None) -> ClusterView | None:
    """Return the cluster; None if no worker serves one now."""
    try:
        view = _VIEW.validate_json(_path(store).read_bytes())
    except (OSError, ValueError):
        return None
    is_fresh = abs((time.time() if now is None else now) - view.written) <= FRESH_SECONDS
    return view if is_fresh else None


def _path(store: Store) -> Path:
    return store.artifacts / f"{store.path.name}.{NAME}"  # several databases may share the folder
