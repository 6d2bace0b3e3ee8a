"""The text tower client by client: a prefix and all class names behind it as one matrix of real tokens.

Autograd would keep intermediate values that are not needed, and padded copies for attention. Here a layer
keeps its input, q, k and v, the attention weights and what enters its norms and its activation. The first
layer's projections of class names, which no prompt moves, are made once for all clients. Clients that hold
the same prefix, as all do in the first step after a broadcast, share one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from fedcore.clip.prefixed.attention import Seen
from fedcore.clip.prefixed.layout import Layout
from fedcore.lazy import functional as F
from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.clip.towers import TextTower

_FEWEST_NUMBERS = 2**16
"""Numbers in a client's matrix (tokens x width) from which on it fills the processor by itself."""


def pays(text: TextTower, layout: Layout, prefix: Tensor) -> bool:
    """Return whether this way is faster than one batch of all clients, and knows the tower's parts."""
    many = (layout.tokens + prefix.shape[1]) * prefix.shape[2] >= _FEWEST_NUMBERS
    return many and prefix.device.type == "cpu" and all(map(_is_known, text.blocks))


def _is_known(block: Any) -> bool:
    plain = isinstance(block.ls_1, torch.nn.Identity) and isinstance(block.ls_2, torch.nn.Identity)
    norms = all(isinstance(norm, torch.nn.LayerNorm) for norm in (block.ln_1, block.ln_2))
    names = [name for name, _ in block.mlp.named_children()] == ["c_fc", "gelu", "c_proj"]
    frozen = not any(parameter.requires_grad for parameter in block.parameters())
    return bool(plain and norms and names and frozen and _activation(block) is not None)


def _activation(block: Any) -> str | None:
    name = type(block.mlp.gelu).__name__
    exact = name == "GELU" and block.mlp.gelu.approximate == "none"
    return name if exact or name == "QuickGELU" else None


def encode(
    text: TextTower, prefix: Tensor, names: Tensor, layout: Layout, lengths: Tensor | None = None
) -> Tensor:
    """Return unnormalised text features of prefix[c] + names[k], pooled at [EOT], as ``TextTower.encode``.

    Shape: prefix (clients, P, m), names (classes, S, m) without gradient, lengths (clients,) rows of each
    prefix that are used -> (clients, classes, d).
    """
    used = [prefix.shape[1]] * len(prefix) if lengths is None else lengths.tolist()
    keeps = torch.is_grad_enabled() and prefix.requires_grad
    features: Tensor = _function()(prefix, Names(text, names, layout), used, keeps)
    return features


@dataclass(frozen=True)
class _Norm:
    """A layer norm and its backward pass."""

    module: Any

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = self.module
        return torch.native_layer_norm(x, m.normalized_shape, m.weight, m.bias, m.eps)

    def backward(self, gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
        m, only_x = self.module, [True, False, False]
        backward = torch.ops.aten.native_layer_norm_backward
        back: Tensor = backward(gradient, x, m.normalized_shape, mean, rstd, m.weight, m.bias, only_x)[0]
        return back


@dataclass(frozen=True)
class _Layer:
    """A block of the tower on a matrix of tokens.

    Attributes:
        pooled: rows that have queries and go on to the next layer; None for all.
    """

    block: Any
    seen: Seen
    pooled: Tensor | None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, and k and v side by side, of some tokens, with the statistics of their norm."""
        attn, width = self.block.attn, x.shape[-1]
        n, mean, rstd = _Norm(self.block.ln_1).forward(x)
        weight, bias = attn.in_proj_weight, attn.in_proj_bias
        if self.pooled is None:
            q, kv = F.linear(n, weight, bias).split([width, 2 * width], -1)
        else:
            q = F.linear(n[self.pooled], weight[:width], bias[:width])
            kv = F.linear(n, weight[width:], bias[width:])
        return q, kv, mean, rstd

    def forward(self, x: Tensor, projected: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the layer's output, and what its backward pass needs."""
        q, kv, mean, rstd = projected
        attended, weights = self.seen.attend(*self._heads(q, kv))
        rest = x if self.pooled is None else x[self.pooled]
        middle = F.linear(attended, self.block.attn.out_proj.weight, self.block.attn.out_proj.bias).add_(rest)
        n, *statistics = _Norm(self.block.ln_2).forward(middle)
        mlp = self.block.mlp
        inner = mlp.c_fc(n)
        out = mlp.c_proj(mlp.gelu(inner)).add_(middle)
        return out, (x, mean, rstd, q, kv, weights, middle, *statistics, inner)

    def backward(self, gradient: Tensor, kept: tuple[Tensor, ...], first: int | None) -> Tensor:
        """Return the gradient of the layer's input; of its first rows only where ``first`` says so."""
        x, mean, rstd, q, kv, weights, middle, mean_2, rstd_2, inner = kept
        mlp, attn, width = self.block.mlp, self.block.attn, x.shape[-1]
        back = _through_activation(self.block, gradient @ mlp.c_proj.weight, inner) @ mlp.c_fc.weight
        back = _Norm(self.block.ln_2).backward(back, middle, mean_2, rstd_2).add_(gradient)
        of_qkv = x.new_empty(len(x), 3 * width) if self.pooled is None else None
        of_q = x.new_empty(len(q), width) if of_qkv is None else of_qkv[:, :width]
        of_kv = x.new_empty(len(x), 2 * width) if of_qkv is None else of_qkv[:, width:]
        to = self._heads(of_q, of_kv)
        self.seen.backward(back @ attn.out_proj.weight, weights, *self._heads(q, kv), to)
        if of_qkv is not None:
            of_norm = of_qkv[:first] @ attn.in_proj_weight
        else:
            of_norm = of_kv @ attn.in_proj_weight[width:]
            of_norm.index_add_(0, self.pooled, of_q @ attn.in_proj_weight[:width])
        of_x = _Norm(self.block.ln_1).backward(of_norm, x[:first], mean[:first], rstd[:first])
        return of_x.add_(back[:first]) if self.pooled is None else of_x.index_add_(0, self.pooled, back)

    def _heads(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shape: q (Q, m), kv (N, 2 m) -> (Q, heads, w), (N, heads, w), (N, heads, w)."""
        heads = self.block.attn.num_heads
        k, v = kv.unflatten(-1, (2, heads, -1)).unbind(1)
        return q.unflatten(-1, (heads, -1)), k, v


def _through_activation(block: Any, gradient: Tensor, x: Tensor) -> Tensor:
    if _activation(block) == "GELU":
        return torch.ops.aten.gelu_backward(gradient, x)
    gate = torch.sigmoid(1.702 * x)
    return gradient * gate * (1 + 1.702 * x * (1 - gate))


class Names:
    """Class names in a tower: what no prefix changes but by its length, made once for each length."""

    def __init__(self, text: TextTower, names: Tensor, layout: Layout) -> None:
        self.text, self.layout = text, layout
        self._names = names.flatten(0, 1)[layout.rows]
        self._made: dict[int, tuple[list[_Layer], Tensor, tuple[Tensor, ...]]] = {}

    def _for(self, length: int) -> tuple[list[_Layer], Tensor, tuple[Tensor, ...]]:
        """Return the layers behind a prefix of some length, the names' embeddings and their projections."""
        if length not in self._made:
            layers = self._layers(length)
            places = (self.layout.places + length).clamp(max=self.text.context_length - 1)
            x = self._names + self.text.model.positional_embedding[places]
            self._made[length] = (layers, x, layers[0].project(x) if len(layers) > 1 else ())
        return self._made[length]

    def _layers(self, length: int) -> list[_Layer]:
        """Return the layers of the tower: in the last one only [EOT] tokens have queries."""
        layout, names = self.layout, self._names
        mask = names.new_full((length + layout.tokens, length + layout.longest), -torch.inf)
        mask[length:, :length] = 0
        mask[:length, :length].triu_(1)
        of_eot = mask[length + layout.eot]

        def behind(rows: slice) -> slice:
            return slice(rows.start + length, rows.stop + length)

        pairs = [(behind(queries), behind(keys), column) for queries, keys, column in layout.pairs]
        last = [(queries, behind(keys), column) for queries, keys, column in layout.last_pairs]
        *blocks, final = self.text.blocks
        seen, at_end = Seen(length, pairs, mask), Seen(length, last, of_eot)
        return [*(_Layer(b, seen, None) for b in blocks), _Layer(final, at_end, layout.eot + length)]

    def forward(self, prefix: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Return the features of all classes behind a prefix, and what the backward pass needs.

        Shape: prefix (P, m) -> (classes, d).
        """
        layers, names, projected = self._for(len(prefix))
        own = prefix + self.text.model.positional_embedding[: len(prefix)]
        x, kept = torch.cat([own, names]), []
        for number, layer in enumerate(layers):
            if number == 0 and projected:
                ready = tuple(map(torch.cat, zip(layer.project(own), projected, strict=True)))
            else:
                ready = layer.project(x)
            x, values = layer.forward(x, ready)
            kept.append(values)
        n, *statistics = _Norm(self.text.model.ln_final).forward(x)
        kept.append((x, *statistics))
        projection = self.text.model.text_projection
        if isinstance(projection, torch.nn.Linear):
            n = projection(n)
        elif projection is not None:
            n = n @ projection
        return n[self.layout.unsorted], kept

    def backward(self, gradient: Tensor, kept: list[tuple[Tensor, ...]], length: int) -> Tensor:
        """Return the gradient of a prefix of some length. Shape: gradient (classes, d) -> (P, m)."""
        layers, projection = self._for(length)[0], self.text.model.text_projection
        back = torch.empty_like(gradient)
        back[self.layout.unsorted] = gradient
        if isinstance(projection, torch.nn.Linear):
            back = back @ projection.weight
        elif projection is not None:
            back = back @ projection.T
        back = _Norm(self.text.model.ln_final).backward(back, *kept[-1])
        for number in reversed(range(len(layers))):
            first = length if number == 0 < len(layers) - 1 else None
            back = layers[number].backward(back, kept[number], first)
        return back[:length]


@cache
def _function() -> Any:
    """Return the function for autograd, a class of torch's, which is loaded on first use."""

    class Encode(torch.autograd.Function):
        """Features of prefixes whose backward pass goes client by client, too."""

        @staticmethod
        def forward(ctx: Any, prefix: Tensor, names: Names, used: list[int], keeps: bool) -> Tensor:
            alike = _first_alike(prefix, used)
            features: list[Tensor] = []
            kept: list[list[tuple[Tensor, ...]]] = []
            for client, length in enumerate(used):
                if alike[client] < client:
                    features.append(features[alike[client]])
                    kept.append([])
                    continue
                found, values = names.forward(prefix[client, :length])
                features.append(found)
                kept.append(values if keeps else [])
            ctx.names, ctx.used, ctx.alike, ctx.shape = names, used, alike, prefix.shape
            ctx.sizes = [[len(values) for values in of_client] for of_client in kept]
            ctx.save_for_backward(*(t for of_client in kept for values in of_client for t in values))
            return torch.stack(features)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
            saved = iter(ctx.saved_tensors)
            kept = [[tuple(islice(saved, size)) for size in sizes] for sizes in ctx.sizes]
            back = gradient.new_zeros(ctx.shape)
            for client, length in enumerate(ctx.used):
                values = kept[ctx.alike[client]]
                back[client, :length] = ctx.names.backward(gradient[client], values, length)
            return back, None, None, None

    return Encode.apply


def _first_alike(prefix: Tensor, used: list[int]) -> list[int]:
    """Return for each client the first one that holds the same prefix, often itself."""
    firsts: list[int] = []
    alike = []
    for client, length in enumerate(used):
        own = prefix[client, :length]
        same = (f for f in firsts if used[f] == length and torch.equal(prefix[f, :length], own))
        first = next(same, client)
        alike.append(first)
        if first == client:
            firsts.append(client)
    return alike
