"""One round of a method as someone would write it by hand: client by client, on cached features.

This is the floor that the engine is measured against. It has torch.optim's own steps and records nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedcore.methods.federation import Federation

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Rotated(nn.Module):
    """FedOT: a classifier on rotated embeddings."""

    def __init__(self, drawn: Federation) -> None:
        super().__init__()
        text = drawn.problem.class_features
        self.classifier = nn.Parameter(text.clone())
        self.matrix = nn.Parameter(torch.eye(text.shape[1]))
        self.scale = drawn.problem.backbone.logit_scale

    def forward(self, h: Tensor) -> Tensor:
        """Return the scores. Shape: (samples, d) -> (samples, classes)."""
        skew = (self.matrix - self.matrix.T) / 2
        turned = 2 * torch.linalg.solve(torch.eye(len(skew)) - skew, h.T).T - h  # Q h without Q
        return self.scale * F.normalize(turned, dim=-1) @ self.classifier.T


class RotatedBySeries(Rotated):
    """FedOT with (I - P)^-1 h = h + P h + P^2 h, which is exact to a rounding error in its first rounds."""

    def forward(self, h: Tensor) -> Tensor:
        """Return the scores. Shape: (samples, d) -> (samples, classes)."""
        skew = (self.matrix - self.matrix.T) / 2
        solved = h.T
        for _ in range(2):
            solved = torch.addmm(h.T, skew, solved)
        return self.scale * F.normalize(2 * solved.T - h, dim=-1) @ self.classifier.T


class RotatedInBlocks(Rotated):
    """FedOT with 16 blocks."""

    blocks = 16

    def __init__(self, drawn: Federation) -> None:
        super().__init__(drawn)
        self.matrix = nn.Parameter(torch.eye(len(self.matrix) // self.blocks).repeat(self.blocks, 1, 1))

    def forward(self, h: Tensor) -> Tensor:
        """Return the scores. Shape: (samples, d) -> (samples, classes)."""
        skew = (self.matrix - self.matrix.mT) / 2
        columns = h.unflatten(-1, (self.blocks, -1)).permute(1, 2, 0)
        turned = 2 * torch.linalg.solve(torch.eye(skew.shape[-1]) - skew, columns) - columns
        return self.scale * F.normalize(turned.permute(2, 0, 1).flatten(1), dim=-1) @ self.classifier.T


class Adapted(nn.Module):
    """FedCLIP: an attention adapter on embeddings."""

    def __init__(self, drawn: Federation) -> None:
        super().__init__()
        self.text, self.scale = drawn.problem.class_features, drawn.problem.backbone.logit_scale
        d = self.text.shape[1]
        self.weigh = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d), nn.Softmax(-1))

    def forward(self, h: Tensor) -> Tensor:
        """Return normalised features. Shape: (samples, d) -> same."""
        return F.normalize(self.weigh(h) * h, dim=-1)


def cross_entropy(model: nn.Module, h: Tensor, y: Tensor) -> Tensor:
    """Return FedOT's loss of a batch."""
    return F.cross_entropy(model(h), y)


def contrastive(model: Adapted, h: Tensor, y: Tensor) -> Tensor:
    """Return FedCLIP's loss of a batch: images against the prompts of their batch, both ways."""
    scores = model.scale * model(h) @ model.text[y].T
    targets = torch.arange(len(y))
    return (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return FedOT's optimiser."""
    return torch.optim.SGD(parameters, lr=5e-5, momentum=0.9, weight_decay=5e-4)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return FedCLIP's optimiser."""
    return torch.optim.Adam(parameters, lr=5e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)


def one_round(
    model: nn.Module,
    drawn: Federation,
    loss: Loss,
    optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    batch: int = 32,
    evaluated: bool = False,
) -> None:
    """Train every client from the model and average the results into it.

    If evaluated, each client's model then predicts all test samples, and so does the average.
    """
    trained = []
    for client, count in enumerate(drawn.train.counts.tolist()):
        local = copy.deepcopy(model)
        optim = optimiser(local.parameters())
        rows = drawn.train.index[client, torch.randperm(count)]
        for part in rows.split(batch):
            optim.zero_grad()
            loss(local, drawn.pool.values[part], drawn.pool.labels[part]).backward()
            optim.step()
        trained.append(local.state_dict())
    mean = {n: torch.stack([t[n] for t in trained]).mean(0) for n in trained[0]}
    if evaluated:
        test = drawn.test.flat.unique()
        with torch.no_grad():
            for state in (*trained, mean):
                model.load_state_dict(state)
                (model(drawn.pool.values[test]).argmax(-1) == drawn.pool.labels[test]).sum()
    model.load_state_dict(mean)
