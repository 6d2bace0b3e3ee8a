"""SDFed the naive way: Algorithm 1 client by client, prompts of their own length. No FedLens inside."""

import math

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, mean_loss, sgd, text_features, weighted


def projector(
    prompt: Tensor, truncation: float, kind: str = "leading", noise: Tensor | None = None
) -> Tensor:
    """R = X_2 X_2^T from the full SVD, column by column; or off the prompt's rows, or off ``noise``, alone.

    Shape: prompt (S, m), noise (m, removed) -> (m, m).
    """
    m = prompt.shape[1]
    if kind != "leading":  # least squares: what is left of each direction after its part within the span
        spanned = prompt.detach().T if kind == "rank" else noise
        return torch.eye(m, dtype=prompt.dtype) - spanned @ torch.linalg.pinv(spanned)
    _, _, xt = torch.linalg.svd(prompt.detach(), full_matrices=True)
    r = torch.zeros(m, m, dtype=prompt.dtype)
    for i in range(math.floor(truncation * m), m):
        r = r + torch.outer(xt[i], xt[i])
    return r


def client_loss(model, tokenizer, classes, g_s, g_c, refined, r, x, y, scale, config) -> Tensor:
    """Eq. 14. ``refined`` is the frozen d(G_c R) of this round, or None where it is made anew."""
    parts = config["components"]
    used = g_c @ r if parts == "pfhf+srlp" else g_c
    local = text_features(model, tokenizer, used, classes)
    common = text_features(model, tokenizer, g_s, classes)
    total = mean_loss(local, x, y, scale) + mean_loss(common, x, y, scale)
    for k in range(len(classes)):
        if parts == "all":
            total = total + ((local[k] - refined[k]) ** 2).sum() / len(classes)
        if parts in ("all", "pfhf+irdc"):
            gap = ((local[k] - common[k]) ** 2).sum().sqrt()
            total = total + torch.clamp(config["margin"] - gap, min=0) / len(classes)
    return total


def run(
    models: list,
    tokenizer,
    classes,
    xs,
    labels,
    g_s,
    local_prompts: list[Tensor],
    batches: Batches,
    scales: list[float],
    config: dict,
):
    """Shared prompt and the clients' prompts after all rounds, every client with a CLIP of its own.

    Shape: g_s (S_s, m), own[i] (S_i, m); xs[i] (samples, d_i).
    """
    counts = [float(len(y)) for y in labels]
    local_prompts = [g.clone() for g in local_prompts]
    for steps_of in batches:
        sent = []
        for client, steps in enumerate(steps_of):
            values = [g_s.clone().requires_grad_(), local_prompts[client].clone().requires_grad_()]
            momenta: list[Tensor | None] = [None, None]
            r = refined = None
            model, scale = models[client], scales[client]
            for number, chosen in enumerate(steps):
                if number == 0 or config["refine_every"] == "step":
                    kind, noise = config.get("projector", "leading"), config.get("noise")
                    r = projector(values[0], config["truncation"], kind, noise)
                    refined = text_features(model, tokenizer, (values[1] @ r).detach(), classes)
                if config["refined_gradient"]:
                    refined = text_features(model, tokenizer, values[1] @ r, classes)
                x, y = xs[client][chosen], labels[client][chosen]
                loss = client_loss(model, tokenizer, classes, *values, refined, r, x, y, scale, config)
                values = sgd(values, list(torch.autograd.grad(loss, values)), momenta, config)
            sent.append(values[0].detach())
            local_prompts[client] = values[1].detach()
        g_s = weighted(sent, counts if config["weighting"] == "samples" else [1.0] * len(sent))
    return g_s, local_prompts
