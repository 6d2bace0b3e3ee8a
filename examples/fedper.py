"""A method with a personal part, and without a global model, in one file: FedPer on CLIP's embeddings.

fedlens run examples/personal.toml --methods examples/fedper.py --methods examples/ditto.py
"""

from fedcore.base.lazy import torch
from fedcore.methods import (
    About,
    LearningRate,
    Method,
    MethodConfig,
    Models,
    State,
    Step,
    cosine_logits,
    cross_entropy,
    hyper,
    method,
)


class FedPerConfig(MethodConfig):
    lr: LearningRate = hyper(0.01, "Learning rate of local SGD")


@method
class FedPer(Method):
    """The base layer W_B is averaged by the server, the head W_P of each client stays with it.

    Source: Arivazhagan et al., Federated Learning with Personalization Layers, 2019, Algorithms 1 and 2.
    """

    name = "fedper"
    about = About(
        title="FedPer",
        source="examples/fedper.py, after Arivazhagan et al. 2019",
        summary="A linear layer on CLIP's embeddings is learned together; every client keeps its own head.",
    )
    Config = FedPerConfig
    shared = ("base",)  # what is uploaded and averaged; the head is not

    def init(self, generator):
        text = self.problem.class_features  # (classes, d)
        base = torch.eye(text.shape[1]).to(text)
        return State(shared={"base": base}, local=self.repeat({"head": text}))  # local: (clients, classes, d)

    def train_step(self, params, const, batch):
        """Move both parts by the gradient of F_k(W_B, W_Pk), one loss per client. Shape: -> (clients,)."""
        logits = self.logits(params, const, batch.x)
        return Step({("base", "head"): cross_entropy(logits, batch.labels, batch.mask)})

    def models(self, state):
        """Return no global model, since the server has no head, and every client's (W_B, W_Pk)."""
        return Models(None, {**self.repeat(state.shared), **state.local})

    def logits(self, params, head, x):  # base (models, d, d), head (models, classes, d)
        return cosine_logits(x @ params["base"], params["head"], self.problem.backbone.logit_scale)
