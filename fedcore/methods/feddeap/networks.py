"""FedDEAP's transformation networks and the simplex ETFs that they turn embeddings towards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.methods import Params, cross_entropy, draw_linear

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedcore.federation import Problem
    from fedcore.methods.feddeap.config import FedDEAPConfig

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
    hidden = torch.relu(h @ w1.transpose(1, 2) + b1[:, None])
    return hidden @ w2.transpose(1, 2) + b2[:, None]


def etf_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of text features, averaged over the classes (Eq. 8, 10).

    Shape: logits (clients, K, columns), target (clients, K) -> (clients,).
    """
    return cross_entropy(logits, target, torch.ones_like(target, dtype=torch.bool))


def domain_columns(config: FedDEAPConfig, client_domain: Sequence[int]) -> list[int]:
    """Return each client's column of the domain ETF, counted over the domains that train.

    Raises:
        FedLensError: for a client of several domains, with field ``domain_etf``.
    """
    if config.domain_etf == "client":
        return list(range(len(client_domain)))
    if -1 in client_domain:
        raise FedLensError(
            f"client number {client_domain.index(-1) + 1} mixes domains and has no column in the domain ETF; "
            "choose domain_etf = client, or a partition by domain",
            "domain_etf",
        )
    training = sorted(set(client_domain))
    return [training.index(domain) for domain in client_domain]


def check_frames(config: FedDEAPConfig, classes: int, domains: int, width: int) -> None:
    """Refuse ETFs that do not exist: fewer than two columns, or more than the embedding has dimensions.

    Raises:
        FedLensError: with field ``semantic_alignment`` or ``domain_etf``.
    """
    other = "choose domain_etf = client, or " if config.domain_etf == "domain" else ""
    wanted = []
    if config.semantic_alignment:
        wanted.append((classes, "classes", "semantic_alignment", "turn semantic_alignment off"))
    if config.domain_alignment:
        what = f"{config.domain_etf}s to train on"
        wanted.append((domains, what, "domain_etf", other + "turn domain_alignment off"))
    for columns, what, field, remedy in wanted:
        if columns < 2:
            raise FedLensError(f"an ETF takes two or more {what}, here there is {columns}; {remedy}", field)
        if columns > width:
            raise FedLensError(
                f"an ETF in {width} dimensions takes at most {width} {what}, not {columns}; {remedy}", field
            )
