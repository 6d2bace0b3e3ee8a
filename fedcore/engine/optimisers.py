"""SGD and Adam over parameters with a client axis: every client has its own state and step count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.methods.base import MethodConfig


@dataclass
class ClientOptimiser:
    """One optimiser per client, batched; a test holds its updates equal to those of torch.optim.

    Attributes:
        slots: "<parameter>/<moment>" -> tensor with the client axis first; created at the first step.
    """

    config: MethodConfig
    clients: int
    slots: dict[str, Tensor] = field(default_factory=dict)

    def step(self, name: str, value: Tensor, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return a parameter after one step.

        Shape: value and gradient (active, ...); rows (active,) client positions.
        """
        if self.config.optimiser == "sgd":
            return self._sgd(name, value, gradient, rows)
        return self._adam(name, value, gradient, rows)

    def _slot(self, name: str, like: Tensor) -> Tensor:
        """Return a moment of all clients, zero at first. Shape: like (any, ...) -> (clients, ...)."""
        if name not in self.slots:
            self.slots[name] = like.new_zeros(self.clients, *like.shape[1:])
        return self.slots[name]

    def _sgd(self, name: str, value: Tensor, gradient: Tensor, rows: Tensor) -> Tensor:
        c = self.config
        gradient = gradient + c.weight_decay * value
        if c.momentum:
            slot = self._slot(f"{name}/momentum", value)
            gradient = c.momentum * slot[rows] + gradient
            slot[rows] = gradient
        return value - c.lr * gradient

    def _adam(self, name: str, value: Tensor, gradient: Tensor, rows: Tensor) -> Tensor:
        c = self.config
        if c.optimiser == "adamw":
            value = value * (1 - c.lr * c.weight_decay)
        else:
            gradient = gradient + c.weight_decay * value
        first, second = self._slot(f"{name}/first", value), self._slot(f"{name}/second", value)
        count = self._slot(f"{name}/steps", value.flatten(1)[:, 0] if value.dim() > 1 else value)
        b1, b2, eps = c.adam
        first[rows] = b1 * first[rows] + (1 - b1) * gradient
        second[rows] = b2 * second[rows] + (1 - b2) * gradient**2
        count[rows] += 1
        steps = count[rows].view(-1, *[1] * (value.dim() - 1))
        denominator = (second[rows] / (1 - b2**steps)).sqrt() + eps
        return value - c.lr / (1 - b1**steps) * first[rows] / denominator

    def select(self, clients: Tensor) -> ClientOptimiser:
        """Return a copy of some clients' optimisers."""
        return ClientOptimiser(
            self.config, len(clients), {n: t[clients].clone() for n, t in self.slots.items()}
        )

    def put(self, clients: Tensor, other: ClientOptimiser) -> None:
        """Write some clients' optimisers back."""
        for name, values in other.slots.items():
            self._slot(name, values)[clients] = values
