import copy
from dataclasses import replace

import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.methods.baselines.lora_server import refined as refined_by_the_method
from tests.support.against import (
    NEAR,
    assert_predictions,
    build,
    client_logits,
    diagnostics,
    engine_batches,
    global_logits,
    naive_clip,
    samples,
)
from tests.support.oracles import fedalign, fedavg
from tests.support.oracles.promptfl import mean_loss
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {"rank": 2, "batch_size": 4, "lr": 0.01}
SAMPLES = (6, 3, 4)
FACTOR = 3 * 3 * 2 * 24
"""Numbers of one factor of three layers; a residual has 24 / 2 times as many."""


def federation_of(backbone, **options):
    return tiny_federation(backbone, "layer:1", **{"samples": SAMPLES, **options})  # layer 2 of 12 is 1 of 4


SCALE = 14.3


def class_texts(federation) -> torch.Tensor:
    return naive_clip(federation).sentences(federation.problem.template)


def images(tail, factors, xs) -> torch.Tensor:
    return torch.stack([fedalign.image_feature(tail, tuple(factors), 0.25, x) for x in xs])


def predicted(federation, tail, factors, xs) -> torch.Tensor:
    clip = replace(naive_clip(federation), scale=SCALE)
    return clip.scores(class_texts(federation), images(tail, factors, xs))


def trained_alone(federation, client, steps, start, tail, fixed=()) -> list[torch.Tensor]:
    """The factors of one client after a round; those that are fixed stand before the others."""
    texts, (xs, labels) = class_texts(federation), samples(federation)

    def loss(values, received, x, y):
        return mean_loss(texts, images(tail, (*fixed, *values), x), y, SCALE)

    def adam(values):
        return torch.optim.Adam(values, lr=0.01)

    batches = [[steps[client]]]
    return fedavg.run(loss, start, [xs[client]], [labels[client]], batches, adam, None)[0]


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
    federation = federation_of(drawn_backbone())
    problem = federation.problem
    method = build(name, federation, **{**SMALL, **options})
    first = list(method.init(problem.generator).shared.values())
    texts, tail = class_texts(federation), fedalign.ImageTail(problem.backbone.model.visual, 1)

    def loss(values, received, x, y):
        distance = sum(((v - w) ** 2).sum() for v, w in zip(values, received, strict=True))
        return mean_loss(texts, images(tail, values, x), y, SCALE) + mu / 2 * distance

    def optimiser(values):
        return fedalign.optimiser(method.config.optimiser, values, method.config.lr)

    weights = SAMPLES if method.config.weighting == "samples" else [1.0] * 3
    batches = engine_batches(federation, method, 2)
    expected = fedavg.run(loss, first, *samples(federation), batches, optimiser, weights)[0]
    loop = run_rounds(method, federation, 2)
    for got, value in zip(loop.state.shared.values(), expected, strict=True):
        torch.testing.assert_close(got, value, **NEAR)
    assert (expected[1] @ expected[0]).abs().max() > 1e-3  # it did train
    assert loop.finished[1].scalars_up == loop.finished[1].scalars_down == 3 * 2 * FACTOR
    assert_predictions(loop, predicted(federation, tail, expected, federation.pool.values))


WEIGHTS = [n / sum(SAMPLES) for n in SAMPLES]


def weighted(values) -> torch.Tensor:
    return sum(p * v for p, v in zip(WEIGHTS, values, strict=True))


@pytest.mark.parametrize("aggregation", ["ffa", "fedsa", "exact", "stack"])
def test_other_aggregations_agree_with_the_naive_implementation(aggregation):
    federation = federation_of(drawn_backbone())
    problem = federation.problem
    method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
    drawn = build("fedavg-lora", federation, **SMALL).init(problem.generator).shared
    batches = engine_batches(federation, method, 2)
    a, b = [drawn["image_a"]] * 3, [drawn["image_b"]] * 3
    residual = torch.zeros(3, 3, 24, 24, dtype=torch.float64)
    errors = []
    for round_, steps in enumerate(batches, 1):
        tail = tail_with(problem, residual)
        for k in range(3):
            if aggregation == "ffa":
                (b[k],) = trained_alone(federation, k, steps, [b[k]], tail, fixed=[a[k]])
            else:
                a[k], b[k] = trained_alone(federation, k, steps, [a[k], b[k]], tail)
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
    loop = run_rounds(method, federation, 2)
    tail = tail_with(problem, residual)
    of_client = client_logits(method, loop.state, federation)
    assert (products.abs().max() > 1e-3) and not torch.allclose(
        of_client, of_client[:, :1], atol=1e-3
    )  # it did train
    for k in range(3):
        expected = predicted(federation, tail, (a[k], b[k]), federation.pool.values)
        torch.testing.assert_close(of_client[k], expected, **NEAR)
    up, down = {"ffa": (1, 1), "fedsa": (1, 1), "exact": (2, 2 + 12), "stack": (2, 0)}[aggregation]
    first = loop.finished[1]
    assert (first.scalars_up, first.scalars_down) == (3 * FACTOR * up, 3 * FACTOR * down)
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


def refined(a, b, target) -> torch.Tensor:
    """argmin over D of 1 - cos((B + D) A, target) + 0.01 |D| of one projection, by torch's own minimiser."""
    added = torch.full_like(b, 1e-6).requires_grad_()
    moves = torch.optim.LBFGS(
        [added], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def objective():
        moves.zero_grad()
        product = (b + added) @ a
        value = 1 - (product * target).sum() / product.norm() / target.norm() + 0.01 * added.norm()
        value.backward()
        return value

    moves.step(objective)
    return b + added.detach()


@pytest.mark.parametrize("condition", [1, 1e3, 1e6])
def test_the_refinement_is_a_minimum_whatever_the_condition_of_a(condition):
    """Steps of one length for all directions of A A^T would be far from it after hundreds of steps."""
    draw = torch.Generator().manual_seed(0)
    found = set()
    for weight in (0.001, 0.01, 0.1, 1.0):
        scale = torch.tensor([1.0, condition**-0.5], dtype=torch.float64)[:, None]
        a, b = (torch.randn(5, 3, *shape, generator=draw).double() for shape in ((2, 12), (12, 2)))
        a, b = (a[0] + 0.5 * a) * scale, 0.3 * (b[0] + 0.5 * b)
        target = (b @ a).mean(0)
        a, b = a.mean(0), b.mean(0)
        for one, start, aim, got in zip(
            a, b, target, refined_by_the_method(a, b, target, weight), strict=True
        ):

            def cosine(x, one=one, aim=aim):
                return torch.nn.functional.cosine_similarity((x @ one).flatten(), aim.flatten(), 0)

            added = got - start
            slope = torch.func.grad(cosine)(got)
            if added.any():
                torch.testing.assert_close(slope, weight * added / added.norm(), atol=1e-9, rtol=1e-9)
                assert cosine(got) - weight * added.norm() > cosine(start)
            else:
                assert slope.norm() <= weight
            found.add(bool(added.any()))
    assert found == {True, False}


def test_nothing_is_refined_without_a_target():
    a, b = torch.randn(3, 2, 12, dtype=torch.float64), torch.randn(3, 12, 2, dtype=torch.float64)
    for factor in (0, 1):
        got = refined_by_the_method(a, b * factor, torch.zeros(3, 12, 12, dtype=torch.float64), 0.01)
        assert torch.equal(got, b * factor)


@pytest.mark.parametrize("aggregation", ["fair", "hetero"])
def test_fair_and_hetero_agree_with_the_naive_implementation(aggregation):
    federation = federation_of(drawn_backbone())
    problem = federation.problem
    method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
    first = method.init(problem.generator)
    a, b = first.shared["image_a"], first.shared["image_b"]
    ranks = first.local["rank"][:, 0].tolist() if aggregation == "hetero" else [2] * 3
    assert aggregation == "fair" or set(ranks) == {1, 2}
    tail, errors = fedalign.ImageTail(problem.backbone.model.visual, 1), []
    for steps in engine_batches(federation, method, 2):
        products, sent = [], []
        for k, r in enumerate(ranks):
            own_a, own_b = trained_alone(federation, k, steps, [a[:, :, :r], b[..., :r]], tail)
            products.append(own_b @ own_a)
            padded = [torch.zeros_like(a), torch.zeros_like(b)]
            padded[0][:, :, :r], padded[1][..., :r] = own_a, own_b
            sent.append(padded)
        a, b = torch.zeros_like(a), torch.zeros_like(b)
        target = torch.zeros_like(products[0])
        for layer in range(3):
            for projection in range(3):
                at = layer, projection
                shares = [float(p[at].norm()) for p in products] if aggregation == "hetero" else SAMPLES
                for share, product, (own_a, own_b) in zip(shares, products, sent, strict=True):
                    target[at] += share / sum(shares) * product[at]
                    a[at] += share / sum(shares) * own_a[at]
                    b[at] += share / sum(shares) * own_b[at]
        lost = (target - b @ a).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)
        errors.append(float(lost.mean()))
        if aggregation == "fair":
            before = b
            b = torch.stack(
                [torch.stack([refined(a[i, j], b[i, j], target[i, j]) for j in range(3)]) for i in range(3)]
            )
            assert (b - before).abs().max() > 1e-4, "it is refined"
    loop = run_rounds(method, federation, 2)
    torch.testing.assert_close(loop.state.shared["image_a"], a, **NEAR)
    torch.testing.assert_close(loop.state.shared["image_b"], b, **NEAR)
    shown = [diagnostics(event, "averaging_error")[0] for event in loop.finished[1:]]
    assert shown == pytest.approx(errors, abs=1e-6) and min(shown) > 1e-4
    sent = loop.finished[1]
    assert sent.scalars_up == sent.scalars_down == sum(ranks) * FACTOR, (
        "two factors, whose rows are FACTOR / 2"
    )
    assert [c.bytes_up for c in sent.clients] == [r * FACTOR * 8 for r in ranks]
    ours = client_logits(method, loop.state, federation)
    for k, r in enumerate(ranks):
        expected = predicted(federation, tail, (a[:, :, :r], b[..., :r]), federation.pool.values[:6])
        torch.testing.assert_close(ours[k][:6], expected, **NEAR)
    whole = predicted(federation, tail, (a, b), federation.pool.values[:1])
    torch.testing.assert_close(global_logits(method, loop.state, federation)[:1], whole, **NEAR)


def test_a_large_weight_refines_nothing_and_one_rank_for_all_is_the_servers():
    federation = federation_of(drawn_backbone())

    def shared(**options):
        method = build("fedavg-lora", federation, **SMALL, **options)
        return run_rounds(method, federation, 2).state.shared

    plain, heavy = shared(), shared(aggregation="fair", fair_weight=1000)
    for name, value in plain.items():
        assert torch.equal(heavy[name], value)
    alone = federation_of(drawn_backbone(), samples=(9,))
    values = [
        run_rounds(build("fedavg-lora", alone, **SMALL, **given), alone, 2).state.shared
        for given in ({}, {"aggregation": "hetero", "lowest_rank": 2})
    ]
    for name, value in values[0].items():
        torch.testing.assert_close(values[1][name], value, **NEAR)
    with pytest.raises(FedLensError, match="lowest_rank 4 is more than rank 2"):
        build("fedavg-lora", federation, **SMALL, aggregation="hetero", lowest_rank=4)


def test_factors_averaged_apart_show_their_error_and_keep_their_bits(monkeypatch):
    federation = federation_of(drawn_backbone())

    def run():
        loop = run_rounds(build("fedavg-lora", federation, **SMALL), federation, 2)
        return loop.state.shared, diagnostics(loop.finished[-1], "averaging_error")

    shown, (error,) = run()
    assert 1e-4 < error < 1
    monkeypatch.setattr("fedcore.engine.server._STORED_UPLOADS", 2)
    summed, nothing = run()
    assert nothing == [] and all(torch.equal(summed[name], value) for name, value in shown.items())


def test_factors_that_are_averaged_apart_are_summed_as_they_arrive():
    """A thousand clients' uploads are gigabytes, and the server of plain FedAvg needs only their mean."""
    federation = federation_of(drawn_backbone())
    stored = {
        aggregation: not build("fedavg-lora", federation, **SMALL, aggregation=aggregation).needs_only_means
        for aggregation in ("factors", "ffa", "fedsa", "exact", "stack", "fair", "hetero")
    }
    assert not stored.pop("factors") and all(stored.values())


def test_a_stack_grows_with_the_participants_and_with_the_rounds_that_a_client_has_missed():
    """Two factors of each of three participants; who was away gets the stacks of all rounds since."""
    federation = federation_of(drawn_backbone())
    method = build("fedavg-lora", federation, **SMALL, aggregation="stack")
    rounds = run_rounds(method, federation, 3).finished[1:]
    assert [e.scalars_down for e in rounds] == [0, 3 * 3 * 2 * FACTOR, 3 * 3 * 2 * FACTOR]
    assert [e.scalars_up for e in rounds] == [3 * 2 * FACTOR] * 3

    method = build("fedavg-lora", federation, **SMALL, aggregation="stack")
    loop = run_rounds(method, federation, 4, participation=0.4)
    last = dict.fromkeys(range(3), 0)
    for number, event in enumerate(loop.finished[1:], 1):
        (client,) = loop.participants(number).tolist()
        missed = number - 1 if last[client] == 0 else number - last[client]
        assert event.scalars_down == missed * 2 * FACTOR
        last[client] = number


def test_what_no_participant_of_a_round_has_stays_with_the_server():
    """One of three clients a round: rows that it has not would otherwise be 0 in A and in B for good."""
    federation = federation_of(drawn_backbone(), samples=(9, 5, 7))  # two steps each: A moves after B
    method = build("fedavg-lora", federation, **SMALL, aggregation="hetero")
    first = method.init(federation.problem.generator)
    ranks, moved = first.local["rank"][:, 0].tolist(), []
    for rounds in range(1, 5):
        loop = run_rounds(method, federation, rounds, participation=0.4)
        (client,) = loop.participants(rounds).tolist()
        moved.append(
            (ranks[client], loop.state.shared["image_a"][:, :, 1], loop.state.shared["image_b"][..., 1])
        )
    assert {rank for rank, _, _ in moved} == {1, 2}, "rounds of both kinds are compared"
    before = (first.shared["image_a"][:, :, 1], first.shared["image_b"][..., 1])
    for rank, *after in moved:
        assert [torch.equal(a, b) for a, b in zip(after, before, strict=True)] == [rank == 1] * 2
        before = after
