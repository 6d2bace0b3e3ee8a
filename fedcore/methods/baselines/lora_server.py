"""Arithmetic of a server that averages low-rank updates B A of its clients, one attention layer at a time."""

from collections.abc import Iterator

from fedcore.base.lazy import Tensor, torch

TINY = 1e-100
"""Replaces a norm of 0 in a quotient whose numerator is 0 too."""


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

    Of several minima it is the first on the way from D = 0 to larger cosines. That way is one of one number:
    the shortest D with a given cosine is a projection onto a convex cone, (B + D)(I + beta G) = B + alpha M
    with G = A A^T and M = target A^T, where alpha follows from beta. The objective's slope along it has the
    sign of weight |target| alpha |(B + D) A| - |D|, whose first zero is found on a grid, then by halving.

    A product of means with cos < 0 is left as it is unless that minimum, with cos > 0, is lower.

    Source: Bian et al., LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement,
    ICCV 2025.

    Shape: a (3, r, width), b (3, width, r), target (3, width, width) -> (3, width, r), in float64.
    """
    a, b = a.double(), b.double()
    g, basis = torch.linalg.eigh(a @ a.transpose(-1, -2))
    g = g.clamp(min=0)
    size = torch.linalg.matrix_norm(target, keepdim=True).clamp(min=TINY)[:, 0]
    turned = b @ basis
    toward = target @ a.transpose(-1, -2) @ basis
    # In this basis the columns are apart; each moves in the plane of its own B and M, which has two axes.
    own = torch.linalg.vector_norm(turned, dim=1)
    along = (turned * toward).sum(1) / own.clamp(min=TINY)
    across = torch.linalg.vector_norm(toward - turned * (along / own.clamp(min=TINY))[:, None], dim=1)

    def at(beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return alpha, the objective, and whether it falls. Shape: beta (..., 3, 1), as each."""
        q = beta * g
        m = along.square() + across.square()
        first = (m / (1 + q).square()).sum(-1, keepdim=True).clamp(min=TINY)
        half = (own * along * (1 - q) / (1 + q).square()).sum(-1, keepdim=True) / 2
        last = (q * (own / (1 + q)).square()).sum(-1, keepdim=True)
        root = (half.square() + first * last).sqrt()
        alpha = torch.where(half > 0, last / (half + root).clamp(min=TINY), (root - half) / first)
        x, y = (own + alpha * along) / (1 + q), alpha * across / (1 + q)
        moved = torch.stack([(alpha * along - q * own) / (1 + q), y]).square().sum((0, -1))[..., None].sqrt()
        length = (g * (x.square() + y.square())).sum(-1, keepdim=True).sqrt().clamp(min=TINY)
        cosine = (along * x + across * y).sum(-1, keepdim=True) / (length * size)
        return alpha, 1 - cosine + weight * moved, moved > weight * alpha * size * length

    grid = torch.logspace(-12, 16, 449, base=10, dtype=b.dtype, device=b.device)[:, None, None]
    grid = grid / g[:, -1:].clamp(min=TINY)
    first = at(grid)[2].int().cumprod(0).sum(0, keepdim=True).clamp(max=len(grid) - 1)
    low, high = (grid.gather(0, (first - i).clamp(min=0))[0].log() for i in (1, 0))
    for _ in range(60):
        middle = (low + high) / 2
        falls = at(middle.exp())[2]
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    beta = low.exp()
    alpha, value, _ = at(beta)
    added = ((alpha[:, None] * toward - (beta * g)[:, None] * turned) / (1 + beta * g)[:, None]) @ basis.mT
    length = (g * own.square()).sum(-1, keepdim=True).sqrt()
    start = 1 - (own * along).sum(-1, keepdim=True) / (length * size).clamp(min=TINY)
    return b + torch.where(((first[0] > 0) & (value < start))[:, None], added, 0)
