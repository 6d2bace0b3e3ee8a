"""FedOT the naive way: inverses as printed, one client, one sample, one block at a time."""

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, sgd, weighted


def cayley(x: Tensor, divisor: int = 2) -> Tensor:
    """(I + P)(I - P)^-1 with P = (X - X^T)/2, as printed, or another divisor. Shape: (n, n)."""
    p = (x - x.T) / divisor
    eye = torch.eye(len(x), dtype=x.dtype)
    return (eye + p) @ torch.linalg.inv(eye - p)


def transform(kind: str, own: dict[str, Tensor], h: Tensor) -> Tensor:
    """h' of one image. Shape: h (d,) -> (d,)."""
    if kind == "none" or not own:
        return h
    if kind == "adapter":
        return h + own["up"] @ torch.clamp(own["down"] @ h, min=0)
    blocks = own["matrix"]
    n = blocks.shape[1]
    parts = []
    for k in range(len(blocks)):
        q = cayley(blocks[k], 4 if kind == "cayley/4" else 2) if kind.startswith("cayley") else blocks[k]
        parts.append(q @ h[k * n : (k + 1) * n])
    return torch.cat(parts)


def logits(kind: str, w: Tensor, own: dict[str, Tensor], h: Tensor, tau: float) -> Tensor:
    """tau w_g (Q h / |Q h|). Shape: w (K, d), h (d,) -> (K,)."""
    turned = transform(kind, own, h)
    return tau * (w @ (turned / turned.norm()))


def loss(kind: str, w: Tensor, own: dict[str, Tensor], xs: Tensor, labels: Tensor, tau: float) -> Tensor:
    total = 0.0
    for x, y in zip(xs, labels, strict=True):
        total = total - torch.log_softmax(logits(kind, w, own, x, tau), 0)[y]
    return total / len(labels)


def run(xs, labels, w: Tensor, own: list[dict[str, Tensor]], batches: Batches, tau: float, config: dict):
    """The classifier(s) and transforms after all rounds.

    Args:
        own: each client's first transform; names as the paper's variants need them.
        config: kind ("cayley/4" for P = (X - X^T)/4), share, weighting and the optimiser's figures, with
            lr_transform where the transform has a learning rate of its own.

    Returns:
        classifiers per client (all equal unless ``all_local``), transforms per client.
    """
    clients = len(xs)
    counts = [float(len(y)) for y in labels]
    weights = counts if config["weighting"] == "samples" else [1.0] * clients
    ws = [w.clone() for _ in range(clients)]
    own = [{name: value.clone() for name, value in o.items()} for o in own]
    for steps_of in batches:
        for client, steps in enumerate(steps_of):
            names = list(own[client])
            values = [v.clone().requires_grad_() for v in (ws[client], *own[client].values())]
            momenta: list[Tensor | None] = [None] * len(values)
            for chosen in steps:
                now = dict(zip(names, values[1:], strict=True))
                x, y = xs[client][chosen], labels[client][chosen]
                gradients = torch.autograd.grad(loss(config["kind"], values[0], now, x, y, tau), values)
                one, rest = momenta[:1], momenta[1:]
                turned = {**config, "lr": config.get("lr_transform") or config["lr"]}
                values = (
                    sgd(values[:1], list(gradients[:1]), one, config)
                    + sgd(  # both move at once
                        values[1:], list(gradients[1:]), rest, turned
                    )
                )
                momenta = [*one, *rest]
            ws[client] = values[0].detach()
            own[client] = {name: value.detach() for name, value in zip(names, values[1:], strict=True)}
        if config["share"] != "all_local":
            ws = [weighted(ws, weights)] * clients
        if config["share"] == "all_global":
            own = [{name: weighted([o[name] for o in own], weights) for name in own[0]}] * clients
    return ws, own
