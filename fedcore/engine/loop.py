"""The round loop, as a stream of events; it does not know who reads them.

A round can be repeated after it ran out of memory, as nothing in the loop changes until all of its chunks
have been gathered. The checkpoint is on the disk before ``RoundFinished`` is yielded, so a round that the
reader has recorded can always be resumed. A round that was stopped or not recorded is discarded with the loop
and trained again from the checkpoint before it, with the same draws.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedcore.engine.checkpoint import RunState
from fedcore.engine.clients.cohorts import Cohort, without_samples
from fedcore.engine.clients.contract import run
from fedcore.engine.clients.evaluator import evaluated_clients
from fedcore.engine.clients.executor import Chunk, Executor, InProcess, Worker, after_aggregation
from fedcore.engine.clients.gathering import Gathered, Traffic, Transport, gather, traffic
from fedcore.engine.clients.generalisation import adapted_cells
from fedcore.engine.clients.local import Trained
from fedcore.engine.clients.memory import CHUNK
from fedcore.engine.clients.optimisers import ClientOptimiser, learning_rate
from fedcore.federation import Federation, LocalData
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Method, Params, State, Uploads
from fedcore.methods.tensors import compared
from fedcore.records.events import (
    FULL_MATRIX_CLIENTS,
    Cell,
    ClientRound,
    Diagnostic,
    Event,
    Finished,
    Notice,
    RoundFinished,
)
from fedcore.seeds import draw_names


@dataclass
class Loop:
    """One run in progress.

    Attributes:
        method, federation: the server's, which are also every client's unless there are cohorts.
        chunk: clients trained in one tensor program; halved when the device runs out of memory.
        folder: of the checkpoints; None: there are none.
        run_key: identity of the run's config and content, stored in checkpoints.
        cohorts: in client order, covering all clients; empty: all clients are one cohort.
        whole_checkpoints: whether a checkpoint is always one file, because it travels between machines.
        run_state: what the next round starts from.
        worker: evaluates and, unless another executor takes its place, trains the chunks in this process.
    """

    method: Method
    federation: Federation
    rounds: int
    participation: float = 1.0
    evaluate_every: int = 1
    chunk: int = CHUNK
    folder: Path | None = None
    run_key: str = ""
    transport: Transport = field(default_factory=Transport)
    should_stop: Callable[[], bool] = lambda: False
    cohorts: tuple[Cohort, ...] = ()
    whole_checkpoints: bool = False
    run_state: RunState = field(init=False)
    worker: Worker = field(init=False)
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        everyone = range(len(self._clients))
        self.cohorts = self.cohorts or (Cohort(self.method, self.federation, everyone),)
        assert [i for c in self.cohorts for i in c.clients] == list(everyone), "every client in one cohort"
        measured = self.federation.train.counts.argmax()[None]  # see ``bytes_of_client``
        always = torch.cat([evaluated_clients(self.federation.problem), measured])
        self.run_state = RunState(self.method, always, self.folder)
        self.worker = Worker(self.cohorts)
        self.executor = InProcess(self.worker)

    @property
    def _clients(self) -> tuple[str, ...]:
        return self.federation.problem.clients

    @property
    def state(self) -> State:
        return self.run_state.state

    def resume(self, path: str | Path) -> None:
        """Continue after the round of a checkpoint."""
        self.run_state.resume(Path(path), self.run_key)

    def events(self) -> Iterator[Event]:
        """Run round 0 (the evaluation before training) unless resumed, then every round.

        Raises:
            Stopped: between two steps, if ``should_stop`` says so; the current round is discarded.
        """
        evaluated, clients = len(evaluated_clients(self.federation.problem)), len(self._clients)
        if evaluated < clients:
            yield Notice(
                f"{evaluated} of the {clients:,} clients are evaluated, drawn once for all rounds; "
                "means over clients are means over these"
            )
        for round_ in range(self.run_state.done + 1, self.rounds + 1):
            yield from self._round(round_) if round_ else self._round_0()
        yield Finished(self.rounds)

    def participants(self, round_: int) -> Tensor:
        """Draw the clients that take part from (seed, round) and the clients' names.

        Shape: -> (participants,), in client order.
        """
        if self.participation >= 1:
            return torch.arange(len(self._clients))
        count = max(1, math.floor(self.participation * len(self._clients) + 0.5))
        chosen = draw_names(self._clients, count, self.federation.problem.seed, "participants", round_)
        return torch.tensor(chosen, dtype=torch.int64)

    def _round_0(self) -> Iterator[Event]:
        begin = time.perf_counter()
        cells = self._evaluate_all(self.state, is_full(0, self.rounds, len(self._clients)))
        self.run_state.done = 0
        path = self._save()
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
            checkpoint=path,
        )

    def _round(self, round_: int) -> Iterator[Event]:
        clients, trains = self.participants(round_), self.method.trains
        self.run_state.need(clients)
        before, begin = self.state, time.perf_counter()
        received = self.transport.down(run(self.method, "sends", before.server_side(), clients))
        data = self.federation.local_data(clients)
        apart = self.worker.mixed or self.cohorts[0].federation.part_of is not None
        data = without_samples(data, self.method) if apart else data
        gathered = yield from self._train_within_memory(received, clients, round_)
        trained, uploads, up = gathered.trained, gathered.uploads, gathered.traffic
        gathered_at = time.perf_counter()
        after = self._aggregate(before, replace(uploads, round=round_, rounds=self.rounds))
        aggregated_at = time.perf_counter()
        diagnostics = self._diagnostics(before, trained, uploads, data)
        # In place: from here on the clients' former rows in ``before`` are lost.
        after = self.run_state.advance(round_, after, clients, trained.params if trains else {})
        cells = gathered.cells
        if self._is_evaluated(round_):
            full = is_full(round_, self.rounds, len(self._clients))
            cells = [*self._evaluate_all(after, full, round_ < self.rounds), *cells]
        if round_ == self.rounds:
            cells += adapted_cells(self.method, self.federation, after, cells, self.chunk, self.should_stop)
        path = self._save()
        saved_at = time.perf_counter()
        crossing = run(self.method, "downloads", before.server_side(), clients, received)
        down = traffic(crossing, len(clients))
        # Processes evaluate their chunks at the same time, so the seconds of all chunks are divided by width.
        evaluating = min(gathered.seconds_evaluate / self.executor.width, gathered_at - begin)
        yield RoundFinished(
            round=round_,
            train_loss=float(trained.loss.mean()) if trains else None,
            seconds_train=gathered_at - begin - evaluating,
            seconds_aggregate=aggregated_at - gathered_at,
            seconds_evaluate=saved_at - aggregated_at + evaluating,
            scalars_up=int(up.scalars.sum()),
            scalars_down=int(down.scalars.sum()),
            bytes_up=int(up.bytes.sum()),
            bytes_down=int(down.bytes.sum()),
            clients=_client_rounds(clients, trained, down, up) if trains else (),
            cells=tuple(cells),
            diagnostics=tuple(diagnostics),
            checkpoint=path,
        )
        lines = run(self.method, "round_log", uploads)
        yield from (Notice(f"round {round_}: {text}") for text in lines)

    def _train_within_memory(
        self, received: Params, clients: Tensor, round_: int
    ) -> Generator[Notice, None, Gathered]:
        """Train, and halve the chunk whenever the device runs out of memory."""
        while True:
            try:
                return self._train(received, clients, round_)
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise
                self.chunk = max(1, self.chunk // 2)
                torch.cuda.empty_cache()
                yield Notice(f"out of memory: now {self.chunk} clients at once", repeats_exactly=False)

    def _train(self, received: Params, clients: Tensor, round_: int) -> Gathered:
        """Train in chunks of a cohort; the clients' uploads are joined in client order."""
        results = self.executor.train(self._chunks(received, clients, round_), self.should_stop)
        samples = self.federation.train.counts[clients]
        gathered = gather(results, clients, samples, self.transport, self.method, self._only_means)
        if self._stores_optimisers:  # only now, as a round that is repeated must find the former state
            members = (clients[span] for _, span in self._spans(clients))
            for chunk, moments in zip(members, gathered.moments, strict=True):
                self.run_state.optimiser.put(chunk, ClientOptimiser(self.method.config, len(chunk), moments))
        return gathered

    @property
    def _stores_optimisers(self) -> bool:
        return self.method.trains and self.method.config.optimiser_state == "kept"

    @property
    def _only_means(self) -> bool:
        return self.method.trains and self.method.needs_only_means

    def _chunks(self, received: Params, clients: Tensor, round_: int) -> Iterator[Chunk]:
        """Yield a round's chunks in client order, each of which is made when it is needed."""
        trains, stores = self.method.trains, self._stores_optimisers
        for number, span in self._spans(clients):
            members, config = clients[span], self.cohorts[number].method.config
            yield Chunk(
                cohort=number,
                clients=members,
                round=round_,
                received={n: v[span] for n, v in received.items()},
                local={n: v[members.to(v.device)] for n, v in self.state.local.items()},
                moments=self.run_state.optimiser.select(members).moments if stores else {},
                lr=learning_rate(config, round_, self.rounds) if trains else None,
                evaluate=trains and self._is_evaluated(round_),
                only_means=self._only_means,
            )

    def _is_evaluated(self, round_: int) -> bool:
        return round_ == self.rounds or round_ % self.evaluate_every == 0

    def chunks_of(self, round_: int) -> int:
        """Return the number of chunks in which the participants of a round are trained."""
        return sum(1 for _ in self._spans(self.participants(round_)))

    def _spans(self, clients: Tensor) -> Iterator[tuple[int, slice]]:
        """Yield the cohort's index and the slice of ``clients`` of each chunk, in client order.

        A chunk never mixes cohorts, and its bounds depend on the participants and the chunk size only, so
        that the same chunks are trained on one process and on several.
        """
        for number, cohort in enumerate(self.cohorts):
            ends = torch.tensor([cohort.clients.start, cohort.clients.stop])
            first, last = torch.searchsorted(clients, ends).tolist()
            for start in range(first, last, self.chunk):
                yield number, slice(start, min(start + self.chunk, last))

    def _aggregate(self, before: State, uploads: Uploads) -> State:
        """Take the server's step; the clients' local parameters are not updated yet."""
        if not self.method.trains:
            return before
        generator = self.federation.problem.generator
        after = run(
            self.method,
            "aggregate",
            before.server_side(),
            uploads,
            lambda *purpose: generator("server", uploads.round, *purpose),
        )
        assert before.rounds_trained is not None, "set when the loop is made"
        rounds_trained = before.rounds_trained.clone()
        rounds_trained[uploads.clients] += 1
        detached = {
            part: {n: v.detach() for n, v in getattr(after, part).items()}
            for part in ("shared", "personal", "server")
        }
        return State(**detached, local=before.local, rounds_trained=rounds_trained)

    def _evaluate_all(self, state: State, full: bool, between: bool = False) -> list[Cell]:
        return after_aggregation(
            self.worker.evaluators, self.executor, state, full, self.chunk, self.should_stop, between
        )

    def _diagnostics(
        self, before: State, trained: Trained, uploads: Uploads, data: LocalData
    ) -> list[Diagnostic]:
        codes = (uploads.clients + 1).tolist()
        with torch.no_grad():
            values = dict(trained.terms)
            if self.method.trains:
                values |= run(
                    self.method, "diagnostics", before, trained.params, uploads, data, terms=trained.terms
                )
        return [d for name, value in values.items() for d in _rows(name, value, codes)]

    def _save(self) -> str | None:
        if self.folder is None:
            return None
        return str(self.run_state.save(self.folder, self.run_key, self.whole_checkpoints))


def is_full(round_: int, rounds: int, clients: int) -> bool:
    """Return whether the evaluation of a round computes the full matrix, see ``FULL_MATRIX_CLIENTS``."""
    return round_ in (0, rounds) or clients <= FULL_MATRIX_CLIENTS


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


def _rows(name: str, value: Tensor, codes: list[int]) -> list[Diagnostic]:
    """Turn a scalar, a vector over participants or a matrix over them into rows; NaN and inf are left out.

    A matrix grows with the square of the participants, so only pairs within a sample of them (``compared``)
    are stored.
    """
    tensor = torch.as_tensor(value).detach().double().cpu()
    if tensor.dim() == 2:
        sample = compared(len(codes))
        tensor, codes = tensor[sample][:, sample], [codes[i] for i in sample.tolist()]
    values = tensor.numpy()
    finite = ((at, float(v)) for at, v in np.ndenumerate(values) if math.isfinite(v))
    pairs = (([*(codes[i] for i in at), -1, -1], v) for at, v in finite)
    return [Diagnostic(name, v, client_a=a, client_b=b) for (a, b, *_), v in pairs]
