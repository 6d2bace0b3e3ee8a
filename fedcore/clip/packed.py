"""Packed copies of a frozen tower's weights, for products of matrices through oneDNN (torch's ``mkldnn``).

A copy is made when a product first needs it, and stays with the weight: one for x W^T, another one for the
gradient of x, and one for each part of a weight that is used by itself. The plain weight stays too, for other
readers (deep copies, casts, products under autocast).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedcore import lazy
from fedcore.clip.products import MIN_WIDTH, linear

_ROWS = 512
"""Rows of the products that a copy is laid out for. One constant, as the layout may decide the last bits."""


def pack(model: torch.nn.Module) -> None:
    """Let the frozen attention blocks of a CLIP that are wide enough compute the packed way."""
    kind = lazy.open_clip().transformer.ResidualAttentionBlock
    for block in model.modules():
        if not isinstance(block, kind) or hasattr(block, "ln_1_kv"):
            continue  # a ResNet, or cross-attention, which takes its keys from elsewhere
        layers = [block.attn.out_proj, block.mlp.c_fc, block.mlp.c_proj]
        weights = [block.attn.in_proj_weight, *(layer.weight for layer in layers)]
        frozen = not any(weight.requires_grad for weight in weights)
        if block.attn.embed_dim < MIN_WIDTH or not (frozen and block.attn.batch_first):
            continue
        for weight in weights:
            weight.packed = Copies()
        for layer in layers:
            layer.__class__ = _Linear  # it keeps its parameters; only its forward pass is another one
        block.attn.__class__ = _SelfAttention


class Copies:
    """The packed copies of one weight and its views."""

    def __init__(self) -> None:
        self._copies: dict[tuple[object, ...], Tensor] = {}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b, with a gradient for x alone. Shape: x (..., in), weight (out, in)."""
        product: Tensor = _Product.apply(x, weight, bias, self)
        return product

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b without a gradient."""
        view = (weight.storage_offset(), weight.shape, weight.stride())
        if view not in self._copies:
            self._copies[view] = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        return torch.ops.mkldnn._linear_pointwise(x, self._copies[view], bias, "none", [], "")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copies: Copies) -> Tensor:
        ctx.weight, ctx.copies = weight, copies
        return copies.product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.copies.product(gradient, ctx.weight.T, None), None, None, None


class _Linear(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class _SelfAttention(torch.nn.MultiheadAttention):
    """Attention as open_clip's block calls it, with one tensor as query, key and value."""

    def forward(  # type: ignore[override]
        self, x: Tensor, *_: Tensor, need_weights: bool, attn_mask: Tensor | None
    ) -> tuple[Tensor, None]:
        """Shape: x (sequences, tokens, width) -> the same, and no attention weights."""
        qkv = linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), None
