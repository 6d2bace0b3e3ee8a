"""Attention of all tokens to a prefix, and of tokens of class names to those before them in their name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.clip.prefixed.layout import Pairs
from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """What queries attend to.

    Attributes:
        prefix: the number of tokens of the prefix, the first among the keys.
        pairs: rows of queries and of keys, and the keys' columns behind the prefix's.

    Shape: mask (queries, P + S), 0 where a query sees a token of the prefix, -inf elsewhere.
    """

    prefix: int
    pairs: Pairs
    mask: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is attended to, and the weights.

        Shape: q (Q, heads, w), k and v (N, heads, w) -> (Q, heads w), (heads, Q, P + S).
        """
        prefix, scale = self.prefix, q.shape[-1] ** -0.5
        scores = self.mask.expand(q.shape[1], -1, -1).clone()
        scores[:, :, :prefix] += torch.bmm(q.transpose(0, 1), k[:prefix].permute(1, 2, 0)).mul_(scale)
        for queries, keys, column in self.pairs:
            scores[:, queries, prefix + column] = (q[queries] * k[keys]).sum(-1).mul_(scale).T
        weights = scores.softmax(-1)
        out = torch.bmm(weights[:, :, :prefix], v[:prefix].transpose(0, 1)).transpose(0, 1).contiguous()
        for queries, keys, column in self.pairs:
            out[queries].addcmul_(weights[:, queries, prefix + column].T[..., None], v[keys])
        return out.flatten(1), weights

    def backward(
        self, gradient: Tensor, weights: Tensor, q: Tensor, k: Tensor, v: Tensor, to: tuple[Tensor, ...]
    ) -> None:
        """Write the gradients of q, k and v into ``to``, from that of what was attended to.

        Shape: gradient (Q, heads w), weights (heads, Q, P + S), q, k, v and to as in ``attend``.
        """
        prefix, scale = self.prefix, q.shape[-1] ** -0.5
        out = gradient.view(q.shape)
        by_head = out.transpose(0, 1)
        of_weights = torch.zeros_like(weights)
        of_weights[:, :, :prefix] = torch.bmm(by_head, v[:prefix].permute(1, 2, 0))
        for queries, keys, column in self.pairs:
            of_weights[:, queries, prefix + column] = (out[queries] * v[keys]).sum(-1).T
        scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(scale)
        to_q, to_k, to_v = to
        to_k[prefix:], to_v[prefix:] = 0, 0
        over = scores[:, :, :prefix]
        to_q.copy_(torch.bmm(over, k[:prefix].transpose(0, 1)).transpose(0, 1))
        to_k[:prefix] = torch.bmm(over.transpose(1, 2), q.transpose(0, 1)).transpose(0, 1)
        to_v[:prefix] = torch.bmm(weights[:, :, :prefix].transpose(1, 2), by_head).transpose(0, 1)
        for queries, keys, column in self.pairs:
            score = scores[:, queries, prefix + column].T[..., None]
            to_q[queries].addcmul_(score, k[keys])
            to_k[keys].addcmul_(score, q[queries])
            to_v[keys].addcmul_(weights[:, queries, prefix + column].T[..., None], out[queries])
