"""FedAPT learns one prompt per class, shaped by a key per client and mixed per image (Su et al., 2024).

    client n  L = CE(s cos(h, t_k(v_k + v_k * e_n))) + lambda CE(q(h), n),  q(h) = W h
    server    averages v and W; the keys e_n ~ U(0, 1) are drawn by seed, never trained and never sent
    predict   e(h) = sum_n pi_n e_n,  pi = softmax(standardised q(h) / 0.01)

The equations are those of the authors' code. Reading: in the paper a client is a domain; here every client
has a key.
"""

from dataclasses import replace
from functools import cached_property
from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.clip.prompts import draw_context, encode_class_context, tokens_read
from fedcore.methods.baselines.prompts import HELD_PER_TOKEN, Prompted

TEMPERATURE = 0.01
"""Temperature of the clients' weights for an image, over standardised scores."""


class FedAPTConfig(fl.MethodConfig):
    context_length: fl.PromptLength = fl.hyper(
        24, "Vectors of the meta prompt of each class, tokens (L; authors' code: 24)"
    )
    keys: Literal["frozen", "trained"] = fl.hyper(
        "frozen",
        "frozen: drawn at random for each client, never trained and never sent (authors' code); "
        "trained: started at zero, trained and sent, which is not FedAPT: such keys stay near zero, so that "
        "the method is PromptFL with a context for each class",
        words={"frozen": "random, frozen", "trained": "trained from zero"},
    )
    query_weight: fl.LossWeight = fl.hyper(
        1.0,
        "Weight of the cross-entropy that teaches the query which client an image is of",
        title="query weight",
        search=fl.TENFOLD,
    )
    lr: fl.LearningRate = fl.hyper(1e-2, "Learning rate of local SGD (authors' code: 0.01)")
    weight_decay: fl.WeightDecay = fl.hyper(1e-5, "Weight decay of the clients (authors' code: 1e-5)")
    batch_size: fl.BatchSize = fl.hyper(256, "Samples in a local batch (authors' code: 256)")


@fl.method
class FedAPT(Prompted):
    """[SOS] (v_k + v_k * key) class name . [EOT]: the key of an image's client, or a mixture of all keys."""

    name = "fedapt"
    about = fl.About(
        source="Su et al., Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning, AAAI "
        "2024",
        summary="CLIP stays frozen; all clients learn one meta prompt, a context for each class. "
        "Each client has a fixed random key, which scales the vectors of the meta prompt and so gives the "
        "client its own prompt. "
        "A linear query learns to tell from an image which client it resembles. "
        "At test time the query mixes the keys for every image, which costs a pass of the text encoder per "
        "image. "
        "Meta prompt and query are averaged; keys follow from the run's seed and are never sent.",
        charts=(
            fl.DiagnosticChart(
                "Loss terms", {"cross_entropy": "cross-entropy", "query": "query"}, better="lower"
            ),
        ),
    )
    clients_use_global = True
    Config = FedAPTConfig
    class_axes = {"context": -3}
    shared = ("context", "query_w")

    def __init__(self, config: FedAPTConfig, problem: fl.Problem) -> None:
        """Draw every client's key from U(0, 1)."""
        super().__init__(config, problem)
        size = (config.context_length, problem.backbone.spec.token_width)
        drawn = problem.draw_per_client(
            lambda g: torch.rand(size, generator=g, dtype=torch.float64), "fedapt", "key"
        )
        self.keys = self.place({"keys": drawn})["keys"]

    @classmethod
    def bound_to_clients(cls, config: FedAPTConfig) -> str:
        return "it learns a key for each client"

    @classmethod
    def bound_to_classes(cls, config: FedAPTConfig) -> str:
        return "it learns a prompt for each class"

    def init(self, generator: fl.Generators) -> fl.State:
        """Return a random meta prompt, a query drawn as a linear layer, and keys of zero if they are trained.

        Shape: context (K, L, m), query_w (clients, d), keys (clients, L, m).
        """
        length, m = self.config.context_length, self.problem.backbone.spec.token_width
        classes = len(self.problem.classes)
        context = draw_context(classes * length, m, generator("fedapt", "context")).view(classes, length, m)
        d = self.problem.backbone.spec.embed_dim
        query = self.problem.draw_per_client(lambda g: fl.draw_linear(1, d, g)[0][0], "fedapt", "query")
        values = {"context": context, "query_w": query}
        if self.config.keys == "trained":
            values["keys"] = torch.zeros_like(self.keys)
        return fl.State(shared=self.place(values))

    def _keys(self, params: fl.Params) -> Tensor:
        """Return all clients' keys, as each model holds them. Shape: (models, clients, L, m)."""
        return params["keys"] if "keys" in params else self.keys.expand(len(params["context"]), -1, -1, -1)

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        prompts = params["context"] * (1 + _key_of_client(self._keys(params), batch.clients)[:, None])
        text = encode_class_context(self.problem.backbone, prompts, self.suffix)
        logits = fl.cosine_logits(batch.x, text, self.problem.backbone.logit_scale)
        client = batch.clients[:, None].expand_as(batch.labels)
        terms = {
            "cross_entropy": fl.cross_entropy(logits, batch.labels, batch.mask),
            "query": fl.cross_entropy(self._query(params, batch.x), client, batch.mask),
        }
        loss = terms["cross_entropy"] + self.config.query_weight * terms["query"]
        return fl.Step({tuple(params): loss}, terms=terms)

    def upload(self, params: fl.Params, record: fl.Params, data: fl.LocalData) -> fl.Values:
        """Return meta prompt and query, and the client's own key if it is trained.

        Shape: key (participants, L, m).
        """
        sent: fl.Values = {name: params[name] for name in self.shared}
        return sent | ({"key": _key_of_client(params["keys"], data.clients)} if "keys" in params else {})

    @property
    def needs_only_means(self) -> bool:
        """True if keys are not trained: of 10,000 clients each query has 20 MB, which need not be kept."""
        return bool(self.config.keys != "trained")

    def aggregate(self, state: fl.State, uploads: fl.Uploads, generator: fl.Generators) -> fl.State:
        """Average meta prompt and query, and keep every client's latest key if keys are trained."""
        averaged = super().aggregate(state, uploads, generator).shared
        if "key" in uploads.values:
            rows = uploads.clients.to(self.problem.device)
            averaged["keys"] = state.shared["keys"].index_copy(0, rows, uploads.dense("key"))
        return replace(state, shared=averaged)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return nothing: class features depend on the image."""
        return {}

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s cos(image, class with the image's key)."""
        scale, weights = self.problem.backbone.logit_scale, self._weights(params, x)
        rows = []
        models = zip(params["context"], self._keys(params), weights, x, strict=True)
        for context, keys, shares, images in models:

            def scores(share: Tensor, h: Tensor, context: Tensor = context, keys: Tensor = keys) -> Tensor:
                return fl.cosine_logits(h[:, None], self._texts(context, keys, share), scale)[:, 0]

            rows.append(fl.in_pieces(scores, self._piece, shares, images))
        return torch.stack(rows)

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and each image's own class features.

        Shape: x (models, samples, d) -> same, (models, samples, classes, d).
        """
        parts = zip(params["context"], self._keys(params), self._weights(params, x), strict=True)
        return x, torch.stack([self._texts(*part) for part in parts])

    def numbers_per_sample(self) -> int:
        """Return the numbers of a pass of the text tower over all classes, each with its prompt."""
        length = tokens_read(self.problem.backbone, self.config.context_length, self.suffix, per_class=True)
        return HELD_PER_TOKEN * length * self.problem.backbone.spec.token_width

    @staticmethod
    def _query(params: fl.Params, x: Tensor) -> Tensor:
        """Return how much an image, as the encoder gives it, resembles each client's.

        Shape: x (models, samples, d) -> (models, samples, clients).
        """
        return x @ params["query_w"].transpose(1, 2)

    def _weights(self, params: fl.Params, x: Tensor) -> Tensor:
        """Return the keys' shares for each image.

        Shape: x (models, samples, d) -> (models, samples, clients).
        """
        scores = self._query(params, x)
        centred = scores - scores.mean(-1, keepdim=True)
        others = max(scores.shape[-1] - 1, 1)  # unbiased; a single client has no variance
        deviation = (centred.square().sum(-1, keepdim=True) / others).sqrt()
        return (centred / deviation.clamp(min=1e-12) / TEMPERATURE).softmax(-1)

    def _texts(self, context: Tensor, keys: Tensor, share: Tensor) -> Tensor:
        """Return class features for images. Shape: context (K, L, m), share (n, clients) -> (n, K, d)."""
        key = torch.einsum("nc,clm->nlm", share, keys)
        return encode_class_context(self.problem.backbone, context * (1 + key[:, None]), self.suffix)

    @cached_property
    def _piece(self) -> int:
        """Number of images that fit into memory, measured by the activations of one image's texts."""
        backbone = self.problem.backbone
        size = (len(self.problem.classes), self.config.context_length, backbone.spec.token_width)
        contexts = torch.ones(2, *size, device=backbone.device, dtype=backbone.dtype)
        each = fl.saved_bytes(lambda c: encode_class_context(backbone, c, self.suffix), contexts)
        return fl.piece_size(each, backbone.device)


def _key_of_client(keys: Tensor, clients: Tensor) -> Tensor:
    """Return each client's own key. Shape: keys (c, clients, L, m), clients (c,) -> (c, L, m)."""
    return keys[torch.arange(len(keys), device=keys.device), clients.to(keys.device)]
