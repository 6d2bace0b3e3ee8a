"""CLIP's transformers as functions with a client axis, built on open_clip's own frozen modules.

They save three computations exactly, which open_clip's forward does not. Under the causal mask a context that
all classes share is computed once instead of once per class. The last block runs only for the pooled token,
which on a CPU reads an image's other tokens without their keys and values. Layers that are the same for all
clients run once for an image that all clients share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.adapters import Adapters, Lora

_PACKED_SHARE, _PACKED_TOKENS = 0.9, 256
"""Padding is left out if at most this share of the tokens is real and there are at least so many real tokens.
Otherwise nothing is saved, and the other shape would change the last bits of the products for nothing."""


def _project(
    block: Any, layer: int, x: Tensor, lora: Lora | None, packing: "Packing | None" = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the q, k and v of one layer, unpacked if x is packed.

    Shape: x (clients, sequences, tokens, width) -> three (..., tokens, heads, width/heads).
    """
    distinct, weight = x[:1] if _is_repeated(x) else x, block.attn.in_proj_weight
    if lora is not None and len(x) == 1 and not lora.is_learned:
        weight, lora = lora.merged(layer, weight), None  # one model on many samples
    qkv = F.linear(distinct, weight, block.attn.in_proj_bias).expand(len(x), -1, -1, -1)
    if lora is None:
        parts: Sequence[Tensor] = (packing.unpack(qkv) if packing else qkv).chunk(3, -1)
    else:
        parts = [packing.unpack(part) if packing else part for part in lora.added(layer, x, qkv)]
    q, k, v = (part.unflatten(-1, (block.attn.num_heads, -1)) for part in parts)
    return q, k, v


def _is_repeated(x: Tensor) -> bool:
    """Return whether all clients share one tensor (stride 0), outside of autograd."""
    return len(x) > 1 and x.stride(0) == 0 and not torch.is_grad_enabled()


def _read_by_one(block: Any, layer: int, x: Tensor, lora: Lora | None) -> Tensor:
    """Return what the first token of each sequence attends to, without keys and values of the tokens.

    A score q (W_k x + b_k) is (W_k^T q) x plus what is the same for all tokens x, which softmax removes. A
    mean of W_v x + b_v is W_v (the mean of x) + b_v. So the heads are queries of one wide head, whose keys
    and values are the x themselves. The other products are small, and in full precision under bf16 too.

    Shape: x (clients, sequences, tokens, width) -> (clients, sequences, 1, heads, width/heads).
    """
    heads, weight = block.attn.num_heads, block.attn.in_proj_weight
    bias_q, _, bias_v = block.attn.in_proj_bias.chunk(3)
    of_clients = x.shape[:2]
    with torch.autocast(x.device.type, enabled=False):
        if lora is not None:
            weight, a, b = lora.parts(layer, weight)
        weight_q, weight_k, weight_v = weight.chunk(3)
        token = x[:, :, 0]
        q = F.linear(token, weight_q, bias_q)
        if lora is not None:
            q = q + token @ a[0].mT @ b[0].mT
            _, b_k, b_v = b.unflatten(2, (heads, -1)).transpose(1, 2)  # (heads, clients, width/heads, rank)
        # Attention divides by the root of the width, but a head has only its own part of it.
        q = (math.sqrt(heads) * q).unflatten(-1, (heads, -1)).permute(2, 0, 1, 3)
        queries = (q.flatten(1, 2) @ weight_k.unflatten(0, (heads, -1))).unflatten(1, of_clients)
        if lora is not None:
            queries = queries + q @ b_k @ a[1]
        keys = x.flatten(0, 1)[:, None]
        mixed = _attention(queries.flatten(1, 2).transpose(0, 1)[:, None], keys, keys)
        mixed = mixed[:, 0].transpose(0, 1)  # (heads, clients * sequences, width)
        values = (mixed @ weight_v.unflatten(0, (heads, -1)).mT).unflatten(1, of_clients)
        if lora is not None:
            values = values + mixed.unflatten(1, of_clients) @ a[2].mT @ b_v.mT
        return values.permute(1, 2, 0, 3)[:, :, None] + bias_v.unflatten(0, (heads, -1))


def _finish(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """Apply the output projection, the residual connections and the MLP of a block.

    Shape: x (..., width), attended (..., heads, width/heads) -> like x.
    """
    x = x + block.ls_1(block.attn.out_proj(attended.flatten(-2)))
    return x + block.ls_2(block.mlp(block.ln_2(x)))


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attend within sequences. Shape: q, k, v (sequences, heads, tokens, w) -> like q.

    On a CPU it is computed in fp32 under bf16 too: torch's kernel for bf16 takes six times as long for the
    gradient of sequences this short (docs/benchmarks.md).
    """
    if q.dtype == torch.bfloat16 and q.device.type == "cpu":
        q, k, v = q.float(), k.float(), v.float()
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


class ImageTower:
    """A CLIP ViT with class-token pooling, in two halves: the lower is encoded once, the upper may adapt."""

    def __init__(self, visual: Any) -> None:
        if not hasattr(visual, "transformer") or visual.attn_pool is not None or visual.pool_type != "tok":
            raise FedLensError(
                "this image tower has no class-token transformer to adapt; choose a ViT", "backbone.name"
            )
        self.visual = visual
        self.blocks = visual.transformer.resblocks

    def patches(self, pixels: Tensor) -> Tensor:
        """Return patch tokens, before class token and positional embeddings are added.

        Shape: pixels (images, 3, side, side) -> (images, patches, width).
        """
        return self.visual.conv1(pixels).flatten(2).transpose(1, 2)

    def embed(self, patches: Tensor, class_token: Tensor, positions: Tensor) -> Tensor:
        """Return the input of layer 0 for each client's class and positional embeddings.

        Shape: patches (clients, images, patches, width), class_token (clients, width),
        positions (clients, 1 + patches, width) -> (clients, images, 1 + patches, width).
        """
        first = class_token[:, None, None].expand(-1, patches.shape[1], -1, -1)
        return self.visual.ln_pre(torch.cat([first, patches], 2) + positions[:, None])

    def activations(self, pixels: Tensor, start: int) -> Tensor:
        """Return the input of layer ``start``.

        Shape: pixels (images, 3, side, side) -> (images, tokens, width).
        """
        x = self.visual._embeds(pixels)
        for block in self.blocks[:start]:
            x = block(x)
        return x

    def tail(
        self,
        hidden: Tensor,
        start: int,
        lora: Lora | None = None,
        projection: Tensor | None = None,
        prompts: Tensor | None = None,
        adapters: Adapters | None = None,
    ) -> Tensor:
        """Return unnormalised embeddings, computed from the activations entering layer ``start``.

        Args:
            prompts: learned tokens that join the image's at layers ``start``, ``start`` + 1, .... Each
                layer's tokens replace the outputs of the previous ones; the last ones stay to the end.

        Shape: hidden (clients, images, tokens, width), projection (clients, width, d) instead of CLIP's,
        prompts (clients, layers, p, width) -> (clients, images, d).
        """
        x, tokens = hidden, hidden.shape[2]
        common = start  # the first layer that differs between clients
        if _is_repeated(hidden) and prompts is None and adapters is None:
            common = len(self.blocks) if lora is None else max(start, lora.start + lora.layers_alike())
            x = hidden[:1]
        for layer in range(start, len(self.blocks)):
            if layer == common:
                x = x.expand_as(hidden)
            if prompts is not None and layer - start < prompts.shape[1]:
                learned = prompts[:, layer - start, None].expand(-1, x.shape[1], -1, -1)
                x = torch.cat([x[:, :, :tokens], learned], 2)
            x = self._layer(layer, x, lora if lora is None or layer >= common else lora.first, adapters)
        pooled = self.visual.ln_post(x[:, :, 0]).expand(len(hidden), -1, -1)
        if projection is not None:
            return pooled @ projection
        return pooled if self.visual.proj is None else pooled @ self.visual.proj

    def between(self, hidden: Tensor, start: int, stop: int, lora: Lora) -> Tensor:
        """Return the activations entering layer ``stop``, from those entering layer ``start``.

        Shape: hidden (clients, images, tokens, width) -> the same, or with one token after the last layer.
        """
        for layer in range(start, stop):
            hidden = self._layer(layer, hidden, lora)
        return hidden

    def _layer(self, layer: int, x: Tensor, lora: Lora | None, adapters: Adapters | None = None) -> Tensor:
        """Return the output of a layer; the last layer gives only the class token.

        Shape: x (clients, images, tokens, width) -> the same, or with one token.
        """
        block = self.blocks[layer]
        normalised = block.ln_1(x[:1]).expand_as(x) if _is_repeated(x) else block.ln_1(x)
        last = layer == len(self.blocks) - 1  # only the class token is pooled
        if last and x.device.type == "cpu":  # a GPU would wait for more launches
            attended = _read_by_one(block, layer, normalised, lora)
        else:
            q, k, v = _project(block, layer, normalised, lora)
            q, k, v = (t.flatten(0, 1).transpose(1, 2) for t in (q[:, :, :1] if last else q, k, v))
            attended = _attention(q, k, v).transpose(1, 2).unflatten(0, x.shape[:2])
        if last:  # the other tokens need no MLP
            x, normalised = x[:, :, :1], normalised[:, :, :1]
        out = _finish(block, x, attended)
        return out if adapters is None else out + adapters.delta(layer, normalised)

    def regions(self, hidden: Tensor, start: int) -> Tensor:
        """Return the unnormalised embedding of every patch, from the activations entering layer ``start``.

        Each patch token passes the last layer, norm and projection as the class token does.

        Shape: hidden (images, tokens, width) -> (images, patches, d).
        """
        for block in self.blocks[start:]:
            hidden = block(hidden)
        patches = self.visual.ln_post(hidden[:, 1:])
        return patches if self.visual.proj is None else patches @ self.visual.proj


def resnet_map(visual: Any, pixels: Tensor) -> Tensor:
    """Return the last feature map of a CLIP ResNet. Shape: (images, 3, H, W) -> (images, width, h, w)."""
    x = visual.stem(pixels)
    for layer in (visual.layer1, visual.layer2, visual.layer3, visual.layer4):
        x = layer(x)
    return x


def resnet_regions(visual: Any, feature_map: Tensor) -> Tensor:
    """Return the embedding of every position: the attention pooling with that position as its query.

    Shape: feature_map (images, width, h, w) -> (images, h w, d).
    """
    pool = visual.attnpool
    tokens = feature_map.flatten(2).transpose(1, 2)
    tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], 1) + pool.positional_embedding
    q, k, v = (
        layer(tokens).unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
        for layer in (pool.q_proj, pool.k_proj, pool.v_proj)
    )
    attended = F.scaled_dot_product_attention(q[:, :, 1:], k, v)
    return pool.c_proj(attended.transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class Sequences:
    """Sequences at the entry of a layer of the text tower; ``length`` is P also if the suffix has the prefix.

    Shape: prefix (clients, 1, P, m), suffix (clients, classes, S, m) or packed, pooled (classes,) index of
    the pooled token in the suffix, mask (clients or 1, 1, classes or 1, S, P + S) to add to scores.
    """

    prefix: Tensor
    suffix: Tensor
    pooled: Tensor
    mask: Tensor | None
    length: int


class TextTower:
    """The text transformer of an open_clip model on token embeddings, so that contexts can be learned.

    CLIP's is causal and pooled at [EOT]. CoCa's is causal too, and pooled at a class token behind all
    others, which reads the text and one token of padding, as open_clip masks it. Without a causal mask
    (SigLIP, CLIPA, MobileCLIP) every token reads all others, padding included, and [EOT] or the last token
    is pooled.

    Attributes:
        whole: whether all ``context_length`` tokens are read, so that no prefix can be computed once.
        behind: the number of tokens behind [EOT] that the tower reads.
    """

    def __init__(self, model: Any) -> None:
        self.model = model = getattr(model, "text", model)  # some models have a separate text module
        self.blocks = model.transformer.resblocks
        self.context_length: int = model.positional_embedding.shape[0]
        self.whole = model.attn_mask is None
        self._class_token: Tensor | None = getattr(model, "cls_emb", None)
        pool_type = model.pool_type if hasattr(model, "pool_type") else model.text_pool_type
        self._pools_last = pool_type == "last" or self._class_token is not None
        self.behind = self.context_length if self.whole else int(self._class_token is not None)

    def embed(self, ids: Tensor) -> Tensor:
        """Return token embeddings without positions. Shape: ids (...) -> (..., m)."""
        return self.model.token_embedding(ids)

    def encode(
        self,
        prefix: Tensor,
        suffix: Tensor,
        eot: Tensor,
        lengths: Tensor | None = None,
        lora: Lora | None = None,
        positions: Tensor | None = None,
        packing: "Packing | None" = None,
        deep: Tensor | None = None,
    ) -> Tensor:
        """Return unnormalised text features of the sequences prefix[c] + suffix[c, k].

        All classes of a client share its prefix, which a causal mask allows to be computed once.
        Position embeddings count each client's actual prefix length; prefix rows from lengths[c] on get
        attention weight exactly 0, so that clients of different lengths share a batch without padding inside
        any sequence. ``packing`` leaves out the padding after shorter class names, except in attention.
        ``deep`` replaces the prefix after [SOS] with learned tokens at the entry of layers 1, 2, ....
        If there are fewer prefixes than clients, these take them in turn.

        Shape: prefix (clients or fewer, P, m), suffix (clients or 1, classes, S, m) with the tokens that the
        tower reads ``behind`` [EOT], eot (classes,) index of [EOT] in the suffix, lengths (clients,) with
        1 <= length <= P, for a causal tower only, positions (positions, m) instead of the tower's, deep
        (clients, layers, ..., m) -> (clients, classes, d).
        """
        return self.tail(self._enter(prefix, suffix, eot, lengths, positions), 0, None, packing, lora, deep)

    def activations(self, prefix: Tensor, suffix: Tensor, eot: Tensor, start: int) -> Sequences:
        """Return the input of layer ``start``. Shape: prefix (1, P, m), suffix (1, classes, S, m)."""
        entered = self._enter(prefix, suffix, eot)
        for layer in range(start):
            entered = self._layer(layer, entered)
        return entered

    def _enter(
        self,
        prefix: Tensor,
        suffix: Tensor,
        eot: Tensor,
        lengths: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Sequences:
        """Return what enters layer 0; of a tower without a causal mask the prefix is a part of the suffix."""
        clients, width_p = max(len(prefix), len(suffix)), prefix.shape[1]
        if self.whole:
            suffix = suffix[:, :, : self.context_length - width_p]
        elif self._class_token is not None:
            suffix = torch.cat([suffix, self._class_token.expand(*suffix.shape[:2], 1, -1)], 2)
        steps = suffix.shape[2]
        if lengths is None:
            lengths = torch.full((1,), width_p, device=prefix.device)
        position = self.model.positional_embedding if positions is None else positions
        places = (lengths[:, None] + torch.arange(steps, device=lengths.device)).clamp(
            max=self.context_length - 1
        )
        if self._class_token is not None:
            places[:, -1] = self.context_length - 1
        pooled = torch.full_like(eot, steps - 1) if self._pools_last else eot
        p = (prefix + position[:width_p])[:, None]  # (clients, 1, P, m)
        s = suffix.expand(clients, -1, -1, -1) + position[places][:, None]
        if self.whole:
            p = p.repeat(clients // len(p), 1, 1, 1)
            s = torch.cat([p.expand(-1, s.shape[1], -1, -1), s], 2)
            return Sequences(p[:, :, :0], s, pooled + width_p, None, width_p)
        hidden = self._hidden(lengths, width_p, steps, eot)
        zero = torch.zeros((), dtype=p.dtype, device=lengths.device)
        mask = torch.where(hidden, torch.finfo(p.dtype).min, zero)[:, None]
        return Sequences(p, s, pooled, mask, width_p)

    def tail(
        self,
        entered: Sequences,
        start: int,
        adapters: Adapters | None = None,
        packing: "Packing | None" = None,
        lora: Lora | None = None,
        deep: Tensor | None = None,
    ) -> Tensor:
        """Return unnormalised text features, computed from the activations entering layer ``start``.

        Clients may share the activations, and so the first layer but for its adapter.

        Shape: -> (clients, classes, d).
        """
        if self.behind:
            packing = None  # packing is made for towers that read nothing behind [EOT]
        if packing:
            entered = replace(entered, suffix=packing.pack(entered.suffix))
        for layer in range(start, len(self.blocks)):
            if deep is not None and 0 < layer <= deep.shape[1]:
                entered = self._replaced(entered, deep[:, layer - 1, None])
            entered = self._layer(layer, entered, lora, packing, adapters)
        return self._pool(entered.suffix)

    def _replaced(self, x: Sequences, learned: Tensor) -> Sequences:
        """Return the sequences with other tokens at the prefix's end. Shape: learned (clients, 1, L, m)."""
        first, s = x.length - learned.shape[2], x.suffix
        if not self.whole:
            return replace(x, prefix=torch.cat([x.prefix[:, :, :first], learned], 2))
        each = learned.expand(-1, s.shape[1], -1, -1)
        return replace(x, suffix=torch.cat([s[:, :, :first], each, s[:, :, x.length :]], 2))

    def _layer(
        self,
        layer: int,
        x: Sequences,
        lora: Lora | None = None,
        packing: "Packing | None" = None,
        adapters: Adapters | None = None,
    ) -> Sequences:
        """Return the outputs of a layer; the last layer gives only the pooled tokens, with S = 1."""
        block, (p, s, mask) = self.blocks[layer], (x.prefix, x.suffix, x.mask)
        normalised_p, normalised_s = block.ln_1(p), block.ln_1(s)
        qp, kp, vp = _project(block, layer, normalised_p, lora)
        qs, ks, vs = _project(block, layer, normalised_s, lora, packing)
        if layer == len(self.blocks) - 1:
            rows = torch.arange(len(x.pooled), device=x.pooled.device)
            s = packing.unpack(s) if packing else s
            qs, s = qs[:, rows, x.pooled][:, :, None], s[:, rows, x.pooled][:, :, None]
            if mask is not None:
                mask = mask.expand(-1, -1, len(rows), -1, -1)[:, :, rows, x.pooled, None]
            packing = None
            normalised_s = s if adapters is None else block.ln_1(s)
        elif p.shape[2]:
            q, k, v = (t[:, 0].transpose(1, 2) for t in (qp, kp, vp))
            within = _attention(q, k, v, causal=True)
            p = _finish(block, p, within.transpose(1, 2)[:, None])
            p = p if adapters is None else p + adapters.delta(layer, normalised_p)
        if len(kp) < len(ks):
            kp, vp = (t.repeat(len(ks) // len(t), 1, 1, 1, 1) for t in (kp, vp))
        if mask is None or qs.device.type != "cpu":
            attended = _attend_at_once(qs, (kp, vp), (ks, vs), mask)
        else:
            attended = _attend(qs, (kp, vp), (ks, vs), mask)
        s = _finish(block, s, packing.pack(attended) if packing else attended)
        s = s if adapters is None else s + adapters.delta(layer, normalised_s)
        return replace(x, prefix=p, suffix=s)

    def _pool(self, s: Tensor) -> Tensor:
        """Return the pooled tokens' features. Shape: s (clients, classes, 1, m) -> (clients, classes, d)."""
        pooled = self.model.ln_final(s[:, :, 0])
        projection = self.model.text_projection
        if projection is None:
            return pooled
        return projection(pooled) if isinstance(projection, torch.nn.Linear) else pooled @ projection

    def _hidden(self, lengths: Tensor, width_p: int, steps: int, eot: Tensor) -> Tensor:
        """Return which tokens are hidden: prefix rows beyond a client's length, and later suffix tokens.

        Shape: lengths (clients or 1,) -> (clients or 1, classes or 1, steps, P + steps).
        """
        beyond = torch.arange(width_p, device=lengths.device) >= lengths[:, None]
        later = torch.ones(steps, steps, device=lengths.device, dtype=torch.bool).triu(1)
        hidden = torch.cat([beyond[:, None].expand(-1, steps, -1), later.expand(len(lengths), -1, -1)], -1)
        if self._class_token is None:
            return hidden[:, None]
        # open_clip shifts the mask of padding by one place: the class token reads one token of padding in
        # place of itself, unless the text leaves no room for padding.
        full = lengths[:, None] + eot + 2 == self.context_length
        place = torch.arange(steps, device=lengths.device)
        read = torch.where(place == steps - 1, full[..., None], place <= (eot + ~full)[..., None])
        hidden = hidden[:, None].repeat(1, len(eot), 1, 1)
        hidden[:, :, -1, width_p:] = ~read
        return hidden


class Packing:
    """The real tokens of sequences of different lengths, side by side, so that padding costs nothing.

    Attributes:
        tokens: the number of real tokens.
        share: their share of all tokens, padding included.
    """

    def __init__(self, eot: Tensor, steps: int) -> None:
        self.sizes = (len(eot), steps)
        real = torch.arange(steps, device=eot.device) <= eot[:, None]
        self.index = real.flatten().nonzero()[:, 0]
        self._place = real.flatten().cumsum(0) - 1
        self.tokens = len(self.index)
        self.share = self.tokens / max(1, len(eot) * steps)

    def if_it_pays(self, clients: int) -> "Packing | None":
        """Return itself, or None if it saves too little for so many clients."""
        pays = self.share <= _PACKED_SHARE and self.tokens * clients >= _PACKED_TOKENS
        return self if pays else None

    def pack(self, x: Tensor) -> Tensor:
        """Shape: (clients, classes, S, ...) -> (clients, 1, real tokens, ...)."""
        return x.flatten(1, 2)[:, None, self.index]

    def unpack(self, x: Tensor) -> Tensor:
        """Repeat the last real token as padding, which no real token attends to.

        A copy into zeros would keep ``x`` for the backward pass.

        Shape: (clients, 1, real tokens, ...) -> (clients, classes, S, ...).
        """
        return x[:, 0].index_select(1, self._place).unflatten(1, self.sizes)


def _attend(q: Tensor, prefix: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Attend from suffix tokens to their client's prefix and to the earlier tokens of the same class.

    The prefix has one k and v per client instead of one per class: scores of both parts are computed apart
    and share one softmax, which is exactly the attention over the whole sequence.

    Shape: q (clients, classes, S or 1, heads, w), prefix k, v (clients, 1, P, heads, w),
    suffix k, v (clients, classes, S, heads, w), mask (clients or 1, 1, classes or 1, S or 1, P + S)
    -> like q.
    """
    scale = q.shape[-1] ** -0.5
    q = (q * scale).permute(0, 3, 1, 2, 4)  # (clients, heads, classes, S, w)
    kp, vp = (t[:, 0].transpose(1, 2) for t in prefix)  # (clients, heads, P, w)
    ks, vs = (t.permute(0, 3, 1, 2, 4) for t in suffix)
    flat = q.flatten(2, 3)
    over_prefix = (flat @ kp.transpose(-1, -2)).unflatten(2, q.shape[2:4]) + mask[..., : kp.shape[-2]]
    over_suffix = q @ ks.transpose(-1, -2) + mask[..., kp.shape[-2] :]
    weights = torch.cat([over_prefix, over_suffix], dim=-1).softmax(-1)
    to_prefix, to_suffix = weights.split([kp.shape[-2], ks.shape[-2]], dim=-1)
    mixed = (to_prefix.flatten(2, 3) @ vp).unflatten(2, q.shape[2:4]) + to_suffix @ vs
    return mixed.permute(0, 2, 3, 1, 4)


def _attend_at_once(
    q: Tensor, prefix: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor], mask: Tensor | None
) -> Tensor:
    """Return ``_attend`` with torch's own attention, which is one kernel of a GPU where that has 14.

    A GPU waits for the launches of kernels this small. Every class gets a copy of its client's prefix.

    Shape: as in ``_attend``.
    """
    clients, classes = q.shape[:2]
    pairs = zip(prefix, suffix, strict=True)
    k, v = (torch.cat([p.expand(-1, classes, -1, -1, -1), s], 2) for p, s in pairs)
    if mask is not None:
        is_one = mask.shape[0] == mask.shape[2] == 1
        each = mask[:, 0].expand(clients, classes, -1, -1)
        mask = mask[0, 0, 0] if is_one else each.flatten(0, 1)[:, None]
    q, k, v = (t.flatten(0, 1).transpose(1, 2) for t in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attended.transpose(1, 2).unflatten(0, (clients, classes))
