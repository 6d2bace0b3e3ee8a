"""CoCoOp shifts the context for each image by a small network, in three federated forms (Zhou et al., 2022).

    Meta-Net  pi(h) = W_2 relu(W_1 h/|h| + b_1) + b_2
    scores    s cos(h, t_k(v + pi(h))),  L = CE(scores)
    server    averages v, and under ``share = all_global`` the Meta-Net

Changed from its code, which trains one image at a time for lack of memory: batches, computed in pieces.
"""

from functools import cached_property
from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import encode_context, tokens_read
from fedcore.methods.baselines.prompts import HELD_PER_TOKEN, Prompted, WordedConfig

NETWORK = ("w1", "b1", "w2", "b2")
"""Parameters of the Meta-Net d -> d/16 -> m."""


class CoCoOpConfig(WordedConfig):
    """Hyper-parameters of CoCoOp and of its three federated forms in FedOT's comparison."""

    share: Literal["server_coop", "random_meta_net", "all_global"] = fl.hyper(
        "all_global",
        "What the server holds: server_coop, the mean context alone; random_meta_net, the mean "
        "context and a Meta-Net that is never trained; all_global, the means of both. In the first two every "
        "client keeps its own Meta-Net",
        title="server holds",
        words={
            "server_coop": "the context alone",
            "random_meta_net": "context, untrained Meta-Net",
            "all_global": "context and Meta-Net",
        },
    )
    lr: fl.LearningRate = fl.hyper(2e-3, "Learning rate of local SGD (CoCoOp: 0.002)")
    weighting: fl.Weighting = fl.hyper(
        "uniform", "Server mean over clients: plain (as FedOT's), or weighted by sample counts"
    )


@fl.method
class CoCoOp(Prompted):
    """[SOS] (context + MetaNet(h/|h|)) class name . [EOT]: class features depend on the image."""

    name = "cocoop"
    about = fl.About(
        source="Zhou et al., Conditional Prompt Learning for Vision-Language Models, CVPR 2022, in the three "
        "federated forms of FedOT's comparison",
        summary="CLIP stays frozen; a short context before every class name is learned, as in CoOp. "
        "A small network, the Meta-Net, reads the image and shifts the context, so that every image is "
        "compared with its own class features. "
        "The server averages the context. "
        "The Meta-Net is averaged too (All Global), or stays with each client while the server has none "
        "(Server CoOp) or an untrained one (Meta-Net random init). "
        "A pass of the text encoder per image makes it the most expensive of the prompt methods.",
    )
    Config = CoCoOpConfig

    def __init__(self, config: CoCoOpConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        everything = config.share == "all_global"
        self.shared = ("context", *NETWORK) if everything else ("context",)
        self.clients_use_global = everything

    def init(self, generator: fl.Generators) -> fl.State:
        """Return the context, and one Meta-Net for all, drawn as torch.nn.Linear does.

        Shape: context (M, m), w1 (d/16, d), b1 (d/16,), w2 (m, d/16), b2 (m,), the network's with the client
        axis if it stays with the clients.
        """
        backbone = self.problem.backbone
        width, d = backbone.spec.token_width, backbone.spec.embed_dim
        hidden = max(1, d // 16)
        layers = (
            *fl.draw_linear(hidden, d, generator("cocoop", "meta-net", 1)),
            *fl.draw_linear(width, hidden, generator("cocoop", "meta-net", 2)),
        )
        network = self.place(dict(zip(NETWORK, layers, strict=True)))
        context = {"context": self._first_context(generator("cocoop", "context"))}
        if self.config.share == "all_global":
            return fl.State(shared=context | network)
        server = network if self.config.share == "random_meta_net" else {}
        return fl.State(shared=context, local=self.repeat(network), server=server)

    def models(self, state: fl.State) -> fl.Models:
        """Return the server's context with its Meta-Net, if it has one, and the clients' models."""
        common = {name: value[None] for name, value in (state.shared | state.server).items()}
        return fl.Models(common, {**self.repeat(state.shared), **state.local})

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features if no Meta-Net shifts the context. Shape: text (models, classes, d)."""
        if "w1" in params:
            return {}
        return super().head(params, data)

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s cos(prompted class for this image, image)."""
        if "text" in head:
            return super().logits(params, head, x)
        contexts = self._contexts(params, x).flatten(0, 1)
        return fl.in_pieces(self._scores, self._piece, contexts, x.flatten(0, 1)).view(*x.shape[:2], -1)

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and the class features, those of each image if a Meta-Net shifts the context.

        Shape: x (models, samples, d) -> (models, samples, d), (models, classes, d) or (models, samples,
        classes, d).
        """
        if "text" in head:
            return x, head["text"]
        texts = self._texts(self._contexts(params, x).flatten(0, 1))
        return x, texts.unflatten(0, x.shape[:2])

    def numbers_per_sample(self) -> int:
        """Return the numbers of a pass of the text tower over one image's prefix and all class names."""
        length = tokens_read(self.problem.backbone, self.config.context_length, self.suffix)
        return HELD_PER_TOKEN * length * self.problem.backbone.spec.token_width

    def _contexts(self, params: fl.Params, x: Tensor) -> Tensor:
        """Return context + W_2 relu(W_1 h/|h| + b_1) + b_2. Shape: x (c, n, d) -> (c, n, M, m)."""
        hidden = F.relu(fl.linear(F.normalize(x, dim=-1), params["w1"], params["b1"]))
        shift = fl.linear(hidden, params["w2"], params["b2"])
        return params["context"][:, None] + shift[:, :, None]

    def _texts(self, contexts: Tensor) -> Tensor:
        """Return class features. Shape: contexts (images, M, m) -> (images, classes, d)."""
        return encode_context(self.problem.backbone, contexts, self.suffix, packed=True)

    def _scores(self, contexts: Tensor, x: Tensor) -> Tensor:
        """Shape: contexts (images, M, m), x (images, d) -> (images, classes)."""
        return fl.cosine_logits(x[:, None], self._texts(contexts), self.problem.backbone.logit_scale)[:, 0]

    @cached_property
    def _piece(self) -> int:
        """Number of images that the text tower reads at once in training, by the activations of one."""
        backbone = self.problem.backbone
        width, d = backbone.spec.token_width, backbone.spec.embed_dim
        contexts, x = (torch.ones(2, *size) for size in ((self.config.context_length, width), (d,)))
        inputs = self.place({"contexts": contexts, "x": x})
        return fl.piece_size(fl.saved_bytes(self._scores, inputs["contexts"], inputs["x"]), backbone.device)
