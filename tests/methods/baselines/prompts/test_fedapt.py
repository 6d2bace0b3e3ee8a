import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedapt as oracle
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {"batch_size": 4, "lr": 0.05, "context_length": 3}


@pytest.mark.parametrize("keys", ["frozen", "trained"])
def test_agrees_with_the_naive_implementation(keys):
    federation = tiny_federation(samples=(5, 3, 4))
    problem = federation.problem
    method = build("fedapt", federation, **SMALL, query_weight=0.7, keys=keys)
    first = method.init(problem.generator)
    start = first.shared["keys"] if keys == "trained" else method.keys
    clip = (problem.backbone.model, problem.backbone.tokenize, problem.classes, problem.backbone.logit_scale)
    xs, labels = samples(federation)
    context, query, trained_keys = oracle.run(
        *clip,
        xs,
        labels,
        first.shared["context"],
        first.shared["query_w"],
        start,
        engine_batches(federation, method, 2),
        {
            "lr": 0.05,
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "query_weight": 0.7,
            "trained": keys == "trained",
        },
    )

    state = run_rounds(method, federation, 2).state
    near = {"atol": 1e-10, "rtol": 0}
    torch.testing.assert_close(state.shared["context"], context, **near)
    torch.testing.assert_close(state.shared["query_w"], query, **near)
    if keys == "trained":
        torch.testing.assert_close(state.shared["keys"], torch.stack(trained_keys), **near)
        assert torch.stack(trained_keys).abs().max() > 1e-4, "the keys did train"
    else:
        assert list(state.shared) == ["context", "query_w"], "frozen keys are in no state and travel nowhere"
        assert torch.equal(method.keys, start) and start.abs().min() > 0

    shown = torch.stack(
        [oracle.predict(*clip, context, query, trained_keys, h) for h in federation.pool.values[:6]]
    )
    torch.testing.assert_close(global_logits(method, state, federation)[:6], shown, **near)
    for found in client_logits(method, state, federation):
        torch.testing.assert_close(found[:6], shown, **near)
    params = method.models(state).global_model
    x = federation.pool.values[None, :6]
    images, classes = method.features(params, {}, x)
    cosines = torch.nn.functional.cosine_similarity(images[:, :, None], classes, dim=-1)
    torch.testing.assert_close(clip[3] * cosines[0], shown, **near)


def test_uploads_are_summed_as_they_arrive_unless_keys_are_sent():
    federation = tiny_federation()
    assert build("fedapt", federation, **SMALL).needs_only_means
    assert not build("fedapt", federation, **SMALL, keys="trained").needs_only_means


def test_keys_are_uniform_and_belong_to_a_clients_name_and_the_seed():
    backbone = drawn_backbone()
    keys = build("fedapt", tiny_federation(backbone), context_length=20).keys
    assert keys.min() >= 0 and keys.max() < 1
    assert abs(float(keys.mean()) - 0.5) < 0.05 and abs(float(keys.std()) - 12**-0.5) < 0.02
    assert not torch.equal(keys[0], keys[1])
    order = (2, 0, 1)
    moved = build("fedapt", tiny_federation(backbone, order=order), context_length=20).keys
    assert torch.equal(moved, keys[list(order)])
    other = build("fedapt", tiny_federation(backbone, seed=2), context_length=20).keys
    assert not torch.equal(other, keys)


def test_the_query_finds_the_client_of_an_image():
    """Each client's images are shifted in a direction of their own; an image gets its own client's key."""
    federation = tiny_federation(samples=(8, 8, 8))
    pool = federation.pool
    shift = 3 * torch.eye(pool.values.shape[1], dtype=pool.values.dtype)
    rows = [i[m] for i, m in zip(federation.train.index, federation.train.mask, strict=True)]
    tests = [i[m] for i, m in zip(federation.test.index, federation.test.mask, strict=True)]
    tests = tests[:3]  # the clients' own come first
    for client in range(3):
        pool.values[torch.cat([rows[client], tests[client]]).unique()] += shift[client]
    method = build("fedapt", federation, **SMALL)
    params = method.models(run_rounds(method, federation, 15).state).global_model
    shares = [method._weights(params, pool.x(rows)[None])[0] for rows in tests]
    found = [int((share.argmax(-1) == client).sum()) for client, share in enumerate(shares)]
    assert sum(found) >= 0.8 * sum(map(len, tests)), found  # chance: a third


def test_a_client_that_sits_out_keeps_its_trained_key(federation):
    loop = run_rounds(build("fedapt", federation, **SMALL, keys="trained"), federation, 1, participation=0.4)
    moved = loop.state.shared["keys"].flatten(1).abs().amax(1) > 0
    assert moved.sum() == loop.state.rounds_trained.sum() and moved.sum() in (1, 2)
