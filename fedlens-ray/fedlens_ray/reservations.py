"""Devices that Ray reserves for a run before the run starts, as a placement group.

Ray is the only scheduler. It knows what the jobs of all users leave free, and its autoscaler starts nodes for
reservations that wait. FedLens says what a run needs, and which nodes cannot train it.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedcore.base.progress import counted

NODE_ID = "ray.io/node-id"
"""The label by which Ray names a node."""
RESERVED_SECONDS = 300.0
"""Seconds for which short runs use one reservation in turn. The next one costs a run a new process."""
REMOVED = "REMOVED"
"""State of a placement group that is gone; Ray forgets it some time later."""


@dataclass(frozen=True)
class Request:
    """The resources that a run needs: of each of its parts, if it is spread over several devices.

    Attributes:
        gpus: a value below 1 is a share of one GPU.
        memory: bytes; 0 reserves none.
        without: ids of the nodes that cannot train it.
    """

    cpus: int
    gpus: float = 0.0
    memory: int = 0
    parts: int = 1
    without: frozenset[str] = frozenset()

    def resources(self, share: float = 1.0) -> dict[str, float]:
        """Return the resources of one part as Ray names them, or a share of them."""
        all_ = {"CPU": self.cpus * share, "GPU": self.gpus * share, "memory": int(self.memory * share)}
        return {name: amount for name, amount in all_.items() if amount}

    def reserve(self, ray: Any) -> Any:
        """Return the placement group that Ray makes as soon as it can."""
        others = f"!in({','.join(sorted(self.without))})"
        return ray.util.placement_group(
            [self.resources()] * self.parts,
            strategy="SPREAD" if self.parts > 1 else "PACK",
            bundle_label_selector=[{NODE_ID: others}] * self.parts if self.without else None,
        )

    def __str__(self) -> str:
        gpus = f"{self.gpus:g} of a GPU" if 0 < self.gpus < 1 else counted(int(self.gpus), "GPU")
        words = [gpus] if self.gpus else []
        words += [counted(self.cpus, "CPU")] if self.cpus else []
        words += [f"{self.memory / 1e9:.1f} GB of memory"] if self.memory else []
        times = f"{self.parts} times " if self.parts > 1 else ""
        return times + " and ".join(words)


@dataclass(eq=False)
class Reservation:
    """A request and Ray's answer: a placement group, and the node of each part once it is reserved.

    Attributes:
        state: Ray's word for why it waits.
        since: monotonic time at which it was first seen to be reserved.
    """

    request: Request
    group: Any
    node_ids: tuple[str, ...] = ()
    state: str = "PENDING"
    since: float = math.inf


@dataclass
class Reservations:
    """The reservations of one process that no run uses at present.

    Calls to a lost head block for long. Only ``reconcile`` makes any, in a separate thread; ``take`` and
    ``give_back`` return at once.
    """

    ray: Any
    _idle: list[Reservation] = field(default_factory=list)
    _over: list[Reservation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reconcile(self, wanted: Sequence[Request]) -> None:
        """Ask for what the next runs need, withdraw what none of them needs, and read Ray's answers."""
        superfluous = Counter(r.request for r in self._idle)
        superfluous.subtract(wanted)
        with self._lock:
            for reservation in sorted(self._idle, key=lambda r: bool(r.node_ids)):  # those that wait go first
                if superfluous[reservation.request] > 0:
                    superfluous[reservation.request] -= 1
                    self._idle.remove(reservation)
                    self._over.append(reservation)
            over, self._over = self._over, []
        for reservation in over:
            self.ray.util.remove_placement_group(reservation.group)
        for request, number in superfluous.items():
            for _ in range(-number):
                reservation = Reservation(request, request.reserve(self.ray))
                with self._lock:
                    self._idle.append(reservation)
        for reservation in tuple(self._idle):
            answer = self.ray.util.placement_group_table(reservation.group)
            if answer.get("state", REMOVED) == REMOVED:  # by another job; the next look asks for it again
                with self._lock, suppress(ValueError):  # it may have been taken meanwhile
                    self._idle.remove(reservation)
                continue
            is_reserved = answer["state"] == "CREATED"  # otherwise it waits, also when a node of it has gone
            nodes = answer["bundles_to_node_id"]
            reservation.state = answer["stats"]["scheduling_state"]
            reservation.node_ids = tuple(nodes[i] for i in sorted(nodes)) if is_reserved else ()
            if is_reserved:
                reservation.since = min(reservation.since, time.monotonic())

    def take(self, request: Request, usable: Collection[str]) -> Reservation | None:
        """Return a reservation on usable nodes for a run that starts now, None if Ray has not made one."""
        with self._lock:
            for reservation in self._idle:
                nodes = reservation.node_ids
                if reservation.request == request and nodes and set(nodes) <= set(usable):
                    self._idle.remove(reservation)
                    return reservation
        return None

    def give_back(self, reservation: Reservation, is_over: bool = False) -> None:
        """Keep a reservation for a later run, for some minutes; if it is over, end what still runs there."""
        is_over |= time.monotonic() - reservation.since > RESERVED_SECONDS
        with self._lock:
            (self._over if is_over else self._idle).append(reservation)

    def waits_for(self, request: Request) -> str:
        """Return what a run with this request waits for, in Ray's opinion."""
        states = [r.state for r in tuple(self._idle) if r.request == request and not r.node_ids]
        if "INFEASIBLE" in states:
            return f"{request}, which no node has that can train it"
        return f"{request}, which other runs or jobs of the cluster hold"
