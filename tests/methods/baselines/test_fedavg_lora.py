from __future__ import annotations

import copy

import pytest
import torch

from tests.support.against import (
    build,
    client_logits,
    diagnostics,
    engine_batches,
    global_logits,
    samples,
)
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


WEIGHTS = [9 / 21, 5 / 21, 7 / 21]


def weighted(values) -> torch.Tensor:
    return sum(p * v for p, v in zip(WEIGHTS, values, strict=True))


@pytest.mark.parametrize("aggregation", ["ffa", "fedsa", "exact", "stack"])
def test_other_aggregations_agree_with_the_naive_implementation(aggregation):
    federation = federation_of(tiny_backbone())
    problem = federation.problem
    method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
    drawn = build("fedavg-lora", federation, **SMALL).init(problem.generator).shared
    texts, (xs, labels) = class_texts(problem), samples(federation)
    batches = engine_batches(federation, method, 3)
    a, b = [drawn["image_a"]] * 3, [drawn["image_b"]] * 3
    residual = torch.zeros(3, 3, 24, 24, dtype=torch.float64)
    errors = []
    for round_, steps in enumerate(batches, 1):
        tail = tail_with(problem, residual)
        for k in range(3):

            def loss(values, received, x, y, first=a[k], tail=tail):
                factors = (first, values[0]) if aggregation == "ffa" else tuple(values)
                features = torch.stack([fedalign.image_feature(tail, factors, 0.25, one) for one in x])
                return mean_loss(texts, features, y, 14.3)

            def optimiser(values):
                return torch.optim.Adam(values, lr=0.01)

            start = [b[k]] if aggregation == "ffa" else [a[k], b[k]]
            (own,) = fedavg.run(loss, start, [xs[k]], [labels[k]], [[steps[k]]], optimiser, None)
            a[k], b[k] = (a[k], own[0]) if aggregation == "ffa" else own
        products = weighted([one @ other for one, other in zip(b, a, strict=True)])
        mean_a, mean_b = weighted(a), weighted(b)
        lost = (products - mean_b @ mean_a).flatten(1).norm(dim=1) / products.flatten(1).norm(dim=1)
        errors.append(float(lost.mean()))
        if aggregation == "exact":
            residual = residual + products - mean_b @ mean_a
        if aggregation == "stack":
            residual = residual + products
            mean_a = run_rounds(method, federation, round_).state.shared["image_a"]  # the engine's draw
            mean_b = torch.zeros_like(mean_b)
        a, b = [mean_a] * 3, b if aggregation == "fedsa" else [mean_b] * 3
    loop = run_rounds(method, federation, 3)
    tail = tail_with(problem, residual)
    own = client_logits(method, loop.state, federation)
    assert (products.abs().max() > 1e-3) and not torch.allclose(own, own[:, :1], atol=1e-3)  # it did train
    for k in range(3):
        expected = [
            scores(texts, fedalign.image_feature(tail, (a[k], b[k]), 0.25, x), 14.3)
            for x in federation.pool.values
        ]
        torch.testing.assert_close(own[k], torch.stack(expected), **NEAR)
    shown = [diagnostics(event, "averaging_error")[0] for event in loop.finished[1:]]
    assert shown == pytest.approx(errors, abs=1e-6)
    if aggregation == "ffa":
        assert max(shown) < 1e-12  # with one A nothing is lost
    else:
        assert min(shown) > 1e-4


def tail_with(problem, residual) -> fedalign.ImageTail:
    """The image tower's upper layers with W0 + gamma R."""
    visual = copy.deepcopy(problem.backbone.model.visual)
    with torch.no_grad():
        for block, added in zip(visual.transformer.resblocks[1:], residual, strict=True):
            block.attn.in_proj_weight += 0.25 * added.flatten(0, 1)
    return fedalign.ImageTail(visual, 1)


def test_one_client_alone_loses_nothing_by_averaging():
    federation = federation_of(tiny_backbone(), samples=(9,))

    def predicted(aggregation, rounds):
        method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
        return client_logits(method, run_rounds(method, federation, rounds).state, federation)

    for aggregation in ("fedsa", "exact"):
        torch.testing.assert_close(predicted(aggregation, 3), predicted("factors", 3), **NEAR)
    torch.testing.assert_close(predicted("stack", 1), predicted("factors", 1), **NEAR)


def test_factors_that_are_averaged_apart_are_summed_as_they_arrive():
    """A thousand clients' uploads are gigabytes, and the server of plain FedAvg needs only their mean."""
    federation = federation_of(tiny_backbone())
    stored = {
        aggregation: not build("fedavg-lora", federation, **SMALL, aggregation=aggregation).needs_only_means
        for aggregation in ("factors", "ffa", "fedsa", "exact", "stack")
    }
    assert stored == {"factors": False, "ffa": True, "fedsa": True, "exact": True, "stack": True}


def test_exact_and_stacked_weights_are_equal_after_one_round():
    federation = federation_of(tiny_backbone())
    exact, stack = (
        run_rounds(build("fedavg-lora", federation, **SMALL, aggregation=way), federation, 1).state.shared
        for way in ("exact", "stack")
    )
    weights = [values["residual"] + values["image_b"] @ values["image_a"] for values in (exact, stack)]
    torch.testing.assert_close(*weights, **NEAR)
    assert not torch.equal(exact["image_a"], stack["image_a"])


@pytest.mark.parametrize(
    ("aggregation", "up", "down"),
    [("factors", 2, 2), ("ffa", 1, 1), ("fedsa", 1, 1), ("exact", 2, 2 + 12), ("stack", 2, 2 + 12)],
)
def test_a_client_sends_and_receives(aggregation, up, down):
    """In units of one factor of three layers: 3 x 3 x 2 x 24 numbers; a residual is 24 / 2 of them."""
    federation = federation_of(tiny_backbone())
    method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
    (sent,) = run_rounds(method, federation, 1).finished[1:]
    assert (sent.scalars_up, sent.scalars_down) == (3 * 432 * up, 3 * 432 * down)
