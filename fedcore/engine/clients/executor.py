"""Executors: where the participants of a round are trained and all models evaluated, in chunks of clients.

A chunk is one tensor program, whose result depends on nothing outside of it. An executor may compute the
chunks of a round wherever it likes, as long as it returns their results in client order: the bits are equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from fedcore.engine.clients.cohorts import Cohort, is_mixed
from fedcore.engine.clients.contract import FirstStep
from fedcore.engine.clients.evaluation import Part, PartEvaluator, PartResult
from fedcore.engine.clients.evaluator import Evaluator, evaluated_clients
from fedcore.engine.clients.local import Trained, train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.lazy import torch
from fedcore.methods.base import Params, Ragged
from fedcore.records.events import Cell

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """Clients of one cohort that train together, with all that they need for a round.

    Attributes:
        cohort: number of the cohort.
        received: what the server sent them.
        slots: their optimisers' state, where the clients keep it; empty: new optimisers.
        lr: learning rate of the round; None for a method that trains nothing.
        evaluate: whether to evaluate the trained models, before aggregation.
        only_means: whether the trained parameters may be dropped, but for the local ones.

    Shape: clients (chunk,), ascending; received, local and slots (chunk, ...).
    """

    cohort: int
    clients: Tensor
    round: int
    received: Params
    local: Params
    slots: Params
    lr: float | None
    evaluate: bool
    only_means: bool


@dataclass(frozen=True)
class ChunkResult:
    """What comes back from a chunk.

    Attributes:
        trained: without records; only the local parameters where that was asked for.
        sent: the clients' uploads. Shape: (chunk, ...).
        slots: their optimisers' state after the round.
        cells: accuracy of their models before aggregation, where it was asked for.
        seconds_evaluate: what that took.
    """

    trained: Trained
    sent: dict[str, Tensor | Ragged]
    slots: Params
    cells: list[Cell]
    seconds_evaluate: float


class Executor(Protocol):
    """Computes the chunks of a round, and returns their results in the order of the chunks.

    Attributes:
        width: chunks that are computed at the same time.
    """

    width: int

    def train(self, chunks: Iterable[Chunk], should_stop: Callable[[], bool]) -> Iterator[ChunkResult]:
        """Train chunks of clients.

        Raises:
            Stopped: when ``should_stop`` says so; nothing of the round is kept.
            FedLensError: when a client's loss is no longer finite; names the client.
        """

    def evaluate(self, parts: Iterable[Part], should_stop: Callable[[], bool]) -> Iterator[PartResult]:
        """Compute parts of the evaluation after aggregation.

        Raises:
            Stopped: when ``should_stop`` says so.
        """


@dataclass
class Worker:
    """Trains and evaluates chunks of clients, with its own methods and encoded samples on its own device.

    Attributes:
        conditions: what decides the last bits of its numbers, see ``environment.computed_by``.
    """

    cohorts: Sequence[Cohort]
    conditions: dict[str, str] = field(default_factory=dict)
    evaluators: list[Evaluator] = field(init=False)
    parts: PartEvaluator = field(init=False)
    _first_steps: dict[int, FirstStep] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        evaluated, mixed = evaluated_clients(self.cohorts[0].federation.problem), is_mixed(self.cohorts)
        self.evaluators = [
            Evaluator(c.method, c.federation, evaluated, c.clients, scores_global=not mixed and i == 0)
            for i, c in enumerate(self.cohorts)
        ]

        self.parts = PartEvaluator(self.evaluators)

    @cached_property
    def device(self) -> torch.device:
        """The device that holds the parameters."""
        return self.cohorts[0].federation.problem.device

    def train(self, chunk: Chunk, should_stop: Callable[[], bool] = lambda: False) -> ChunkResult:
        """Train a chunk of clients, and evaluate their models where that is asked for.

        Raises:
            Stopped: when ``should_stop`` says so between two steps.
            FedLensError: when a client's loss is no longer finite; names the client.
        """
        cohort = self.cohorts[chunk.cohort]
        method, data = cohort.method, cohort.federation.local_data(chunk.clients)
        everyone = torch.arange(len(chunk.clients), device=self.device)
        received = {name: value.to(self.device)[everyone] for name, value in chunk.received.items()}
        params = received | {name: value.to(self.device) for name, value in chunk.local.items()}
        optimiser = ClientOptimiser(
            method.config, len(chunk.clients), {n: v.to(self.device) for n, v in chunk.slots.items()}
        )
        if chunk.lr is not None:
            optimiser.config = method.config.model_copy(update={"lr": chunk.lr})
        optimiser.lr_factors = method.lr_factors()
        trained = train_clients(
            method, params, data, chunk.round, optimiser, should_stop, cohort.max_steps, set(received),
            self._first_steps.setdefault(chunk.cohort, FirstStep(method, chunk.local)),
        )  # fmt: skip
        with torch.no_grad():
            sent = method.upload(trained.params, trained.record, data)
        begin = time.perf_counter()
        cells: list[Cell] = []
        if chunk.evaluate:
            cells = self.before_aggregation(chunk.cohort, chunk.clients, received, trained.params)
        spent = time.perf_counter() - begin
        kept = trained.params
        if chunk.only_means:
            kept = {name: kept[name] for name in chunk.local}
        return ChunkResult(replace(trained, params=kept, record={}), sent, optimiser.slots, cells, spent)

    def before_aggregation(
        self, cohort: int, clients: Tensor, received: Params, trained: Params
    ) -> list[Cell]:
        """Evaluate some clients' models as trained. Shape: received and trained (clients, ...)."""
        evaluator = self.evaluators[cohort]
        with torch.no_grad():
            models = evaluator.method.before_aggregation(trained, received)
            return evaluator.before_aggregation(models, clients)

    def evaluate(self, part: Part) -> PartResult:
        """Compute a part of the evaluation after aggregation."""
        return self.parts.evaluate(part, self.device)


class InProcess:
    """Computes one chunk after another in this process."""

    width = 1

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def train(self, chunks: Iterable[Chunk], should_stop: Callable[[], bool]) -> Iterator[ChunkResult]:
        """Train the chunks one after another; a result may be dropped before the next chunk begins."""
        return (self.worker.train(chunk, should_stop) for chunk in chunks)

    def evaluate(self, parts: Iterable[Part], should_stop: Callable[[], bool]) -> Iterator[PartResult]:
        """Compute the parts one after another."""
        return (self.worker.evaluate(part) for part in parts)
