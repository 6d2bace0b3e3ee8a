"""SDFed and FedPHA compute with row spaces of prompts: the directions to keep, and the overlap of prompts."""

import math
from typing import Literal

from fedcore.lazy import Tensor, torch


def removed_directions(truncation: float, width: int) -> int:
    """Return floor(share * directions), those that are removed (SDFed, Definition 1; FedPHA's c)."""
    return math.floor(truncation * width + 1e-9)  # 0.29 * 100 is 28.999999999999996


def weaker_directions(prompt: Tensor, removed: int) -> Tensor:
    """Return V_2, a prompt's own right-singular directions without the ``removed`` strongest.

    The economy SVD has no others, so that V_2 depends continuously on the prompt, and has a gradient.

    Shape: prompt (clients, S, m) -> (clients, m, min(S, m) - removed).  Source: FedPHA.
    """
    vh = torch.linalg.svd(prompt.double(), full_matrices=False).Vh
    directions: Tensor = vh[:, removed:].transpose(1, 2).to(prompt.dtype)
    return directions


def projectors(
    prompt: Tensor,
    removed: int,
    noise: Tensor | None = None,
    kind: Literal["leading", "economy", "rank", "random"] = "leading",
) -> Tensor:
    """Return R = X_2 X_2^T, without the ``removed`` leading right-singular directions of each prompt.

    Computed in float64 on the CPU: a prompt spans at most S_s directions and the SVD chooses the others,
    which should depend only on the prompt, not on the device. With ``noise`` (m, removed) that
    choice is a fixed Gaussian basis instead, projected off the prompt's own directions; reordering the
    prompt's rows leaves it alone.

    Three other kinds: "economy" keeps the prompt's own directions without the ``removed`` leading ones;
    "rank" removes the prompt's own directions alone (``removed`` of them at most), so that nothing is left to
    the SVD's choice; "random" removes the span of ``noise`` and ignores the prompt.

    Shape: prompt (clients, S, m) -> (clients, m, m).  Source: SDFed, Eq. 8-10 and Definition 1.
    """
    # In the first step of a round all clients hold the broadcast prompt: one decomposition serves them.
    work, place = prompt.detach().to("cpu", torch.float64).unique(dim=0, return_inverse=True)
    if kind == "random":
        assert noise is not None, "a random projector needs noise"
        r = _complement(torch.linalg.qr(noise).Q).expand(len(work), -1, -1)
    elif kind == "economy":
        directions = weaker_directions(work, removed)
        r = directions @ directions.transpose(1, 2)
    elif kind == "rank":
        r = torch.stack([_complement(_spanned_directions(one, removed)) for one in work])
    elif noise is None:
        x2 = torch.linalg.svd(work, full_matrices=True).Vh[:, removed:]  # rows are the columns of X_2
        r = x2.transpose(1, 2) @ x2
    else:
        r = torch.stack([_seeded_projector(one, removed, noise) for one in work])
    chosen: Tensor = r[place].to(prompt.device, prompt.dtype)
    return chosen


def _seeded_projector(prompt: Tensor, removed: int, noise: Tensor) -> Tensor:
    spanned = _spanned_directions(prompt, removed)
    rest = noise[:, : removed - spanned.shape[1]]
    rest = torch.linalg.qr(rest - spanned @ (spanned.T @ rest)).Q
    return _complement(torch.cat([spanned, rest], 1))


def _spanned_directions(prompt: Tensor, most: int) -> Tensor:
    """Return an orthonormal basis of a prompt's rows, the strongest first.

    Shape: prompt (S, m) -> (m, directions), at most S and ``most`` of them.
    """
    _, sigma, vh = torch.linalg.svd(prompt, full_matrices=False)
    tolerance = sigma.max() * max(prompt.shape) * torch.finfo(sigma.dtype).eps
    basis: Tensor = vh[: min(int((sigma > tolerance).sum()), most)].T
    return basis


def _complement(basis: Tensor) -> Tensor:
    """Return the projector off an orthonormal basis. Shape: (m, directions) -> (m, m)."""
    return torch.eye(len(basis), dtype=basis.dtype) - basis @ basis.T


def subspace_overlap(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean squared cosine of the principal angles between two prompts' row spaces, in [0, 1].

    With orthonormal bases Q_1, Q_2 of the row spaces it is |Q_1 Q_2^T|_F^2 / min(rank, rank): 1 if one
    space lies within the other, 0 if they are orthogonal; two random prompts of S and L <= m tokens have
    about max(S, L)/m. A prompt of zeros has no row space: not a number. Rows of zeros (padding) do not count.

    Shape: one (prompts, S, m), other (prompts, L, m) -> (prompts,) float64 on the CPU.
    """
    (q_1, rank_1), (q_2, rank_2) = _row_space(one), _row_space(other)
    return (q_1 @ q_2.transpose(1, 2)).square().sum((1, 2)) / torch.minimum(rank_1, rank_2)


def _row_space(prompts: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal rows that span the rows of a prompt, zero beyond the rank, and the rank.

    Shape: (prompts, S, m) -> (prompts, min(S, m), m), (prompts,).
    """
    _, sigma, vh = torch.linalg.svd(prompts.detach().to("cpu", torch.float64), full_matrices=False)
    tolerance = sigma[:, :1] * max(prompts.shape[1:]) * torch.finfo(prompts.dtype).eps
    spanned = sigma > tolerance
    return vh * spanned[..., None], spanned.sum(1)
