"""The evaluation after aggregation, divided into parts that an executor may compute anywhere.

A part is either a chunk of clients' own models or some forward passes of a cohort's global model. How the
samples are cut into passes depends on the model only, not on the number of processes: a pass has the same
shape everywhere, and so the same bits. Values over all participants of a round (``Method.diagnostics``) need
all of them at once and are not divided.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

from fedcore.engine.clients.contract import check_models
from fedcore.engine.clients.evaluator import Evaluator, Score, Scores
from fedcore.engine.clients.executor import Executor, GlobalPasses, OwnModels
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Models, Params, State
from fedcore.records.events import Cell


def after_aggregation(
    evaluators: Sequence[Evaluator],
    executor: Executor,
    state: State,
    full: bool,
    chunk: int,
    should_stop: Callable[[], bool],
    between: bool = False,
) -> list[Cell]:
    """Evaluate every model, each with its own cohort's backbone.

    On test samples: the global model on every test set; the clients' models on all test sets (``full``) or on
    their own and the domains' ones, and on their class sets. If only a sample of the clients is evaluated and
    not ``full``: the clients' models on their own and their class sets. On validation samples: the clients'
    models on their own, the global model on all clients' ones. If every client predicts with the global
    model, its passes serve all clients. In a label space other than that of training they are
    evaluated on its own test sets only.

    Args:
        evaluators: of ``Worker``.
        chunk: clients' own models in one part.
        between: whether the round is neither the first nor the last, see ``Federation.in_between``.
    """
    cells: list[Cell] = []
    for cohort, home in enumerate(evaluators):
        for space, whole in enumerate(home.spaces):
            evaluator = whole.in_between if between else whole
            if not evaluator.has_samples:
                continue
            place = cohort, space
            with torch.no_grad():
                there = state if whole is home else home.method.retarget(state, evaluator.method)
                models = check_models(evaluator.method, evaluator.method.models(there))
                if models.global_model is not None:
                    score = _global_score(place, evaluator, executor, models.global_model, should_stop)
                    cells += evaluator.global_model(models, full, score)
            parts = _own_models(place, evaluator, models, full, between, chunk)
            for result in executor.evaluate(parts, should_stop):
                cells += result.cells
    return cells


def _own_models(
    place: tuple[int, int], evaluator: Evaluator, models: Models, full: bool, between: bool, chunk: int
) -> Iterator[OwnModels]:
    """Yield the clients' models in chunks, each of which is made when it is needed."""
    for clients in evaluator.with_own_models(models).split(1 if evaluator.homes else chunk):
        if len(clients):
            params = {n: _rows(v, clients) for n, v in models.clients.items()}
            yield OwnModels(*place, clients, params, full, between)


def _global_score(
    place: tuple[int, int],
    evaluator: Evaluator,
    executor: Executor,
    params: Params,
    should_stop: Callable[[], bool],
) -> Score:
    """Return a function that scores the global model, with its passes divided among the processes."""
    model = uuid.uuid4().hex

    def score(indices: Sequence[Tensor]) -> list[Scores]:
        passes = [part for index in indices for part in evaluator.passes(index)]
        groups = _divided(passes, executor.width)
        parts = [GlobalPasses(*place, model, params, tuple(group)) for group in groups]
        results = list(executor.evaluate(parts, should_stop))
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
