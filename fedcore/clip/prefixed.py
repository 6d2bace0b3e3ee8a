"""Text features of class names behind a learned prefix, client by client, with a hand-written backward pass.

Under CLIP's causal mask a prefix never sees the class name behind it. So a prefix is computed once for all
names, and the prefix and the real tokens of all names form one matrix without padding.

Autograd would be correct here, but it keeps intermediate values that are not needed, and padded copies for
attention. With the backward pass written by hand a layer keeps its input, q, k and v, the attention weights,
and the inputs of its norms and its activation: this is what makes rounds of PromptFL and SDFed cheap, in time
and in memory (docs/benchmarks.md). Clients share the first layer's projections of the class names, which no
prefix changes, and the whole forward pass of equal prefixes, which all of them hold after a broadcast.
``TextTower.encode`` computes the same features in one batch; the tests compare both.
"""

from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.towers import TextTower

_FEWEST_NUMBERS = 2**16
"""Size of a client's matrix (tokens x width) from which on it keeps the processor busy by itself."""

Pairs = list[tuple[slice, slice, int]]
"""Rows of queries, rows of their keys, and the position of these keys in their names."""


class TokenOrder:
    """The real tokens of class names: the first tokens of all names, then all second ones, and so on.

    The names are sorted by length, the longest first. Then the tokens at position j that attend to position
    i <= j of the same names are one slice, and so are their keys: attention needs no padding and no copy.

    Attributes:
        rows: where each token is among (classes S); positions: its position in its name.
        pairs: which tokens attend to which; last_pairs: the same for [EOT] tokens alone, in sorted order.
        eot: rows of [EOT] in sorted order; unsorted: where each class is in that order.
    """

    def __init__(self, eot: Tensor, steps: int) -> None:
        order = torch.argsort(eot, descending=True, stable=True)
        ends = eot[order]
        counts = [int((ends >= j).sum()) for j in range(int(ends[0]) + 1)] + [0]
        starts = [sum(counts[:j]) for j in range(len(counts))]
        positions = range(len(counts) - 1)
        self.rows = torch.cat([order[: counts[j]] * steps + j for j in positions])
        self.positions = torch.cat([torch.full((counts[j],), j, device=eot.device) for j in positions])
        self.pairs: Pairs = [
            (slice(starts[j], starts[j] + counts[j]), slice(starts[i], starts[i] + counts[j]), i)
            for j in positions
            for i in range(j + 1)
        ]
        self.last_pairs: Pairs = [
            (slice(low, high), slice(starts[i] + low, starts[i] + high), i)
            for j in positions
            if (low := counts[j + 1]) < (high := counts[j])
            for i in range(j + 1)
        ]
        self.eot = torch.tensor(starts, device=eot.device)[ends] + torch.arange(len(eot), device=eot.device)
        self.unsorted = torch.argsort(order)
        self.longest = len(positions)
        self.tokens = len(self.rows)


def pays(text: TextTower, order: TokenOrder, prefix: Tensor) -> bool:
    """Return whether this is faster than one batch of all clients, and supports the tower's modules."""
    many = (order.tokens + prefix.shape[1]) * prefix.shape[2] >= _FEWEST_NUMBERS
    plain = not text.behind and all(map(_is_supported, text.blocks))
    return many and prefix.device.type == "cpu" and plain


def _is_supported(block: Any) -> bool:
    """Return whether the backward pass knows every module of a block."""
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
    text: TextTower, prefix: Tensor, names: Tensor, order: TokenOrder, lengths: Tensor | None = None
) -> Tensor:
    """Return unnormalised text features of prefix[c] + names[k], pooled at [EOT], as ``TextTower.encode``.

    Shape: prefix (clients, P, m), names (classes, S, m) without gradient, lengths (clients,) rows of each
    prefix that are used -> (clients, classes, d).
    """
    used = [prefix.shape[1]] * len(prefix) if lengths is None else lengths.tolist()
    needs_backward = torch.is_grad_enabled() and prefix.requires_grad
    features: Tensor = _function()(prefix, PrefixEncoder(text, names, order), used, needs_backward)
    return features


@dataclass(frozen=True)
class _Attention:
    """Attention of all tokens to the prefix, and of a name's tokens to those before them in the name.

    Attributes:
        prefix: number of prefix tokens, which are the first keys.
        pairs: rows of queries and of keys, and the keys' columns after the prefix's.

    Shape: mask (queries, P + S), 0 where a query sees a prefix token, -inf elsewhere.
    """

    prefix: int
    pairs: Pairs
    mask: Tensor

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attended values and the attention weights.

        The scores of all queries with the prefix are one product of matrices. Those within names are added
        pair by pair: -inf from the mask stays wherever a query has no such key, so that the softmax over
        P + S columns ignores it.

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
        """Write the gradients of q, k and v into ``to``, given that of the attended values.

        Shape: gradient (Q, heads w), weights (heads, Q, P + S), q, k, v and to as in ``forward``.
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
        with_prefix = scores[:, :, :prefix]
        to_q.copy_(torch.bmm(with_prefix, k[:prefix].transpose(0, 1)).transpose(0, 1))
        to_k[:prefix] = torch.bmm(with_prefix.transpose(1, 2), q.transpose(0, 1)).transpose(0, 1)
        to_v[:prefix] = torch.bmm(weights[:, :, :prefix].transpose(1, 2), by_head).transpose(0, 1)
        for queries, keys, column in self.pairs:
            score = scores[:, queries, prefix + column].T[..., None]
            to_q[queries].addcmul_(score, k[keys])
            to_k[keys].addcmul_(score, q[queries])
            to_v[keys].addcmul_(weights[:, queries, prefix + column].T[..., None], out[queries])


def _norm(norm: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a layer norm; also return its mean and inverse deviation, for the backward pass."""
    return torch.native_layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _norm_backward(norm: Any, gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    only_x = [True, False, False]
    backward = torch.ops.aten.native_layer_norm_backward
    shape, weight, bias = norm.normalized_shape, norm.weight, norm.bias
    of_x: Tensor = backward(gradient, x, shape, mean, rstd, weight, bias, only_x)[0]
    return of_x


def _activation_backward(block: Any, gradient: Tensor, x: Tensor) -> Tensor:
    if _activation(block) == "GELU":
        return torch.ops.aten.gelu_backward(gradient, x)
    gate = torch.sigmoid(1.702 * x)
    return gradient * gate * (1 + 1.702 * x * (1 - gate))


@dataclass(frozen=True)
class _Layer:
    """A block of the tower on a matrix of tokens.

    Attributes:
        pooled: rows that have queries and go on to the next layer; None for all.
    """

    block: Any
    attention: _Attention
    pooled: Tensor | None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, and k and v side by side, of some tokens, with the statistics of their norm."""
        attn, width = self.block.attn, x.shape[-1]
        n, mean, rstd = _norm(self.block.ln_1, x)
        weight, bias = attn.in_proj_weight, attn.in_proj_bias
        if self.pooled is None:
            q, kv = F.linear(n, weight, bias).split([width, 2 * width], -1)
        else:
            q = F.linear(n[self.pooled], weight[:width], bias[:width])
            kv = F.linear(n, weight[width:], bias[width:])
        return q, kv, mean, rstd

    def forward(self, x: Tensor, projected: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the layer's output, and the values that its backward pass needs."""
        q, kv, mean, rstd = projected
        attended, weights = self.attention.forward(*self._heads(q, kv))
        residual = x if self.pooled is None else x[self.pooled]
        mlp = self.block.mlp
        middle = self.block.attn.out_proj(attended).add_(residual)
        n, *statistics = _norm(self.block.ln_2, middle)
        inner = mlp.c_fc(n)
        out = mlp.c_proj(mlp.gelu(inner)).add_(middle)
        return out, (x, mean, rstd, q, kv, weights, middle, *statistics, inner)

    def backward(self, gradient: Tensor, saved: tuple[Tensor, ...], first: int | None) -> Tensor:
        """Return the gradient of the layer's input, or only of its ``first`` rows."""
        x, mean, rstd, q, kv, weights, middle, mean_2, rstd_2, inner = saved
        mlp, attn, width = self.block.mlp, self.block.attn, x.shape[-1]
        back = F.linear(gradient, mlp.c_proj.weight.T)
        back = F.linear(_activation_backward(self.block, back, inner), mlp.c_fc.weight.T)
        back = _norm_backward(self.block.ln_2, back, middle, mean_2, rstd_2).add_(gradient)
        # With queries for all tokens, q, k and v are views of one matrix, so that one product with the
        # projection's weights gives the gradient of the norm. With pooled queries there are fewer rows of q.
        of_qkv = x.new_empty(len(x), 3 * width) if self.pooled is None else None
        of_q = x.new_empty(len(q), width) if of_qkv is None else of_qkv[:, :width]
        of_kv = x.new_empty(len(x), 2 * width) if of_qkv is None else of_qkv[:, width:]
        to = self._heads(of_q, of_kv)
        of_attended = F.linear(back, attn.out_proj.weight.T)
        self.attention.backward(of_attended, weights, *self._heads(q, kv), to)
        if of_qkv is not None:
            of_norm = F.linear(of_qkv[:first], attn.in_proj_weight.T)
        else:
            assert self.pooled is not None
            of_norm = F.linear(of_kv, attn.in_proj_weight[width:].T)
            of_norm.index_add_(0, self.pooled, F.linear(of_q, attn.in_proj_weight[:width].T))
        of_x = _norm_backward(self.block.ln_1, of_norm, x[:first], mean[:first], rstd[:first])
        return of_x.add_(back[:first]) if self.pooled is None else of_x.index_add_(0, self.pooled, back)

    def _heads(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shape: q (Q, m), kv (N, 2 m) -> (Q, heads, w), (N, heads, w), (N, heads, w)."""
        heads = self.block.attn.num_heads
        k, v = kv.unflatten(-1, (2, heads, -1)).unbind(1)
        return q.unflatten(-1, (heads, -1)), k, v


class PrefixEncoder:
    """Encodes class names behind prefixes; class-name projections are cached per prefix length.

    Position embeddings shift with the length of the prefix, and nothing else of the names does.
    """

    def __init__(self, text: TextTower, names: Tensor, order: TokenOrder) -> None:
        self.text, self.order = text, order
        self._names = names.flatten(0, 1)[order.rows]
        self._by_length: dict[int, tuple[list[_Layer], Tensor, tuple[Tensor, ...]]] = {}

    def _behind(self, length: int) -> tuple[list[_Layer], Tensor, tuple[Tensor, ...]]:
        """Return the layers, the names' embeddings and their projections behind a prefix of this length."""
        if length not in self._by_length:
            layers = self._layers(length)
            positions = (self.order.positions + length).clamp(max=self.text.context_length - 1)
            x = self._names + self.text.model.positional_embedding[positions]
            # In a tower of one layer, the first is also the last, which has queries for [EOT] only: its
            # projections of the prefix and of the names cannot be joined row by row.
            self._by_length[length] = (layers, x, layers[0].project(x) if len(layers) > 1 else ())
        return self._by_length[length]

    def _layers(self, length: int) -> list[_Layer]:
        """Return the layers of the tower; in the last one only [EOT], which is pooled, has a query."""
        order, names = self.order, self._names
        mask = names.new_full((length + order.tokens, length + order.longest), -torch.inf)
        mask[length:, :length] = 0
        mask[:length, :length].triu_(1)

        def shifted(rows: slice) -> slice:
            return slice(rows.start + length, rows.stop + length)

        pairs = [(shifted(queries), shifted(keys), column) for queries, keys, column in order.pairs]
        last = [(queries, shifted(keys), column) for queries, keys, column in order.last_pairs]
        *blocks, final = self.text.blocks
        of_all = _Attention(length, pairs, mask)
        of_eot = _Attention(length, last, mask[length + order.eot])
        return [*(_Layer(b, of_all, None) for b in blocks), _Layer(final, of_eot, order.eot + length)]

    def forward(self, prefix: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Return the features of all classes behind a prefix, and the values that the backward pass needs.

        Shape: prefix (P, m) -> (classes, d).
        """
        layers, names, projected = self._behind(len(prefix))
        positioned = prefix + self.text.model.positional_embedding[: len(prefix)]
        x, saved = torch.cat([positioned, names]), []
        for number, layer in enumerate(layers):
            if number == 0 and projected:
                qkv = tuple(map(torch.cat, zip(layer.project(positioned), projected, strict=True)))
            else:
                qkv = layer.project(x)
            x, values = layer.forward(x, qkv)
            saved.append(values)
        n, *statistics = _norm(self.text.model.ln_final, x)
        saved.append((x, *statistics))
        projection = self.text.model.text_projection
        if isinstance(projection, torch.nn.Linear):
            n = projection(n)
        elif projection is not None:
            n = n @ projection
        return n[self.order.unsorted], saved

    def backward(self, gradient: Tensor, saved: list[tuple[Tensor, ...]], length: int) -> Tensor:
        """Return the gradient of a prefix of some length. Shape: gradient (classes, d) -> (P, m)."""
        layers, projection = self._behind(length)[0], self.text.model.text_projection
        back = torch.empty_like(gradient)
        back[self.order.unsorted] = gradient
        if isinstance(projection, torch.nn.Linear):
            back = back @ projection.weight
        elif projection is not None:
            back = back @ projection.T
        back = _norm_backward(self.text.model.ln_final, back, *saved[-1])
        for number in reversed(range(len(layers))):
            # Class names are frozen: below the first layer only the prefix's rows have a use for gradients.
            # The last layer needs all rows, since it adds the gradients of [EOT] by their numbers.
            first = length if number == 0 and len(layers) > 1 else None
            back = layers[number].backward(back, saved[number], first)
        return back[:length]


@cache
def _function() -> Any:
    """Return the function for autograd, defined on first use because its base class is torch's."""

    class Encode(torch.autograd.Function):
        """Features of prefixes; forward and backward pass go client by client."""

        @staticmethod
        def forward(
            ctx: Any, prefix: Tensor, encoder: PrefixEncoder, used: list[int], needs_backward: bool
        ) -> Tensor:
            first_equal = _first_equal(prefix, used)
            features: list[Tensor] = []
            saved: list[list[tuple[Tensor, ...]]] = []
            for client, length in enumerate(used):
                if first_equal[client] < client:
                    features.append(features[first_equal[client]])
                    saved.append([])
                    continue
                of_client, values = encoder.forward(prefix[client, :length])
                features.append(of_client)
                saved.append(values if needs_backward else [])
            ctx.encoder, ctx.used, ctx.first_equal, ctx.shape = encoder, used, first_equal, prefix.shape
            ctx.sizes = [[len(values) for values in of_client] for of_client in saved]
            ctx.save_for_backward(*(t for of_client in saved for values in of_client for t in values))
            return torch.stack(features)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
            tensors = iter(ctx.saved_tensors)
            saved = [[tuple(islice(tensors, size)) for size in sizes] for sizes in ctx.sizes]
            back = gradient.new_zeros(ctx.shape)
            for client, length in enumerate(ctx.used):
                values = saved[ctx.first_equal[client]]
                back[client, :length] = ctx.encoder.backward(gradient[client], values, length)
            return back, None, None, None

    return Encode.apply


def _first_equal(prefix: Tensor, used: list[int]) -> list[int]:
    """Return for each client the first one with the same prefix, which is often the client itself."""
    distinct: list[int] = []
    result = []
    for client, length in enumerate(used):
        equal = (
            d
            for d in distinct
            if used[d] == length and torch.equal(prefix[d, :length], prefix[client, :length])
        )
        first = next(equal, client)
        result.append(first)
        if first == client:
            distinct.append(client)
    return result
