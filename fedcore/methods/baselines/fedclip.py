"""FedCLIP learns an attention adapter on CLIP's image embeddings with all clients (Lu et al., 2023).

    A(h) = softmax(W_2 tanh(W_1 h + b_1) + b_2),  scores s cos(A(h) * h, t_k)
    L = CLIP's symmetric contrastive loss of a batch, or CE(scores) with ``loss = ce``
    server: averages A

Reading: images of one class in a batch count as each other's negatives, since their texts are equal.
"""

from typing import Literal, Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch


class FedCLIPConfig(fl.MethodConfig):
    optimiser: fl.Optimiser = fl.hyper("adam", "Local optimiser (paper: Adam)")
    lr: fl.LearningRate = fl.hyper(5e-5, "Learning rate of the clients (paper: 5e-5)")
    weight_decay: fl.WeightDecay = fl.hyper(0.2, "Weight decay of the clients (authors' code: 0.2)")
    beta1: fl.Momentum = fl.hyper(
        0.9, "Adam's decay of the mean gradient (authors' code: 0.9)", title="Adam beta 1"
    )
    beta2: fl.Momentum = fl.hyper(
        0.98, "Adam's decay of the squared gradient (authors' code: 0.98)", title="Adam beta 2"
    )
    eps: float = fl.hyper(1e-6, "Adam's epsilon (authors' code: 1e-6)", title="Adam epsilon", gt=0, le=1)
    loss: Literal["contrastive", "ce"] = fl.hyper(
        "contrastive",
        "contrastive: images against the prompts of their batch, both ways (paper; images of one "
        "class count as each other's negatives); ce: cross-entropy over all classes",
        words={"ce": "cross-entropy"},
    )

    @property
    def adam(self) -> tuple[float, float, float]:
        """beta_1, beta_2 and epsilon of Adam and AdamW."""
        return self.beta1, self.beta2, self.eps

    @model_validator(mode="after")
    def _has_negatives(self) -> Self:
        if self.loss == "contrastive" and self.batch_size == 1:
            raise ValueError(
                "batch_size 1 leaves the contrastive loss without negatives; use 2 or more, or loss = ce"
            )
        return self


def contrastive(image_to_text: Tensor, mask: Tensor) -> Tensor:
    """Return CLIP's symmetric loss: image i belongs to text i among the batch's, and the other way round.

    Shape: image_to_text (clients, batch, batch) scores, mask (clients, batch) -> (clients,).
    """
    paired = torch.arange(mask.shape[1], device=mask.device) * mask  # padding points at sample 0, masked

    def choose(scores: Tensor) -> Tensor:
        return fl.cross_entropy(scores.masked_fill(~mask[:, None], -torch.inf), paired, mask)

    return (choose(image_to_text) + choose(image_to_text.transpose(1, 2))) / 2


@fl.method
class FedCLIP(fl.Method[FedCLIPConfig]):
    """cos(A(h) * h, class prompt) with a network A that weighs the embedding's dimensions."""

    name = "fedclip"
    about = fl.About(
        source="Lu et al., FedCLIP: Fast Generalization and Personalization for CLIP in Federated "
        "Learning, 2023",
        summary="Both of CLIP's encoders stay frozen; images are encoded once. "
        "A small network looks at an image embedding and gives every dimension a weight between 0 and 1. "
        "The weighted embedding is compared with the class prompts as CLIP does. "
        "Clients train this adapter on their own images and the server averages it; nothing else is sent. "
        "There is one model for all, with no personal part.",
    )
    clients_use_global = True
    Config = FedCLIPConfig
    shared: tuple[str, ...] = ("w1", "b1", "w2", "b2")

    def init(self, generator: fl.Generators) -> fl.State:
        """Return two linear layers, drawn as in torch.nn.Linear. Shape: w1, w2 (d, d), b1, b2 (d,)."""
        d = self.problem.backbone.spec.embed_dim
        (w1, b1), (w2, b2) = (fl.draw_linear(d, d, generator("fedclip", "adapter", i)) for i in (1, 2))
        return fl.State(shared=self.place({"w1": w1, "b1": b1, "w2": w2, "b2": b2}))

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        return fl.Step({self.shared: self._loss(self._adapt(params, batch.x), batch)})

    def _loss(self, h: Tensor, batch: fl.Batch) -> Tensor:
        if self.config.loss == "ce":
            return fl.cross_entropy(self._scores(h), batch.labels, batch.mask)
        texts = self.problem.class_features[batch.labels]
        return contrastive(fl.cosine_logits(h, texts, self.problem.backbone.logit_scale), batch.mask)

    def _adapt(self, params: fl.Params, h: Tensor) -> Tensor:
        """Return A(h) * h with A(h) = softmax(W_2 tanh(W_1 h + b_1) + b_2).

        Shape: (models, samples, d) -> same.
        """
        hidden = torch.tanh(fl.linear(h, params["w1"], params["b1"]))
        return fl.linear(hidden, params["w2"], params["b2"]).softmax(-1) * h

    def _scores(self, h: Tensor) -> Tensor:
        texts = self.problem.class_features.expand(len(h), -1, -1)
        return fl.cosine_logits(h, texts, self.problem.backbone.logit_scale)

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return A(h) * h and the class prompts. Shape: -> (models, samples or K, d)."""
        h = self._adapt(params, x)
        return h, self.problem.class_features.expand(len(h), -1, -1)
