"""FedPHA pulls a local prompt to its part within the shared one, and pushes both apart (Fang et al., 2025).

Client i holds the shared prompt G_s (L_g x m) and a prompt G_c; t_k is the unit text feature of class k.

    G_s = U S V^T by the economy SVD,  c = floor(L_g (1 - rho)),  G'_c = G_c V_2 V_2^T with columns c.. of V
    pull = mean over classes and coordinates of (t_kj(G_c) - t_kj(G'_c))^2
    push = mean over classes of relu(alpha - |t_k(G_c) - t_k(G_s)|)
    L = CE(G_c) + CE(G_s) + pull + push
    server: G_s <- mean of the clients' G_s by sample counts

A client predicts with G_c, the global model with G_s. SDFed descends from it, with another SVD and pull.
"""

from functools import reduce
from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import functional as F
from fedcore.base.lazy import torch
from fedcore.methods.sdfed.two_prompts import (
    LENGTH_CHART,
    LENGTH_FORMS,
    OVERLAP_CHART,
    TwoPrompts,
    TwoPromptsConfig,
    distances,
    removed_directions,
    weaker_directions,
)


class FedPHAConfig(TwoPromptsConfig):
    lr: fl.LearningRate = fl.hyper(2e-3, "Learning rate of local SGD (authors' code: 0.002)")
    global_length: fl.PromptLength = fl.hyper(
        16, "Length of the shared prompt, tokens (L_g; authors' code: 16)"
    )
    local_length: str = fl.hyper(
        "fixed:16",
        f"Length of each client's own prompt, tokens (L_c): {LENGTH_FORMS} (authors' code: 16, or 4 to 32)",
    )
    kept: float = fl.hyper(
        0.8,
        "rho: share of the global prompt's directions, the weaker ones, onto which the local prompt is "
        "projected (authors' code: 0.8)",
        title="kept share",
        gt=0,
        le=1,
        search=fl.SearchRange(low=0.1, high=1),
    )
    margin: float = fl.hyper(
        1.0,
        "alpha: distance below which global and local class features repel (authors' code: 1)",
        title="repulsion margin",
        ge=0,
        le=2,
        search=fl.SearchRange(low=0.2, high=1.4),
    )
    projector_gradient: Literal["on", "off"] = fl.hyper(
        "on",
        "Whether the pull moves the global prompt too, through its decomposition: on (authors' code), or off",
        title="gradient through the decomposition",
    )


@fl.method
class FedPHA(TwoPrompts):
    """A shared prompt G_s and a private G_c per client, which is pulled to its part within G_s."""

    name = "fedpha"
    about = fl.About(
        source="Fang et al., FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation, "
        "ICML 2025",
        summary="CLIP stays frozen. Every client learns two prompts: a shared one, which the server "
        "averages, and its own, which never leaves it and may have any length. "
        "The local prompt is projected onto the weaker directions of the shared one. "
        "One loss pulls its class features to those of the projection, and another keeps them at a distance "
        "from the shared prompt's. "
        "Predictions use the local prompt only. SDFed is its successor.",
        charts=(
            OVERLAP_CHART,
            fl.DiagnosticChart(
                "FedPHA's loss terms",
                {"ce_local": "local prompt", "ce_global": "global prompt", "pull": "pull", "push": "push"},
                better="lower",
            ),
            LENGTH_CHART,
        ),
    )
    Config = FedPHAConfig

    def __init__(self, config: FedPHAConfig, problem: fl.Problem) -> None:
        """Prepare class names and lengths, and count the directions that the projection leaves out."""
        super().__init__(config, problem)
        self.removed = removed_directions(1 - config.kept, config.global_length)

    plan_warnings = classmethod(fl.rate_warnings)

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Move both prompts by their joint loss."""
        common, local, lengths = params["global_prompt"], params["local_prompt"], self.lengths[batch.clients]
        decomposed = common if self.config.projector_gradient == "on" else common.detach()
        v_2 = weaker_directions(decomposed, self.removed)
        text_local, text_common, text_projected = self._encode(
            (local, lengths), (common, self._common_lengths(common)), (local @ v_2 @ v_2.mT, lengths)
        )
        fits = []
        for text in (text_local, text_common):
            logits = fl.cosine_logits(batch.x, text, self.problem.backbone.logit_scale)
            fits.append(fl.cross_entropy(logits, batch.labels, batch.mask))
        pull = (text_local - text_projected).square().mean((1, 2))
        push = F.relu(self.config.margin - distances(text_local, text_common)).mean(1)
        terms = {"ce_local": fits[0], "ce_global": fits[1], "pull": pull, "push": push}
        return fl.Step({("global_prompt", "local_prompt"): reduce(torch.add, terms.values())}, terms=terms)
