"""FedOT the naive way: inverses as printed, one client, one sample, one block at a time."""

import torch
from torch import Tensor


def cayley(x: Tensor, divisor: int = 2) -> Tensor:
    """(I + P)(I - P)^-1 with P = (X - X^T)/2, as printed, or another divisor. Shape: (n, n)."""
    p = (x - x.T) / divisor
    eye = torch.eye(len(x), dtype=x.dtype)
    return (eye + p) @ torch.linalg.inv(eye - p)


def transform(kind: str, local: dict[str, Tensor], h: Tensor) -> Tensor:
    """h' of one image. Shape: h (d,) -> (d,)."""
    if kind == "none" or not local:
        return h
    if kind == "adapter":
        return h + local["up"] @ torch.clamp(local["down"] @ h, min=0)
    blocks = local["matrix"]
    n = blocks.shape[1]
    parts = []
    for k in range(len(blocks)):
        q = cayley(blocks[k], 4 if kind == "cayley/4" else 2) if kind.startswith("cayley") else blocks[k]
        parts.append(q @ h[k * n : (k + 1) * n])
    return torch.cat(parts)


def logits(kind: str, w: Tensor, local: dict[str, Tensor], h: Tensor, tau: float) -> Tensor:
    """tau w_g (Q h / |Q h|). Shape: w (K, d), h (d,) -> (K,)."""
    turned = transform(kind, local, h)
    return tau * (w @ (turned / turned.norm()))


def loss(kind: str, w: Tensor, local: dict[str, Tensor], xs: Tensor, labels: Tensor, tau: float) -> Tensor:
    total = 0.0
    for x, y in zip(xs, labels, strict=True):
        total = total - torch.log_softmax(logits(kind, w, local, x, tau), 0)[y]
    return total / len(labels)
