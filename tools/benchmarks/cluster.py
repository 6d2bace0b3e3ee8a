"""Measure runs on a Ray cluster beside runs of this machine, and where the supervisor becomes the limit.

``python -m tools.benchmarks.cluster`` starts a cluster of two nodes here, each pinned to one core, and prints
one line per value: a round's way from a node to the database, the start of a run on a warm node, 24 short
runs on one and on two nodes (runs that wait, whatever else the machine does, and runs that train, for which
it must be quiet), and the rounds per second that one supervisor records. ``--simulate`` makes the table of
docs/cluster.md from such costs.
"""

from __future__ import annotations

import heapq
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from fedlens_ray.nodes import ClusterWatch
from fedlens_ray.on_node import RunRequest, Sent
from fedlens_ray.reservations import Request, Reservation
from fedlens_ray.stream import RemoteEngine

from fedcore.base.events import (
    STAGES,
    TEST,
    TRAIN,
    VALIDATION,
    Cell,
    Entity,
    Event,
    Finished,
    Notice,
    RoundFinished,
    Started,
)
from fedcore.config import Experiment, parse
from fedcore.engine.environment import code
from fedcore.engine.plan import plan
from fedcore.jobs.handlers import Job
from fedcore.jobs.job import Heartbeat, execute
from fedcore.store import Store
from fedcore.store.jobs import RUNS
from fedcore.store.liveness import new_owner
from tests.support.cluster import supervisor_of, two_nodes, watching

CLIENTS = 6
MEGABYTE = 1_000_000
ROUNDS = 100
SHORT_RUNS, SHORT_ROUNDS = 24, 3
TRAINED_ROUNDS = 40
WAITING_SECONDS = 0.5


def cells() -> tuple[Cell, ...]:
    """Return as many accuracy cells as a round of the demonstration has: 6 clients, full matrices."""
    codes = range(CLIENTS + 1)
    return tuple(
        Cell(split=split, stage=stage, model=m, test_set=t, correct=1, total=2, loss=0.5)
        for split in (TRAIN, VALIDATION, TEST)
        for stage in range(len(STAGES))
        for m in codes
        for t in codes[1:]
    )


def rounds(number: int) -> Iterator[Event]:
    """Yield the events of a run that trains nothing."""
    entities = [Entity(0, "global", "global")]
    entities += [Entity(c, "client", f"client {c}", samples=10) for c in range(1, CLIENTS + 1)]
    yield Started(entities=tuple(entities), rounds_total=number, environment={"code": code()})
    for round_ in range(number + 1):
        yield RoundFinished(round=round_, train_loss=0.5, cells=cells())
    yield Finished(number)


def send(number: int, size: int, seconds: float) -> Iterator[Any]:
    """Yield what a node sends: the time of each event, and as many bytes beside it as a checkpoint has."""
    for _ in range(number):
        time.sleep(seconds)
        yield time.time(), np.zeros(size, dtype=np.uint8)


def delivery(ray: Any, place: str, size: int) -> float:
    """Return the seconds from a node's yield until the event and its bytes are here; the median of 20."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(send).options(
        num_returns="streaming",
        num_cpus=1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False),
    )
    waited = []
    for item in task.remote(22, size, 0.05):
        sent, _ = ray.get(item)
        waited.append(time.time() - sent)
    return statistics.median(waited[2:])


def recorded_per_second(folder: Path, streams: int) -> tuple[float, float]:
    """Return the rounds per second that one process records from some runs at once, and its CPU-seconds each.

    The process does nothing else, as the supervisor of a cluster; every round has 252 accuracy cells.
    """
    store = Store(folder / f"{streams}.db")
    store.prepare()
    store.experiments.create(*experiment(seeds=streams, rounds=ROUNDS))
    claims = [store.jobs.claim(new_owner(), "cpu") for _ in range(streams)]

    def handler(job: Job) -> Generator[Event, None, dict[str, Any]]:
        yield from rounds(ROUNDS)
        return {}

    def record(claim: Any) -> None:
        with Heartbeat(store) as heartbeat:
            assert execute(claim, heartbeat, handler=handler, remote_memory=lambda: 0) == "done"

    threads = [threading.Thread(target=record, args=(claim,)) for claim in claims]
    begin, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = streams * (ROUNDS + 1)
    return written / (time.perf_counter() - begin), (time.process_time() - used) / written


def experiment(seeds: int, rounds: int, method: str = "fedot") -> tuple[Experiment, Any]:
    """Return short runs of a method on the embedded data, one per seed, with their plan."""
    chosen = parse({"rounds": rounds, "seeds": list(range(1, seeds + 1)), "methods": [{"name": method}]})
    return chosen, plan(chosen).runs


def wait_through(order: RunRequest, checkpoint: object = None) -> Iterator[Sent]:
    """Yield the events of a run that waits, as a process does whose GPU computes."""
    for event in rounds(order.config.rounds):
        if isinstance(event, RoundFinished):
            time.sleep(WAITING_SECONDS)
        yield Sent(event, None, 0)


class Waiting(RemoteEngine):
    """A run that waits on its node instead of training."""

    task = staticmethod(wait_through)


@dataclass(frozen=True)
class Costs:
    """What 24 short runs took.

    Attributes:
        seconds: by the clock.
        supervisor: CPU-seconds of this process, which records.
    """

    seconds: float
    supervisor: float


def short_runs(
    folder: Path, watch: ClusterWatch, nodes: int, engine: type[RemoteEngine], rounds: int, method: str
) -> Costs:
    """Return the costs of 24 short runs on one or both nodes, after one run has warmed each node."""
    store = Store(folder / f"{nodes}-{engine.__name__}.db")
    store.prepare()
    device = "auto" if nodes == 2 else "alpha"
    chosen, runs = experiment(SHORT_RUNS, rounds, method)
    with supervisor_of(store.path, watch, engine) as supervisor:
        for name in ("alpha", "beta"):
            store.experiments.create(chosen, runs[:1], device=name)
        wait_until_done(supervisor, store)
        store.experiments.create(chosen, runs, device=device)
        recording, begin = time.process_time(), time.perf_counter()
        wait_until_done(supervisor, store)
    seconds = time.perf_counter() - begin
    return Costs(seconds, time.process_time() - recording)


def wait_until_done(supervisor: Any, store: Store) -> None:
    """Let the supervisor work until no run waits or trains."""
    while store.queue.ids() or store.jobs.live(RUNS):
        supervisor.step()
        supervisor.pause()  # as the worker does: looking without one would take a core


def first_event(engine: Any, config: Any, folder: Path) -> float:
    """Return the seconds from the start of a run until its environment is known, before its first round."""
    begin = time.perf_counter()
    events = engine(config, artifacts=folder, folder=folder / "checkpoints")
    for event in events:
        if isinstance(event, Started):
            events.close()
            return time.perf_counter() - begin
        assert not isinstance(event, Notice)
    raise AssertionError("the run ended before it started")


def simulate(gpus: int, seconds_per_round: float, rounds_per_run: int, start: float, write: float) -> float:
    """Return the share of the ideal speed that some GPUs reach with one supervisor that records all rounds.

    Every GPU has 20 runs to train. A round's results wait until the supervisor has recorded those before it;
    the next round trains meanwhile, four ahead at most.
    """
    ahead, runs = 4, 20
    free = 0.0  # when the supervisor has recorded everything so far
    heap: list[tuple[float, int]] = []
    recorded: dict[int, list[float]] = {gpu: [] for gpu in range(gpus)}
    trained = dict.fromkeys(range(gpus), 0)
    for gpu in range(gpus):
        heapq.heappush(heap, (start + seconds_per_round, gpu))
    last = 0.0
    while heap:
        now, gpu = heapq.heappop(heap)
        free = max(free, now) + write
        last = free
        recorded[gpu].append(free)
        trained[gpu] += 1
        if trained[gpu] == runs * rounds_per_run:
            continue
        begin = now if trained[gpu] % rounds_per_run else free + start  # a run ends with its last record
        if len(recorded[gpu]) >= ahead:
            begin = max(begin, recorded[gpu][-ahead])
        heapq.heappush(heap, (begin + seconds_per_round, gpu))
    ideal = runs * (start + rounds_per_run * seconds_per_round)
    return ideal / last


@contextmanager
def pinned_cluster(folder: Path) -> Iterator[ClusterWatch]:
    """Two nodes, each on its own core where the machine has two; the supervisor is on the head's.

    A group with one server has the supervisor, Ray's own processes and the training on it. Were the
    supervisor free to go where it likes, one node would train on its core while another recorded for it.
    """
    supervisor = psutil.Process()
    cores = sorted(supervisor.cpu_affinity())
    with two_nodes(folder) as cluster:
        heads = [cluster.head_node, *cluster.worker_nodes]
        for at, server in enumerate(heads):
            for process in server.live_processes():
                for pinned in (
                    psutil.Process(process[1].pid),
                    *psutil.Process(process[1].pid).children(True),
                ):
                    pinned.cpu_affinity([cores[at % len(cores)]])
        with watching(cluster) as watch:
            for thread in supervisor.threads():
                os.sched_setaffinity(thread.id, cores[:1])
            try:
                yield watch
            finally:
                for thread in supervisor.threads():
                    os.sched_setaffinity(thread.id, cores)


def print_table(write: float, start: float) -> None:
    """Print the share of the ideal speed by GPUs and by the seconds of a round, for runs of 50 rounds."""
    lengths = (0.1, 0.5, 2.0, 10.0)
    print("| GPUs | " + " | ".join(f"rounds of {seconds:g} s" for seconds in lengths) + " |")
    print("|---" * (len(lengths) + 1) + "|")
    for gpus in (1, 2, 4, 8, 16, 32, 64):
        shares = [simulate(gpus, seconds, 50, start, write) for seconds in lengths]
        print(f"| {gpus} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")


def main(
    write: Annotated[float, typer.Option(help="Seconds that one round takes the supervisor")] = 0.01,
    start: Annotated[float, typer.Option(help="Seconds from a free GPU to the first round")] = 5.0,
    only_simulate: Annotated[bool, typer.Option("--simulate", help="Print the table only")] = False,
    only_recording: Annotated[bool, typer.Option("--recording", help="Measure the supervisor only")] = False,
    only_training: Annotated[bool, typer.Option("--training", help="Measure runs that train only")] = False,
    trained_rounds: Annotated[int, typer.Option(help="Rounds of each run that trains")] = TRAINED_ROUNDS,
    trained_method: Annotated[str, typer.Option(help="Method of each run that trains")] = "fedot",
) -> None:
    """Measure runs on a cluster of two nodes on this machine."""
    if only_simulate:
        print_table(write, start)
        return
    with tempfile.TemporaryDirectory(prefix="fedlens-cluster-") as name:
        folder = Path(name)
        if not only_training:
            measure_recording(folder)
        if only_recording:
            return
        with pinned_cluster(folder) as watch:
            if not only_training:
                measure_cluster(folder, watch)
            share_short_runs(folder, watch, RemoteEngine, "train", trained_rounds, trained_method)


def measure_recording(folder: Path) -> None:
    """Print how many rounds a second one supervisor records."""
    for streams in (1, 8, 64):
        speed, used = recorded_per_second(folder, streams)
        print(f"{streams:>3} runs at once: {speed:.0f} rounds a second, {used * 1000:.1f} CPU-ms each")


def measure_cluster(folder: Path, watch: ClusterWatch) -> None:
    """Print what a cluster adds to a round and to the start of a run, and how two nodes share short runs."""
    beta = next(state.node for state in watch.states() if state.node.name == "beta")
    for size in (0, MEGABYTE, 10 * MEGABYTE):
        waited = delivery(watch.ray, beta.id, size)
        print(f"a round with {size / MEGABYTE:g} MB: {waited * 1000:.0f} ms from the node to the supervisor")
    _, (config, *_) = experiment(1, SHORT_ROUNDS)
    request = Request(1, without=frozenset(s.node.id for s in watch.states()) - {beta.id})
    group = request.reserve(watch.ray)
    remote = RemoteEngine(watch.ray, Reservation(request, group, (beta.id,)), beta, "bench")
    cold = first_event(remote, config, folder)
    warm = first_event(remote, config, folder)
    watch.ray.util.remove_placement_group(group)
    from fedcore.engine.train import train

    first_event(train, config, folder)
    local = first_event(train, config, folder)
    print(f"start of a run: {cold:.1f} s on a cold node, {warm:.2f} s on a warm one, {local:.2f} s here")
    share_short_runs(folder, watch, Waiting, "wait", SHORT_ROUNDS)


def share_short_runs(
    folder: Path,
    watch: ClusterWatch,
    engine: type[RemoteEngine],
    what: str,
    rounds: int,
    method: str = "fedot",
) -> None:
    """Print how two nodes share 24 short runs, and what recording one of them costs."""
    one, two = (short_runs(folder, watch, nodes, engine, rounds, method) for nodes in (1, 2))
    faster = one.seconds / two.seconds
    print(
        f"{SHORT_RUNS} runs of {rounds} rounds that {what}: {one.seconds:.0f} s on one node, "
        f"{two.seconds:.0f} s on two, {faster:.2f} times as fast"
    )
    for nodes, costs in ((1, one), (2, two)):
        print(f"  to record a run, {nodes} in use: {costs.supervisor / SHORT_RUNS:.2f} CPU-s")


if __name__ == "__main__":
    typer.run(main)
