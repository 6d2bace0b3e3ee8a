"""FedOTP the naive way: a transport per image and class, in plain (not log) scaling (Li et al., 2024)."""

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, sgd, text_features, weighted


def plan(cost: Tensor, mass: float, eps: float, iterations: int, tolerance: float) -> Tensor:
    """Scaling u_v K_vp w_p with row sums at most 1/V and column sums mass/P. Shape: cost (V, P) -> (V, P)."""
    regions, prompts = cost.shape
    kernel = torch.exp(-cost / eps)
    u, w = torch.ones(regions, dtype=cost.dtype), torch.ones(prompts, dtype=cost.dtype)
    for _ in range(iterations):
        before = w
        u = torch.stack(
            [min((1 / regions) / (kernel[v] @ w), torch.ones((), dtype=cost.dtype)) for v in range(regions)]
        )
        w = torch.stack([(mass / prompts) / (kernel[:, p] @ u) for p in range(prompts)])
        if (torch.log(w) - torch.log(before)).abs().max() < tolerance:
            break
    return u[:, None] * kernel * w


def image_scores(texts: list[Tensor], regions: Tensor, scale: float, config: dict) -> Tensor:
    """One image's scores. Shape: texts P times (K, d), regions (V, d) -> (K,)."""
    rows = []
    for k in range(len(texts[0])):
        cosines = torch.stack([torch.stack([h @ t[k] / h.norm() for t in texts]) for h in regions])
        with torch.no_grad():
            solved = plan(
                1 - cosines, config["mass"], config["eps"], config["iterations"], config["tolerance"]
            )
        rows.append(scale * (solved * cosines).sum())
    return torch.stack(rows)


def run(
    model, tokenizer, classes, xs, labels, shared, owns, batches: Batches, scale: float, config: dict
) -> tuple[Tensor, list[Tensor]]:
    """The shared context and each client's own after all rounds. xs: (samples, V, d) per client."""
    owns = list(owns)
    counts = [float(len(y)) for y in labels]
    for steps_of in batches:
        sent = []
        for client, steps in enumerate(steps_of):
            pair = [v.clone().requires_grad_() for v in (shared, owns[client])]
            momenta: list[Tensor | None] = [None, None]
            for chosen in steps:
                texts = [text_features(model, tokenizer, context, classes) for context in pair]
                loss = 0.0
                for i in chosen:
                    s = image_scores(texts, xs[client][i], scale, config)
                    loss = loss - torch.log_softmax(s, 0)[labels[client][i]] / len(chosen)
                pair = sgd(pair, list(torch.autograd.grad(loss, pair)), momenta, config)
            sent.append(pair[0])
            owns[client] = pair[1].detach()
        shared = weighted(sent, counts)
    return shared, owns
