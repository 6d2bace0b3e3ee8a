"""Runs on a Ray cluster: Ray reserves devices, and a thread of the supervisor records the events of each run.

A queued run is claimed once its devices are reserved. The events that its node sends are recorded as those of
a local process: by the same handler and ``job.execute``, with the same fencing and one transaction per round.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fedcore.base import devices
from fedcore.base.errors import Elsewhere, FedLensError
from fedcore.jobs import handlers
from fedcore.jobs.job import Heartbeat, execute
from fedcore.jobs.launcher import TASK_POOL, UNMEASURED_SHARE, LaunchedJob, ThisMachine
from fedcore.jobs.supervisor import serve
from fedcore.store import Store
from fedcore.store.jobs import RUNS, Claim
from fedcore.store.liveness import hold, let_go, new_owner
from fedcore.store.runs import QueuedRun
from fedlens_ray import connection, nodes
from fedlens_ray.connection import Node
from fedlens_ray.node import in_words
from fedlens_ray.nodes import (
    CPU_OF_NODE,
    GPU_OF_NODE,
    NODE_KINDS,
    NODES,
    ClusterView,
    ClusterWatch,
    NodeState,
)
from fedlens_ray.reservations import Request, Reservation, Reservations
from fedlens_ray.stream import RemoteEngine

POOL = "cluster"
AHEAD = 16
"""Reservations that wait at once, from which Ray's autoscaler learns how many nodes are needed."""
MEMORY_STEP = 2**28
"""Reserved memory is a multiple of this, so that a slightly higher measurement needs no other reservation."""
IDLE_SECONDS = 5.0
"""A supervisor that has not asked for so long, since it hands over or its disk is full, reserves nothing."""
RETRY_SECONDS = 30.0
"""Seconds between two attempts to join the chosen cluster."""
logger = logging.getLogger(__name__)


def request_of(
    run: QueuedRun,
    states: Sequence[NodeState],
    slots: Mapping[str, int],
    over: int | None = None,
    failed_on: str | None = None,
) -> Request | str:
    """Return what a queued run asks of Ray, or why it has to wait for another node.

    Args:
        slots: settings of the number of runs at once, see ``nodes.NODES``.
        failed_on: id of the node on which the run failed, which is left out if others can train it.
    """
    usable = [state for state in states if state.problem is None and state.report is not None]
    kind, having = _having(run.requested_device, usable)
    able = [state for state in having if state.report and set(run.needs) <= set(state.report.readable)]
    if having and not able:
        lacking = {need for s in having if s.report for need in run.needs if need not in s.report.readable}
        return f"a node that has {in_words(lacking)}"
    if not having and run.requested_device not in ("auto", devices.CPU, "gpu", "cuda"):
        return f"a node with the device {run.requested_device}"
    able = [state for state in able if state.node.id != failed_on] or able
    if kind == CPU_OF_NODE and over is None:
        able = [state for state in able if state.node.memory >= (run.needed_memory or 0)] or able
    without = frozenset(state.node.id for state in states) - {state.node.id for state in able}
    if kind == GPU_OF_NODE:
        shared = 1 if over else slots.get(f"{NODES}/{kind}", 1)
        cpus = min((s.node.cpus // (s.node.gpus * shared) for s in able), default=1)
        # an equal share of a GPU, or more if the run's memory needs more
        cards = [d.memory_total for s in able if s.report for d in s.report.devices if d.id != devices.CPU]
        share = 1.0
        if shared > 1 and cards:
            needed = UNMEASURED_SHARE if run.needed_memory is None else run.needed_memory / min(cards)
            share = round(min(1.0, max(1 / shared, needed)), 4)
        return Request(cpus, share, parts=over or 1, without=without)
    if over is not None:
        return Request(1, parts=over, without=without)
    cpus = min((s.node.cpus // slots.get(f"{NODES}/{kind}", 1) for s in able), default=1)
    smallest = min((s.node.memory for s in able), default=0)
    unmeasured = int(UNMEASURED_SHARE * smallest)
    memory = unmeasured if run.needed_memory is None else -(-run.needed_memory // MEMORY_STEP) * MEMORY_STEP
    return Request(max(1, cpus), memory=min(memory, smallest), without=without)


def _having(asked: str, usable: Sequence[NodeState]) -> tuple[str, list[NodeState]]:
    """Return the kind of device that a run gets, and the nodes that have it."""
    gpus, cpus = [s for s in usable if s.node.gpus], [s for s in usable if s.node.cpus]
    if asked in ("gpu", "cuda") or (asked == "auto" and gpus):
        return GPU_OF_NODE, gpus
    if asked in ("auto", devices.CPU):
        return CPU_OF_NODE, cpus
    for kind, found in ((GPU_OF_NODE, gpus), (CPU_OF_NODE, cpus)):
        cards = {s.name: [d.id for d in s.devices_of("/gpu")] if kind == GPU_OF_NODE else [] for s in found}
        if named := [s for s in found if asked in (s.name, f"{s.name}/{kind}", *cards[s.name])]:
            return kind, named
    return CPU_OF_NODE, []


class Cluster:
    """Where a supervisor on a cluster starts jobs: runs there, tasks on this machine.

    Args:
        over: devices over which each run is spread; None: one device trains each run.
        shared: the folder through which checkpoints travel; None: Ray's object store.
    """

    def __init__(
        self,
        store: Store,
        watch: ClusterWatch,
        over: int | None = None,
        engine: type[RemoteEngine] = RemoteEngine,
        shared: Path | None = None,
    ) -> None:
        self._store, self._watch, self._over, self._engine, self._shared = store, watch, over, engine, shared
        self.reservations = Reservations(watch.ray)
        self._local = ThisMachine(())
        self._wanted: list[tuple[QueuedRun, Request]] = []
        self._taken: dict[str, Reservation] = {}
        self._failed_on: dict[int, str] = {}
        self._served: list[int] = []
        self._asked = time.monotonic()
        self._ended = threading.Event()
        watch.listen = self._look

    def _look(self, states: Sequence[NodeState]) -> None:
        """Ask Ray for what the next runs need, and tell the pages; called by the watch, in its thread."""
        slots, wanted, waits = self._store.queue.slots(), list[tuple[QueuedRun, Request]](), dict[int, str]()
        starts = time.monotonic() - self._asked < IDLE_SECONDS
        for run in self._next_runs() if starts else ():
            request = request_of(run, states, slots, self._over, self._failed_on.get(run.id))
            if isinstance(request, str):
                waits[run.id] = request
            elif len(wanted) < AHEAD:
                wanted.append((run, request))
            else:
                break
        self._wanted = wanted
        self.reservations.reconcile([request for _, request in wanted])
        usable = [state.node for state in states if state.problem is None]
        for run, request in wanted:
            able = [node for node in usable if node.id not in request.without]
            there = sum(node.gpus if request.gpus else node.cpus for node in able)
            if not usable:
                waits[run.id] = "a node that can be used"
            elif there < request.parts:  # Ray sees that each part fits, and not that they do not all fit
                waits[run.id] = f"{request}; the nodes that can train it have {there}"
            else:
                waits[run.id] = self.reservations.waits_for(request)
        shared = None if self._shared is None else str(self._shared)
        nodes.write(self._store, ClusterView([*states], self._over, shared, waits))

    def _next_runs(self) -> Iterator[QueuedRun]:
        order = self._store.queue.in_turns(self._served)
        while ids := list(islice(order, AHEAD)):
            yield from self._store.queue.runs(ids)

    def names(self) -> Sequence[str]:
        return (POOL, TASK_POOL)

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        """Claim the next run for which Ray has reserved devices."""
        if pool == TASK_POOL:
            return self._local.claim(store, pool, running)
        self._asked = time.monotonic()
        usable = {state.node.id: state.node for state in self._watch.states() if state.problem is None}
        for run, request in self._wanted:
            reservation = self.reservations.take(request, usable)
            if reservation is None:
                continue
            kind = GPU_OF_NODE if request.gpus else CPU_OF_NODE
            device = f"{usable[reservation.node_ids[0]].name}/{kind}"
            asked = (run.requested_device,)
            claim = store.jobs.claim(new_owner(), device, RUNS, accepts=asked, number=run.id)
            if claim is None:  # it was stopped, or claimed after the last look
                self.reservations.give_back(reservation)
                continue
            self._served = [*(e for e in self._served if e != run.experiment_id), run.experiment_id]
            self._taken[claim.owner] = reservation
            return claim
        return None

    def launch(self, claim: Claim, pool: str) -> LaunchedJob:
        if pool == TASK_POOL:
            return self._local.launch(claim, pool)
        reservation = self._taken.pop(claim.owner)
        try:
            found = {state.node.id: state.node for state in self._watch.states()}
            if not found.keys() >= set(reservation.node_ids):
                raise ConnectionResetError("a node of its reservation has left")
            place, key = found[reservation.node_ids[0]], f"run-{claim.id}-{claim.attempt}"
            failed = partial(self._failed, claim.id, place)
            engine = self._engine(self._watch.ray, reservation, place, key, self._shared, failed)
            return ClusterJob(claim, place, engine, partial(self._release, reservation))
        except BaseException:
            self.reservations.give_back(reservation, is_over=True)
            raise

    def adopt(self, store: Store, row: Mapping[str, Any]) -> LaunchedJob:
        """Take over a task of this machine; runs on nodes end with the supervisor that records them."""
        # If that supervisor dies, the owner's lock is free, the run is marked as interrupted, and Ray ends
        # the task of a process that has left the cluster: nothing is left that could be adopted.
        return self._local.adopt(store, row)

    def wait(self, seconds: float) -> None:
        """Wait until a run has ended: Ray may end its process, which the next run can use, after a second."""
        self._ended.wait(seconds)
        self._ended.clear()

    def _release(self, reservation: Reservation, is_over: bool) -> None:
        self.reservations.give_back(reservation, is_over)
        self._ended.set()

    def _failed(self, run_id: int, place: Node, fault: Elsewhere) -> None:
        """Let a node rest after a fault, and leave the run that met it to other nodes."""
        self._failed_on[run_id] = place.id
        self._watch.rest(place.id, fault.reason)
        logger.warning("the node %s rests: %s", place.name, fault.reason)


class ClusterJob:
    """A run on a node, and the thread that records its events; ``release`` gives its reservation back."""

    def __init__(self, claim: Claim, place: Node, engine: RemoteEngine, release: Callable[..., None]) -> None:
        self._claim, self._place, self._engine, self._release = claim, place, engine, release
        self._ending = threading.Event()
        hold(claim.db, claim.owner)
        self._thread = threading.Thread(target=self._record, name=f"run {claim.id}", daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def exit_reason(self) -> None:
        """The thread has recorded the reason already, if it could."""

    def terminate(self) -> bool:
        self._ending.set()
        return True

    def _record(self) -> None:
        claim, outcome = self._claim, "unrecorded"
        try:
            with Heartbeat(Store(claim.db)) as heartbeat:
                outcome = execute(
                    claim,
                    heartbeat,
                    handler=partial(handlers.train, engine=self._engine),
                    device=self._engine.device,
                    terminated=self._ending.is_set,
                    memory=lambda: self._engine.peak_memory,
                    elsewhere=True,
                )
            logger.info("run %d on %s: %s", claim.id, self._place.name, outcome)
        finally:
            self._release(is_over=outcome != "done")
            let_go(claim.db, claim.owner, keep_file=outcome == "unrecorded")


def serve_on_cluster(
    db: str | Path | None,
    address: str,
    *,
    slots: int | None = None,
    idle: float | None = None,
    shared: Path | None = None,
    over: int | None = None,
    **options: Any,
) -> int:
    """Be the database's supervisor, with the nodes of a Ray cluster as its devices.

    If another supervisor serves the database, it is asked to leave once its jobs have ended.

    Args:
        slots: as ``serve`` takes them, for the CPU of a node and each GPU.
        idle: seconds without work after which it leaves; None: never.
        shared: a folder that this machine and the nodes see, through which checkpoints then travel.
        options: of ``serve``.
    """
    store = Store(db)
    store.prepare()
    watch = ClusterWatch(address, needs=lambda: tuple(store.queue.needs()), shared=shared)
    before = nodes.read(store)

    def machines(store: Store) -> Cluster:
        if before is not None and before.shared is not None and shared is None:
            logger.warning(
                "the worker before this one sent checkpoints through %s; this one has no --shared and sends "
                "them through Ray",
                before.shared,
            )
        if slots is not None:
            for kind in NODE_KINDS:
                store.queue.set_slots(f"{NODES}/{kind}", slots)
        return Cluster(store, watch, over, shared=shared)

    try:
        patience = math.inf if idle is None else idle
        return serve(db, machines=machines, wait=True, idle=patience, **options)
    finally:
        watch.close()
        nodes.clear(store)


def serve_chosen(
    db: str | Path | None, *, slots: int | None = None, over: int | None = None, **options: Any
) -> int | None:
    """Be the supervisor on the cluster that was chosen on the page, until another one is; None if none was.

    While it cannot be joined, the page says why, runs wait, and the dashboard starts another attempt.
    """
    store = Store(db)
    wanted = connection.chosen(store.path)
    if wanted is None:
        return None
    store.prepare()

    def retire() -> bool:
        return connection.chosen(store.path) != wanted or time.monotonic() > end

    end = math.inf
    try:
        connection.connect(wanted.address)
    except FedLensError as error:
        connection.record_problem(store.path, wanted.address, str(error))
        logger.warning("%s", error)
        end = time.monotonic() + RETRY_SECONDS
        # no devices, so runs wait; the tasks, which need no cluster, are executed
        here = ThisMachine(())
        return serve(db, machines=lambda _: here, wait=True, retire=retire, **options)
    connection.record_problem(store.path, wanted.address, None)
    over = wanted.over if over is None else over
    return serve_on_cluster(db, wanted.address, slots=slots, over=over, retire=retire, **options)
