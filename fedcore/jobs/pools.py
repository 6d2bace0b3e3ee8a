"""Pools of slots in which jobs run: one per device, whose memory its runs share, and one for tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedcore import devices
from fedcore.devices import Device
from fedcore.errors import FedLensError
from fedcore.progress import counted
from fedcore.store import Store
from fedcore.store.jobs import RUNS, TASKS, Claim
from fedcore.store.liveness import new_owner

TASK_POOL, TASK_SLOTS = "tasks", 2
"""Tasks have a separate pool, so that a check does not wait for hours of training."""
UNMEASURED_SHARE = 0.5
"""Share of a device's memory that a run is assumed to need before any run of its setting was measured."""
NODE_KINDS = GPU_OF_NODE, CPU_OF_NODE = ("gpu", "cpu")
"""Kinds of devices of a cluster's nodes; the device of a run on the node ``alpha`` is ``alpha/gpu``."""
NODES = "nodes"
"""In the settings of the number of runs at once, ``nodes/gpu`` is each GPU of a cluster."""


def is_on_a_node(device: str | None) -> bool:
    """Return whether a run's device belongs to a node of a cluster, not to this machine."""
    name, _, kind = (device or "").rpartition("/")
    return bool(name) and kind in NODE_KINDS


class Pools(Protocol):
    """The pools of a supervisor; they decide which jobs start in them."""

    def names(self) -> Sequence[str]:
        """Return the pools in which jobs may start now, in the order of filling."""

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        """Claim the next job that fits into a pool beside its ``running`` jobs; None if none does."""


class LocalPools:
    """The devices of this machine, and the pool of the tasks."""

    def __init__(self, device_ids: Sequence[str]) -> None:
        self.device_ids = tuple(device_ids)
        self._gpu = next((d for d in self.device_ids if d != devices.CPU), None)

    def names(self) -> Sequence[str]:
        return (*self.device_ids, TASK_POOL)

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        return claim_next(store, pool, running, self._gpu)


def claim_next(store: Store, pool: str, running: int, first_gpu: str | None) -> Claim | None:
    """Claim the next job that may start in a pool; None if none is queued, or none fits.

    Args:
        pool: a device, or ``TASK_POOL``.
        running: jobs that occupy slots there.
        first_gpu: None on a machine without a GPU, whose CPU then serves runs for any device.
    """
    if pool == TASK_POOL:
        return store.jobs.claim(new_owner(), pool, TASKS) if running < TASK_SLOTS else None
    accepts = devices.accepts(pool, first_gpu)
    if running and not _has_room(store, pool, running, accepts):
        return None
    return store.jobs.claim(new_owner(), pool, RUNS, accepts=accepts)


def _has_room(store: Store, device: str, running: int, accepts: tuple[str, ...]) -> bool:
    """Return whether the next queued run may start beside those that run on a device."""
    if running >= store.queue.slots().get(device, 1):
        return False
    waiting = store.jobs.next_run(accepts)
    facts = next((d for d in devices.list_devices() if d.id == device), None)
    return waiting is not None and facts is not None and fits(store, facts, waiting)


def fits(store: Store, device: Device, waiting: int) -> bool:
    """Return whether a queued run fits into a device's memory beside those that run there.

    A run needs the peak memory of earlier runs of its setting (its config without the seed); if none was
    measured, half of the device.

    Args:
        waiting: the queued run's id.
    """
    unmeasured = int(UNMEASURED_SHARE * device.memory_total)
    needs = store.queue.memory_needs(device.id, waiting)
    return sum(unmeasured if need is None else need for need in needs) <= (
        device.memory_total - device.memory_used
    )


class SpreadPools:
    """One pool for runs, each of which is spread over devices of this machine, and the pool of the tasks.

    Without a GPU, ``over`` processes share the CPU.

    Raises:
        FedLensError: field ``over``, if there are fewer GPUs.
    """

    def __init__(self, over: int) -> None:
        gpus = sum(d.id != devices.CPU for d in devices.list_devices())
        if 0 < gpus < over:
            fewer = f"choose at most {gpus} devices per run" if gpus > 1 else "choose whole runs"
            raise FedLensError(f"this machine has {counted(gpus, 'GPU')}, not {over}; {fewer}", "over")
        self._accepts = ("auto", "gpu", "cuda") if gpus else ("auto", devices.CPU)
        self._device = devices.default_device()

    def names(self) -> Sequence[str]:
        """Return the device that aggregates, and the pool of the tasks."""
        return (self._device, TASK_POOL)

    def claim(self, store: Store, pool: str, running: int) -> Claim | None:
        """Claim the next run once no other trains."""
        if pool == TASK_POOL:
            return claim_next(store, pool, running, None)
        return None if running else store.jobs.claim(new_owner(), pool, RUNS, accepts=self._accepts)
