"""Low-rank adaptation of attention projections, for several clients at once (Hu et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Lora:
    """W = W_0 + scale * b @ a on the q, k and v projections of layers start, start + 1, ...

    Shape: a (clients, layers, 3, rank, width), b (clients, layers, 3, width, rank).
    """

    a: Tensor
    b: Tensor
    scale: float
    start: int

    def delta(self, layer: int, x: Tensor) -> Tensor | None:
        """What the adaptation adds to the joint q, k, v projection of a layer; None below ``start``.

        Shape: x (clients, sequences, tokens, width) -> (clients, sequences, tokens, 3 * width).
        """
        i = layer - self.start
        if not 0 <= i < self.a.shape[1]:
            return None
        a, b = self.a[:, i], self.b[:, i]
        clients, sequences, tokens, width = x.shape
        rank = a.shape[-2]
        low = x.reshape(clients, -1, width) @ a.reshape(clients, 3 * rank, width).transpose(1, 2)
        low = low.view(clients, -1, 3, rank).transpose(1, 2)
        full = low @ b.transpose(2, 3)  # (clients, 3, sequences * tokens, width)
        return self.scale * full.transpose(1, 2).reshape(clients, sequences, tokens, 3 * width)


def init_lora(
    layers: int, width: int, rank: int, generator: Generator, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """a Kaiming-uniform (a = sqrt 5), b zero, as in the LoRA
    paper: the adapted tower starts as the frozen one.

    Shape: -> a (layers, 3, rank, width), b (layers, 3, width, rank).
    """
    bound = math.sqrt(6 / ((1 + 5) * width))
    a = torch.empty(layers, 3, rank, width, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    dtype = dtype or torch.float32
    return a.to(dtype), torch.zeros(layers, 3, width, rank, dtype=dtype)
