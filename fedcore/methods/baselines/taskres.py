"""TaskRes learns a residual on the text feature of every class (Yu et al., CVPR 2023).

    t_k = z_k + alpha x_k with z_k the normalised text feature of the class prompt and x_k = 0 at first
    client: scores s cos(h, t_k),  L = CE(scores)
    server: x <- mean of the clients' x; or every client keeps its own

A class that was not trained on has x_k = 0: it is scored as zero-shot CLIP does.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import torch


class TaskResConfig(fl.MethodConfig):
    optimiser: fl.Optimiser = fl.hyper("adam", "Local optimiser (authors' code: Adam)")
    lr: fl.LearningRate = fl.hyper(
        2e-3, "Learning rate of the clients (authors' code: 0.002; ImageNet: 0.0002)"
    )
    batch_size: fl.BatchSize = fl.hyper(256, "Samples in a local batch (authors' code: 256)")
    alpha: float = fl.hyper(
        0.5,
        "Scale of the residual (paper: 0.5)",
        title="residual scale",
        ge=0,
        le=100,
        search=fl.SearchRange(low=0.1, high=1),
    )
    share: Literal["all", "local"] = fl.hyper(
        "all",
        "Residual: all, averaged by the server; or local, kept by each client, without a global model (our "
        "readings; the paper has one machine)",
        words={"all": "shared by all", "local": "each client its own"},
    )


@fl.method
class TaskRes(fl.Method[TaskResConfig]):
    """cos(h, z + alpha x) with class prompts z and a learned residual x."""

    name = "taskres"
    about = fl.About(
        source="Yu et al., Task Residual for Tuning Vision-Language Models, CVPR 2023",
        summary="Both of CLIP's encoders stay frozen, and no text is encoded after the start. "
        "A vector is learned for each class and added to the text feature of its prompt. "
        "The vectors start at zero, so that training starts at zero-shot CLIP, and a class that nobody "
        "trained on stays there. "
        "Clients train them by cross-entropy on their own images, and the server averages them.",
    )
    Config = TaskResConfig
    class_axes = {"residual": -2}

    def __init__(self, config: TaskResConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.shared = ("residual",) if config.share == "all" else ()
        self.clients_use_global = config.share == "all"

    def init(self, generator: fl.Generators) -> fl.State:
        """Return residuals of zero. Shape: residual (K, d), or (clients, K, d) if they are local."""
        first = {"residual": torch.zeros_like(self.problem.class_features)}
        return fl.State(shared=first) if self.shared else fl.State(local=self.repeat(first))

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return z + alpha x. Shape: text (models, classes, d)."""
        return {"text": self.problem.class_features + self.config.alpha * params["residual"]}
