"""Prompts the naive way: open_clip's own text tower on padded sequences; loops over samples.

Also the small tools that the oracles of prompts share. Nothing here imports FedLens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Batches = list[list[list[list[int]]]]
"""batches[round][client][step] -> the positions of the client's samples in that step."""


def text_features(model: torch.nn.Module, tokenizer, context: Tensor, classes: Sequence[str]) -> Tensor:
    """Normalised features of [SOS] context name . [EOT]. Shape: context (L, m), or (K, L, m) -> (K, d)."""
    contexts = context.expand(len(classes), *context.shape[-2:])
    after = 1 + contexts.shape[1]
    sequences = torch.ones(len(classes), model.context_length, dtype=torch.int64)  # any token: it is replaced
    for sequence, ids in zip(sequences, tokenizer([f"{name}." for name in classes]), strict=True):
        words = ids[1 : int(ids.argmax()) + 1]  # up to [EOT]
        sequence[0] = ids[0]
        sequence[after:] = 0
        sequence[after : after + len(words)] = words

    def put_context(module: torch.nn.Module, arguments: tuple, embedded: Tensor) -> Tensor:
        return torch.cat([embedded[:, :1], contexts, embedded[:, after:]], dim=1)

    hook = model.token_embedding.register_forward_hook(put_context)
    try:
        features = model.encode_text(sequences)
    finally:
        hook.remove()
    return torch.stack([feature / feature.norm() for feature in features])


def scores(text: Tensor, x: Tensor, scale: float) -> Tensor:
    """scale * cosine of one image with every class. Shape: text (K, d), x (d,) -> (K,)."""
    return scale * (text @ x) / (text.square().sum(1).sqrt() * x.norm())


def mean_loss(text: Tensor, xs: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Cross-entropy, one sample at a time."""
    total = 0.0
    for x, y in zip(xs, labels, strict=True):
        s = scores(text, x, scale)
        total = total - torch.log(torch.exp(s[y]) / torch.exp(s).sum())
    return total / len(labels)


@dataclass(frozen=True)
class Clip:
    """A CLIP that classifies, with a context before the names."""

    model: torch.nn.Module
    tokenizer: object
    classes: Sequence[str]
    scale: float

    def ids(self, template: str) -> Tensor:
        """The tokens of a sentence for each class."""
        return self.tokenizer([template.format(name) for name in self.classes])

    def sentences(self, template: str) -> Tensor:
        """Normalised features of these sentences by open_clip itself. Shape: -> (K, d)."""
        return torch.stack([text / text.norm() for text in self.model.encode_text(self.ids(template))])

    def texts(self, context: Tensor) -> Tensor:
        return text_features(self.model, self.tokenizer, context, self.classes)

    def loss(self, texts: Tensor, xs: Tensor, labels: Tensor) -> Tensor:
        return mean_loss(texts, xs, labels, self.scale)

    def scores(self, texts: Tensor, xs: Tensor) -> Tensor:
        """Shape: texts (K, d), xs (n, d) -> (n, K)."""
        return torch.stack([scores(texts, x, self.scale) for x in xs])


def sgd(
    values: list[Tensor], gradients: list[Tensor], momenta: list[Tensor | None], config: dict
) -> list[Tensor]:
    """One step of SGD with momentum and weight decay; ``momenta`` is updated in place."""
    moved = []
    for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
        gradient = gradient + config["weight_decay"] * value.detach()
        momenta[i] = gradient if momenta[i] is None else config["momentum"] * momenta[i] + gradient
        moved.append((value - config["lr"] * momenta[i]).detach().requires_grad_())
    return moved


def weighted(values: list[Tensor], weights: list[float]) -> Tensor:
    total = torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total = total + weight / sum(weights) * value
    return total.detach()
