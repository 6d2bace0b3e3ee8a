"""Runs on a Ray cluster: each node is a pool, and a thread of the supervisor records the events of each run.

``fedcore.cluster`` asks a node to train. Its events are recorded as those of a local process: by the same
handler and ``job.execute``, with the same fencing and one transaction per round.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedcore import devices
from fedcore.cluster import choice, connection
from fedcore.cluster.connection import Node, list_nodes
from fedcore.cluster.node import NodeReport
from fedcore.cluster.stream import RemoteEngine, Share
from fedcore.devices import Device
from fedcore.errors import FedLensError
from fedcore.jobs import cluster_nodes, training
from fedcore.jobs.cluster_nodes import ClusterWatch, NodeState
from fedcore.jobs.job import Heartbeat, execute
from fedcore.jobs.launcher import LaunchedJob, LocalLauncher, launcher_over
from fedcore.jobs.pools import NODE_KINDS, TASK_POOL, Capacity, LocalPools, SpreadPools, claim_next, fits
from fedcore.jobs.supervisor import Supervisor, serve
from fedcore.store import Store
from fedcore.store.jobs import RUNS, Claim
from fedcore.store.liveness import hold, let_go, new_owner
from fedcore.system_errors import Elsewhere

GPU, CPU = NODE_KINDS
RETRY_SECONDS = 30.0
"""Seconds between two attempts to join the chosen cluster."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodePool:
    """The CPU or the GPUs of a node; runs there are written to the store as ``node/cpu`` or ``node/gpu``."""

    node: Node
    kind: str
    report: NodeReport

    @property
    def name(self) -> str:
        """The name of the pool in runs, slots and pages."""
        return f"{self.node.name}/{self.kind}"

    def capacity(self, slots: Mapping[str, int]) -> int:
        """Return the number of runs at once: the slots that were set, times the node's GPUs."""
        return slots.get(self.name, 1) * (self.node.gpus if self.kind == GPU else 1)

    def share(self, slots: Mapping[str, int], memory: int = 0) -> Share:
        """Return the share of the node that one run gets; ``memory``: peak bytes of runs of its setting."""
        runs = self.capacity(slots)
        cpus = max(1, self.node.cpus // runs) if self.node.cpus else 0
        if self.kind == GPU:
            return Share(cpus, 1 / slots.get(self.name, 1))
        return Share(cpus, memory=min(memory, self.node.memory // runs))

    def has_free(self, slots: Mapping[str, int]) -> bool:
        """Return whether Ray can start a run now; another job of the cluster may hold the node."""
        share = self.share(slots)
        return self.node.free_cpus >= share.cpus and self.node.free_gpus >= share.gpus

    def devices(self) -> list[Device]:
        """Return the devices of the pool, as the node has reported them."""
        return [d for d in self.report.devices if (d.id == devices.CPU) == (self.kind == CPU)]

    def fits(self, store: Store, waiting: int) -> bool:
        """Return whether a queued run fits into a device's memory beside those that run there."""
        reported = self.devices()
        if not reported:
            return False
        if self.kind == CPU:
            return fits(store, replace(reported[0], id=self.name), waiting)
        share = reported[0].memory_total // store.queue.slots().get(self.name, 1)
        return (store.queue.needed_memory(waiting) or 0) <= share


def cluster_capacity(states: Sequence[NodeState], only_free: bool = False) -> Capacity:
    """Return the devices of a cluster's usable nodes.

    Args:
        only_free: leave out those that Ray has given to another job.
    """
    usable = [state for state in states if state.problem is None]
    gpus, cpus = sum(s.node.gpus for s in usable), sum(s.node.cpus for s in usable)
    if only_free:
        free = [
            min(s.node.free_gpus, s.node.gpus) if gpus else min(s.node.free_cpus, s.node.cpus) for s in usable
        ]
        return replace(cluster_capacity(states), count=sum(map(int, free)))
    readable = [set(s.report.readable if s.report else ()) for s in usable]
    common = set.intersection(*readable) if readable else set()
    return Capacity(gpus or cpus, gpus > 0, "the cluster", common)


class ClusterPools:
    """The pools of the nodes, and the pool of the tasks, which run on this machine."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
        self._failed_on: dict[int, str] = {}
        self._served: list[int] = []

    def failed(self, run_id: int, place: Node, fault: Elsewhere) -> None:
        """Let a node rest after a fault, and leave the run that met it to other nodes."""
        self._failed_on[run_id] = place.id
        self._watch.rest(place.id, fault.reason)
        logger.warning("the node %s rests: %s", place.name, fault.reason)

    def pools(self) -> dict[str, NodePool]:
        """Return the pools of the nodes that can be used now, by name; GPUs first."""
        found = [
            NodePool(state.node, kind, state.report)
            for kind in NODE_KINDS
            for state in self._watch.states()
            if state.problem is None
            and state.report
            and (state.node.gpus if kind == GPU else state.node.cpus)
        ]
        return {pool.name: pool for pool in found}

    def names(self) -> Sequence[str]:
        return (*self.pools(), TASK_POOL)

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        """Claim the next run whose data and weights the node can read and for which it has enough memory.

        A run stays queued until a report of the node says whether it can read them. One that failed on the
        node is left to another one that can train it.
        """
        if pool == TASK_POOL:
            return claim_next(store, pool, running, None)
        slots, found = store.queue.slots(), self.pools().get(pool)
        if found is None or running >= found.capacity(slots) or not found.has_free(slots):
            return None
        others = [self._served_by(other) for other in self.pools().values() if other.node.id != found.node.id]
        failed = [run_id for run_id, place in self._failed_on.items() if place == found.node.id]
        limits = self._served_by(found)
        limits["without"] = [
            run_id for run_id in failed if any(store.jobs.next_run(**o, number=run_id) for o in others)
        ]
        # Of the experiments whose runs have the highest priority, the one served least lately comes next.
        turns = store.jobs.next_experiments(**limits)
        if not turns:
            return None
        turn = min(turns, key=lambda e: self._served.index(e) if e in self._served else -1)
        waiting = store.jobs.next_run(**limits, experiment_id=turn)
        if waiting is None or (running and not found.fits(store, waiting)):
            return None
        self._served = [*(e for e in self._served if e != turn), turn]
        return store.jobs.claim(new_owner(), pool, RUNS, **limits, experiment_id=turn)

    def _served_by(self, pool: NodePool) -> dict[str, Any]:
        """Return which runs a pool serves: the devices that they may ask for, and what they may read."""
        has_gpu = any(other.kind == GPU for other in self.pools().values())
        accepts = cluster_nodes.accepts(pool.node.name, pool.kind, pool.report.devices, has_gpu)
        return {"accepts": accepts, "readable": pool.report.readable}


class ClusterLauncher:
    """Starts runs on nodes, and tasks as processes of this machine.

    Args:
        ray: the connected module.
        engine: trains a run on a node.
        shared: the folder through which checkpoints travel; None: Ray's object store.
    """

    def __init__(
        self,
        pools: ClusterPools,
        ray: Any,
        local: LocalLauncher | None = None,
        engine: type[RemoteEngine] = RemoteEngine,
        shared: Path | None = None,
    ) -> None:
        self._pools, self._ray, self._engine, self._shared = pools, ray, engine, shared
        self._local = local or LocalLauncher()

    def launch(self, claim: Claim, pool: str) -> LaunchedJob:
        if pool == TASK_POOL:
            return self._local.launch(claim, pool)
        found = self._pools.pools().get(pool)
        if found is None:
            raise ConnectionResetError(f"the node of {pool} has left")
        store = Store(claim.db)
        share = found.share(store.queue.slots(), store.queue.needed_memory(claim.id) or 0)
        failed = partial(self._pools.failed, claim.id, found.node)
        key = f"run-{claim.id}-{claim.attempt}"
        return ClusterJob(claim, found, self._engine(self._ray, found.node, share, key, self._shared, failed))

    def adopt(self, store: Store, row: Mapping[str, Any]) -> LaunchedJob:
        """Take over a task of this machine; runs on nodes end with the supervisor that records them."""
        # A run on a node is recorded by a thread of its supervisor, which holds the owner's lock. If that
        # supervisor dies, the lock is free, the run is marked as interrupted, and Ray ends the task of a
        # process that has left the cluster: nothing is left that could be adopted.
        return self._local.adopt(store, row)


class ClusterJob:
    """A run on a node, and the thread that records its events."""

    def __init__(self, claim: Claim, pool: NodePool, engine: RemoteEngine) -> None:
        self._claim, self._pool, self._engine = claim, pool, engine
        self._ending = threading.Event()
        hold(claim.db, claim.owner)
        self._thread = threading.Thread(target=self._record, name=f"run {claim.id}", daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def exit_reason(self) -> str | None:
        """Return None, because the thread has recorded the reason already, if it could."""
        return None

    def terminate(self) -> bool:
        """Ask it to end between two steps."""
        self._ending.set()
        return True

    def _record(self) -> None:
        claim, outcome = self._claim, "unrecorded"
        try:
            with Heartbeat(Store(claim.db)) as heartbeat:
                outcome = execute(
                    claim,
                    heartbeat,
                    handler=partial(training.train, engine=self._engine),
                    device=devices.CPU if self._pool.kind == CPU else self._pool.name,
                    terminated=self._ending.is_set,
                    remote_memory=self._engine.peak_memory,
                )
            logger.info("run %d on %s: %s", claim.id, self._pool.name, outcome)
        finally:
            let_go(claim.db, claim.owner, keep_file=outcome == "unrecorded")


def serve_on_cluster(
    db: str | Path | None,
    address: str,
    *,
    slots: int | None = None,
    idle: float | None = None,
    on_finish: str | None = None,
    shared: Path | None = None,
    over: int | None = None,
    **options: Any,
) -> int:
    """Be the database's supervisor, with the nodes of a Ray cluster as its devices.

    If another supervisor serves the database, it is asked to leave once its jobs have ended.

    Args:
        address: of the cluster's head, or ``auto`` for the cluster of this machine.
        slots: runs at once on the CPU of each node, and on each GPU; None: as stored.
        idle: seconds without work after which it leaves; None: never.
        on_finish: command or address that is notified when an experiment has ended.
        shared: a folder that this machine and the nodes see, through which checkpoints then travel.
        over: devices over which each run is spread, one run at a time; None: one device trains each run.
        options: of ``Supervisor``.
    """
    store = Store(db)
    store.prepare()
    serving = threading.Event()
    watch = ClusterWatch(
        address,
        needs=lambda: tuple(store.queue.needs()),
        listen=lambda states: cluster_nodes.write(store, states, over, shared) if serving.is_set() else None,
        shared=shared,
    )
    pools = ClusterPools(watch)

    shared_before = cluster_nodes.read_shared(store)

    def make(store: Store, **options: Any) -> Supervisor:
        serving.set()
        if shared_before is not None and shared is None:
            logger.warning(
                "the worker before this one sent checkpoints through %s; this one has no --shared and sends "
                "them through Ray", shared_before,
            )  # fmt: skip
        if over is not None:
            spread = SpreadPools(over, lambda: cluster_capacity(watch.states(), only_free=True))
            return Supervisor(store, pools=spread, launcher=launcher_over(over, address), **options)
        if slots is not None:
            for node in list_nodes(watch.ray):
                for kind in NODE_KINDS:
                    store.queue.set_slots(f"{node.name}/{kind}", slots)
        return Supervisor(
            store, pools=pools, launcher=ClusterLauncher(pools, watch.ray, shared=shared), **options
        )

    try:
        if over is not None:
            cluster_capacity([NodeState(node, problem=None) for node in list_nodes(watch.ray)]).check(over)
        patience = math.inf if idle is None else idle
        return serve(db, make=make, wait=True, on_finish=on_finish, idle=patience, **options)
    finally:
        watch.close()
        cluster_nodes.clear(store)


def serve_choice(db: str | Path | None, address: str, *, idle: float, **given: Any) -> int:
    """Be the supervisor on the cluster that was chosen on the page, until another one is chosen.

    While it cannot be joined, the page says why, runs wait, and the dashboard starts another attempt.

    Args:
        given: the other arguments of ``serve_on_cluster``.
    """
    store = Store(db)
    store.prepare()
    over = given.get("over")

    def another_was_chosen() -> bool:
        return (choice.chosen(store.path), choice.chosen_over(store.path)) != (address, over)

    end = time.monotonic() + RETRY_SECONDS
    try:
        ray = connection.connect(address)
        if over is not None:
            cluster_capacity([NodeState(node, problem=None) for node in list_nodes(ray)]).check(over)
    except FedLensError as error:
        choice.record_problem(store.path, address, str(error))
        logger.warning("%s", error)
        on_finish = given.get("on_finish")

        def retire() -> bool:
            return another_was_chosen() or time.monotonic() > end

        # no devices, so runs wait; the tasks, which need no cluster, are executed
        return serve(db, pools=LocalPools(()), wait=True, idle=idle, on_finish=on_finish, retire=retire)
    choice.record_problem(store.path, address, None)
    return serve_on_cluster(db, address, idle=idle, retire=another_was_chosen, **given)
