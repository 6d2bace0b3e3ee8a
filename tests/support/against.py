"""Helpers for tests of methods: train one in the engine and naively, on equal batches, and compare both."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedcore.base.events import AFTER_AGGREGATION, TEST, Cell, RoundFinished
from fedcore.clip.backbone import Backbone
from fedcore.engine.clients.local import batch_positions
from fedcore.engine.server import Server
from fedcore.methods import registry
from fedcore.methods.base import Method, RunContext
from fedcore.methods.federation import Federation
from tests.support.method_cases import SMALL
from tests.support.oracles import fedavg, promptfl
from tests.support.oracles.fedavg import Parameters
from tests.support.tiny import few_layers, run_rounds, tiny_federation

NEAR = {"atol": 1e-6, "rtol": 0}


def build(name: str, federation: Federation, **config: object) -> Method:
    """A method on a federation, its config checked as a run's is."""
    cls = registry.get(name)
    checked = registry.build_config(name, config)
    cls.check(checked, run_context(federation))
    return cls(checked, federation.problem)


def build_small(name: str, federation: Federation, **config: object) -> Method:
    """A method with prompts and ranks that the tiny CLIP has room for."""
    return build(name, federation, **{**SMALL.get(name, {}), **config})


def federation_for(
    name: str, config: dict[str, object] | None = None, backbone: Backbone | None = None, **options: object
) -> Federation:
    """A ``tiny_federation`` with what a method reads, by default as ``build_small`` makes it."""
    backbone = backbone or few_layers()
    checked = registry.build_config(name, SMALL.get(name, {}) if config is None else config)
    return tiny_federation(backbone, registry.get(name).reads(checked, backbone.spec), **options)


def run_context(federation: Federation) -> RunContext:
    problem = federation.problem
    return RunContext(
        problem.backbone.spec,
        problem.classes,
        len(problem.clients),
        problem.domains,
        problem.template,
        descriptions=problem.descriptions,
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


def naive_clip(federation: Federation) -> promptfl.Clip:
    backbone = federation.problem.backbone
    return promptfl.Clip(backbone.model, backbone.tokenizer, federation.problem.classes, backbone.logit_scale)


def train_both(
    method: Method,
    federation: Federation,
    loss: Callable[[Parameters, Tensor, Tensor], Tensor],
    weighting: str,
    optimiser: Callable[[list[Tensor]], torch.optim.Optimizer] = fedavg.sgd,
    still: Sequence[str] = (),
) -> tuple[Server, list[Parameters]]:
    """Train two rounds in the engine and naively; both end with the same parameters, which have moved.

    Args:
        loss: (a client's parameters, images, labels) -> the loss of a batch.
        weighting: of the server's mean, "samples" or "uniform".
        still: parameters without a gradient.

    Returns:
        the engine's loop, and each client's parameters of the naive one.
    """
    first = method.init(federation.problem.generator)
    start = {**first.shared, **first.local}
    xs, labels = samples(federation)
    owns = [[value[k] for value in first.local.values()] for k in range(len(xs))]

    def of_batch(values: list[Tensor], received: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(dict(zip(start, values, strict=True)), x, y)

    weights = [float(len(y)) if weighting == "samples" else 1.0 for y in labels]
    batches = engine_batches(federation, method, 2)
    trained = fedavg.run(of_batch, list(first.shared.values()), xs, labels, batches, optimiser, weights, owns)
    naive = [dict(zip(start, values, strict=True)) for values in trained]
    loop = run_rounds(method, federation, 2)
    for name, before in start.items():
        ours = loop.state.shared[name] if name in first.shared else loop.state.local[name]
        theirs = (
            naive[0][name] if name in first.shared else torch.stack([of_client[name] for of_client in naive])
        )
        torch.testing.assert_close(ours, theirs, **NEAR)
        assert name in still or (theirs - before).abs().max() > 1e-4, f"{name} did train"
    return loop, naive


def assert_predictions(loop: Server, common: Tensor | None, owns: Sequence[Tensor] | None = None) -> None:
    """Compare what the models predict for the first samples of the pool.

    Args:
        common: the global model's scores (samples, classes); None if there is no global model.
        owns: the scores of each client's model; default: all as ``common``.
    """
    found = client_logits(loop.method, loop.state, loop.federation)
    for ours, theirs in zip(found, owns or [common] * len(found), strict=True):
        torch.testing.assert_close(ours[: len(theirs)], theirs, **NEAR)
    if common is None:
        assert loop.method.models(loop.state).global_model is None
    else:
        ours = global_logits(loop.method, loop.state, loop.federation)
        torch.testing.assert_close(ours[: len(common)], common, **NEAR)


def client_logits(method: Method, state: object, federation: Federation) -> Tensor:
    """Every client's scores for every sample of the pool. Shape: -> (clients, samples, classes)."""
    everyone = torch.arange(len(federation.problem.clients))
    models = method.models(state).of(everyone)
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
    event: RoundFinished, split: int = TEST, stage: int = AFTER_AGGREGATION
) -> dict[tuple[int, int], Cell]:
    """The cells of a round by (model, test set)."""
    return {(c.model, c.test_set): c for c in event.cells if (c.split, c.stage) == (split, stage)}


def counts(event: RoundFinished) -> dict[tuple[int, int], tuple[int, int]]:
    """Correct and total of a round by (model, test set), on test samples after aggregation."""
    return {place: (cell.correct, cell.total) for place, cell in cells(event).items()}


def counted(scores: Tensor, federation: Federation, rows: Tensor) -> tuple[int, int]:
    """Count samples one by one: correct and total. Shape: scores of one model (samples, classes)."""
    hits = [int(scores[row].argmax()) == int(federation.pool.labels[row]) for row in rows.tolist()]
    return sum(hits), len(hits)


def diagnostics(event: object, name: str) -> list[float]:
    return [d.value for d in event.diagnostics if d.name == name]
