"""FedAlign: image encoders on the clients, the text encoder on the server (Ma et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from fedcore.clip.lora import Lora, init_lora
from fedcore.clip.prompts import encode_texts, spoken
from fedcore.errors import FedLensError
from fedcore.lazy import functional as F
from fedcore.lazy import torch
from fedcore.methods.base import (
    Batch,
    Method,
    MethodConfig,
    Models,
    Params,
    Phase,
    Ragged,
    Setting,
    State,
    Step,
    Uploads,
    cosine_logits,
    cross_entropy,
)
from fedcore.methods.fedalign_mixing import attend, mix, pack, relevance, unpack
from fedcore.methods.registry import method

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedcore.clip.facts import BackboneFacts
    from fedcore.federation import LocalData, Problem

PAPER_LAYERS = 12
"""Layers of the paper's towers, which ``start_layer`` and ``boundary_layer`` count in."""


class FedAlignConfig(MethodConfig):
    """Hyper-parameters of FedAlign; layers count from 0 in a tower of 12, scaled to other depths."""

    optimiser: Literal["sgd", "adam", "adamw"] = Field("adam", description="Local optimiser (paper: Adam)")
    lr: float = Field(1e-3, ge=0, le=100, description="Learning rate of the clients (paper: 1e-3)")
    weight_decay: float = Field(
        0.0, ge=0, le=10, description="Weight decay of the clients (the paper names none)"
    )
    batch_size: int = Field(64, ge=1, le=65536, description="Samples in a local batch (paper: 64)")
    weighting: Literal["uniform", "samples"] = Field(
        "samples", description="Global encoder: mean weighted by sample counts (paper, Eq. 14), or plain"
    )
    rank: int = Field(4, ge=1, le=256, description="Rank r of the low-rank updates (paper: 4)")
    gamma: float = Field(
        0.25, gt=0, le=100, description="Scaling of the updates, W = W0 + gamma B A (paper: 0.25)"
    )
    start_layer: int = Field(
        2,
        ge=0,
        le=11,
        description="First adapted attention layer l, from 0, of 12 (paper: 2); scaled to the depth",
    )
    boundary_layer: int = Field(
        9,
        ge=0,
        le=12,
        description="First layer m, from 0, of 12, that is mixed by attention; below it the global mean "
        "(paper: 9; 12 turns attention off); scaled to the depth",
    )
    orthogonality: float = Field(
        0.1, ge=0, le=1000, description="Weight mu of the orthogonality penalty (paper: 0.1)"
    )
    renormalise: bool = Field(
        True, description="Normalise the class means of the penalty again (the paper does not)"
    )
    scale: float | Literal["clip"] = Field(
        14.3,
        description="Factor of all cosines: exp(2.66) = 14.3 (paper), or 'clip' for the backbone's own",
    )
    style: Literal["gt", "st"] = Field(
        "gt",
        description="Class texts: gt, written descriptions (paper; else the prompt), or st, the prompt",
    )
    upload_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the correctly predicted features that a client uploads (paper: 1)",
    )
    similarity: Literal["cosine", "dot", "euclidean"] = Field(
        "cosine", description="Similarity of two prototypes (paper: cosine; Table 8)"
    )
    euclidean: Literal["plain", "negated"] = Field(
        "plain", description="Distance as printed, which favours the dissimilar, or with a minus sign"
    )
    reduce: Literal["sum", "mean"] = Field(
        "sum",
        description="Over the other's classes: sum (paper, Eq. 11; saturates with many classes), or mean",
    )
    ex_query: bool = Field(
        True, description="Leave a client's own update out of its next starting point (paper: yes)"
    )
    average: Literal["product", "factors"] = Field(
        "product",
        description="Average B A and cut back to rank r (paper, Eq. 13, 14), or average B and A apart",
    )
    server_lr: float = Field(
        1e-3, ge=0, le=100, description="Learning rate of the server's Adam (paper: 1e-3)"
    )
    server_epochs: int = Field(
        1, ge=0, le=1000, description="Server passes over the uploaded features in a round"
    )
    server_batch_size: int = Field(64, ge=1, le=65536, description="Samples in a server batch")

    @model_validator(mode="after")
    def _ordered(self) -> FedAlignConfig:
        if self.boundary_layer < self.start_layer:
            raise ValueError(
                f"boundary_layer {self.boundary_layer} is below start_layer; use {self.start_layer} or more"
            )
        if self.scale != "clip" and not 0 < self.scale <= 1000:
            raise ValueError("scale is a number above 0 up to 1000, or 'clip'")
        return self


def scaled_layer(layer: int, layers: int) -> int:
    """A layer of a 12-layer tower in a tower of another depth, in proportion and rounded half up."""
    return math.floor(layer * layers / PAPER_LAYERS + 0.5)


def first_layer(config: FedAlignConfig, layers: int) -> int:
    """The first adapted layer of a tower; the last layer at the latest."""
    return min(scaled_layer(config.start_layer, layers), layers - 1)


def orthogonality(features: Tensor, labels: Tensor, mask: Tensor, classes: int, renormalise: bool) -> Tensor:
    """L_orth = || Z Z^T - I ||_F over the batch's classes, Z their mean normalised features; 0 for one class.

    Shape: features (clients, batch, d), labels and mask (clients, batch) -> (clients,).  Source: Eq. 7.
    """
    members = F.one_hot(labels, classes).to(features.dtype) * mask[..., None]
    counts = members.sum(1)
    means = members.transpose(1, 2) @ features / counts.clamp(min=1)[..., None]
    if renormalise:
        means = F.normalize(means, dim=-1)
    present = (counts > 0).to(features.dtype)
    difference = means @ means.transpose(1, 2) - torch.diag_embed(present)
    norm = torch.linalg.vector_norm(
        difference, dim=(1, 2)
    )  # its gradient at 0 is 0, unlike that of sqrt(sum)
    return torch.where(present.sum(1) > 1, norm, 0.0)


@method
class FedAlign(Method):
    """W0 + gamma B A in every client's image tower and in the server's text tower."""

    name = "fedalign"
    title = "FedAlign"
    source = "Ma et al., Modality Alignment Meets Federated Broadcasting, 2024"
    about = (
        "CLIP is cut in two: every client adapts the image encoder, the server adapts the text encoder. "
        "Both learn low-rank updates of their attention layers (LoRA). "
        "Clients upload their update, class prototypes and the features of correctly predicted images; on "
        "these features the server trains the text encoder and broadcasts new class features. "
        "A client's next update mixes the others' by the similarity of prototypes in the upper layers and is "
        "the weighted mean in the lower ones; that mean in all layers is the global model. "
        "A client's own share is left out for training, so that it learns from the others, and is in for "
        "prediction."
    )
    Config = FedAlignConfig
    shared = ("text",)

    def __init__(self, config: FedAlignConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        facts = problem.backbone.facts
        self.start = first_layer(config, facts.vision_layers)
        self.text_start = first_layer(config, facts.text_layers)
        boundary = scaled_layer(config.boundary_layer, facts.vision_layers)
        self.low = max(0, boundary - self.start)  # how many adapted layers take the global mean
        self.scale = problem.backbone.logit_scale if config.scale == "clip" else config.scale
        self.texts = [self._describe(name) for name in problem.classes]

    @classmethod
    def check(cls, config: Any, setting: Setting) -> None:
        """Refuse backbones without attention layers, and ranks that they cannot have.

        Raises:
            FedLensError: with field ``start_layer`` or ``rank``.
        """
        facts = setting.facts
        if facts.vision != "vit":
            raise FedLensError(
                f"FedAlign adapts the attention layers of open_clip's ViT, which {facts.name} is not; "
                "choose e.g. ViT-B-32",
                "start_layer",
            )
        if facts.prompts:
            raise FedLensError(
                f"FedAlign cannot adapt the text tower of {facts.name}: {facts.prompts}", "start_layer"
            )
        widest = min(facts.vision_width, facts.token_width)
        if config.rank > widest:
            raise FedLensError(
                f"rank {config.rank} is more than the width of {facts.name}'s layers; use at most {widest}",
                "rank",
            )

    @classmethod
    def reads(cls, config: Any, facts: BackboneFacts) -> str:
        """The activations entering the first adapted layer: what lies below never changes."""
        return f"layer:{first_layer(config, facts.vision_layers)}"

    def init(self, generator: Callable[..., Generator]) -> State:
        """B zero and one A for all: with A of their own, averaging factors would mix unrelated bases.

        Shape: image_a (clients, layers, 3, r, width), image_b (clients, layers, 3, width, r); without
        the client axis those of the global encoder and of the text tower; text (K, d).
        """
        backbone, config = self.problem.backbone, self.config
        facts, n = backbone.facts, len(self.problem.clients)
        sizes = {
            "image": (facts.vision_layers - self.start, facts.vision_width),
            "text": (facts.text_layers - self.text_start, facts.token_width),
        }
        first = {}
        for tower, (layers, width) in sizes.items():
            a, b = init_lora(layers, width, config.rank, generator("lora", tower), backbone.dtype)
            first[tower] = a.to(backbone.device), b.to(backbone.device)
        (a, b), (text_a, text_b) = first["image"], first["text"]
        personal = {"image_a": a.repeat(n, 1, 1, 1, 1), "image_b": b.repeat(n, 1, 1, 1, 1)}
        serving = {"serving_a": personal["image_a"].clone(), "serving_b": personal["image_b"].clone()}
        server = {"text_a": text_a, "text_b": text_b, "global_a": a.clone(), "global_b": b.clone(), **serving}
        return State(shared={"text": self._text_features(text_a, text_b)}, personal=personal, server=server)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase: the image tower's update."""
        return (self._train,)

    def _train(self, params: Params, const: Params, batch: Batch) -> Step:
        """L_ce + mu L_orth (Eq. 8); remembers features and hits for the upload."""
        features = self._image_features(params, batch.x)
        logits = cosine_logits(features, params["text"], self.scale)
        contrast = cross_entropy(logits, batch.labels, batch.mask)
        classes = len(self.problem.classes)
        penalty = orthogonality(features, batch.labels, batch.mask, classes, self.config.renormalise)
        return Step(
            {("image_a", "image_b"): contrast + self.config.orthogonality * penalty},
            record={"feature": features, "correct": logits.argmax(-1) == batch.labels},
            terms={"cross_entropy": contrast, "orthogonality": penalty},
        )

    def upload(self, params: Params, record: Params, data: LocalData) -> dict[str, Tensor | Ragged]:
        """The update, the class prototypes with their true sample counts, and correctly predicted features.

        Prototypes go without the name of their class, which Eq. 11 does not need.

        Shape: image_a, image_b (participants, ...); prototypes (.., d) and counts of the classes that have
        one; features (.., d) and labels of ``upload_ratio`` of the hits.  Source: Eq. 9, Section 4.3.
        """
        correct = record["correct"] & data.mask
        members = (
            F.one_hot(data.labels, len(self.problem.classes)).to(record["feature"].dtype) * correct[..., None]
        )
        found = members.sum(1)
        prototypes = members.transpose(1, 2) @ record["feature"] / found.clamp(min=1)[..., None]
        chosen = self._choose(correct, data)
        return {
            "image_a": params["image_a"],
            "image_b": params["image_b"],
            "prototypes": pack(prototypes, found > 0),
            "counts": pack(data.class_counts, found > 0),
            "features": pack(record["feature"], chosen),
            "labels": pack(data.labels, chosen),
        }

    def aggregate(self, state: State, uploads: Uploads, generator: Callable[..., Generator]) -> State:
        """Train the text tower, then mix the image updates; who sat out keeps what it last received."""
        text_a, text_b = self._train_text(state.server, uploads, generator)
        weights = uploads.weights(self.config.weighting)
        a, b = uploads.values["image_a"], uploads.values["image_b"]
        common = mix(a, b, weights[None], self.config.average)
        start, serve, _ = self._attention(uploads)
        server = {"text_a": text_a, "text_b": text_b, "global_a": common[0][0], "global_b": common[1][0]}
        personal: Params = {}
        who = uploads.clients.to(a.device)
        for name, kept, new, alpha in (
            ("image", state.personal, personal, start),
            ("serving", state.server, server, serve),
        ):
            for factor, value in zip("ab", self._personal(a, b, common, alpha), strict=True):
                new[f"{name}_{factor}"] = kept[f"{name}_{factor}"].index_copy(0, who, value)
        with torch.no_grad():
            text = self._text_features(text_a, text_b)
        return replace(state, shared={"text": text}, personal=personal, server=server)

    def models(self, state: State) -> Models:
        """The global encoder, and each client's with its own share in (Section 4.5); all use the new text."""
        text, server = state.shared["text"], state.server
        return Models(
            {"image_a": server["global_a"][None], "image_b": server["global_b"][None], "text": text[None]},
            {"image_a": server["serving_a"], "image_b": server["serving_b"], **self.spread({"text": text})},
        )

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """scale cos(image, text). Shape: x (models, samples, tokens, width) -> (models, samples, K)."""
        return cosine_logits(self._image_features(params, x), params["text"], self.scale)

    def diagnostics(
        self, before: State, trained: Params, uploads: Uploads, data: LocalData
    ) -> dict[str, Tensor]:
        """alpha of the next starting point and of prediction, prototypes and hits, who fell back."""
        start, serve, alone = self._attention(uploads)
        return {
            "attention": start,
            "attention_serving": serve,
            "prototypes": uploads.values["prototypes"].lengths,
            "uploaded_features": uploads.values["features"].lengths,
            "global_fallback": alone,
        }

    def _describe(self, name: str) -> str:
        """The text of one class: a description drawn by seed, or the prompt (no description, or style st)."""
        written = self.problem.descriptions.get(name, []) if self.config.style == "gt" else []
        if not written:
            return self.problem.template.format(spoken(name))
        drawn = torch.randint(len(written), (), generator=self.problem.generator("description", name))
        return written[int(drawn)]

    def _image_features(self, params: Params, x: Tensor) -> Tensor:
        """Normalised. Shape: x (clients, samples, tokens, width) -> (clients, samples, d)."""
        lora = Lora(params["image_a"], params["image_b"], self.config.gamma, self.start)
        return F.normalize(self.problem.backbone.image.tail(x, self.start, lora), dim=-1)

    def _text_features(self, a: Tensor, b: Tensor) -> Tensor:
        """Normalised class features of the server's text tower. Shape: -> (K, d)."""
        lora = Lora(a[None], b[None], self.config.gamma, self.text_start)
        return F.normalize(encode_texts(self.problem.backbone, self.texts, lora), dim=-1)

    def _choose(self, correct: Tensor, data: LocalData) -> Tensor:
        """Which hits are uploaded: the first in an order of the client's samples drawn once by seed."""
        if self.config.upload_ratio == 1:
            return correct
        place = torch.zeros_like(correct, dtype=torch.int64)
        for i, (client, n) in enumerate(zip(data.clients.tolist(), data.rows.counts.tolist(), strict=True)):
            generator = self.problem.generator("upload", self.problem.clients[client])
            place[i, :n] = torch.randperm(n, generator=generator).to(place.device)
        last = (
            torch.where(correct, place, place.shape[1]).argsort(1).argsort(1)
        )  # rank among the client's hits
        return correct & (last < (self.config.upload_ratio * correct.sum(1, keepdim=True)).ceil())

    def _train_text(
        self, server: Params, uploads: Uploads, generator: Callable[..., Generator]
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of all uploaded pairs against the texts (Eq. 10); Adam is made anew every round."""
        a, b = (server[name].clone().requires_grad_() for name in ("text_a", "text_b"))
        features = torch.cat(unpack(uploads.values["features"]))
        labels = torch.cat(unpack(uploads.values["labels"]))
        optimiser = torch.optim.Adam([a, b], lr=self.config.server_lr)
        for epoch in range(self.config.server_epochs if len(labels) else 0):
            order = torch.randperm(len(labels), generator=generator("text", epoch)).to(labels.device)
            for rows in order.split(self.config.server_batch_size):
                loss = F.cross_entropy(
                    self.scale * features[rows] @ self._text_features(a, b).T, labels[rows]
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return a.detach(), b.detach()

    def _attention(self, uploads: Uploads) -> tuple[Tensor, Tensor, Tensor]:
        """alpha of the next start and of prediction, and who has none. Shape: (participants, ...)."""
        prototypes = uploads.values["prototypes"]
        scores = relevance(self.config, prototypes, uploads.values["counts"])
        mean = uploads.weights(self.config.weighting).to(scores.device)
        start, alone = attend(scores, prototypes.lengths > 0, self.config.ex_query, mean)
        serve, _ = attend(scores, prototypes.lengths > 0, False, mean)
        return start, serve, alone

    def _personal(
        self, a: Tensor, b: Tensor, common: tuple[Tensor, Tensor], alpha: Tensor
    ) -> tuple[Tensor, ...]:
        """Global mean below the boundary layer, attention from it on. Shape: like a and b."""
        high = mix(a[:, self.low :], b[:, self.low :], alpha, self.config.average)
        return tuple(
            torch.cat([mean[:, : self.low].expand(len(own), -1, -1, -1, -1), own], 1)
            for mean, own in zip(common, high, strict=True)
        )
