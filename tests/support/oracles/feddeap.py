"""FedDEAP the naive way: open_clip's own text tower and torch.nn networks.

The equations as printed, loops over clients and samples. Nothing here imports FedLens.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches, mean_loss, scores, text_features, weighted


@dataclass
class World:
    """p_s and both networks as broadcast, p_d of every client."""

    p_s: Tensor
    p_d: list[Tensor]
    phi_s: list[Tensor]
    phi_d: list[Tensor]


def etf(u: Tensor) -> list[Tensor]:
    """v^k, the columns of sqrt(K/(K-1)) U (I - 11^T/K). Shape: u (M, K)."""
    columns = u.shape[1]
    middle = sum(u[:, k] for k in range(columns)) / columns
    return [math.sqrt(columns / (columns - 1)) * (u[:, k] - middle) for k in range(columns)]


def network(values: list[Tensor]) -> torch.nn.Sequential:
    """d -> d/2 -> d with ReLU from its four tensors (weight, bias, weight, bias)."""
    hidden, d = values[0].shape
    made = torch.nn.Sequential(
        torch.nn.Linear(d, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, d)
    ).double()
    with torch.no_grad():
        for p, v in zip(made.parameters(), values, strict=True):
            p.copy_(v)
    return made


def texts(
    model, tokenizer, classes, p_s: Tensor, p_d: Tensor | None, mean: Tensor | None, length: int = 0
) -> Tensor:
    """T(E_k) of every class (Eq. 5, 6); without p_d ``length`` times the mean itself, without both p_s."""
    contexts = list(p_s)
    if mean is not None:
        rows = (
            [[mean * v for v in vectors] for vectors in p_d]
            if p_d is not None
            else [[mean] * length] * len(p_s)
        )
        contexts = [torch.cat([vectors, torch.stack(more)]) for vectors, more in zip(p_s, rows, strict=True)]
    return text_features(model, tokenizer, torch.stack(contexts), [f"a photo of a {n}" for n in classes])


def transformed(net, h: Tensor, normalise: bool) -> Tensor:
    return net(h / h.norm() if normalise else h)


def etf_loss(net, hs: Tensor, targets: list[int], frame: list[Tensor], config: dict) -> Tensor:
    """Eq. 3, 4, 8, 10: mean of -log softmax of cos(Phi(h), v) / tau."""
    total = 0.0
    for h, target in zip(hs, targets, strict=True):
        s = scores(torch.stack(frame), transformed(net, h, config["normalise"]), config["etf_scale"])
        total = total - torch.log(torch.exp(s[target]) / torch.exp(s).sum())
    return total / len(targets)


def train_client(
    model, tokenizer, classes, world: World, client: int, x, y, steps, frames, domain: int, config: dict
):
    """One client's p_s, p_d and networks after a round."""
    nets = [network(world.phi_s), network(world.phi_d)]
    p_s = world.p_s.clone().requires_grad_()
    p_d = world.p_d[client].clone().requires_grad_()
    sgd = {"lr": config["lr"], "momentum": config["momentum"], "weight_decay": config["weight_decay"]}
    first = torch.optim.SGD([p for net in nets for p in net.parameters()], **sgd)
    second = torch.optim.SGD([p_s, p_d], **sgd)
    for chosen in steps:
        xs, ys = x[chosen], y[chosen]
        first.zero_grad()
        images = etf_loss(nets[0], xs, ys.tolist(), frames[0], config)
        images = images + etf_loss(nets[1], xs, [domain] * len(ys), frames[1], config)
        images.backward()
        first.step()

        mean = sum(xs) / len(xs)
        text = texts(model, tokenizer, classes, p_s, p_d, mean)
        # text features enter the networks as the text tower gives them, not normalised
        raw = raw_texts(model, tokenizer, classes, p_s, p_d, mean)
        contrast = mean_loss(text, xs, ys, config["scale"])
        semantic = etf_loss(nets[0], raw, list(range(len(classes))), frames[0], config)
        of_domain = etf_loss(nets[1], raw, [domain] * len(classes), frames[1], config)
        (g_s,) = torch.autograd.grad(contrast + config["lambda"] * semantic, p_s, retain_graph=True)
        (g_d,) = torch.autograd.grad(contrast + config["eta"] * of_domain, p_d)
        p_s.grad, p_d.grad = g_s, g_d
        second.step()
    return p_s.detach(), p_d.detach(), [[p.detach().clone() for p in net.parameters()] for net in nets]


def raw_texts(model, tokenizer, classes, p_s: Tensor, p_d: Tensor, mean: Tensor) -> Tensor:
    """As ``texts`` before normalisation: the length is read off the tower's own output."""
    lengths: list[Tensor] = []
    original = model.encode_text

    def watch(ids: Tensor, *args: object, **kwargs: object) -> Tensor:
        out = original(ids, *args, **kwargs)
        lengths.append(torch.stack([text.norm() for text in out]))
        return out

    model.encode_text = watch
    try:
        unit = texts(model, tokenizer, classes, p_s, p_d, mean)
    finally:
        del model.encode_text
    return unit * lengths[0][:, None]


def run(
    model, tokenizer, classes, xs, labels, world: World, batches: Batches, frames, domains: list[int], config
):
    """All rounds; frames: the semantic and the domain ETF, domains: each client's column."""
    for steps_of in batches:
        sent_p, sent_s, sent_d, stay = [], [], [], []
        for client, steps in enumerate(steps_of):
            p_s, p_d, (phi_s, phi_d) = train_client(
                model,
                tokenizer,
                classes,
                world,
                client,
                xs[client],
                labels[client],
                steps,
                frames,
                domains[client],
                config,
            )
            sent_p.append(p_s)
            sent_s.append(phi_s)
            sent_d.append(phi_d)
            stay.append(p_d)
        equal = [1.0] * len(xs)
        world = World(
            weighted(sent_p, equal),
            stay,
            [weighted(list(parts), equal) for parts in zip(*sent_s, strict=True)],
            [weighted(list(parts), equal) for parts in zip(*sent_d, strict=True)],
        )
    return world
