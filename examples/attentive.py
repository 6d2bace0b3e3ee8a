"""A method with local, personal and server parts in one file: bases mixed by attention, heads kept.

fedlens run examples/attentive.toml --methods examples/attentive.py --methods examples/fedper.py
"""

from dataclasses import replace

from fedcore.base.lazy import functional as F
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


class AttentiveConfig(MethodConfig):
    lr: LearningRate = hyper(0.5, "Learning rate of local SGD")
    sharpness: float = hyper(10.0, "Attention to similar clients; 0 is the plain mean", ge=0, le=1000)


@method
class Attentive(Method):
    """FedPer whose server makes a base for every client, from the bases of the clients that moved alike.

    Source: after HeurFedAMP (Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data,
    AAAI 2021, Section 4.3), here with one softmax over all clients, itself included.
    """

    name = "attentive"
    about = About(
        title="Attentive bases",
        source="examples/attentive.py, after Huang et al. 2021",
        summary="Every client receives its own base, which the server mixes from all clients' bases by "
        "the cosine of their updates. A client's head never leaves it.",
    )
    Config = AttentiveConfig

    def init(self, generator):
        text = self.problem.class_features  # (classes, d)
        bases = self.repeat({"base": torch.eye(text.shape[1]).to(text)})  # (clients, d, d)
        return State(
            personal=bases,  # made by the server for each client, and sent to it
            local=self.repeat({"head": text}),  # never leaves its client
            server={"latest": bases["base"]},  # never sent: the last base that each client uploaded
        )

    def train_step(self, params, const, batch):
        """Move what a client received and what it keeps by one loss per client. Shape: -> (clients,)."""
        logits = self.logits(params, const, batch.x)
        return Step({("base", "head"): cross_entropy(logits, batch.labels, batch.mask)})

    def upload(self, params, record, data):
        """Return the trained base: all that leaves a client."""
        return {"base": params["base"]}

    def aggregate(self, state, uploads, generator):
        """Mix W_i <- sum_j a_ij W_j, a_i = softmax_j(sharpness cos(W_i - I, W_j - I))."""
        latest = state.server["latest"].clone()
        latest[uploads.clients] = uploads.dense("base")  # clients that did not take part keep their last one
        updates = F.normalize((latest - torch.eye(latest.shape[-1]).to(latest)).flatten(1), dim=1)
        attention = torch.softmax(self.config.sharpness * updates @ updates.T, dim=1)  # (clients, clients)
        mixed = torch.einsum("ij,jde->ide", attention, latest)
        return replace(state, personal={"base": mixed}, server={"latest": latest})

    def models(self, state):
        """Return no global model, and for every client its mixed base with its own head."""
        return Models(None, {**state.personal, **state.local})

    def logits(self, params, head, x):  # base (models, d, d), head (models, classes, d)
        return cosine_logits(x @ params["base"], params["head"], self.problem.backbone.logit_scale)
