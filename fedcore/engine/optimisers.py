"""SGD and Adam over parameters with a client axis: every client has its own state and step count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.methods.base import MethodConfig

WARMUP_LR = 1e-5
"""Learning rate of the warm-up rounds in CoOp's code."""
_BLOCK = 2**18
"""Elements that a step updates together on a CPU: they stay in its cache through all of the step's sums."""


def learning_rate(config: MethodConfig, round_: int, rounds: int) -> float:
    """Return the learning rate of a round, from 1 on, of so many.

    The cosine begins after the warm-up and would reach 0 after as many rounds as the run has, as in CoOp's
    code, where epochs stand for rounds.
    """
    done = round_ - 1 - config.warmup_rounds
    if done < 0:
        return min(WARMUP_LR, config.lr)
    if config.schedule == "constant":
        return config.lr
    return config.lr * (1 + math.cos(math.pi * done / rounds)) / 2


@dataclass
class ClientOptimiser:
    """One optimiser per client, batched; a test holds its updates equal to those of torch.optim.

    Attributes:
        slots: "<parameter>/<moment>" -> tensor with the client axis first; created at the first step.
        lr_factors: parameter -> multiple of the config's learning rate; 1 for all others.
    """

    config: MethodConfig
    clients: int
    slots: dict[str, Tensor] = field(default_factory=dict)
    lr_factors: Mapping[str, float] = field(default_factory=dict)

    def step(self, name: str, value: Tensor, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return a parameter after one step.

        Shape: value and gradient (active, ...); rows (active,) client positions.
        """
        config = self.config
        if name in self.lr_factors:
            config = config.model_copy(update={"lr": config.lr * self.lr_factors[name]})
        adam = config.optimiser != "sgd"
        moments = ("first", "second") if adam else ("momentum",) if config.momentum else ()
        slots = [self._slot(f"{name}/{moment}", value) for moment in moments]
        everyone = len(rows) == self.clients
        state = slots if everyone else [slot[rows] for slot in slots]
        if adam:
            count = self._slot(f"{name}/steps", value.flatten(1)[:, 0] if value.dim() > 1 else value)
            count[rows] += 1
            state = [*state, count[rows].view(-1, *[1] * (value.dim() - 1))]
        moved = torch.empty_like(value)
        for part in _blocks(value):
            tensors = (t[part] for t in (value, gradient, moved, *state))
            (_adam if adam else _sgd)(config, *tensors)
        if not everyone:
            for slot, values in zip(slots, state, strict=False):
                slot[rows] = values
        return moved

    def _slot(self, name: str, like: Tensor) -> Tensor:
        """Return a moment of all clients, zero at first. Shape: like (any, ...) -> (clients, ...)."""
        if name not in self.slots:
            self.slots[name] = like.new_zeros(self.clients, *like.shape[1:])
        return self.slots[name]

    def select(self, clients: Tensor) -> ClientOptimiser:
        """Return a copy of some clients' optimisers."""
        slots = {n: t[clients].clone() for n, t in self.slots.items()}
        return ClientOptimiser(self.config, len(clients), slots, self.lr_factors)

    def put(self, clients: Tensor, other: ClientOptimiser) -> None:
        """Write some clients' optimisers back."""
        for name, values in other.slots.items():
            self._slot(name, values)[clients] = values


def _blocks(value: Tensor) -> Iterator[slice]:
    """Yield slices of the client axis; all clients in one where the device is not a CPU."""
    clients = max(1, len(value))
    size = max(1, _BLOCK * clients // max(1, value.numel())) if value.device.type == "cpu" else clients
    return (slice(start, start + size) for start in range(0, len(value), size))


def _sgd(
    c: MethodConfig, value: Tensor, gradient: Tensor, out: Tensor, momentum: Tensor | None = None
) -> None:
    """Write the value after one step into ``out``, and move the momentum."""
    torch.mul(value, c.weight_decay, out=out).add_(gradient)
    if momentum is not None:
        out.copy_(momentum.mul_(c.momentum).add_(out))
    torch.sub(value, out.mul_(c.lr), out=out)


def _adam(
    c: MethodConfig,
    value: Tensor,
    gradient: Tensor,
    out: Tensor,
    first: Tensor,
    second: Tensor,
    steps: Tensor,
) -> None:
    """Write the value after one step into ``out``, and move both moments."""
    b1, b2, eps = c.adam
    if c.optimiser == "adamw":
        value = value * (1 - c.lr * c.weight_decay)
        out.copy_(gradient)
    else:
        torch.mul(value, c.weight_decay, out=out).add_(gradient)
    first.mul_(b1).add_(out * (1 - b1))
    second.mul_(b2).add_(out.square_().mul_(1 - b2))
    torch.div(second, 1 - b2**steps, out=out).sqrt_().add_(eps)
    torch.div(first * (c.lr / (1 - b1**steps)), out, out=out)
    torch.sub(value, out, out=out)
