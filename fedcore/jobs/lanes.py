"""The lanes in which jobs run: the devices, whose memory runs share, and one for tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedcore import devices
from fedcore.devices import Device
from fedcore.errors import FedLensError
from fedcore.store import Store
from fedcore.store.jobs import RUNS, TASKS, Claim
from fedcore.store.liveness import new_owner

if TYPE_CHECKING:
    from fedcore.jobs.cluster_watch import NodeState

TASK_LANE, TASK_SLOTS = "tasks", 2
"""The lane of the tasks, beside the devices, so that a check does not wait for hours of training."""
UNMEASURED_SHARE = 0.5
"""Share of a device's memory that a run is assumed to need before any run of its setting was measured."""


NODE_KINDS = ("gpu", "cpu")
"""Kinds of lanes on a node of a cluster, the first to be filled first; the lane is ``node/kind``."""


def is_on_a_node(device: str | None) -> bool:
    """Return whether a run's device is on a node of a cluster, where no process of this machine trains it."""
    name, _, kind = (device or "").rpartition("/")
    return bool(name) and kind in NODE_KINDS


class Lanes(Protocol):
    """The lanes of a supervisor, and which jobs start in them."""

    def names(self) -> Sequence[str]:
        """Return the lanes in which jobs may start now, the first to be filled first."""

    def claim(self, store: Store, lane: str, running: int) -> Claim | None:
        """Claim the next job that may start in a lane beside those that run there; None if there is none."""


class LocalLanes:
    """The devices of this machine, and the lane of the tasks."""

    def __init__(self, device_ids: Sequence[str]) -> None:
        self.device_ids = tuple(device_ids)
        self._gpu = next((d for d in self.device_ids if d != devices.CPU), None)

    def names(self) -> Sequence[str]:
        """Return the devices, then the lane of the tasks."""
        return (*self.device_ids, TASK_LANE)

    def claim(self, store: Store, lane: str, running: int) -> Claim | None:
        """Claim the next job that may start on a lane (see ``claim_next``)."""
        return claim_next(store, lane, running, self._gpu)


def claim_next(store: Store, lane: str, running: int, first_gpu: str | None) -> Claim | None:
    """Claim the next job that may start on a lane; None when there is none, or no room.

    Args:
        lane: a device, or ``TASK_LANE``.
        running: processes that work there already.
        first_gpu: None on a machine without a GPU, whose CPU then serves runs for any device.
    """
    if lane == TASK_LANE:
        return store.jobs.claim(new_owner(), lane, TASKS) if running < TASK_SLOTS else None
    accepts = devices.accepts(lane, first_gpu)
    if running and not _has_room(store, lane, running, accepts):
        return None
    return store.jobs.claim(new_owner(), lane, RUNS, accepts=accepts)


def _has_room(store: Store, device: str, running: int, accepts: tuple[str, ...]) -> bool:
    """Return whether the next queued run may start beside those that run on a device."""
    if running >= store.queue.slots().get(device, 1):
        return False
    waiting = store.jobs.next_run(accepts)
    facts = next((d for d in devices.list_devices() if d.id == device), None)
    return waiting is not None and facts is not None and fits(store, facts, waiting)


def fits(store: Store, device: Device, waiting: int) -> bool:
    """Return whether a queued run fits into a device's memory beside those that run there.

    A run needs what runs of its setting (its config but for the seed) have taken at most; where none was
    measured, half of the device.

    Args:
        waiting: the queued run's id.
    """
    unmeasured = int(UNMEASURED_SHARE * device.memory_total)
    needs = store.queue.memory_needs(device.id, waiting)
    return sum(unmeasured if need is None else need for need in needs) <= (
        device.memory_total - device.memory_used
    )


@dataclass(frozen=True)
class Room:
    """The devices over which a run can be spread at present: GPUs, or CPUs where there are none.

    Attributes:
        where: that has them, for a sentence.
        readable: folders of data sets that all their machines have; None: not asked.
    """

    count: int
    has_gpus: bool
    where: str
    readable: Collection[str] | None = None

    def check(self, over: int) -> None:
        """Refuse more devices than there are.

        Raises:
            FedLensError: field ``over``.
        """
        if self.count < over:
            what = ("GPU" if self.has_gpus else "CPU") + "s" * (self.count != 1)
            fewer = f"choose at most {self.count} devices per run" if self.count > 1 else "choose whole runs"
            raise FedLensError(f"{self.where} has {self.count} {what}, not {over}; {fewer}", "over")


def room_here(over: int) -> Room:
    """Return this machine's room: as many processes as are wanted where it has no GPU."""
    gpus = sum(d.id != devices.CPU for d in devices.list_devices())
    return Room(gpus or over, gpus > 0, "this machine")


def room_on(states: Sequence[NodeState]) -> Room:
    """Return the room of the nodes of a cluster that can be used."""
    usable = [state for state in states if state.problem is None]
    gpus, cpus = sum(s.node.gpus for s in usable), sum(s.node.cpus for s in usable)
    readable = [set(s.report.readable if s.report else ()) for s in usable]
    common = set.intersection(*readable) if readable else set()
    return Room(gpus or cpus, gpus > 0, "the cluster", common)


class OverLanes:
    """One lane for runs, which take all devices in turn, and the lane of the tasks."""

    def __init__(self, over: int, room: Callable[[], Room]) -> None:
        self._over, self._room = over, room
        self._device = devices.default_device()

    def names(self) -> Sequence[str]:
        """Return the device that aggregates, and the lane of the tasks."""
        return (self._device, TASK_LANE)

    def claim(self, store: Store, lane: str, running: int) -> Claim | None:
        """Claim the next run once no other trains and there are enough devices for it."""
        if lane == TASK_LANE:
            return claim_next(store, lane, running, None)
        room = self._room()
        if running or room.count < self._over:
            return None
        accepts = ("auto", "gpu", "cuda") if room.has_gpus else ("auto", devices.CPU)
        return store.jobs.claim(new_owner(), lane, RUNS, accepts=accepts, readable=room.readable)
