"""PromptFolio mixes the class features of a shared prompt and of a client's own (Pan et al., NeurIPS 2024).

    t_k(P): normalised text feature of [SOS] P class name . [EOT]
    t_k = (1 - theta) t_k(P_g) + theta t_k(P_l), which is not normalised again
    client: scores s h/|h| . t_k,  L = CE(scores), which moves both prompts
    server: P_g <- sum_i n_i P_g,i / sum_i n_i

P_g is shared and P_l never leaves its client. The global model is P_g alone, theta = 0.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.prompts import Prompted, PromptedConfig


class PromptFolioConfig(PromptedConfig):
    theta: float = fl.hyper(
        0.4,
        "Share of a client's own prompt in its class features: 0 is PromptFL, 1 is CoOp (authors' code: 0.4)",
        title="own share",
        ge=0,
        le=1,
        search=fl.SearchRange(low=0.1, high=0.9),
    )
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (as PromptFL's)")


@fl.method
class PromptFolio(Prompted):
    """(1 - theta) t(P_g) + theta t(P_l) with a shared prompt P_g and a prompt P_l of each client."""

    name = "promptfolio"
    about = fl.About(
        source="Pan et al., Federated Learning from Vision-Language Foundation Models: Theoretical Analysis "
        "and Method, NeurIPS 2024",
        summary="CLIP stays frozen. Every client learns two prompts: a shared one, which the server "
        "averages, and its own, which never leaves it. "
        "A class is described by a mixture of the text features of both, as a portfolio mixes two assets. "
        "One share decides how much of its own a client uses: nothing gives PromptFL, everything gives CoOp "
        "on each client. "
        "The global model predicts with the shared prompt alone.",
        prompts={"context": "shared", "own": "own"},
    )
    Config = PromptFolioConfig
    backbones = "equal token widths"
    shared = ("context",)

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw the shared prompt as PromptFL does, and a prompt for each client.

        Shape: context (M, m), own (clients, M, m).
        """
        drawn = [self._draw(generator("promptfolio", "own", client)) for client in self.problem.clients]
        context = self._draw(generator("promptfl", "context"))
        return fl.State(shared={"context": context}, local={"own": torch.stack(drawn)})

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return the mixture of class features; the global model has the shared part alone.

        Shape: text (models, classes, d).
        """
        common = F.normalize(self._text(params["context"]), dim=-1)
        if "own" not in params:
            return {"text": common}
        local = F.normalize(self._text(params["own"]), dim=-1)
        return {"text": (1 - self.config.theta) * common + self.config.theta * local}

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s h/|h| . t. Shape: x (models, samples, d) -> (models, samples, classes)."""
        scale = self.problem.backbone.logit_scale
        return scale * (F.normalize(x, dim=-1) @ head["text"].transpose(-1, -2))
