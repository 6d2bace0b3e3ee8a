"""FedGH(C) and FedAKT(C) the naive way, with gradients by hand: linear layers, one sample at a time."""

import torch
from torch import Tensor

from tests.support.oracles.promptfl import Batches


def softmax(z: Tensor) -> Tensor:
    e = torch.exp(z - z.max())
    return e / e.sum()


def one_hot(label: int, classes: int) -> Tensor:
    return torch.tensor([float(k == label) for k in range(classes)], dtype=torch.float64)


def class_means(xs: Tensor, labels: Tensor, classes: int, fewest: int) -> list[tuple[int, Tensor]]:
    """(class, mean) of every class with enough images, by class."""
    found = []
    for k in range(classes):
        members = [x for x, y in zip(xs, labels.tolist(), strict=True) if y == k]
        if len(members) >= fewest:
            found.append((k, sum(members) / len(members)))
    return found


def train_header(
    weight: Tensor, bias: Tensor, means: list[tuple[int, Tensor]], order: list[list[int]], lr: float
) -> tuple[Tensor, Tensor]:
    """SGD on cross-entropy, one mean after another in each of several passes; the gradient is (p - y) h^T."""
    for one_pass in order:
        for i in one_pass:
            label, h = means[i]
            error = softmax(weight @ h + bias) - one_hot(label, len(bias))
            weight, bias = weight - lr * torch.outer(error, h), bias - lr * error
    return weight, bias


def fedakt(xs, labels, adapter, headers, batches: Batches, config: dict) -> tuple[list[Tensor], list]:
    """The averaged adapter and each client's (W, b) after all rounds; SGD, gradients by hand.

    d/dz of CE is p - y, and d/da of |a - h|^2 / d is 2 (a - h) / d; the header hears of both features.
    """
    headers = [list(h) for h in headers]
    counts = [float(len(y)) for y in labels]
    lr, decay, beta = (config[k] for k in ("lr", "weight_decay", "beta"))
    for steps_of in batches:
        sent = []
        for client, steps in enumerate(steps_of):
            values = [v.clone() for v in (*adapter, *headers[client])]
            momenta = [torch.zeros_like(v) for v in values]
            for chosen in steps:
                gradients = [torch.zeros_like(v) for v in values]
                down_w, down_b, up_w, up_b, head_w, head_b = values
                for i in chosen:
                    h, y = xs[client][i], one_hot(int(labels[client][i]), len(head_b))
                    before = down_w @ h + down_b
                    hidden = torch.clamp(before, min=0)
                    a = up_w @ hidden + up_b
                    of_model, of_adapter = (softmax(head_w @ f + head_b) - y for f in (h, a))
                    d_a = head_w.T @ of_adapter + beta * 2 * (a - h) / len(h)
                    d_hidden = (up_w.T @ d_a) * (before > 0)
                    parts = (
                        torch.outer(d_hidden, h),
                        d_hidden,
                        torch.outer(d_a, hidden),
                        d_a,
                        torch.outer(of_model, h) + torch.outer(of_adapter, a),
                        of_model + of_adapter,
                    )
                    gradients = [g + p / len(chosen) for g, p in zip(gradients, parts, strict=True)]
                for j, gradient in enumerate(gradients):
                    momenta[j] = config["momentum"] * momenta[j] + gradient + decay * values[j]
                    values[j] = values[j] - lr * momenta[j]
            sent.append(values[:4])
            headers[client] = values[4:]
        weights = [n / sum(counts) for n in counts]
        adapter = [sum(w * s[j] for w, s in zip(weights, sent, strict=True)) for j in range(4)]
    return adapter, headers
