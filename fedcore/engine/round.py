"""The rounds of a run as a stream of events, each from beginning to end; it does not know who reads them.

What a round calls is explained where that is defined.

A round can be repeated after it ran out of memory, as nothing in the server changes until all of its chunks
have been gathered. The checkpoint is on the disk before ``RoundFinished`` is yielded, so a round that the
reader has recorded can always be resumed. A round that was stopped or not recorded is discarded and trained
again from the checkpoint before it, with the same draws.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from fedcore.base.devices import fitting
from fedcore.base.events import ClientRound, Event, Finished, Notice, RoundFinished
from fedcore.base.lazy import Tensor
from fedcore.engine.clients.contract import run
from fedcore.engine.clients.evaluator import evaluated_clients
from fedcore.engine.clients.executor import adapted_cells
from fedcore.engine.clients.local import Trained
from fedcore.engine.server import Server, Traffic, traffic


def all_rounds(server: Server) -> Iterator[Event]:
    """Run round 0 (the evaluation before training) unless resumed, then every round.

    Raises:
        Stopped: between two steps, if ``should_stop`` says so; the current round is discarded.
    """
    problem = server.federation.problem
    evaluated, clients = len(evaluated_clients(problem)), len(problem.clients)
    if evaluated < clients:
        yield Notice(
            f"{evaluated} of the {clients:,} clients are evaluated, drawn once for all rounds; "
            "means over clients are means over these"
        )
    recorded = server.at_once
    for round_ in range(server.run_state.done + 1, server.rounds + 1):
        for event in train_round(server, round_) if round_ else before_training(server):
            if server.at_once != recorded:
                recorded = server.at_once
                text = f"out of memory: now {server.chunk} clients at once"
                if halved := recorded["passes_halved"]:
                    text += f", and passes with 1/{2**halved} of the samples"
                yield Notice(text, repeats_exactly=False, fitted=recorded)
            yield event
    yield Finished(server.rounds)


def before_training(server: Server) -> Iterator[Event]:
    """Run round 0, which only evaluates."""
    begin = time.perf_counter()
    cells = server.evaluate(0)
    server.run_state.done = 0
    checkpoint = server.save()
    yield RoundFinished(
        round=0,
        seconds_train=0.0,
        seconds_aggregate=0.0,
        seconds_evaluate=time.perf_counter() - begin,
        scalars_up=0,
        scalars_down=0,
        bytes_up=0,
        bytes_down=0,
        cells=tuple(cells),
        checkpoint=checkpoint,
    )


def train_round(server: Server, round_: int) -> Iterator[Event]:
    """Run one round with training."""
    method = server.method
    # Sample the clients that take part.
    clients = server.participants(round_)
    server.run_state.need(clients)
    begin = time.perf_counter()
    # Broadcast what the server sends to them.
    before = server.state
    received = server.transport.down(run(method, "sends", before.server_side(), clients))
    # Train locally, in chunks of clients.
    gathered = server.train(received, clients, round_)
    trained, up = gathered.trained, gathered.traffic
    gathered_at = time.perf_counter()
    # Aggregate the uploads.
    uploads = replace(gathered.uploads, round=round_, rounds=server.rounds)
    after, _ = fitting(lambda _: server.aggregate(before, uploads), 2)
    aggregated_at = time.perf_counter()
    diagnostics, _ = fitting(lambda _: server.diagnostics(before, trained, uploads), 2)
    # Apply in place what the server and the clients made: the former rows in ``before`` are lost.
    server.run_state.advance(round_, after, clients, trained.params if method.trains else {})
    # Evaluate all models, and in the last round those that unseen clients adapt.
    cells = gathered.cells
    if server.is_evaluated(round_):
        cells = [*server.evaluate(round_), *cells]
    if round_ == server.rounds:
        given, stop = (method, server.federation, server.state, cells), server.should_stop
        cells += fitting(lambda chunk: adapted_cells(*given, chunk, stop), server.chunk)[0]
    # Record.
    checkpoint = server.save()
    saved_at = time.perf_counter()
    down = traffic(run(method, "downloads", before.server_side(), clients, received), len(clients))
    # Processes evaluate their chunks at the same time, so the seconds of all chunks are divided by width.
    evaluating = min(gathered.seconds_evaluate / server.executor.width, gathered_at - begin)
    yield RoundFinished(
        round=round_,
        train_loss=float(trained.loss.mean()) if method.trains else None,
        seconds_train=gathered_at - begin - evaluating,
        seconds_aggregate=aggregated_at - gathered_at,
        seconds_evaluate=saved_at - aggregated_at + evaluating,
        scalars_up=int(up.scalars.sum()),
        scalars_down=int(down.scalars.sum()),
        bytes_up=int(up.bytes.sum()),
        bytes_down=int(down.bytes.sum()),
        clients=_client_rounds(clients, trained, down, up) if method.trains else (),
        cells=tuple(cells),
        diagnostics=tuple(diagnostics),
        checkpoint=checkpoint,
    )
    for text in run(method, "round_log", uploads):
        yield Notice(f"round {round_}: {text}")


def _client_rounds(clients: Tensor, trained: Trained, down: Traffic, up: Traffic) -> tuple[ClientRound, ...]:
    columns = (t.tolist() for t in (clients + 1, trained.steps, trained.loss, up.bytes, down.bytes))
    return tuple(
        ClientRound(
            client=client,
            steps=steps,
            train_loss=loss if math.isfinite(loss) else None,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
        )
        for client, steps, loss, bytes_up, bytes_down in zip(*columns, strict=True)
    )
