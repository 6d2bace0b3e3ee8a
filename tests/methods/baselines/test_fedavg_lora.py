import copy

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
    samples,
)
from tests.support.oracles import fedalign, fedavg
from tests.support.oracles.promptfl import mean_loss, scores
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {"rank": 2, "batch_size": 4, "lr": 0.01}
SAMPLES = (6, 3, 4)


def federation_of(backbone, **options):
    return tiny_federation(backbone, "layer:1", **{"samples": SAMPLES, **options})  # layer 2 of 12 is 1 of 4


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
    federation = federation_of(drawn_backbone())
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

    weights = SAMPLES if method.config.weighting == "samples" else [1.0] * 3
    batches = engine_batches(federation, method, 2)
    expected = fedavg.run(loss, first, *samples(federation), batches, optimiser, weights)[0]
    loop = run_rounds(method, federation, 2)
    for got, value in zip(loop.state.shared.values(), expected, strict=True):
        torch.testing.assert_close(got, value, **NEAR)
    assert product(expected).abs().max() > 1e-3  # it did train
    predicted = torch.stack([scores(texts, image(expected, x), 14.3) for x in federation.pool.values])
    assert_predictions(loop, predicted)


WEIGHTS = [n / sum(SAMPLES) for n in SAMPLES]


def weighted(values) -> torch.Tensor:
    return sum(p * v for p, v in zip(WEIGHTS, values, strict=True))


@pytest.mark.parametrize("aggregation", ["ffa", "fedsa", "exact", "stack"])
def test_other_aggregations_agree_with_the_naive_implementation(aggregation):
    federation = federation_of(drawn_backbone())
    problem = federation.problem
    method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
    drawn = build("fedavg-lora", federation, **SMALL).init(problem.generator).shared
    texts, (xs, labels) = class_texts(problem), samples(federation)
    batches = engine_batches(federation, method, 2)
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
            (of_client,) = fedavg.run(loss, start, [xs[k]], [labels[k]], [[steps[k]]], optimiser, None)
            a[k], b[k] = (a[k], of_client[0]) if aggregation == "ffa" else of_client
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
        expected = [
            scores(texts, fedalign.image_feature(tail, (a[k], b[k]), 0.25, x), 14.3)
            for x in federation.pool.values
        ]
        torch.testing.assert_close(of_client[k], torch.stack(expected), **NEAR)
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
    texts, (xs, labels) = class_texts(problem), samples(federation)
    tail, errors = fedalign.ImageTail(problem.backbone.model.visual, 1), []
    for steps in engine_batches(federation, method, 2):
        products, sent = [], []
        for k, r in enumerate(ranks):

            def loss(values, received, x, y):
                features = torch.stack([fedalign.image_feature(tail, tuple(values), 0.25, one) for one in x])
                return mean_loss(texts, features, y, 14.3)

            def adam(values):
                return torch.optim.Adam(values, lr=0.01)

            start = [a[:, :, :r], b[..., :r]]
            ((own_a, own_b),) = fedavg.run(loss, start, [xs[k]], [labels[k]], [[steps[k]]], adam, None)
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
    ours = client_logits(method, loop.state, federation)
    for k, r in enumerate(ranks):
        factors = a[:, :, :r], b[..., :r]
        expected = [
            scores(texts, fedalign.image_feature(tail, factors, 0.25, x), 14.3)
            for x in federation.pool.values[:6]
        ]
        torch.testing.assert_close(ours[k][:6], torch.stack(expected), **NEAR)
    whole = scores(texts, fedalign.image_feature(tail, (a, b), 0.25, federation.pool.values[0]), 14.3)
    torch.testing.assert_close(global_logits(method, loop.state, federation)[0], whole, **NEAR)


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


@pytest.mark.parametrize(
    ("aggregation", "up", "down"),
    [("factors", 2, 2), ("ffa", 1, 1), ("fedsa", 1, 1), ("exact", 2, 2 + 12), ("fair", 2, 2)],
)
def test_a_client_sends_and_receives(aggregation, up, down):
    """In units of one factor of three layers: 3 x 3 x 2 x 24 numbers; a residual is 24 / 2 of them."""
    federation = federation_of(drawn_backbone())
    method = build("fedavg-lora", federation, **SMALL, aggregation=aggregation)
    (sent,) = run_rounds(method, federation, 1).finished[1:]
    assert (sent.scalars_up, sent.scalars_down) == (3 * 432 * up, 3 * 432 * down)


def test_a_stack_grows_with_the_participants_and_with_the_rounds_that_a_client_has_missed():
    """Two factors of each of three participants; who was away gets the stacks of all rounds since."""
    federation = federation_of(drawn_backbone())
    method = build("fedavg-lora", federation, **SMALL, aggregation="stack")
    rounds = run_rounds(method, federation, 3).finished[1:]
    assert [e.scalars_down for e in rounds] == [0, 3 * 3 * 2 * 432, 3 * 3 * 2 * 432]
    assert [e.scalars_up for e in rounds] == [3 * 2 * 432] * 3

    method = build("fedavg-lora", federation, **SMALL, aggregation="stack")
    loop = run_rounds(method, federation, 4, participation=0.4)
    last = dict.fromkeys(range(3), 0)
    for number, event in enumerate(loop.finished[1:], 1):
        (client,) = loop.participants(number).tolist()
        missed = number - 1 if last[client] == 0 else number - last[client]
        assert event.scalars_down == missed * 2 * 432
        last[client] = number


def test_clients_with_ranks_of_their_own_send_and_receive_as_many_rows():
    federation = federation_of(drawn_backbone())
    method = build("fedavg-lora", federation, **SMALL, aggregation="hetero")
    ranks = method.init(federation.problem.generator).local["rank"][:, 0].tolist()
    (sent,) = run_rounds(method, federation, 1).finished[1:]
    assert sent.scalars_up == sent.scalars_down == sum(ranks) * 2 * 216
    assert [c.bytes_up for c in sent.clients] == [r * 2 * 216 * 8 for r in ranks]


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
