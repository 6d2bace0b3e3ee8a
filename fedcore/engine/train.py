"""Train one run from its config to its last round: environment, setup, then the round loop."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.base.events import Event, Notice, RoundFinished, Started
from fedcore.base.progress import Progress, Work
from fedcore.config import RunConfig, backbone_names
from fedcore.config.identity import stable_config
from fedcore.engine.clients.hooks import faults_named
from fedcore.engine.clients.memory import CHUNK, clients_at_once
from fedcore.engine.environment import (
    arithmetic_notices,
    environment_differences,
    resolve_environment,
    unlike_processes,
)
from fedcore.engine.loop import Loop
from fedcore.engine.parallel import Parallel, Spread
from fedcore.engine.setup import RunSetup, set_up, set_up_again


def train(
    run: RunConfig,
    *,
    artifacts: Path,
    folder: Path,
    device: str = "cpu",
    resume_from: str | None = None,
    environment: Mapping[str, Any] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    spread: Spread | None = None,
    whole_checkpoints: bool = False,
) -> Iterator[Event]:
    """Train one run from its beginning, or from a checkpoint.

    Args:
        artifacts: folder of the encodings, shared by all runs.
        folder: folder of this run's checkpoints.
        environment: choices of an earlier attempt (threads, chunk...), reused so that it repeats exactly.
        spread: processes that train the clients, on several devices; default: this process alone. A new run
            chooses a chunk size that occupies all of them; one process computes the same bits with it.

    Raises:
        FedLensError: if the config cannot run, or a resource is missing or changes during the run.
        FedLensMethodError: for a fault of the method, with its file and line.
        Stopped: if ``should_stop`` says so.
    """
    with faults_named(run.method.name):
        resolved = resolve_environment(run, device, environment)
        before = environment if resume_from is not None else None
        setup = yield from set_up(run, artifacts, device, should_stop, before)
        loop = make_loop(run, setup, int(resolved["chunk"]), folder, should_stop)
        loop.whole_checkpoints = whole_checkpoints
        if resume_from is not None:
            loop.resume(resume_from)
        if not (environment or {}).get("chunk"):
            yield from _choose_chunk(loop, spread)
            resolved["chunk"] = loop.chunk
        recorded = {**resolved, **setup.content, "weights_digest": setup.weights_digest}
        recorded["common_model"] = setup.method.clients_use_global and not loop.worker.mixed
        if spread is not None and spread.device != device:
            recorded["clients_device"] = spread.device
        started = Started(entities=setup.entities, rounds_total=run.rounds, environment=recorded)
        processes: AbstractContextManager[Parallel | None] = nullcontext()
        if spread is not None:
            yield Progress(f"waiting for {spread.width} {spread.waits_for}", 0, 1)
            processes = spread.start(run, artifacts, recorded, setup.federation.problem.device)
        with processes as parallel:
            unlike: list[str] = []
            if parallel is not None:
                loop.executor = parallel
                processors, unlike = unlike_processes(recorded, parallel.numerics(should_stop))
                if unlike:
                    recorded["processors"] = processors
            yield started
            yield from environment_differences(before, resolved, loop.run_state.done)
            yield from arithmetic_notices(run, resolved, device if spread is None else spread.device)
            if spread is not None:
                yield from _spread_notices(loop, spread, device, unlike)
            yield from _rounds(run, setup, loop)


def _spread_notices(loop: Loop, spread: Spread, device: str, unlike: Sequence[str]) -> Iterator[Notice]:
    """Yield notices about the processes, idle devices, and devices that may change the last bits."""
    yield Notice(f"{spread.width} processes train its clients, {loop.chunk} in each at once")
    idle = spread.width - loop.chunks_of(1)
    if idle > 0:
        yield Notice(
            f"{idle} of {spread.width} devices {'stay' if idle > 1 else 'stays'} idle while clients are "
            f"trained: {len(loop.participants(1))} train in a round, {loop.chunk} at once; "
            f"{spread.width - idle} would train them as fast"
        )
    if spread.device != device:
        yield Notice(
            f"its clients are trained and evaluated on {spread.device}, and averaged on {device}",
            repeats_exactly=False,
        )
    if unlike:
        yield Notice(
            "its clients are trained on unlike machines, whose numbers can differ: " + "; ".join(unlike),
            repeats_exactly=False,
        )


def _choose_chunk(loop: Loop, spread: Spread | None) -> Iterator[Notice]:
    """Choose the chunk size: as many clients as fit into memory, but few enough to occupy all processes."""
    processes, sharers, memory = 1, 1, None
    if spread is not None:
        processes, sharers, memory = spread.width, spread.sharers, spread.memory
    largest = int(loop.federation.train.counts.argmax())  # see ``bytes_of_client``
    fitting = min(
        clients_at_once(c.method, c.federation, loop.state, loop.chunk, sharers, memory)
        for c in loop.cohorts
        if c.federation.part_of is None or largest in c.clients  # a client's labels exist in its own only
    )
    participants = len(loop.participants(1))
    if fitting < min(loop.chunk, participants):
        yield Notice(f"clients trained at once: {fitting}, as many as fit into memory")
    loop.chunk = min(fitting, -(-participants // processes)) if processes > 1 else fitting


def _rounds(run: RunConfig, setup: RunSetup, loop: Loop) -> Iterator[Event]:
    """Run the rounds, and check after each whether its encodings or weights have changed on the disk."""
    warned = False
    for event in loop.events():
        if not isinstance(event, RoundFinished):
            yield event
            continue
        setup.check_encodings()
        yield event
        if not warned and any(b.files.changed() for b in setup.backbones):
            warned = True
            yield Notice(
                f"the weights of {backbone_names(run)} changed on the disk while the run was training; it "
                "continues with those that it had loaded"
            )


def make_loop(
    run: RunConfig,
    setup: RunSetup,
    chunk: int = CHUNK,
    folder: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Loop:
    """Make the loop of a run before its first round; ``Loop.resume`` advances it to a checkpoint."""
    return Loop(
        setup.method,
        setup.federation,
        run.rounds,
        run.participation,
        run.evaluate_every,
        chunk=chunk,
        folder=folder,
        run_key=json.dumps([stable_config(run), setup.content], sort_keys=True),
        should_stop=should_stop,
        cohorts=setup.cohorts,
    )


@dataclass(frozen=True)
class FlopCount:
    """The operations of round 1 of a run: local training, aggregation, and the values that it records.

    Attributes:
        by_operation: the part of each of torch's operations, such as ``bmm``.
        clients: participants of the round.
        steps: local steps of all participants.
    """

    total: int
    by_operation: dict[str, int]
    clients: int
    steps: int


def count_flops(run: RunConfig, artifacts: Path, device: str) -> Work[FlopCount]:
    """Train the first round of a run once more, and count its operations as they are executed.

    Counting costs a run nothing and changes none of its bits: a counter inside a recorded run would stand
    between torch and every operation of a step. torch counts matrix products, convolutions and attention, 2
    operations for each multiplication with addition; sums, activations, norms, factorisations and the
    optimiser are not counted. Rows that pad unequal batches are counted too.

    Args:
        artifacts: folder of the encodings; a missing one is made.
    """
    from torch.utils.flop_counter import FlopCounterMode

    if run.rounds == 0:
        return FlopCount(0, {}, 0, 0)
    # Round 1 must not be evaluated: it is neither a multiple of this nor the last one.
    run = run.model_copy(update={"evaluate_every": run.rounds + 2, "rounds": run.rounds + 1})
    resolved = resolve_environment(run, device, None)
    setup = yield from set_up_again(run, artifacts, device)
    loop = make_loop(run, setup, int(resolved["chunk"]))
    events = loop.events()
    for event in events:
        if isinstance(event, RoundFinished):  # of round 0, the evaluation before training
            break
    yield Progress("counting the operations of round 1", 0, 1)
    with FlopCounterMode(display=False) as counter:
        finished = next(event for event in events if isinstance(event, RoundFinished))
    counts = counter.get_flop_counts().get("Global", {})  # a method that does not train has none
    by_operation = {str(name).rpartition(".")[2]: n for name, n in counts.items()}
    taken = sum(client.steps for client in finished.clients)
    return FlopCount(counter.get_total_flops(), by_operation, len(finished.clients), taken)
