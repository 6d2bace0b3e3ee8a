"""Federated averaging the naive way: one client after the other, torch's own optimisers, nothing batched.

Nothing here imports FedLens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, weighted

Values = list[Tensor]
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
) -> list[Values]:
    """Every client's values after all rounds; ``weights`` of the server's mean, None where there is none."""
    clients = [[v.clone() for v in start] for _ in xs]
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
            clients = [[weighted(list(v), weights) for v in zip(*clients, strict=True)]] * len(clients)
    return clients


def sgd(values: Values) -> torch.optim.Optimizer:
    """The optimiser of most methods of CLIP's prompts, with a rate that moves the tiny CLIP."""
    return torch.optim.SGD(values, lr=0.05, momentum=0.9, weight_decay=5e-4)


def nll(scores: Tensor, y: Tensor) -> Tensor:
    """-log softmax of one sample. Shape: scores (K,), y () -> ()."""
    return torch.logsumexp(scores, 0) - scores[y]
