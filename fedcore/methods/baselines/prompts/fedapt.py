"""FedAPT: a class-specific prompt for all, shaped by a key of each client and chosen for each image."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import Field

from fedcore.clip import tokens
from fedcore.clip.prompts import check_prompts, check_room, class_suffix, draw_context, encode_class_context
from fedcore.lazy import functional as F
from fedcore.lazy import torch
from fedcore.methods import (
    About,
    Batch,
    BatchSize,
    DiagnosticChart,
    Generators,
    LearningRate,
    Method,
    MethodConfig,
    Params,
    Ragged,
    RunContext,
    State,
    Step,
    Uploads,
    cosine_logits,
    cross_entropy,
    draw_linear,
    in_pieces,
    method,
    piece_size,
    saved_bytes,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedcore.federation import LocalData, Problem

TEMPERATURE = 0.01
"""Temperature of the clients' weights for an image, over standardised scores."""
HELD = 12
"""Numbers that a prediction holds for each token of a text, in token widths: q, k, v, the MLP and sums."""


class FedAPTConfig(MethodConfig):
    """Hyper-parameters of FedAPT."""

    context_length: int = Field(
        24, ge=1, le=75, description="Vectors of the meta prompt of each class, tokens (L; authors' code: 24)"
    )
    query_weight: float = Field(
        1.0,
        ge=0,
        le=1000,
        title="query weight",
        description="Weight of the cross-entropy that teaches the query which client an image is of",
    )
    lr: LearningRate = Field(1e-2, description="Learning rate of local SGD (authors' code: 0.01)")
    batch_size: BatchSize = Field(256, description="Samples in a local batch (authors' code: 256)")


@method
class FedAPT(Method[FedAPTConfig]):
    """[SOS] (v_k + v_k * key) class name . [EOT]: the key of an image's client, or a mixture of all keys."""

    name = "fedapt"
    about = About(
        title="FedAPT",
        source="Su et al., Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning, AAAI "
        "2024",
        summary="CLIP stays frozen; all clients learn one meta prompt, a context for each class. "
        "A client's key scales the vectors of the meta prompt, which adapts it to the client's domain. "
        "A linear query learns to tell from an image which client it is like. "
        "At test time the query mixes the keys, so that every image has a prompt of its own: a pass of the "
        "text encoder for each image. "
        "Meta prompt and query are averaged; the server collects the keys and hands all of them out.",
        family="baseline",
        charts=(
            DiagnosticChart(
                "Loss terms", {"cross_entropy": "cross-entropy", "query": "query"}, better="lower"
            ),
        ),
    )
    clients_use_global = True
    Config = FedAPTConfig
    shared = ("context", "query_w", "query_b")

    def __init__(self, config: FedAPTConfig, problem: Problem) -> None:
        """Prepare the class names.

        Raises:
            FedLensError: when the prompt leaves no room for a class name (field ``context_length``).
        """
        super().__init__(config, problem)
        self.suffix = class_suffix(problem.backbone, problem.classes)
        check_room(problem.backbone, config.context_length, self.suffix, "context_length")

    @classmethod
    def check(cls, config: FedAPTConfig, context: RunContext) -> None:
        """Refuse text towers without prompts, and prompts that leave a class name no room.

        Raises:
            FedLensError: with field ``backbone.name`` or ``context_length``.
        """
        check_prompts(context.spec)
        tokens.check_room(context.spec, context.classes, config.context_length, "context_length")

    def init(self, generator: Generators) -> State:
        """Return a random meta prompt, keys of zero, and a query drawn as a linear layer.

        Shape: context (K, L, m), query_w (clients, d), query_b (clients,), keys (clients, L, m).
        """
        backbone, length = self.problem.backbone, self.config.context_length
        m, classes = backbone.spec.token_width, len(self.problem.classes)
        clients = len(self.problem.clients)
        context = draw_context(classes * length, m, generator("fedapt", "context")).view(classes, length, m)
        query = self.problem.draw_per_client(self._first_query, "fedapt", "query")
        where = (backbone.device, backbone.dtype)
        keys = torch.zeros(clients, length, m)
        values = {"context": context, "query_w": query[:, :-1], "query_b": query[:, -1], "keys": keys}
        return State(shared={name: value.to(*where) for name, value in values.items()})

    def _first_query(self, generator: Generator) -> Tensor:
        """Return a client's weights and bias, as a row of a linear layer. Shape: -> (d + 1,)."""
        weight, bias = draw_linear(1, self.problem.backbone.spec.embed_dim, generator)
        return torch.cat([weight[0], bias])

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        prompts = params["context"] * (1 + _own(params["keys"], batch.clients)[:, None])
        text = encode_class_context(self.problem.backbone, prompts, self.suffix)
        logits = cosine_logits(batch.x, text, self.problem.backbone.logit_scale)
        own = batch.clients[:, None].expand_as(batch.labels)
        terms = {
            "cross_entropy": cross_entropy(logits, batch.labels, batch.mask),
            "query": cross_entropy(self._query(params, batch.x), own, batch.mask),
        }
        loss = terms["cross_entropy"] + self.config.query_weight * terms["query"]
        return Step({(*self.shared, "keys"): loss}, terms=terms)

    def upload(self, params: Params, record: Params, data: LocalData) -> dict[str, Tensor | Ragged]:
        """Return meta prompt, query and the client's own key. Shape: key (participants, L, m)."""
        sent: dict[str, Tensor | Ragged] = {name: params[name] for name in self.shared}
        return sent | {"key": _own(params["keys"], data.clients)}

    def aggregate(self, state: State, uploads: Uploads, generator: Generators) -> State:
        """Average meta prompt and query, and keep every client's latest key."""
        averaged = super().aggregate(state, uploads, generator).shared
        rows = uploads.clients.to(self.problem.device)
        keys = state.shared["keys"].index_copy(0, rows, uploads.dense("key"))
        return replace(state, shared=averaged | {"keys": keys})

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """Return s cos(image, class with the image's key).

        Shape: x (models, samples, d) -> (models, samples, classes).
        """
        scale, weights = self.problem.backbone.logit_scale, self._weights(params, x)
        rows = []
        for context, keys, own, images in zip(params["context"], params["keys"], weights, x, strict=True):

            def scores(share: Tensor, h: Tensor, context: Tensor = context, keys: Tensor = keys) -> Tensor:
                return cosine_logits(h[:, None], self._texts(context, keys, share), scale)[:, 0]

            rows.append(in_pieces(scores, self._piece, own, images))
        return torch.stack(rows)

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and each image's own class features.

        Shape: x (models, samples, d) -> same, (models, samples, classes, d).
        """
        parts = zip(params["context"], params["keys"], self._weights(params, x), strict=True)
        return x, torch.stack([self._texts(*part) for part in parts])

    def numbers_per_sample(self) -> int:
        """Return the numbers of a pass of the text tower over all classes, each with its own prompt."""
        length = int((self.suffix.eot + 2 + self.config.context_length).sum())
        return HELD * length * self.problem.backbone.spec.token_width

    def prompts(self, params: Params, clients: Tensor | None) -> dict[str, Tensor | Ragged]:
        """Return the meta prompt. Shape: (models, classes, L, m)."""
        return {"context": params["context"]}

    @staticmethod
    def _query(params: Params, x: Tensor) -> Tensor:
        """Return how much an image is like each client's. Shape: x (c, n, d) -> (c, n, clients)."""
        return F.normalize(x, dim=-1) @ params["query_w"].transpose(1, 2) + params["query_b"][:, None]

    def _weights(self, params: Params, x: Tensor) -> Tensor:
        """Return the keys' shares for each image. Shape: x (c, n, d) -> (c, n, clients)."""
        scores = self._query(params, x)
        centred = scores - scores.mean(-1, keepdim=True)
        deviation = centred.square().mean(-1, keepdim=True).sqrt()
        return (centred / deviation.clamp(min=1e-12) / TEMPERATURE).softmax(-1)

    def _texts(self, context: Tensor, keys: Tensor, share: Tensor) -> Tensor:
        """Return class features for images. Shape: context (K, L, m), share (n, clients) -> (n, K, d)."""
        key = torch.einsum("nc,clm->nlm", share, keys)
        return encode_class_context(self.problem.backbone, context * (1 + key[:, None]), self.suffix)

    @cached_property
    def _piece(self) -> int:
        """Images whose texts' activations fit into memory, by what the backbone keeps for one."""
        backbone = self.problem.backbone
        size = (len(self.problem.classes), self.config.context_length, backbone.spec.token_width)
        contexts = torch.ones(2, *size, device=backbone.device, dtype=backbone.dtype)
        each = saved_bytes(lambda c: encode_class_context(backbone, c, self.suffix), contexts)
        return piece_size(each, backbone.device)


def _own(keys: Tensor, clients: Tensor) -> Tensor:
    """Return each client's own key. Shape: keys (c, clients, L, m), clients (c,) -> (c, L, m)."""
    return keys[torch.arange(len(keys), device=keys.device), clients.to(keys.device)]
