"""FedAPT the naive way: one image at a time, keys as plain constants (Su et al., 2024)."""

import torch
from torch import Tensor

from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import Batches, scores, sgd, text_features, weighted


def texts(model, tokenize, classes, context: Tensor, key: Tensor) -> Tensor:
    """Class features of the prompts v_k + v_k * key. Shape: context (K, L, m), key (L, m) -> (K, d)."""
    return text_features(model, tokenize, torch.stack([v + v * key for v in context]), classes)


def run(
    model, tokenize, classes, scale: float, xs, labels, context, query, keys, batches: Batches, config: dict
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The meta prompt, the query (clients, d) and the clients' keys after all rounds."""
    keys = list(keys)
    for steps_of in batches:
        sent = []
        for k, steps in enumerate(steps_of):
            values = [v.clone().requires_grad_() for v in (context, query, keys[k])]
            values = values if config["trained"] else values[:2]
            momenta: list[Tensor | None] = [None] * len(values)
            for chosen in steps:
                text = texts(model, tokenize, classes, values[0], values[2] if config["trained"] else keys[k])
                loss = torch.zeros((), dtype=torch.float64)
                for i in chosen:
                    h = xs[k][i]
                    loss = loss + nll(scores(text, h, scale), labels[k][i])
                    loss = loss + config["query_weight"] * nll(values[1] @ h, torch.tensor(k))
                gradients = torch.autograd.grad(loss / len(chosen), values)
                values = sgd(values, list(gradients), momenta, config)
            sent.append([v.detach() for v in values[:2]])
            if config["trained"]:
                keys[k] = values[2].detach()
        context, query = (weighted([s[i] for s in sent], [1.0] * len(sent)) for i in range(2))
    return context, query, keys


def predict(model, tokenize, classes, scale: float, context, query, keys, h: Tensor) -> Tensor:
    """One image's scores, with the keys mixed by its standardised query."""
    answer = [float(row @ h) for row in query]
    mean = sum(answer) / len(answer)
    deviation = (sum((a - mean) ** 2 for a in answer) / (len(answer) - 1)) ** 0.5
    share = torch.softmax(
        torch.tensor([(a - mean) / deviation / 0.01 for a in answer], dtype=torch.float64), 0
    )
    key = sum(w * of_client for w, of_client in zip(share, keys, strict=True))
    return scores(texts(model, tokenize, classes, context, key), h, scale)
