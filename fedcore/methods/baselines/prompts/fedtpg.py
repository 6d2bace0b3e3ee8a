"""FedTPG learns a network that makes the prompt from the class names, with all clients (Qiu et al., 2024).

    E: normalised text features of the bare class names,  Q: M learned queries
    a = MHA(LN(Q), LN(E), LN(E)) with four heads,  P = a + W_2 (x_1 gelu(x_2)) with (x_1, x_2) = W_1 LN(a)
    client: scores s cos(h, t_k(P)),  L = CE(scores)
    server: mean of Q and all weights

One P serves all classes whose names are in E; other names get another P from the same network.
All layers have a bias. Interpreted: a client's label space is the run's.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import class_features
from fedcore.methods.baselines.prompts import Prompted, PromptedConfig

HEADS = 4
LAYERS = ("q", "k", "v", "out", "up", "down")
NORMS = ("norm_query", "norm_names", "norm_feed")
ATTENTION = tuple(f"{layer}_{part}" for layer in (*NORMS, *LAYERS) for part in "wb")
"""The parts of the attention and of the gated layer behind it, which FedMVP has too."""


class FedTPGConfig(PromptedConfig):
    context_length: fl.PromptLength = fl.hyper(
        4, "Context vectors that the network makes for the class names, tokens (M; paper: 4)"
    )
    attention_init: Literal["xavier", "linear"] = fl.hyper(
        "xavier",
        "First values of the attention's layers: xavier, as torch's MultiheadAttention (authors' code), or "
        "linear, as torch's Linear",
        title="first values of the attention",
        words={"xavier": "Xavier, biases 0", "linear": "as linear layers"},
    )
    lr: fl.LearningRate = fl.hyper(3e-3, "Learning rate of local SGD (paper: 0.003, falling as a cosine)")
    schedule: fl.RateSchedule = fl.hyper(
        "cosine", "Learning rate over the rounds: constant, or half a cosine (paper)"
    )
    weight_decay: fl.WeightDecay = fl.hyper(1e-5, "Weight decay of local SGD (paper: 1e-5)")
    batch_size: fl.BatchSize = fl.hyper(200, "Samples in a local batch (paper: 200)")
    weighting: fl.Weighting = fl.hyper(
        "uniform", "Server mean over clients: plain (paper), or weighted by sample counts"
    )


def draw_attention(m: int, d: int, generator: Callable[[str], Generator], xavier: bool = True) -> fl.Params:
    """Return layers as torch draws them, and norms that change nothing.

    torch's MultiheadAttention has q, k and v in one matrix, of 3 m rows, where their widths are equal.

    Args:
        m, d: widths of the queries and of what they read.

    Shape: weights (out, in), biases (out,).
    """
    values: fl.Params = {}
    for norm, width in zip(NORMS, (m, d, m), strict=True):
        values |= {f"{norm}_w": torch.ones(width), f"{norm}_b": torch.zeros(width)}
    sizes = {"q": (m, m), "k": (m, d), "v": (m, d), "out": (m, m), "up": (8 * m, m), "down": (m, 4 * m)}
    for layer, (rows, columns) in sizes.items():
        weight, bias = fl.draw_linear(rows, columns, generator(layer))
        if xavier and layer in ("q", "k", "v", "out"):
            bias = torch.zeros_like(bias)
            if layer != "out":
                weight = weight * (6 * columns / (columns + (3 * m if m == d else m))) ** 0.5
        values |= {f"{layer}_w": weight, f"{layer}_b": bias}
    return values


def attend(params: fl.Params, queries: Tensor, names: Tensor, values: Tensor | None = None) -> Tensor:
    """Return P = a + FF(a). Args: values: what is mixed; default: LN(names).

    Shape: queries (models, M, m), names and values (models, t, d) -> (models, M, m).
    """

    def layer(name: str, x: Tensor) -> Tensor:
        return fl.linear(x, params[f"{name}_w"], params[f"{name}_b"])

    def norm(name: str, x: Tensor) -> Tensor:
        scaled = F.layer_norm(x, x.shape[-1:]) * params[f"{name}_w"][:, None]
        return scaled + params[f"{name}_b"][:, None]

    keys = norm("norm_names", names)
    read = {"q": norm("norm_query", queries), "k": keys, "v": keys if values is None else values}
    q, k, v = (layer(name, x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name, x in read.items())
    a = layer("out", F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    plain, gate = layer("up", norm("norm_feed", a)).chunk(2, dim=-1)
    return a + layer("down", plain * F.gelu(gate))


@fl.method
class FedTPG(Prompted):
    """[SOS] P class name . [EOT] with a context P that a shared network makes from all class names."""

    name = "fedtpg"
    about = fl.About(
        source="Qiu et al., Federated Text-driven Prompt Generation for Vision-Language Models, ICLR 2024",
        summary="CLIP stays frozen; a small network makes the context that stands before every class name. "
        "It reads the text features of all class names at once, by attention from a few learned queries, so "
        "that other names lead to another context. "
        "All clients train the network by cross-entropy, and the server averages it. "
        "It is meant for classes that nobody has trained on. "
        "The upload is large for a prompt method: 4.2 million numbers for ViT-B-32.",
    )
    clients_use_global = True
    Config = FedTPGConfig
    shared: tuple[str, ...] = ("queries", *ATTENTION)

    def __init__(self, config: FedTPGConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.names = class_features(problem.backbone, problem.classes, "{}").to(problem.backbone.dtype)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return queries from N(0, 0.02), and the attention's parts. Shape: queries (M, m)."""
        spec, xavier = self.problem.backbone.spec, self.config.attention_init == "xavier"
        queries = {"queries": self._draw(generator("fedtpg", "queries"))}
        parts = draw_attention(spec.token_width, spec.embed_dim, partial(generator, "fedtpg"), xavier)
        return fl.State(shared=self.place(queries | parts))

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        return {"text": self._text(self._context(params))}

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return the context for these class names. Shape: (models, M, m)."""
        return {"context": self._context(params)}

    def _context(self, params: fl.Params) -> Tensor:
        """Return P = a + FF(a). Shape: -> (models, M, m)."""
        queries = params["queries"]
        return attend(params, queries, self.names.expand(len(queries), -1, -1))
