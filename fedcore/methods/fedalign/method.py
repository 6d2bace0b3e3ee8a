"""FedAlign trains image encoders on the clients and the text encoder on the server (Ma et al., 2024).

A round, with low-rank updates W = W_0 + gamma B A in the attention layers of both towers:

    client k   L = CE(scale cos) + mu |Z Z^T - I|, Z the mean features of the batch's classes     Eq. 7, 8
               uploads A, B, prototypes u_k,c, counts N_k,c and the features of its hits         Eq. 9
    server     trains the text tower on these features and broadcasts the class features         Eq. 10
               alpha_kj = softmax_j sum_c N_k,c / N_k sum_c' sim(u_k,c, u_j,c')                  Eq. 11, 12
               next update of k: sum_j alpha_kj B_j A_j from ``boundary_layer`` on, below it     Eq. 13, 14
               the mean by sample counts, which in all layers is the global encoder

For training alpha_kk is masked, for prediction it is not (Section 4.5): the server makes two encoders for
each client. Means of products are exact; only the factors that a round starts from are cut to rank r.
"""

from dataclasses import replace
from typing import Any

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.adapters import first_adapted_layer, scaled_layer
from fedcore.clip.prompts import check_prompts
from fedcore.clip.specs import BackboneSpec
from fedcore.methods.class_texts import Described
from fedcore.methods.fedalign.config import FedAlignConfig
from fedcore.methods.fedalign.mixing import attend, hits_to_upload, mix_parts, personalise, relevance, resized
from fedcore.methods.fedalign.towers import Towers, encoding, gradient_share, named, orthogonality, parts_of

LARGEST_SERVED_RANK = 64
"""Personal models of up to this rank are exact means; every client has one, so larger ones are cut."""


@fl.method
class FedAlign(Described):
    """FedAlign: W0 + gamma B A in every client's image tower and in the server's text tower."""

    name = "fedalign"
    about = fl.About(
        source="Ma et al., Modality Alignment Meets Federated Broadcasting, 2024",
        summary="CLIP is cut in two: every client adapts the image encoder, the server adapts the text "
        "encoder. "
        "Both learn low-rank updates of their attention layers (LoRA). "
        "Clients upload their update, class prototypes and the features of correctly predicted images; on "
        "these features the server trains the text encoder and broadcasts new class features. "
        "A client's next update mixes the others' by the similarity of prototypes in the upper layers and "
        "is the weighted mean in the lower ones; that mean in all layers is the global model. "
        "A client's own share is left out for training, so that it learns from the others, and included for "
        "prediction.",
        charts=(
            fl.DiagnosticChart(
                "Prototypes a client sends",
                {"prototypes": ""},
                note="Classes that it recognised at least once.",
                default_visible=True,
            ),
            fl.DiagnosticChart("Features a client sends", {"uploaded_features": ""}),
            fl.DiagnosticChart(
                "Clients that fell back to the global mean",
                {"global_fallback": ""},
                note="1 for a client that recognised nothing, else 0.",
            ),
            fl.DiagnosticChart(
                "Loss terms",
                {"cross_entropy": "cross-entropy", "orthogonality": "orthogonality"},
                better="lower",
            ),
            fl.DiagnosticChart(
                "Share of the orthogonality penalty in the gradient",
                {"orthogonality_share": ""},
                note="Its norm over the sum of both norms, mean over steps; recorded with gradient_shares.",
            ),
        ),
        matrices=(
            fl.MatrixChart(
                "attention",
                "Attention: who learns from whom",
                note="A row holds each client's weight in one client's next starting point.",
                verb="learns from",
                rows="who learns",
                columns="from whom",
                unit="Weight",
            ),
        ),
        alike="FedAlign: where personal rows equal the global model's, or nearly so, the personal encoders "
        "differ from it in the mixed upper layers alone, and by too little after few small steps to change "
        "predictions; a larger lr or gamma, or a lower boundary_layer, sets them apart.",
    )
    Config = FedAlignConfig
    shared = ("text",)

    def __init__(self, config: FedAlignConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        layers = problem.backbone.spec.vision_layers
        boundary = scaled_layer(config.boundary_layer, layers)
        start = first_adapted_layer(config.start_layer, layers)
        self.low = max(0, boundary - start)  # adapted layers that take the global mean
        self.towers = Towers(config, problem.backbone, self.low)
        self.client_rows = tuple(f"{of}_{part}" for of in ("image", "serving") for part in self.towers.parts)
        self.scale = problem.backbone.logit_scale if config.scale == "clip" else config.scale
        stacked = config.rank * len(problem.clients) if config.average == "exact" else config.rank
        self.global_rank = min(stacked, max(config.rank, problem.backbone.spec.vision_width))
        self.served_rank = self.global_rank if stacked <= LARGEST_SERVED_RANK else config.rank

    @classmethod
    def check(cls, config: Any, context: fl.RunContext) -> None:
        """Refuse text towers that cannot be adapted, and ranks and descriptions that do not fit."""
        spec = context.spec
        check_prompts(spec)
        widest = min(spec.vision_width, spec.token_width)
        if config.rank > widest:
            raise FedLensError(
                f"rank {config.rank} is more than the width of {spec.name}'s layers; use at most {widest}",
                "rank",
            )
        super().check(config, context)

    @classmethod
    def reads(cls, config: Any, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first trained layer; the layers below it never change."""
        return encoding(config, spec)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return B = 0 and the same A for all: averaging factors with unequal A would mix unrelated bases.

        Shape: image_a (clients, layers, 3, r, width), image_b (clients, layers, 3, width, r), and under
        table4 the parts that ``Towers`` names; serving_* likewise, with a rank that holds an exact mean;
        without the client axis global_*, the global encoder, and text_*, the text tower; text (K, d).
        """
        image, text = self.towers.first_image(generator), self.towers.first_text(generator)
        wide, served = (
            image | dict(zip("ab", resized(image["a"], image["b"], rank), strict=True))
            for rank in (self.global_rank, self.served_rank)
        )
        server = named("text", text) | named("global", wide) | named("serving", self.repeat(served))
        features = self.towers.text(text, self.texts)
        return fl.State(shared={"text": features}, personal=named("image", self.repeat(image)), server=server)

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Return L_ce + mu L_orth (Eq. 8), and record features and hits for the upload."""
        image = parts_of("image", params)
        features = self.towers.image(image, batch.x)
        logits = fl.cosine_logits(features, params["text"], self.scale)
        contrast = fl.cross_entropy(logits, batch.labels, batch.mask)
        classes = len(self.problem.classes)
        penalty = orthogonality(
            features,
            batch.labels,
            batch.mask,
            classes,
            self.config.renormalise,
            self.config.orthogonality_norm,
        )
        terms = {"cross_entropy": contrast, "orthogonality": penalty}
        if self.config.gradient_shares:
            weighted = self.config.orthogonality * penalty
            terms["orthogonality_share"] = gradient_share(weighted, contrast, list(image.values()))
        return fl.Step(
            {tuple(named("image", image)): contrast + self.config.orthogonality * penalty},
            record={"feature": features, "correct": logits.argmax(-1) == batch.labels},
            terms=terms,
        )

    def upload(self, params: fl.Params, record: fl.Params, data: fl.LocalData) -> fl.Values:
        """Upload the update, class prototypes with true sample counts, and correctly predicted features.

        Prototypes go without the name of their class, which Eq. 11 does not need.

        Shape: image_* (participants, ...); prototypes (.., d) and counts of the classes that have
        one; features (.., d) and labels of ``upload_ratio`` of the hits.  Source: Eq. 9, Section 4.3.
        """
        correct = record["correct"] & data.mask
        classes = len(self.problem.classes)
        prototypes, hits = fl.class_means(record["feature"], data.labels, correct, classes)
        uploaded = hits_to_upload(self.problem, self.config.upload_ratio, correct, data)
        return {
            **named("image", parts_of("image", params)),
            "prototypes": fl.Ragged.pack(prototypes, hits > 0),
            "counts": fl.Ragged.pack(data.class_counts, hits > 0),
            "features": fl.Ragged.pack(record["feature"], uploaded),
            "labels": fl.Ragged.pack(data.labels, uploaded),
        }

    def aggregate(self, state: fl.State, uploads: fl.Uploads, generator: fl.Generators) -> fl.State:
        """Train the text tower, then mix the image updates; absent clients keep what they last received.

        Returns the participants' rows of what each client has (``client_rows``).
        """
        text = self._train_text(parts_of("text", state.server), uploads, generator)
        weights, average = uploads.weights(self.config.weighting), self.config.average
        trained = parts_of("image", {n: v for n, v in uploads.values.items() if isinstance(v, torch.Tensor)})
        start, serve, _ = self._attention(uploads)
        ranks = {self.global_rank, self.config.rank, self.served_rank}
        means = {rank: mix_parts(trained, weights[None], average, rank) for rank in sorted(ranks)}  # Eq. 14

        def personalised(alpha: Tensor, rank: int) -> fl.Params:
            return personalise(trained, means[rank], alpha, self.low, average, rank)

        common = {part: value[0] for part, value in means[self.global_rank].items()}
        server = named("text", text) | named("global", common)
        personal = named("image", personalised(start, self.config.rank))
        server |= named("serving", personalised(serve, self.served_rank))
        with torch.no_grad():
            features = self.towers.text(text, self.texts)
        return replace(state, shared={"text": features}, personal=personal, server=server)

    def models(self, state: fl.State) -> fl.Models:
        """Return the global encoder and the clients' personalised ones (Section 4.5), with the new texts."""
        text, server = state.shared["text"], state.server
        common = {part: value[None] for part, value in parts_of("global", server).items()}
        serving = named("image", parts_of("serving", server))
        return fl.Models(
            {**named("image", common), "text": text[None]}, {**serving, **self.repeat({"text": text})}
        )

    def retarget(self, state: fl.State, to: "FedAlign") -> fl.State:
        """Encode the other names with the trained text tower."""
        return replace(state, shared={"text": to.towers.text(parts_of("text", state.server), to.texts)})

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return scale cos(image, text)."""
        return fl.cosine_logits(*self.features(params, head, x), self.scale)

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the adapted tower's embeddings and the received text features.

        Shape: -> (models, samples or K, d).
        """
        return self.towers.image(parts_of("image", params), x), params["text"]

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Return both attention matrices, the uploads' sizes, and which clients fell back to the mean."""
        start, serve, alone = self._attention(uploads)
        return {
            "attention": start,
            "attention_serving": serve,
            "prototypes": uploads.ragged("prototypes").lengths,
            "uploaded_features": uploads.ragged("features").lengths,
            "global_fallback": alone,
        }

    def round_log(self, uploads: fl.Uploads) -> list[str]:
        """Name the clients without a prototype, which take the global mean in all layers."""
        prototypes = uploads.ragged("prototypes").lengths.tolist()
        return [
            f"client '{self.problem.clients[c]}' predicted nothing correctly and takes the global mean"
            for c, n in zip(uploads.clients.tolist(), prototypes, strict=True)
            if n == 0
        ]

    def _train_text(self, parts: fl.Params, uploads: fl.Uploads, generator: fl.Generators) -> fl.Params:
        """Train the text tower on all uploaded pairs (Eq. 10), with a new Adam in every round."""
        parts = {name: value.clone().requires_grad_() for name, value in parts.items()}
        features = torch.cat(uploads.ragged("features").per_client())
        labels = torch.cat(uploads.ragged("labels").per_client())
        optimiser = fl.Adam(parts.values(), lr=self.config.server_lr)
        for epoch in range(self.config.server_epochs if len(labels) else 0):
            order = torch.randperm(len(labels), generator=generator("text", epoch)).to(labels.device)
            for rows in order.split(self.config.server_batch_size):
                text = self.towers.text(parts, self.texts)
                loss = F.cross_entropy(self.scale * features[rows] @ text.T, labels[rows])
                optimiser.step(torch.autograd.grad(loss, optimiser.values))
        return {name: value.detach() for name, value in parts.items()}

    def _attention(self, uploads: fl.Uploads) -> tuple[Tensor, Tensor, Tensor]:
        """Return the attention for the next round's start and for prediction, and the clients without any.

        Shape: (participants, participants) twice, (participants,) bool.
        """
        prototypes = uploads.ragged("prototypes")
        scores = relevance(self.config, prototypes, uploads.ragged("counts"))
        mean = uploads.weights(self.config.weighting).to(scores.device)
        start, alone = attend(scores, prototypes.lengths > 0, self.config.ex_query, mean)
        serve, _ = attend(scores, prototypes.lengths > 0, False, mean)
        return start, serve, alone
