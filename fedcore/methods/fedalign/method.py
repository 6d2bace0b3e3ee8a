"""FedAlign: image encoders on the clients, the text encoder on the server (Ma et al., 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from fedcore.errors import FedLensError
from fedcore.lazy import functional as F
from fedcore.lazy import torch
from fedcore.methods.base import (
    Batch,
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
from fedcore.methods.charts import DiagnosticChart, MatrixChart
from fedcore.methods.class_texts import Described, Descriptions, descriptions_field, style_field
from fedcore.methods.fedalign.mixing import (
    attend,
    chosen_hits,
    mix_parts,
    pack,
    personalise,
    relevance,
    unpack,
)
from fedcore.methods.fedalign.towers import (
    Towers,
    check_tower,
    encoding,
    first_layer,
    named,
    orthogonality,
    parts_of,
    scaled_layer,
)
from fedcore.methods.registry import method

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedcore.clip.facts import BackboneFacts
    from fedcore.federation import LocalData, Problem


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
    trainable: Literal["attention", "table4"] = Field(
        "attention",
        title="trained parts",
        description="Low-rank updates of attention alone (the paper's text), or table4, all that its Table 4 "
        "counts: the image tower's class and positional embeddings and projection too, and the text tower's "
        "token embedding (low-rank) and positional embedding",
        json_schema_extra={"words": {"table4": "all of Table 4"}},
    )
    rank: int = Field(
        4, ge=1, le=256, title="LoRA rank", description="Rank r of the low-rank updates (paper: 4)"
    )
    gamma: float = Field(
        0.25,
        gt=0,
        le=100,
        title="LoRA scaling",
        description="Scaling of the updates, W = W0 + gamma B A (paper: 0.25)",
    )
    start_layer: int = Field(
        2,
        ge=0,
        le=11,
        title="first adapted layer",
        description="First adapted attention layer l, from 0, of 12 (paper: 2); scaled to the depth",
    )
    boundary_layer: int = Field(
        9,
        ge=0,
        le=12,
        title="first mixed layer",
        description="First layer m, from 0, of 12, that is mixed by attention; below it the global mean "
        "(paper: 9; 12 turns attention off); scaled to the depth",
    )
    orthogonality: float = Field(
        0.1,
        ge=0,
        le=1000,
        title="orthogonality weight",
        description="Weight mu of the orthogonality penalty (paper: 0.1)",
    )
    renormalise: bool = Field(
        True,
        title="normalise means again",
        description="Normalise the class means of the penalty again (the paper does not)",
    )
    scale: float | Literal["clip"] = Field(
        14.3,
        title="cosine scale",
        description="Factor of all cosines: exp(2.66) = 14.3 (paper), or 'clip' for the backbone's own",
        json_schema_extra={"words": {"clip": "CLIP's own"}},
    )
    style: Literal["gt", "st"] = style_field(
        "gt", "Class texts: gt, written descriptions (paper; else the prompt), or st, the prompt"
    )
    descriptions: Descriptions = descriptions_field()
    upload_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        title="share uploaded",
        description="Share of the correctly predicted features that a client uploads (paper: 1)",
    )
    similarity: Literal["cosine", "dot", "euclidean"] = Field(
        "cosine",
        title="prototype similarity",
        description="Similarity of two prototypes (paper: cosine; Table 8)",
    )
    euclidean: Literal["plain", "negated"] = Field(
        "plain",
        title="Euclidean similarity",
        description="Distance as printed, which favours the dissimilar, or with a minus sign",
    )
    reduce: Literal["sum", "mean"] = Field(
        "sum",
        title="over classes",
        description="Over the other's classes: sum (paper, Eq. 11; saturates with many classes), or mean",
    )
    ex_query: bool = Field(
        True,
        title="leave own update out",
        description="Leave a client's own update out of its next starting point (paper: yes)",
    )
    average: Literal["product", "factors"] = Field(
        "product",
        title="averaging of updates",
        description="Average B A and cut back to rank r (paper, Eq. 13, 14), or average B and A apart",
    )
    server_lr: float = Field(
        1e-3,
        ge=0,
        le=100,
        title="server learning rate",
        description="Learning rate of the server's Adam (paper: 1e-3)",
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


@method
class FedAlign(Described):
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
    charts = (
        DiagnosticChart(
            "Prototypes a client sends",
            {"prototypes": ""},
            note="Classes that it recognised at least once.",
            unasked=True,
        ),
        DiagnosticChart("Features a client sends", {"uploaded_features": ""}),
        DiagnosticChart(
            "Clients that fell back to the global mean",
            {"global_fallback": ""},
            note="1 for a client that recognised nothing, else 0.",
        ),
        DiagnosticChart(
            "Loss terms", {"cross_entropy": "cross-entropy", "orthogonality": "orthogonality"}, better="lower"
        ),
    )
    matrices = (
        MatrixChart(
            "attention",
            "Attention: who learns from whom",
            note="A row says how much of whom is in a client's next starting point.",
            verb="learns from",
            rows="who learns",
            columns="from whom",
            unit="Weight",
        ),
    )
    shared = ("text",)

    def __init__(self, config: FedAlignConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.towers = Towers(config, problem.backbone)
        layers = problem.backbone.facts.vision_layers
        boundary = scaled_layer(config.boundary_layer, layers)
        self.low = max(0, boundary - first_layer(config, layers))  # adapted layers with the global mean
        self.scale = problem.backbone.logit_scale if config.scale == "clip" else config.scale

    @classmethod
    def check(cls, config: Any, setting: Setting) -> None:
        """Refuse backbones without attention layers, and ranks and descriptions that do not fit.

        Raises:
            FedLensError: with field ``start_layer``, ``rank`` or ``descriptions``.
        """
        facts = setting.facts
        check_tower(cls.title, facts, "start_layer")
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
        super().check(config, setting)

    @classmethod
    def reads(cls, config: Any, facts: BackboneFacts) -> str:
        """The activations entering the first adapted layer (table4: the patches); below, nothing changes."""
        return encoding(config, facts)

    def init(self, generator: Callable[..., Generator]) -> State:
        """B zero and one A for all: with A of their own, averaging factors would mix unrelated bases.

        Shape: image_a (clients, layers, 3, r, width), image_b (clients, layers, 3, width, r), and under
        table4 what ``Towers`` names; serving_* alike; without the client axis global_*, the global encoder,
        and text_*, the text tower; text (K, d).
        """
        image, text = self.towers.first_image(generator), self.towers.first_text(generator)
        personal = {name: value.clone() for name, value in self.spread(image).items()}
        serving = {name: value.clone() for name, value in personal.items()}
        server = named("text", text) | named("global", image) | named("serving", serving)
        features = self.towers.text(text, self.texts)
        return State(shared={"text": features}, personal=named("image", personal), server=server)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase: the image tower."""
        return (self._train,)

    def _train(self, params: Params, const: Params, batch: Batch) -> Step:
        """L_ce + mu L_orth (Eq. 8); remembers features and hits for the upload."""
        image = parts_of("image", params)
        features = self.towers.image(image, batch.x)
        logits = cosine_logits(features, params["text"], self.scale)
        contrast = cross_entropy(logits, batch.labels, batch.mask)
        classes = len(self.problem.classes)
        penalty = orthogonality(features, batch.labels, batch.mask, classes, self.config.renormalise)
        return Step(
            {tuple(named("image", image)): contrast + self.config.orthogonality * penalty},
            record={"feature": features, "correct": logits.argmax(-1) == batch.labels},
            terms={"cross_entropy": contrast, "orthogonality": penalty},
        )

    def upload(self, params: Params, record: Params, data: LocalData) -> dict[str, Tensor | Ragged]:
        """The update, the class prototypes with their true sample counts, and correctly predicted features.

        Prototypes go without the name of their class, which Eq. 11 does not need.

        Shape: image_* (participants, ...); prototypes (.., d) and counts of the classes that have
        one; features (.., d) and labels of ``upload_ratio`` of the hits.  Source: Eq. 9, Section 4.3.
        """
        correct = record["correct"] & data.mask
        members = (
            F.one_hot(data.labels, len(self.problem.classes)).to(record["feature"].dtype) * correct[..., None]
        )
        found = members.sum(1)
        prototypes = members.transpose(1, 2) @ record["feature"] / found.clamp(min=1)[..., None]
        chosen = chosen_hits(self.problem, self.config.upload_ratio, correct, data)
        return {
            **named("image", parts_of("image", params)),
            "prototypes": pack(prototypes, found > 0),
            "counts": pack(data.class_counts, found > 0),
            "features": pack(record["feature"], chosen),
            "labels": pack(data.labels, chosen),
        }

    def aggregate(self, state: State, uploads: Uploads, generator: Callable[..., Generator]) -> State:
        """Train the text tower, then mix the image updates; who sat out keeps what it last received."""
        text = self._train_text(parts_of("text", state.server), uploads, generator)
        weights, average = uploads.weights(self.config.weighting), self.config.average
        trained = parts_of("image", uploads.values)
        common = mix_parts(trained, weights[None], average)  # Eq. 14
        start, serve, _ = self._attention(uploads)
        server = named("text", text) | named("global", {part: value[0] for part, value in common.items()})
        personal: Params = {}
        for kind, kept, new, alpha in (
            ("image", state.personal, personal, start),
            ("serving", state.server, server, serve),
        ):
            for name, value in named(kind, personalise(trained, common, alpha, self.low, average)).items():
                new[name] = kept[name].index_copy(0, uploads.clients.to(value.device), value)
        with torch.no_grad():
            features = self.towers.text(text, self.texts)
        return replace(state, shared={"text": features}, personal=personal, server=server)

    def models(self, state: State) -> Models:
        """The global encoder, and each client's with its own share in (Section 4.5); all use the new text."""
        text, server = state.shared["text"], state.server
        common = {part: value[None] for part, value in parts_of("global", server).items()}
        serving = named("image", parts_of("serving", server))
        return Models(
            {**named("image", common), "text": text[None]}, {**serving, **self.spread({"text": text})}
        )

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        """scale cos(image, text). Shape: x (models, samples, tokens, width) -> (models, samples, K)."""
        return cosine_logits(*self.features(params, head, x), self.scale)

    def features(self, params: Params, head: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """The adapted tower's embeddings, the text features received. Shape: -> (models, samples or K, d)."""
        return self.towers.image(parts_of("image", params), x), params["text"]

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

    def remarks(self, uploads: Uploads) -> list[str]:
        """Clients without a prototype: they take the global mean in all layers."""
        found = uploads.values["prototypes"].lengths.tolist()
        return [
            f"client '{self.problem.clients[c]}' predicted nothing correctly and takes the global mean"
            for c, n in zip(uploads.clients.tolist(), found, strict=True)
            if n == 0
        ]

    def _train_text(self, parts: Params, uploads: Uploads, generator: Callable[..., Generator]) -> Params:
        """Cross-entropy of all uploaded pairs against the texts (Eq. 10); Adam is made anew every round."""
        parts = {name: value.clone().requires_grad_() for name, value in parts.items()}
        features = torch.cat(unpack(uploads.values["features"]))
        labels = torch.cat(unpack(uploads.values["labels"]))
        optimiser = torch.optim.Adam(parts.values(), lr=self.config.server_lr)
        for epoch in range(self.config.server_epochs if len(labels) else 0):
            order = torch.randperm(len(labels), generator=generator("text", epoch)).to(labels.device)
            for rows in order.split(self.config.server_batch_size):
                text = self.towers.text(parts, self.texts)
                loss = F.cross_entropy(self.scale * features[rows] @ text.T, labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return {name: value.detach() for name, value in parts.items()}

    def _attention(self, uploads: Uploads) -> tuple[Tensor, Tensor, Tensor]:
        """alpha of the next start and of prediction, and who has none. Shape: (participants, ...)."""
        prototypes = uploads.values["prototypes"]
        scores = relevance(self.config, prototypes, uploads.values["counts"])
        mean = uploads.weights(self.config.weighting).to(scores.device)
        start, alone = attend(scores, prototypes.lengths > 0, self.config.ex_query, mean)
        serve, _ = attend(scores, prototypes.lengths > 0, False, mean)
        return start, serve, alone
