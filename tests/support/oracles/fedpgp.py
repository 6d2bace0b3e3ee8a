"""FedPGP the naive way, one class and one client at a time (Cui et al., 2024, Equations 6 to 9)."""

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, mean_loss, sgd, text_features, weighted


def contrast(shared: Tensor, own: Tensor, anchor: Tensor, temperature: float) -> Tensor:
    """Mean over classes of -log e^(near/T) / (e^(near/T) + e^(away/T)). Shape: (K, d) each -> ()."""
    total = torch.zeros((), dtype=shared.dtype)
    for g, i, c in zip(shared, own, anchor, strict=True):
        near, away = torch.exp(g @ c / temperature), torch.exp(g @ i / temperature)
        total = total - torch.log(near / (near + away))
    return total / len(shared)


def run(
    model, tokenizer, classes, xs, labels, sigma, us, vs, anchor, batches: Batches, scale: float, config: dict
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """sigma, and each client's U and V, after all rounds."""
    us, vs = list(us), list(vs)
    counts = [float(len(y)) for y in labels]
    for steps_of in batches:
        sent = []
        for client, steps in enumerate(steps_of):
            own = [v.clone().requires_grad_() for v in (sigma, us[client], vs[client])]
            momenta: list[Tensor | None] = [None] * 3
            for chosen in steps:
                shared = text_features(model, tokenizer, own[0], classes)
                personal = text_features(model, tokenizer, own[0] + own[1] @ own[2], classes)
                fit = mean_loss(personal, xs[client][chosen], labels[client][chosen], scale)
                loss = fit + config["mu"] * contrast(shared, personal, anchor, config["temperature"])
                own = sgd(own, list(torch.autograd.grad(loss, own)), momenta, config)
            sent.append(own[0])
            us[client], vs[client] = own[1].detach(), own[2].detach()
        sigma = weighted(sent, counts)
    return sigma, us, vs
