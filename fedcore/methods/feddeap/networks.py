"""FedDEAP's networks turn embeddings towards simplex ETFs; its texts hold two prompts per class."""

import math

from fedcore.clip.backbone import Backbone
from fedcore.clip.prompts import Suffix
from fedcore.federation import Problem
from fedcore.lazy import Generator, Tensor, torch
from fedcore.methods.base import Params
from fedcore.methods.tensors import cross_entropy, draw_linear, linear

LAYERS = ("w1", "b1", "w2", "b2")
"""Parameters of a transformation network d -> d/2 -> d."""
NETWORKS = {"phi_s": "semantic", "phi_d": "domain"}
"""The two transformation networks and what they read."""


def simplex_etf(columns: int, width: int, generator: Generator) -> Tensor:
    """Return unit vectors with pairwise cosine -1/(n - 1): V = sqrt(n/(n-1)) U (I - 11^T/n), U^T U = I.

    Shape: -> (columns, width), one vector per row, float64.  Source: Section 3.2.
    """
    u, _ = torch.linalg.qr(torch.randn(width, columns, generator=generator, dtype=torch.float64))
    centred = torch.eye(columns, dtype=torch.float64) - 1 / columns
    vectors: Tensor = math.sqrt(columns / (columns - 1)) * (u @ centred).T
    return vectors


def frame(problem: Problem, net: str, columns: int) -> Tensor:
    """Return the ETF of a network: a constant, drawn by seed and never sent. Shape: -> (columns, d)."""
    backbone = problem.backbone
    vectors = simplex_etf(columns, backbone.spec.embed_dim, problem.generator("etf", net))
    return vectors.to(backbone.device, backbone.dtype)


def init_network(net: str, d: int, generator: Generator) -> Params:
    """Draw both layers as torch.nn.Linear does. Shape: w1 (d/2, d), b1 (d/2,), w2 (d, d/2), b2 (d,)."""
    drawn = (*draw_linear(d // 2, d, generator), *draw_linear(d, d // 2, generator))
    return {f"{net}_{part}": value for part, value in zip(LAYERS, drawn, strict=True)}


def transform(params: Params, net: str, h: Tensor) -> Tensor:
    """Return Phi(h), a ReLU between two linear layers. Shape: h (clients, n, d) -> (clients, n, d)."""
    w1, b1, w2, b2 = (params[f"{net}_{part}"] for part in LAYERS)
    return linear(torch.relu(linear(h, w1, b1)), w2, b2)


def etf_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of text features, averaged over the classes (Eq. 8, 10).

    Shape: logits (clients, K, columns), target (clients, K) -> (clients,).
    """
    return cross_entropy(logits, target, torch.ones_like(target, dtype=torch.bool))


class PromptedTexts:
    """The sequences [SOS] p_s[c, k] p_d[c, k] suffix[k], with classes of equally long names together.

    Under the causal mask [SOS] p_s is the same whatever follows it. It is a separate sequence in the text
    tower, so that the backward pass of p_d's loss does not enter it.
    """

    def __init__(self, backbone: Backbone, suffix: Suffix) -> None:
        self.backbone, self.suffix = backbone, suffix
        ends = suffix.eot.tolist()
        members = [[k for k, place in enumerate(ends) if place == end] for end in sorted(set(ends))]
        device = suffix.eot.device
        self.groups = [torch.tensor(classes, device=device) for classes in members]
        self.ends = sorted(set(ends))
        self.place = torch.cat(self.groups).argsort()
        self.sos = backbone.tokenize([""])[0, :1].to(device)

    def encode(self, shared: Tensor, private: Tensor) -> Tensor:
        """Return unnormalised text features.

        Shape: shared (clients, K, L, m), private (clients, K, L_d, m) -> (clients, K, d).
        """
        text, clients = self.backbone.text, len(shared)
        if not torch.is_grad_enabled() and torch.equal(shared, shared[:1].expand_as(shared)):
            shared = shared[:1]  # as evaluated after a broadcast
        with torch.no_grad():
            sos = text.embed(self.sos)
        features = []
        for classes, end in zip(self.groups, self.ends, strict=True):
            first, second = (prompt[:, classes].flatten(0, 1) for prompt in (shared, private))
            after = self.suffix.embeddings[classes, : end + 1].repeat(clients, 1, 1)
            prefix = torch.cat([sos.expand(len(first), 1, -1), first], 1)
            pooled = torch.full((1,), private.shape[2] + end, device=private.device)
            out = text.encode(prefix, torch.cat([second, after], 1)[:, None], pooled)
            features.append(out.view(clients, len(classes), -1))
        return torch.cat(features, 1)[:, self.place]
