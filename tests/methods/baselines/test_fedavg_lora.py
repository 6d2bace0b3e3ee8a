from __future__ import annotations

import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedalign, fedavg
from tests.support.oracles.promptfl import mean_loss, scores
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation

SMALL = {"rank": 2, "batch_size": 4, "lr": 0.01}
NEAR = {"atol": 1e-6, "rtol": 0}


def federation_of(backbone, **options):
    return tiny_federation(backbone, "layer:1", **options)  # layer 2 of 12 is layer 1 of 4


def class_texts(problem) -> torch.Tensor:
    ids = problem.backbone.tokenizer([problem.template.format(name) for name in problem.classes])
    return torch.stack([t / t.norm() for t in problem.backbone.model.encode_text(ids)])


def product(values) -> torch.Tensor:
    a, b = values
    return b @ a


@pytest.mark.parametrize(
    ("name", "options", "mu"),
    [
        ("fedavg-lora", {}, 0.0),
        ("fedprox-lora", {"proximal": 5.0, "local_epochs": 2}, 5.0),
        ("fedprox-lora", {"proximal": 1.0, "optimiser": "sgd", "lr": 0.3, "weighting": "uniform"}, 1.0),
    ],
    ids=["fedavg", "fedprox", "fedprox-sgd"],
)
def test_agrees_with_the_naive_implementation(name, options, mu):
    federation = federation_of(tiny_backbone())
    problem = federation.problem
    method = build(name, federation, **{**SMALL, **options})
    first = list(method.init(problem.generator).shared.values())
    texts, tail = class_texts(problem), fedalign.ImageTail(problem.backbone.model.visual, 1)

    def image(values, x):
        return fedalign.image_feature(tail, tuple(values), 0.25, x)

    def loss(values, received, x, y):
        features = torch.stack([image(values, one) for one in x])
        distance = sum(((v - w) ** 2).sum() for v, w in zip(values, received, strict=True))
        return mean_loss(texts, features, y, 14.3) + mu / 2 * distance

    def optimiser(values):
        return fedalign.optimiser(method.config.optimiser, values, method.config.lr)

    weights = [9.0, 5.0, 7.0] if method.config.weighting == "samples" else [1.0] * 3
    batches = engine_batches(federation, method, 3)
    expected = fedavg.run(loss, first, *samples(federation), batches, optimiser, weights)[0]
    state = run_rounds(method, federation, 3).state
    for got, value in zip(state.shared.values(), expected, strict=True):
        torch.testing.assert_close(got, value, **NEAR)
    assert product(expected).abs().max() > 1e-3  # it did train
    predicted = torch.stack([scores(texts, image(expected, x), 14.3) for x in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), predicted, **NEAR)
    for own in client_logits(method, state, federation):
        torch.testing.assert_close(own, predicted, **NEAR)


def test_without_rounds_it_predicts_as_zero_shot():
    backbone = tiny_backbone()
    federation, plain = federation_of(backbone), tiny_federation(backbone)
    zero = build("zero-shot", plain)
    expected = global_logits(zero, zero.init(plain.problem.generator), plain)
    method = build("fedavg-lora", federation, **SMALL, scale=backbone.logit_scale)
    state = run_rounds(method, federation, 0).state
    torch.testing.assert_close(global_logits(method, state, federation), expected, atol=1e-12, rtol=0)
