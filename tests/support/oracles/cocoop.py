"""CoCoOp the naive way: one text pass per image and class, through open_clip's own tower.

Written from Zhou et al., 2022 (Section 3.2), and FedOT's appendix on its federated forms.
"""

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, scores, sgd, text_features, weighted


def shifted(context: Tensor, network: list[Tensor], h: Tensor) -> Tensor:
    """The context that an image sees. Shape: context (M, m), h (d,) -> (M, m)."""
    w1, b1, w2, b2 = network
    hidden = torch.clamp(w1 @ (h / h.norm()) + b1, min=0)
    return context + (w2 @ hidden + b2)


def image_scores(model, tokenizer, classes, context: Tensor, network, h: Tensor, scale: float) -> Tensor:
    """One image's scores; without a network the context stays as it is. Shape: -> (K,)."""
    own = shifted(context, network, h) if network else context
    return scores(text_features(model, tokenizer, own, classes), h, scale)


def run(
    model, tokenizer, classes, xs, labels, context, network, batches: Batches, scale: float, config: dict
) -> tuple[Tensor, list[list[Tensor]]]:
    """The shared context and every client's network after all rounds; under ``all_global`` they are equal."""
    clients = len(xs)
    networks = [[w.clone() for w in network] for _ in range(clients)]
    counts = [float(len(y)) for y in labels]
    weights = counts if config["weighting"] == "samples" else [1.0] * clients
    for steps_of in batches:
        contexts = []
        for client, steps in enumerate(steps_of):
            own = [v.clone().requires_grad_() for v in (context, *networks[client])]
            momenta: list[Tensor | None] = [None] * len(own)
            for chosen in steps:
                loss = 0.0
                for i in chosen:
                    h, y = xs[client][i], labels[client][i]
                    s = image_scores(model, tokenizer, classes, own[0], own[1:], h, scale)
                    loss = loss - torch.log(torch.exp(s[y]) / torch.exp(s).sum()) / len(chosen)
                own = sgd(own, list(torch.autograd.grad(loss, own)), momenta, config)
            contexts.append(own[0])
            networks[client] = [v.detach() for v in own[1:]]
        context = weighted(contexts, weights)
        if config["share"] == "all_global":
            mean = [weighted([n[i] for n in networks], weights) for i in range(4)]
            networks = [[w.clone() for w in mean] for _ in range(clients)]
    return context, networks
