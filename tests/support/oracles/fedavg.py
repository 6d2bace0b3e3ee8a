"""Federated averaging the naive way: one client after the other, torch's own optimisers, nothing batched.

Nothing here imports FedLens.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, weighted

Values = list[Tensor]
Parameters = dict[str, Tensor]
Loss = Callable[[Values, Values, Tensor, Tensor], Tensor]
"""(values, what the client received, images, labels) -> the loss of a batch."""


def run(
    loss: Loss,
    start: Values,
    xs: list[Tensor],
    labels: list[Tensor],
    batches: Batches,
    optimiser: Callable[[Values], torch.optim.Optimizer],
    weights: list[float] | None,
    owns: Sequence[Values] | None = None,
) -> list[Values]:
    """Return every client's values after all rounds, those that are averaged first.

    Args:
        weights: of the server's mean; None if there is none.
        owns: each client's values that no server averages, behind those of ``start``.
    """
    clients = [[*start, *local] for local in owns or [[]] * len(xs)]
    for steps_of in batches:
        for k, steps in enumerate(steps_of):
            received = clients[k]
            values = [v.clone().requires_grad_() for v in received]
            moves = optimiser(values)
            for chosen in steps:
                moves.zero_grad()
                loss(values, received, xs[k][chosen], labels[k][chosen]).backward()
                moves.step()
            clients[k] = [v.detach() for v in values]
        if weights is not None:
            sent = zip(*(values[: len(start)] for values in clients), strict=True)
            mean = [weighted(list(v), weights) for v in sent]
            clients = [[*mean, *values[len(start) :]] for values in clients]
    return clients


def sgd(values: Values) -> torch.optim.Optimizer:
    """The optimiser of most methods of CLIP's prompts, with a rate that moves the tiny CLIP."""
    return torch.optim.SGD(values, lr=0.05, momentum=0.9, weight_decay=5e-4)


def nll(scores: Tensor, y: Tensor) -> Tensor:
    """-log softmax of one sample. Shape: scores (K,), y () -> ()."""
    return torch.logsumexp(scores, 0) - scores[y]


def mean_nll(scores: Iterable[Tensor], labels: Tensor) -> Tensor:
    """Shape: scores one (K,) per sample, labels (n,) -> ()."""
    return sum(nll(one, y) for one, y in zip(scores, labels, strict=True)) / len(labels)


def loss_of(scores: Callable[[Parameters, Tensor], Iterable[Tensor]]) -> Callable[..., Tensor]:
    """The loss of (parameters, images, labels) of a method that trains its class scores for images."""
    return lambda params, x, y: mean_nll(scores(params, x), y)
