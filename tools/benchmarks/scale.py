"""Measure how a run's cost and memory grow with its clients, in CPU-seconds of one thread.

python -m tools.benchmarks.scale fedclip --clients 1000 --participation 0.1
python -m tools.benchmarks.scale fedot --clients 10000 --participation 0.01 --rounds 20 --field blocks=16
python -m tools.benchmarks.scale fedot --clients 1000 --participation 1 --field blocks=16 --over 2
python -m tools.benchmarks.scale fedot --clients 1000 --participation 1 --field blocks=16 --over 2 --actors
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedcore.base.devices import CPU, environment_for
from fedcore.base.events import RoundFinished
from fedcore.engine.clients.executor import Worker
from fedcore.engine.clients.local import CHUNK, clients_at_once
from fedcore.engine.parallel import Parallel, Serving, processes
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from tools.benchmarks import drawn


def make_loop(
    method: str,
    clients: int,
    classes: int,
    samples: int,
    fields: dict[str, str],
    rounds: int,
    share: float,
    clip: str,
    test_sample: int | None = None,
    distinct: int = drawn.DISTINCT,
) -> Server:
    """Make a run of drawn features, with one thread."""
    torch.set_num_threads(1)
    reads = drawn.reads_of(method, clip, **fields)
    federation = drawn.federation(
        clients, classes, samples, test=samples, reads=reads, clip=clip, distinct=distinct
    )
    federation = replace(federation, test_sample=test_sample)
    return Server(drawn.build(method, federation, **fields), federation, rounds, share)


def make_worker(*given: object) -> Worker:
    """Make what a process of that run needs."""
    return make_loop(*given).worker  # type: ignore[arg-type]


@contextmanager
def on_two_nodes(make: Callable[[], Worker], count: int) -> Iterator[Parallel]:
    """Start a cluster of two nodes here, with actors on both in turn; prints their CPU-seconds at the end."""
    from fedlens_ray.connection import connect
    from fedlens_ray.on_node import submit_to

    from tests.support.cluster import two_nodes

    class Actor(Serving):
        def spent(self) -> float:
            return time.process_time()

    with tempfile.TemporaryDirectory(prefix="fedlens-scale-") as folder, two_nodes(Path(folder)) as cluster:
        ray = connect(cluster.address)
        started = [
            ray.remote(Actor).options(num_cpus=2 / count, max_restarts=0).remote(make) for _ in range(count)
        ]
        try:
            yield Parallel([submit_to(actor) for actor in started], torch.device(CPU))
            seconds = ray.get([actor.spent.remote() for actor in started])
            print("  CPU-s of the actors, with their start: " + ", ".join(f"{s:.0f}" for s in seconds))
        finally:
            ray.shutdown()


def main(
    method: str,
    clients: int = 1000,
    participation: float = 0.1,
    classes: int = 10,
    rounds: int = 5,
    samples: Annotated[int, typer.Option(help="training and test samples of each client")] = 20,
    field: Annotated[list[str] | None, typer.Option(help="a field of the method, NAME=VALUE")] = None,
    over: Annotated[int, typer.Option(help="processes that train the clients; 1: this one")] = 1,
    actors: Annotated[bool, typer.Option("--actors", help="actors on two Ray nodes of this machine")] = False,
    chunk: Annotated[
        int | None, typer.Option(help="clients trained at once; default: as many as a run would")
    ] = None,
    clip: Annotated[str, typer.Option(help="ViT-B-32 or mini-vit, with drawn weights")] = "ViT-B-32",
    evaluate: Annotated[bool, typer.Option(help="evaluate rounds; without it, round 0 alone")] = True,
    first: Annotated[bool, typer.Option(help="evaluate round 0, before the first training")] = True,
    test_sample: Annotated[int | None, typer.Option(help="the experiment's field of this name")] = None,
    distinct: Annotated[int, typer.Option(help="distinct images, of an encoding other than embeddings")] = (
        drawn.DISTINCT
    ),
) -> None:
    """Print the first evaluation, the median round, the last round with its evaluation, and the memory."""
    fields = dict(f.split("=", 1) for f in field or ())
    given = (
        method,
        clients,
        classes,
        samples,
        fields,
        rounds + (not evaluate),
        participation,
        clip,
        test_sample,
        distinct,
    )
    loop = make_loop(*given)
    loop.chunk = chunk or clients_at_once(loop.method, loop.federation, loop.state, CHUNK, over)
    loop.evaluate_every = 1 if evaluate else rounds + 2
    variables = {**environment_for(CPU), "OMP_NUM_THREADS": "1"}
    make = partial(make_worker, *given)
    spread = on_two_nodes(make, over) if actors else processes([(make, variables)] * over, torch.device(CPU))
    watch, spent, clock, evaluation, digest = drawn.Stopwatch(), [], [], [], hashlib.sha256()
    if not first:  # as after round 0
        loop.run_state.done, spent, clock, evaluation = 0, [0.0], [0.0], [0.0]
    with spread if over > 1 or actors else nullcontext(loop.executor) as loop.executor:
        begin = time.perf_counter()
        for event in all_rounds(loop):
            if isinstance(event, RoundFinished):
                spent.append(watch())
                clock.append(time.perf_counter() - begin)
                evaluation.append(event.seconds_evaluate or 0.0)
                digest.update(repr((event.cells, event.diagnostics, event.train_loss)).encode())
                begin = time.perf_counter()
                if event.round == rounds:
                    break
    rows = {
        "first evaluation, CPU-s": spent[0],
        "a round, CPU-s of this process": statistics.median(spent[1:-1] or spent[1:]),
        "a round, seconds by the clock": statistics.median(clock[1:-1] or clock[1:]),
        "of it evaluation, seconds by the clock": statistics.median(evaluation[1:-1] or evaluation[1:]),
        "the last round with its evaluation, CPU-s": spent[-1],
        "memory at most, MiB": float(drawn.peak_mib()),
    }
    print(
        f"{method}, {clients:,} clients, {100 * participation:g} % take part, {loop.chunk} at once; "
        f"all rows: {digest.hexdigest()[:16]}"
    )
    for what, value in rows.items():
        print(f"  {what:45} {value:10,.2f}")


if __name__ == "__main__":
    typer.run(main)
