"""CLIP-FC trains one linear layer on CLIP's image embeddings by federated averaging.

    client: scores W h + b,  L = CE(scores);  server: averages W and b

It has no paper. FedDEAP compares with it and states no optimiser, so the defaults are the common ones.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Tensor
from fedcore.base.lazy import functional as F


class CLIPFCConfig(fl.MethodConfig):
    """Hyper-parameters of CLIP-FC; no paper states them."""

    init: Literal["random", "text", "class_means"] = fl.hyper(
        "random",
        "Initial weights: those of a new linear layer, the features of the class prompts, or "
        + fl.CLASS_MEANS,
        title="initial classifier",
        words={"random": "new linear layer", "text": "class prompts", "class_means": "class means"},
    )
    features: Literal["raw", "normalised"] = fl.hyper(
        "raw",
        "raw: W h + b, a layer after the image encoder (paper); normalised: s W h/|h| + b, as CLIP scores",
        title="image features",
        words={"raw": "as they are", "normalised": "of unit length"},
    )
    bias: bool = fl.hyper(True, "Also learn one offset per class", title="class offsets")


@fl.method
class CLIPFC(fl.Method[CLIPFCConfig]):
    """W h + b with W and b learned by all clients."""

    name = "clip-fc"
    about = fl.About(
        source="Zheng et al., FedDEAP, 2025 (compared methods); it has no paper",
        summary="CLIP's image encoder stays frozen and its text encoder is left out. "
        "One fully connected layer from the image embedding to the classes is learned. "
        "Every client trains a copy of it by cross-entropy on its own images. "
        "The server averages the copies (FedAvg), so that all clients share one classifier. "
        "It shows how far CLIP's image features alone go, without prompts or adapters.",
    )
    clients_use_global = True
    Config = CLIPFCConfig
    class_axes = {"weight": -2, "bias": -1}

    def __init__(self, config: CLIPFCConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.shared = ("weight", "bias") if config.bias else ("weight",)

    @classmethod
    def bound_to_classes(cls, config: CLIPFCConfig) -> str:
        return fl.UNTRAINED_CLASSES.get(config.init, "its classifier starts at random")

    def init(self, generator: fl.Generators) -> fl.State:
        """Return one layer for all; made of the class prompts, it starts as zero-shot CLIP.

        Shape: weight (K, d), bias (K,).
        """
        backbone, classes = self.problem.backbone, self.problem.classes
        if self.config.init != "random":
            weight = self.problem.class_features if self.config.init == "text" else self.problem.class_means
            bias = weight.new_zeros(len(classes))
        else:
            weight, bias = fl.draw_linear(
                len(classes), backbone.spec.embed_dim, generator("clip-fc", "classifier")
            )
        first = {"weight": weight, "bias": bias}
        return fl.State(shared=self.place({name: first[name] for name in self.shared}))

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return W h + b, or s W h/|h| + b. Shape: x (models, samples, d) -> (models, samples, classes)."""
        if self.config.features == "normalised":
            x = self.problem.backbone.logit_scale * F.normalize(x, dim=-1)
        scores = x @ params["weight"].transpose(-1, -2)
        return scores + params["bias"][:, None] if "bias" in params else scores

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and the rows of W. Shape: -> (models, samples or classes, d)."""
        return x, params["weight"]
