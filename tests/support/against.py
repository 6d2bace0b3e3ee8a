"""Helpers for tests of methods: build one, and feed an oracle the batches that the engine draws."""

import torch
from torch import Tensor

from fedcore.engine.clients.local import batch_positions
from fedcore.federation import Federation
from fedcore.methods import registry
from fedcore.methods.base import Method, RunContext
from fedcore.records.codes import AFTER_AGGREGATION


def build(name: str, federation: Federation, **config: object) -> Method:
    """A method on a federation, its config checked as a run's is."""
    cls = registry.get(name)
    checked = registry.build_config(name, config)
    cls.check(checked, run_context(federation))
    return cls(checked, federation.problem)


def run_context(federation: Federation) -> RunContext:
    problem = federation.problem
    return RunContext(
        problem.backbone.spec, problem.classes, len(problem.clients), problem.domains, problem.template
    )


def samples(federation: Federation) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training samples and labels, without padding."""
    rows = [i[m] for i, m in zip(federation.train.index, federation.train.mask, strict=True)]
    return [federation.pool.x(r) for r in rows], [federation.pool.y(r) for r in rows]


def engine_batches(federation: Federation, method: Method, rounds: int) -> list[list[list[list[int]]]]:
    """batches[round][client][step] -> positions among the client's samples, as the engine draws them."""
    everyone = torch.arange(len(federation.problem.clients))
    data = federation.local_data(everyone)
    drawn = []
    for round_ in range(1, rounds + 1):
        clients: list[list[list[int]]] = [[] for _ in everyone]
        for epoch in range(method.config.local_epochs):
            positions = batch_positions(data, round_, epoch, method.config.batch_size)
            for client, steps in enumerate(positions.tolist()):
                clients[client] += [[s for s in step if s >= 0] for step in steps if max(step) >= 0]
        drawn.append(clients)
    return drawn


def client_logits(method: Method, state: object, federation: Federation) -> Tensor:
    """Every client's scores for every sample of the pool. Shape: -> (clients, samples, classes)."""
    models = method.models(state).clients
    everyone = torch.arange(len(federation.problem.clients))
    head = method.head(models, federation.local_data(everyone))
    x = federation.pool.values.to(federation.pool.dtype)
    return method.logits(models, head, x.expand(len(everyone), *x.shape))


def global_logits(method: Method, state: object, federation: Federation) -> Tensor:
    """The global model's scores for every sample of the pool. Shape: -> (samples, classes)."""
    models = method.models(state).global_model
    assert models is not None
    return method.logits(
        models, method.head(models, None), federation.pool.x(torch.arange(len(federation.pool.labels)))[None]
    )[0]


def cells(
    loop: object, split: int = 2, stage: int = AFTER_AGGREGATION
) -> dict[tuple[int, int], tuple[int, int]]:
    """Correct and total of the last round by (model, test set)."""
    last = loop.finished[-1]
    return {
        (c.model, c.test_set): (c.correct, c.total)
        for c in last.cells
        if c.split == split and c.stage == stage
    }


def diagnostics(event: object, name: str) -> list[float]:
    return [d.value for d in event.diagnostics if d.name == name]
