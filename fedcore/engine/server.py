"""The server of a run: the steps of a round, of which ``round`` shows the order."""

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcore.engine.checkpoint import RunState
from fedcore.engine.clients.cohorts import Cohort, without_samples
from fedcore.engine.clients.contract import run
from fedcore.engine.clients.evaluator import evaluated_clients
from fedcore.engine.clients.executor import Chunk, Executor, InProcess, Worker, after_aggregation
from fedcore.engine.clients.gathering import Gathered, Transport, gather
from fedcore.engine.clients.local import Trained
from fedcore.engine.clients.memory import CHUNK
from fedcore.engine.clients.optimisers import ClientOptimiser, learning_rate
from fedcore.federation import Federation
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Method, Params, State, Uploads
from fedcore.methods.tensors import compared
from fedcore.records.events import (
    FULL_MATRIX_CLIENTS,
    Cell,
    Diagnostic,
    Notice,
)
from fedcore.seeds import draw_names


@dataclass
class Server:
    """The server of one run in progress.

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

    def participants(self, round_: int) -> Tensor:
        """Draw the clients that take part from (seed, round) and the clients' names.

        Shape: -> (participants,), in client order.
        """
        if self.participation >= 1:
            return torch.arange(len(self._clients))
        count = max(1, math.floor(self.participation * len(self._clients) + 0.5))
        chosen = draw_names(self._clients, count, self.federation.problem.seed, "participants", round_)
        return torch.tensor(chosen, dtype=torch.int64)

    def train(self, received: Params, clients: Tensor, round_: int) -> Generator[Notice, None, Gathered]:
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
                evaluate=trains and self.is_evaluated(round_),
                only_means=self._only_means,
            )

    def is_evaluated(self, round_: int) -> bool:
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

    def aggregate(self, before: State, uploads: Uploads) -> State:
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
        assert before.rounds_trained is not None, "set when the server is made"
        rounds_trained = before.rounds_trained.clone()
        rounds_trained[uploads.clients] += 1
        detached = {
            part: {n: v.detach() for n, v in getattr(after, part).items()}
            for part in ("shared", "personal", "server")
        }
        return State(**detached, local=before.local, rounds_trained=rounds_trained)

    def evaluate(self, round_: int) -> list[Cell]:
        """Evaluate all models of the current state, as of a round."""
        return after_aggregation(
            self.worker.evaluators,
            self.executor,
            self.state,
            is_full(round_, self.rounds, len(self._clients)),
            self.chunk,
            self.should_stop,
            between=0 < round_ < self.rounds,
        )

    def diagnostics(self, before: State, trained: Trained, uploads: Uploads) -> list[Diagnostic]:
        """Return the values of a round that the method measures, of the participants."""
        values = dict(trained.terms)
        if self.method.trains:
            data = self.federation.local_data(uploads.clients)
            if self.worker.mixed or self.cohorts[0].federation.part_of is not None:
                data = without_samples(data, self.method)
            given = before, trained.params, uploads, data
            with torch.no_grad():
                values |= run(self.method, "diagnostics", *given, terms=trained.terms)
        codes = (uploads.clients + 1).tolist()
        return [d for name, value in values.items() for d in _rows(name, value, codes)]

    def save(self) -> str | None:
        if self.folder is None:
            return None
        return str(self.run_state.save(self.folder, self.run_key, self.whole_checkpoints))


def is_full(round_: int, rounds: int, clients: int) -> bool:
    """Return whether the evaluation of a round computes the full matrix, see ``FULL_MATRIX_CLIENTS``."""
    return round_ in (0, rounds) or clients <= FULL_MATRIX_CLIENTS


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
