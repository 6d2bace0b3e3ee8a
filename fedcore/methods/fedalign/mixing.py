"""FedAlign's server computes which client learns from which, and averages updates accordingly."""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.fedalign.config import FedAlignConfig

Average = Literal["exact", "product", "factors"]
ROW_NORM = 3**-0.5
"""Norm of a row of a fresh A (Kaiming-uniform): an A from the server is as large as the first one."""


def hits_to_upload(problem: fl.Problem, ratio: float, correct: Tensor, data: fl.LocalData) -> Tensor:
    """Choose the hits to upload: the first in an order of the client's samples drawn once by seed.

    Shape: correct (clients, samples) bool -> the same.
    """
    if ratio == 1:
        return correct
    place = torch.zeros_like(correct, dtype=torch.int64)
    for i, (client, n) in enumerate(zip(data.clients.tolist(), data.rows.counts.tolist(), strict=True)):
        generator = problem.generator("upload", problem.clients[client])
        place[i, :n] = torch.randperm(n, generator=generator).to(place.device)
    # rank among the client's hits
    last = torch.where(correct, place, place.shape[1]).argsort(1).argsort(1)
    return correct & (last < (ratio * correct.sum(1, keepdim=True)).ceil())


def similarity(config: FedAlignConfig, query: Tensor, keys: Tensor) -> Tensor:
    """Return sim(u_k,c, u_j,c'), Appendix C.3.

    Shape: query (n, d), keys (clients, m, d) -> (n, clients, m).
    """
    if config.similarity == "euclidean":
        distance: Tensor = torch.linalg.vector_norm(query[:, None, None] - keys, dim=-1)
        return -distance if config.euclidean == "negated" else distance
    if config.similarity == "cosine":
        query, keys = F.normalize(query, dim=-1), F.normalize(keys, dim=-1)
    cosines: Tensor = torch.einsum("nd,jmd->njm", query, keys)
    return cosines


def relevance(config: FedAlignConfig, prototypes: fl.Ragged, counts: fl.Ragged) -> Tensor:
    """Return alpha_kj = sum_c N_k,c / N_k sum_c' sim(u_k,c, u_j,c') over existing prototypes, before softmax.

    Source: Eq. 11, 12.  Shape: prototypes (clients, n, d), counts (clients, n) -> (clients, clients).
    """
    keys = prototypes.values.double()
    real = torch.arange(keys.shape[1], device=keys.device) < prototypes.lengths[:, None]
    rows = []
    for query, number in zip(prototypes.per_client(), counts.per_client(), strict=True):
        d = (similarity(config, query.double(), keys) * real).sum(-1)  # (classes of the query, clients)
        if config.reduce == "mean":
            d = d / prototypes.lengths.clamp(min=1)
        rows.append(number.double() / number.sum().clamp(min=1) @ d)
    return torch.stack(rows)


def attend(
    scores: Tensor, has_prototype: Tensor, exclude_self: bool, otherwise: Tensor
) -> tuple[Tensor, Tensor]:
    """Take the softmax over clients with a prototype; a row without any takes the weights ``otherwise``.

    Shape: scores (clients, clients), has_prototype (clients,) bool, otherwise (clients,)
    -> weights (clients, clients), alone (clients,) bool.  Source: Section 4.4.
    """
    allowed = has_prototype[:, None] & has_prototype
    if exclude_self:
        allowed = allowed & ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    alone = ~allowed.any(1)
    weights = scores.masked_fill(~allowed & ~alone[:, None], -torch.inf).softmax(1)
    return torch.where(alone[:, None], otherwise, weights), alone


def mix(a: Tensor, b: Tensor, weights: Tensor, average: Average, rank: int) -> tuple[Tensor, Tensor]:
    """Return the factors of several weighted means of the clients' updates B_j A_j.

    The products are averaged, and cut to ``rank`` by SVD; a mean of C clients has rank r C at most, so that
    it is exact from that rank on. As sum_j w_j B_j A_j is [B_1 .. B_C] D [A_1; ..; A_C] with D diagonal, QR
    of both stacks leaves an SVD of size r C for each mean. Of a mean M that is cut only the first right
    singular vectors V are needed, as M V V^T is its best approximation: eigenvectors of M^T M, in little more
    than half the time. All of it runs on the CPU in float64, because these bits differ between devices.
    "factors" averages the factors instead; these means have the factors' rank.

    A product has many pairs of factors, from which Adam trains differently. The SVD's pair turns at the least
    rounding where singular values are close to each other. So factors of the clients' rank, from which a
    round starts, are turned until A is nearest to the mean of the clients' A.

    Shape: a (clients, layers, 3, r, width), b (clients, layers, 3, width, r), weights (means, clients)
    -> a (means, layers, 3, rank, width), b (means, layers, 3, width, rank).  Source: Eq. 13, 14.
    """
    if average == "factors":
        return blend(a, weights), blend(b, weights)
    weights = weights.double().cpu()
    a64, b64 = a.double().cpu(), b.double().cpu()
    q_b, r_b = torch.linalg.qr(b64.permute(1, 2, 3, 0, 4).flatten(3))  # of (layers, 3, width, C r)
    q_a, r_a = torch.linalg.qr(a64.permute(1, 2, 4, 0, 3).flatten(3))
    diagonal = weights.repeat_interleave(a.shape[3], 1)[:, None, None, None]
    core = (r_b * diagonal) @ r_a.transpose(-1, -2)
    if not core.isfinite().all():
        raise FedLensError("the clients' LoRA matrices are not finite after local training; lower lr", "lr")
    if rank < core.shape[-1]:
        first = torch.linalg.eigh(core.transpose(-1, -2) @ core).eigenvectors[..., -rank:].flip(-1)
        images = core @ first
    else:
        u, s, vh = torch.linalg.svd(core)
        first, images = vh[..., :rank, :].transpose(-1, -2), u[..., :rank] * s[..., None, :rank]
    mixed_a = ROW_NORM * (q_a @ first).transpose(-1, -2)
    mixed_b = q_b @ images / ROW_NORM
    if rank == a.shape[3]:
        u, _, vh = torch.linalg.svd(blend(a64, weights) @ mixed_a.transpose(-1, -2))
        mixed_a, mixed_b = u @ vh @ mixed_a, mixed_b @ (u @ vh).transpose(-1, -2)
    return resized(mixed_a.to(a.device, a.dtype), mixed_b.to(b.device, b.dtype), rank)


def resized(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return factors of another rank: the first columns of B and rows of A, or zeros after the last.

    Shape: a (..., r, width), b (..., width, r) -> a (..., rank, width), b (..., width, rank).
    """
    more = max(0, rank - a.shape[-2])
    return F.pad(a[..., :rank, :], (0, 0, 0, more)), F.pad(b[..., :rank], (0, more))


def blend(values: Tensor, weights: Tensor) -> Tensor:
    """Compute several weighted means over clients, on the CPU in float64.

    Shape: values (clients, ...), weights (means, clients) -> (means, ...).
    """
    mixed = torch.einsum("mc,c...->m...", weights.double().cpu(), values.double().cpu())
    return mixed.to(values.device, values.dtype)


def mix_parts(parts: fl.Params, weights: Tensor, average: Average, rank: int) -> fl.Params:
    """Average all that clients trained: a and b as low-rank updates, everything else directly.

    Shape: parts (clients, ...), weights (means, clients) -> (means, ...).
    """
    a, b = mix(parts["a"], parts["b"], weights, average, rank)
    rest = {name: blend(value, weights) for name, value in parts.items() if name not in ("a", "b")}
    return {"a": a, "b": b, **rest}


def personalise(
    parts: fl.Params, common: fl.Params, alpha: Tensor, low: int, average: Average, rank: int
) -> fl.Params:
    """Mix the ``low`` lowest adapted layers by the global mean and the others by attention (Section 4.4).

    The factors of both, and so of ``common``, have this rank.

    Of the other trained parts, the embeddings lie below all layers and take the mean; the projection lies
    above them and takes attention, unless no layer does.

    Shape: parts (clients, ...), common (1, ...), alpha (clients, clients) -> (clients, ...).
    """
    upper = {name: parts[name][:, low:] for name in ("a", "b")}
    if "projection" in parts and low < parts["a"].shape[1]:
        upper["projection"] = parts["projection"]
    high = mix_parts(upper, alpha, average, rank)
    mean = {name: value.expand(len(alpha), *value.shape[1:]) for name, value in common.items()}
    layers = {name: torch.cat([mean[name][:, :low], high[name]], 1) for name in ("a", "b")}
    return {**mean, **high, **layers}
