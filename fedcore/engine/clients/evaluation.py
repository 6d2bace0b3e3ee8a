"""The evaluation after aggregation in parts, which an executor may compute anywhere.

A part is either a chunk of clients' own models or some forward passes of a cohort's global model. How the
samples are cut into passes depends on the model only, not on the number of processes: a pass has the same
shape everywhere, and so the same bits. Values over all participants of a round (``Method.diagnostics``) need
all of them at once and are not divided.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fedcore.engine.clients.contract import GlobalModel
from fedcore.engine.clients.evaluator import Evaluator, Scores
from fedcore.lazy import torch
from fedcore.methods.base import Models, Params, State
from fedcore.records.events import Cell

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OwnModels:
    """Models of some clients of a cohort.

    Attributes:
        full: whether to evaluate the full matrix, see ``AfterAggregation.cells``.

    Shape: clients (chunk,), ascending; params (chunk, ...).
    """

    cohort: int
    clients: Tensor
    params: Params
    full: bool


@dataclass(frozen=True)
class GlobalPasses:
    """Forward passes of a cohort's global model.

    Attributes:
        model: identifies the parameters, so that a process computes their head only once.

    Shape: params (1, ...); each pass (1, samples).
    """

    cohort: int
    model: str
    params: Params
    passes: tuple[Tensor, ...]


EvaluationPart = OwnModels | GlobalPasses


@dataclass(frozen=True)
class PartResult:
    """The result of a part: the cells of own models, or the scores of the global model's passes.

    Shape: correct and loss (1, samples of all passes).
    """

    cells: list[Cell] = field(default_factory=list)
    correct: Tensor | None = None
    loss: Tensor | None = None


class Evaluates(Protocol):
    """The half of an ``Executor`` that evaluates; results come in the order of the parts."""

    width: int

    def evaluate(
        self, parts: Iterable[EvaluationPart], should_stop: Callable[[], bool]
    ) -> Iterator[PartResult]: ...


@dataclass
class PartEvaluator:
    """Computes parts with the cohorts' evaluators of a process."""

    evaluators: Sequence[Evaluator]
    _head: tuple[str, Params] = ("", {})

    def evaluate(self, part: EvaluationPart, device: torch.device) -> PartResult:
        """Compute one part on a device."""
        evaluator = self.evaluators[part.cohort]
        given = {name: value.to(device) for name, value in part.params.items()}
        with torch.no_grad():
            if isinstance(part, OwnModels):
                each = torch.arange(len(part.clients), device=device)  # indexing writes out what is broadcast
                params = {name: value[each] for name, value in given.items()}
                return PartResult(evaluator.own_models(params, part.clients, part.full))
            given = GlobalModel(given)
            if self._head[0] != part.model:
                self._head = part.model, evaluator.method.head(given, None)
            scores = [evaluator.score(given, self._head[1], index) for index in part.passes]
        correct, loss = (torch.cat([s[i] for s in scores], 1) for i in (0, 1))
        return PartResult(correct=correct, loss=loss)


@dataclass(frozen=True)
class AfterAggregation:
    """The evaluation of all models of a round.

    Attributes:
        chunk: clients' own models in one part.
    """

    evaluators: Sequence[Evaluator]
    executor: Evaluates
    chunk: int
    should_stop: Callable[[], bool]

    def cells(self, state: State, full: bool) -> list[Cell]:
        """Evaluate every model, each through its own cohort's backbone.

        On test samples: the global model on every test set; the clients' models on all test sets (``full``)
        or on their own and the domains' ones, and on their class sets. If only a sample of the clients is
        evaluated and not ``full``: the clients' models on their own and their class sets. On validation
        samples: the clients' models on their own, the global model on all clients' ones. If every client
        predicts with the global model, its passes serve all clients.
        """
        return [cell for number in range(len(self.evaluators)) for cell in self._of(number, state, full)]

    def _of(self, cohort: int, state: State, full: bool) -> Iterator[Cell]:
        evaluator = self.evaluators[cohort]
        with torch.no_grad():
            models = evaluator.method.models(state)
            if models.global_model is not None:
                score = self._global_score(cohort, models.global_model)
                yield from evaluator.global_model(models, full, score)
        for result in self.executor.evaluate(self._own(cohort, models, full), self.should_stop):
            yield from result.cells

    def _own(self, cohort: int, models: Models, full: bool) -> Iterator[OwnModels]:
        """Yield the clients' models in chunks, each of which is made when it is needed."""
        for clients in self.evaluators[cohort].with_own_models(models).split(self.chunk):
            if len(clients):
                yield OwnModels(
                    cohort, clients, {n: _rows(v, clients) for n, v in models.clients.items()}, full
                )

    def _global_score(self, cohort: int, params: Params) -> Callable[[Sequence[Tensor]], list[Scores]]:
        """Return a function that scores the global model, with its passes divided among the processes."""
        evaluator, model = self.evaluators[cohort], uuid.uuid4().hex

        def score(indices: Sequence[Tensor]) -> list[Scores]:
            passes = [part for index in indices for part in evaluator.passes(index)]
            parts = [
                GlobalPasses(cohort, model, params, tuple(some))
                for some in _divided(passes, self.executor.width)
            ]
            results = list(self.executor.evaluate(parts, self.should_stop))
            sizes = [index.shape[1] for index in indices]
            correct = torch.cat([r.correct for r in results if r.correct is not None], 1).split(sizes, 1)
            loss = torch.cat([r.loss for r in results if r.loss is not None], 1).split(sizes, 1)
            return list(zip(correct, loss, strict=True))

        return score


def _rows(value: Tensor, clients: Tensor) -> Tensor:
    """Return the clients' rows, as a view of a broadcast value. Shape: value (clients of the run, ...)."""
    if value.stride(0) == 0:
        return value[:1].expand(len(clients), *value.shape[1:])
    return value[clients.to(value.device)]


def _divided(passes: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    """Divide passes into at most ``count`` groups, in order, of about equally many samples each."""
    total = sum(part.shape[1] for part in passes)
    groups: list[list[Tensor]] = [[] for _ in range(count)]
    before = 0
    for part in passes:
        groups[min(count - 1, (before + part.shape[1] // 2) * count // max(1, total))].append(part)
        before += part.shape[1]
    return [group for group in groups if group]
