"""CLIP-Adapter learns a bottleneck network on CLIP's image embeddings (Gao et al., IJCV 2024).

    A(h) = relu(W_2 relu(W_1 h)) with W_1 (d/4, d) and W_2 (d, d/4), without biases
    client: scores s cos(alpha A(h) + (1 - alpha) h, z_k),  L = CE(scores)
    server: averages W_1 and W_2

z_k is the text feature of the class prompt. Without biases A(c h) = c A(h) for c > 0, so the scores are the
same whether h is normalised before or not; it is not, and alpha = 0 is zero-shot CLIP to the last bit.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor
from fedcore.base.lazy import functional as F


class CLIPAdapterConfig(fl.MethodConfig):
    alpha: float = fl.hyper(
        0.2,
        "Share of the adapter in the image feature; 0 is zero-shot CLIP (paper: 0.2)",
        title="adapter share",
        ge=0,
        le=1,
        search=fl.SearchRange(low=0.1, high=0.9),
    )
    reduction: int = fl.hyper(
        4, "Width of the embedding, divided by that of the hidden layer (paper: 4)", ge=1, le=64
    )


@fl.method
class CLIPAdapter(fl.Method[CLIPAdapterConfig]):
    """cos(alpha A(h) + (1 - alpha) h, class prompt) with a bottleneck network A."""

    name = "clip-adapter"
    about = fl.About(
        source="Gao et al., CLIP-Adapter: Better Vision-Language Models with Feature Adapters, IJCV 2024",
        summary="Both of CLIP's encoders stay frozen; images are encoded once. "
        "A small network with a narrow hidden layer makes a second feature of the image embedding. "
        "A fifth of it is mixed with four fifths of the embedding, and the mixture is compared with the "
        "class prompts as CLIP does. "
        "Clients train the network by cross-entropy on their own images and the server averages it; "
        "nothing else is sent.",
    )
    clients_use_global = True
    Config = CLIPAdapterConfig
    shared = ("w1", "w2")

    def init(self, generator: fl.Generators) -> fl.State:
        """Return two layers, drawn as in torch.nn.Linear. Shape: w1 (d/4, d), w2 (d, d/4)."""
        d = self.problem.backbone.spec.embed_dim
        hidden = max(1, d // self.config.reduction)
        w1, _ = fl.draw_linear(hidden, d, generator("clip-adapter", "down"))
        w2, _ = fl.draw_linear(d, hidden, generator("clip-adapter", "up"))
        return fl.State(shared=self.place({"w1": w1, "w2": w2}))

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixture and the class prompts. Shape: -> (models, samples or K, d)."""
        hidden = F.relu(x @ params["w1"].transpose(1, 2))
        adapted = F.relu(hidden @ params["w2"].transpose(1, 2))
        mixed = self.config.alpha * adapted + (1 - self.config.alpha) * x
        return mixed, self.problem.class_features.expand(len(mixed), -1, -1)
