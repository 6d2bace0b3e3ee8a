"""Differentiable prompts: learned contexts before frozen class tokens (Zhou et al., CoOp, 2022)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip import prefixed
from fedcore.clip.adapters import Adapters, Lora
from fedcore.clip.backbone import Backbone
from fedcore.clip.prefixed import TokenOrder
from fedcore.clip.specs import BackboneSpec, no_room, spoken
from fedcore.clip.towers import Packing


@dataclass(frozen=True)
class Suffix:
    """Frozen token embeddings of the text after a context, cut at the longest [EOT].

    The cut is exact: the causal mask hides later tokens.

    Shape: embeddings (classes, S, m), eot (classes,) index of [EOT] within the suffix.
    """

    embeddings: Tensor
    eot: Tensor
    classes: tuple[str, ...]
    _packings: dict[int, Packing] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def order(self) -> TokenOrder:
        """The order of the real tokens for a pass that goes client by client."""
        return TokenOrder(self.eot, self.embeddings.shape[1])

    @cached_property
    def longest(self) -> tuple[str, int]:
        """The class with the most tokens in its name, and their number with [SOS] and [EOT]."""
        used = self.eot + 2
        worst = int(used.argmax())
        return self.classes[worst], int(used[worst])

    def packing(self, context: int = 0) -> Packing:
        """Return which tokens are real after a context of this length; computed once per length."""
        if context not in self._packings:
            self._packings[context] = Packing(self.eot + context, self.embeddings.shape[1] + context)
        return self._packings[context]


def _tokens(backbone: Backbone, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Return token ids after [SOS] and the index of [EOT] among them.

    Shape: -> ids (texts, S), eot (texts,).
    """
    with torch.no_grad():
        ids = backbone.tokenize(texts)
    eot = ids.argmax(-1)  # [EOT] is the highest id of CLIP's vocabulary
    return ids[:, 1 : int(eot.max()) + 1].to(backbone.device), (eot - 1).to(backbone.device)


def check_prompts(spec: BackboneSpec) -> None:
    """Refuse a backbone with a text tower that cannot take learned prompts."""
    if spec.prompts:
        raise FedLensError(
            f"{spec.name} takes no learned prompts: {spec.prompts}; choose e.g. ViT-B-32", "backbone.name"
        )


def draw_context(length: int, width: int, generator: Generator) -> Tensor:
    """Draw a new context from N(0, 0.02), in float64 so that every precision sees the same draw.

    Source: Zhou et al., CoOp, 2022, Section 4.1.

    Shape: -> (length, width).
    """
    return 0.02 * torch.randn(length, width, generator=generator, dtype=torch.float64)


def word_context(backbone: Backbone, words: str) -> Tensor:
    """Return the token embeddings of some words as a context. Shape: -> (tokens, m)."""
    ids, eot = _tokens(backbone, [words])
    return backbone.text.embed(ids[0, : int(eot[0])]).clone()


def class_suffix(backbone: Backbone, classes: tuple[str, ...], pattern: str = "{}.") -> Suffix:
    """Return the token embeddings of the pattern, filled with each class name, and of [EOT]."""
    check_prompts(backbone.spec)
    ids, eot = _tokens(backbone, [pattern.format(spoken(name)) for name in classes])
    with torch.no_grad():
        return Suffix(backbone.text.embed(ids), eot, tuple(classes))


def check_room(backbone: Backbone, longest: int, suffix: Suffix, field: str) -> None:
    """Refuse contexts that push a class name's [EOT] beyond the text tower."""
    name, used = suffix.longest
    if longest + used > backbone.spec.context_length:
        raise no_room(longest, name, used, backbone.spec.context_length, field)


def encode_context(
    backbone: Backbone,
    context: Tensor,
    suffix: Suffix,
    lengths: Tensor | None = None,
    packed: bool = False,
    deep: Tensor | None = None,
) -> Tensor:
    """Return unnormalised text features of [SOS] context[c] suffix[k] for contexts shared by all classes.

    Args:
        packed: leave out the padding of shorter class names; otherwise as is fastest, which may be client
            by client.
        deep: contexts that replace the first one at the entry of layers 1, 2, ....

    Shape: context (clients, L, m), lengths (clients,) rows of each context that are used (default: all),
    deep (clients, layers, L, m) -> (clients, classes, d).
    """
    longest = context.shape[1]
    if lengths is not None and longest + suffix.longest[1] > backbone.spec.context_length:
        longest = int(lengths.max())  # waits for the device, so only if the allocated length does not fit
    check_room(backbone, longest, suffix, "context")
    prefix = torch.cat([_sos(backbone).expand(context.shape[0], 1, -1), context], 1)
    if lengths is not None:
        lengths = lengths.to(context.device) + 1
    if not packed and deep is None and prefixed.pays(backbone.text, suffix.order, prefix):
        return prefixed.encode(backbone.text, prefix, suffix.embeddings, suffix.order, lengths)
    packing = suffix.packing() if packed else suffix.packing().if_it_pays(len(context))
    return backbone.text.encode(
        prefix, suffix.embeddings[None], suffix.eot, lengths, packing=packing, deep=deep
    )


def encode_class_context(backbone: Backbone, context: Tensor, suffix: Suffix) -> Tensor:
    """Return unnormalised text features of [SOS] context[c, k] suffix[k] for one context per class.

    Shape: context (clients, classes, L, m) -> (clients, classes, d).
    """
    clients, _, length, _ = context.shape
    check_room(backbone, length, suffix, "context")
    sos = _sos(backbone).expand(clients, 1, -1)
    after = torch.cat([context, suffix.embeddings.expand(clients, -1, -1, -1)], dim=2)
    packing = suffix.packing(length).if_it_pays(clients)
    return backbone.text.encode(sos, after, suffix.eot + length, packing=packing)


def name_tokens(backbone: Backbone, classes: tuple[str, ...]) -> Tensor:
    """Return the number of tokens of each class name. Shape: -> (classes,)."""
    return _tokens(backbone, [spoken(name) for name in classes])[1]


def encode_around(backbone: Backbone, context: Tensor, suffix: Suffix, names: Tensor, before: int) -> Tensor:
    """Return unnormalised text features of [SOS] context[c, :before] name[k] context[c, before:] ending[k].

    Args:
        names: the number of the suffix's tokens that the rest of the context stands behind.

    Shape: context (clients, L, m), names (classes,) -> (clients, classes, d).
    """
    clients, length, _ = context.shape
    check_room(backbone, length, suffix, "context")
    classes, steps = suffix.embeddings.shape[:2]
    behind = length - before
    places = torch.arange(steps + behind, device=names.device).expand(classes, -1)
    inner = places - names[:, None]  # a token's place in the part of the context behind the name
    is_context = (inner >= 0) & (inner < behind)
    frozen = torch.where(inner < behind, places, places - behind).clamp(max=steps - 1)
    rows = torch.arange(classes, device=names.device)[:, None]
    rest = suffix.embeddings[rows, frozen].masked_fill(is_context[..., None], 0)
    # One-hot rows choose the context's token of each place, so that the context's gradient is a product too.
    chosen = (
        F.one_hot(inner.clamp(0, max(0, behind - 1)), max(1, behind)).to(context.dtype)
        * is_context[..., None]
    )
    after = rest + (chosen @ context[:, None, before:] if behind else 0)
    prefix = torch.cat([_sos(backbone).expand(clients, 1, -1), context[:, :before]], 1)
    packing = suffix.packing(behind).if_it_pays(clients)
    return backbone.text.encode(
        prefix, after.expand(clients, -1, -1, -1), suffix.eot + behind, packing=packing
    )


def encode_texts(
    backbone: Backbone,
    texts: list[str],
    lora: Lora | None = None,
    embed: Callable[[Tensor], Tensor] | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Return unnormalised text features of plain sentences.

    Args:
        lora: with a client axis of 1.
        embed: token ids (...) -> embeddings (..., m); default: CLIP's own.
        positions: positional embedding (context_length, m); default: CLIP's own.

    Shape: -> (texts, d).
    """
    ids, eot = _tokens(backbone, texts)
    embed = embed or backbone.text.embed
    sos = embed(backbone.start_id)
    return backbone.text.encode(sos[None], embed(ids)[None], eot, lora=lora, positions=positions)[0]


@dataclass(frozen=True)
class EnteredTexts:
    """Sentences as they enter layer ``start`` of the text tower; below it all clients compute the same.

    The tokens with which all sentences begin are stored once.

    Shape: prefix (1, 1, P, m), suffix (1, texts, S, m), eot (texts,) index of [EOT] within the suffix.
    """

    prefix: Tensor
    suffix: Tensor
    eot: Tensor
    start: int

    @cached_property
    def packing(self) -> Packing:
        return Packing(self.eot, self.suffix.shape[2])


def enter_texts(backbone: Backbone, texts: list[str], start: int) -> EnteredTexts:
    """Return plain sentences as they enter layer ``start`` of the text tower."""
    found = backbone.tokenize(texts)[:, 1:]  # not yet on the device, which need not be waited for
    alike = (found == found[:1]).all(0).long().cumprod(0).sum()
    common = min(int(alike), int(found.argmax(-1).min()))
    ids, eot = _tokens(backbone, texts)
    with torch.no_grad():
        prefix = torch.cat([_sos(backbone), backbone.text.embed(ids[0, :common])])
        suffix = backbone.text.embed(ids[:, common:])
        entered = backbone.text.activations(prefix[None], suffix[None], start)
    return EnteredTexts(*entered, eot - common, start)


def encode_entered(backbone: Backbone, texts: EnteredTexts, adapters: Adapters) -> Tensor:
    """Return unnormalised text features of each client's adapters. Shape: -> (clients, texts, d)."""
    packing = texts.packing.if_it_pays(len(adapters.up[0]))
    return backbone.text.tail((texts.prefix, texts.suffix), texts.eot, texts.start, adapters, packing)


def class_features(backbone: Backbone, classes: tuple[str, ...], template: str) -> Tensor:
    """Return normalised text features of a template filled with each class name, or the given class vectors.

    Shape: -> (classes, d).
    """
    if (known := backbone.class_vectors) is not None:
        if unknown := [name for name in classes if name not in known]:
            raise FedLensError(f"{backbone.spec.name} has no vector of class '{unknown[0]}'", "backbone.name")
        return F.normalize(torch.stack([known[name] for name in classes]), dim=-1)
    return sentences(backbone, [template.format(spoken(name)) for name in classes])


def sentences(backbone: Backbone, texts: list[str]) -> Tensor:
    """Return normalised features of plain sentences, from any text tower. Shape: -> (texts, d)."""
    with torch.no_grad():
        if backbone.spec.is_black_box:
            features = backbone.model.encode_text(texts).to(backbone.device)
        elif backbone.spec.prompts:  # a text tower that cannot take prompts still encodes sentences
            features = backbone.model.encode_text(backbone.tokenize(texts).to(backbone.device))
        else:
            features = encode_texts(backbone, texts)
        return F.normalize(features, dim=-1)


def _sos(backbone: Backbone) -> Tensor:
    with torch.no_grad():
        return backbone.text.embed(backbone.start_id)
