"""Arithmetic of a server that averages low-rank updates B A of its clients, one attention layer at a time."""

from collections.abc import Iterator

from fedcore.lazy import Tensor, torch

TINY = 1e-100
"""Replaces a norm of 0 in a quotient whose numerator is 0 too."""
REFINING_STEPS = 500
"""Steps of ``refined``; the quotient of successive differences is about 1 - 1/cond(A A^T)."""


def products(a: Tensor, b: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the mean of the products B A, and the product of the means, for one layer after the other.

    Shape: a (clients, layers, 3, r, width), b (clients, layers, 3, width, r), weights (clients,), or
    (clients, layers, 3) -> (3, width, width) each, in float64.
    """
    weights = weights.to(a.device)
    weights = weights.view(-1, 1, 1).expand(a.shape[:3]) if weights.dim() == 1 else weights
    for i in range(a.shape[1]):
        one, other, share = a[:, i].double(), b[:, i].double(), weights[:, i, :, None, None]
        weighted = share * other
        mean = torch.einsum("cjor,cjri->joi", weighted, one)
        yield mean, weighted.sum(0) @ (share * one).sum(0)


def norm_weights(a: Tensor, b: Tensor, otherwise: Tensor) -> Tensor:
    """Return weights in proportion to the norms |B A| of each projection, which sum to one over the clients.

    Args:
        otherwise: weights of a projection whose products are all 0. Shape: (clients,).

    Source: Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models, 2024.

    Shape: as in ``products`` -> (clients, layers, 3), in float64.
    """
    a, b = a.double(), b.double()
    # |B A|^2 = <B^T B, A A^T>: no product of the layer's width is made.
    squares = ((b.transpose(-1, -2) @ b) * (a @ a.transpose(-1, -2))).sum((-1, -2))
    norms = squares.clamp(min=0).sqrt()
    total = norms.sum(0)
    plain = otherwise.to(norms).view(-1, 1, 1).expand_as(norms)
    return torch.where(total > 0, norms / total.clamp(min=TINY), plain)


def refined(a: Tensor, b: Tensor, target: Tensor, weight: float) -> Tensor:
    """Return B + D with D = argmin 1 - cos((B + D) A, target) + weight |D|, for each projection.

    Solved by proximal gradient steps from D = 0, of a length that the largest eigenvalue of A A^T allows.

    Source: Bian et al., LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement,
    ICCV 2025.

    Shape: a (3, r, width), b (3, width, r), target (3, width, width) -> (3, width, r), in float64.
    """
    a, b = a.double(), b.double()
    gram, toward = a @ a.transpose(-1, -2), target @ a.transpose(-1, -2)
    size = _norm(target).clamp(min=TINY)
    start = (b @ gram * b).sum((-1, -2), keepdim=True).clamp(min=0)
    largest = torch.linalg.eigvalsh(gram)[:, -1, None, None].clamp(min=TINY)
    step = start / largest
    added = torch.zeros_like(b)
    for _ in range(REFINING_STEPS):
        both = b + added
        turned = both @ gram
        length = (turned * both).sum((-1, -2), keepdim=True).clamp(min=TINY).sqrt()
        along = (both * toward).sum((-1, -2), keepdim=True)
        rise = (toward - along / length.square() * turned) / (length * size)
        added = added + step * rise
        # The proximal step of weight |D| shortens D, and leaves 0 of what is shorter than the step.
        added = added * (1 - weight * step / _norm(added).clamp(min=TINY)).clamp(min=0)
    return b + added


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(x, keepdim=True)
    return norm
