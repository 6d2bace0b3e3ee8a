"""One run over the devices of a cluster, with Ray actors that hold method and encodings and train chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.cluster import node
from fedcore.cluster.connection import Node, connect, list_nodes
from fedcore.cluster.stream import method_file
from fedcore.config import RunConfig
from fedcore.devices import CPU
from fedcore.engine.clients.executor import Worker
from fedcore.engine.parallel import Parallel, Serving, Spread, worker_of
from fedcore.errors import FedLensError
from fedcore.system_errors import Elsewhere

if TYPE_CHECKING:
    import torch


class Actor(Serving):
    """A Ray actor on a node that trains chunks of a run's clients."""

    def __init__(self, request: node.RunRequest) -> None:
        def make() -> Worker:
            artifacts = node.prepare(request)
            return worker_of(request.config, artifacts, request.device, request.environment)

        super().__init__(make)


def over_nodes(address: str, count: int, device: str | None = None, without: Collection[str] = ()) -> Spread:
    """Return a ``Spread`` of a run over actors of a Ray cluster: on GPUs if there are any, nodes in turn.

    Args:
        address: of the head, or ``auto``.
        device: ``cpu`` to use CPUs even if there are GPUs.
        without: names of nodes that cannot be used.
    """
    ray = connect(address)
    nodes = [n for n in list_nodes(ray) if n.name not in without]
    gpus = device != CPU and any(n.gpus for n in nodes)
    places = _places([(n, n.free_gpus if gpus else n.free_cpus) for n in nodes], count)
    if len(places) < count:  # another job of the cluster holds some of them, so that this run waits for it
        places = _places([(n, n.gpus if gpus else n.cpus) for n in nodes], count)
    if len(places) < count:
        what = "GPUs" if gpus else "CPUs"
        raise FedLensError(
            f"the cluster has {len(places)} {what}, not {count}; give --over {max(1, len(places))}", "over"
        )

    def start(
        run: RunConfig, artifacts: Path, environment: Mapping[str, Any], wanted: torch.device
    ) -> AbstractContextManager[Parallel]:
        return _actors(ray, places, gpus, run, artifacts, environment, wanted)

    most = max(sum(place.id == n.id for place in places) for n in places)
    memory = min((place.memory for place in places if place.memory), default=None)
    free = f"free {'GPUs' if gpus else 'CPUs'} of the cluster"
    return Spread(count, start, "cuda" if gpus else CPU, sharers=most, memory=memory, waits_for=free)


def _places(room: Sequence[tuple[Node, float]], count: int) -> list[Node]:
    """Return a node for each process, in turn, as far as there is room."""
    return [n for turn in range(count) for n, most in room if turn + 1 <= most][:count]


@contextmanager
def _actors(
    ray: Any,
    places: list[Node],
    gpus: bool,
    run: RunConfig,
    artifacts: Path,
    environment: Mapping[str, Any],
    wanted: torch.device,
) -> Iterator[Parallel]:
    """Start an actor at each place; they end with the block."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    started = []
    try:
        for place in places:
            request = node.RunRequest(
                config=run,
                key="part of a run",
                environment=dict(environment),
                method_file=method_file(run),
                device="cuda" if gpus else CPU,
                threads=int(environment["threads"]),
                artifacts=str(artifacts.resolve()) if place.is_local else None,
                working_folder=os.getcwd(),
            )
            options = ray.remote(Actor).options(
                num_cpus=0 if gpus else 1,
                num_gpus=1 if gpus else 0,
                max_restarts=0,  # a restarted actor would have lost its clients' local parameters
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.id, soft=False),
            )
            started.append(options.remote(request))
        yield Parallel([submit_to(actor) for actor in started], wanted, ray.exceptions.RayError, Elsewhere)
    finally:
        for actor in started:
            ray.kill(actor)


def submit_to(actor: Any) -> Callable[[bytes], Future[bytes]]:
    """Return a function that sends to an actor and returns a future of its answer."""

    def submit(content: bytes) -> Future[bytes]:
        future: Future[bytes] = actor.answer.remote(content).future()
        return future

    return submit
