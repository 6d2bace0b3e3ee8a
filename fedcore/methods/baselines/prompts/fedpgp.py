"""FedPGP adds a low-rank matrix of each client to a shared prompt, and holds them apart (Cui et al., 2024).

    p_i = sigma + U_i V_i;  sigma is averaged by the server, U_i and V_i never leave client i
    L = CE(s cos(h, t_k(p_i))) + mu mean_k -log e^(a_k/T) / (e^(a_k/T) + e^(b_k/T))
    a_k = cos(t_k(sigma), anchor_k),  b_k = cos(t_k(sigma), t_k(p_i))

Reading: the paper's anchor is what CLIP knows of a class, its code's the untrained prompt: ``anchor``.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import class_features, draw_context
from fedcore.methods.baselines.prompts import Prompted, PromptedConfig


class FedPGPConfig(PromptedConfig):
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (paper: 0.001)")
    local_epochs: fl.Epochs = fl.hyper(2, "Passes over a client's data in one round (paper: 2)")
    rank: fl.Rank = fl.hyper(
        8,
        "Rank of a client's addition U V to the shared context (paper: 8, also 4)",
        title="rank of the personal part",
    )
    contrastive_weight: fl.LossWeight = fl.hyper(
        1.0, "Weight mu of the contrastive loss (paper: 1)", search=fl.TENFOLD
    )
    temperature: float = fl.hyper(
        0.5, "Temperature of the contrastive loss (paper: 0.5)", title="contrastive temperature", gt=0, le=100
    )
    anchor: Literal["untrained", "prompt"] = fl.hyper(
        "untrained",
        "Text that the shared context stays close to: untrained, 'X X ... X class name.' with an X for "
        "each vector (authors' code), or prompt, the data set's prompt (paper's text)",
        title="contrastive anchor",
        words={"untrained": "X X ... X class name", "prompt": "the class prompt"},
    )


@fl.method
class FedPGP(Prompted):
    """[SOS] (sigma + U V) class name . [EOT] with a shared sigma and U, V of each client."""

    name = "fedpgp"
    about = fl.About(
        source="Cui et al., Harmonizing Generalization and Personalization in Federated Prompt Learning, "
        "ICML 2024",
        summary="CLIP stays frozen; all clients together learn one context before the class names. "
        "Each client adds a low-rank matrix to it, which never leaves the client. "
        "A contrastive loss keeps the class features of the shared context close to those of an untrained "
        "anchor, and away from those of the client's context. "
        "Only the shared context is sent; the global model predicts with it alone.",
        charts=(
            fl.DiagnosticChart(
                "FedPGP's loss terms",
                {"cross_entropy": "cross-entropy", "contrastive": "contrastive"},
                better="lower",
            ),
        ),
        prompts={"context": "shared", "personal": "own"},
    )
    Config = FedPGPConfig
    backbones = "equal token widths"
    shared = ("context",)

    def __init__(self, config: FedPGPConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        placeholders = " ".join(["X"] * config.context_length)
        self.anchor = (
            class_features(problem.backbone, problem.classes, placeholders + " {}.")
            if config.anchor == "untrained"
            else problem.class_features
        )

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw all parts from N(0, 0.02), U and V for each client.

        Shape: context (M, m), u (clients, M, r), v (clients, r, m).
        """
        backbone, rank = self.problem.backbone, self.config.rank
        sizes = {"u": (self.config.context_length, rank), "v": (rank, backbone.spec.token_width)}

        def draw(name: str, client: str) -> Tensor:
            drawn = draw_context(*sizes[name], generator("fedpgp", name, client))
            return drawn.to(backbone.device, backbone.dtype)

        local = {name: torch.stack([draw(name, client) for client in self.problem.clients]) for name in sizes}
        return fl.State(shared={"context": self._draw(generator("fedpgp", "context"))}, local=local)

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Return CE(sigma + U V) + mu L_con, L_con = -log e^(a/T) / (e^(a/T) + e^(b/T)) over the classes.

        a is the cosine of the shared context's class feature with the anchor's, b with the client's.
        """
        shared, personal = F.normalize(self._text(torch.cat(self._contexts(params))), dim=-1).chunk(2)
        logits = fl.cosine_logits(batch.x, personal, self.problem.backbone.logit_scale)
        fit = fl.cross_entropy(logits, batch.labels, batch.mask)
        near, away = (shared * self.anchor).sum(-1), (shared * personal).sum(-1)
        contrast = F.softplus((away - near) / self.config.temperature).mean(1)
        loss = fit + self.config.contrastive_weight * contrast
        terms = {"cross_entropy": fit, "contrastive": contrast}
        return fl.Step({("context", "u", "v"): loss}, terms=terms)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        return {"text": self._text(self._contexts(params)[-1])}

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return sigma, and of a client sigma + U V. Shape: (models, M, m) each."""
        return dict(zip(("context", "personal"), self._contexts(params), strict=False))

    def _contexts(self, params: fl.Params) -> tuple[Tensor, ...]:
        """Return sigma and, of a client, sigma + U V. Shape: (models, M, m) each."""
        context = params["context"]
        return (context, context + params["u"] @ params["v"]) if "u" in params else (context,)
