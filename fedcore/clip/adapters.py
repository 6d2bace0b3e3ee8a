"""Bottlenecks beside the blocks of a tower, for several clients at once (pFedMMA, Ghiasvand et al., 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.lazy import functional as F

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Adapters:
    """x <- block(x) + scale Up(relu(S(relu(Down(LN_1(x)))))) in blocks start, start + 1, ....

    The scale multiplies values, and the gradient that passes through an adapter to x. It does not multiply
    the gradients of the adapter's own parameters, which would otherwise hardly move.

    Each of the three layers is a weight and its bias.

    Shape: weights down (clients, layers, r, width), shared (clients, layers, r, r) and up (clients, layers,
    width, r), biases (clients, layers, rows).
    """

    down: tuple[Tensor, Tensor]
    shared: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    scale: float
    start: int

    def delta(self, layer: int, x: Tensor) -> Tensor:
        """Return the adapter's term for a block's output; x is the normalised input of the block.

        Shape: x (clients or 1, sequences, tokens, width) -> (clients, sequences, tokens, width).
        """
        i = layer - self.start
        flat = x.flatten(1, 2)
        # The added term is zero: it changes the gradient and not the value.
        flat = flat.detach() + self.scale * (flat - flat.detach())
        for number, (weight, bias) in enumerate((self.down, self.shared, self.up)):
            flat = flat @ weight[:, i].transpose(1, 2) + bias[:, i, None]
            flat = flat if number == 2 else F.relu(flat)
        fixed = flat.detach()
        return (self.scale * fixed + (flat - fixed)).unflatten(1, x.shape[1:3])
