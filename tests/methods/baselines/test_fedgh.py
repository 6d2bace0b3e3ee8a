import torch

from fedcore.base.events import BEFORE_AGGREGATION
from tests.support.against import NEAR, build, diagnostics, engine_batches, global_logits, samples
from tests.support.oracles import headers as oracle
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"lr": 0.05, "batch_size": 4, "server_lr": 0.1, "server_epochs": 2}


def test_agrees_with_the_naive_implementation(federation):
    problem = federation.problem
    method = build("fedgh", federation, **SETTINGS)
    first = method.init(problem.generator).shared
    weight, bias = first["weight"], first["bias"]
    xs, labels = samples(federation)
    means = [m for x, y in zip(xs, labels, strict=True) for m in oracle.class_means(x, y, 3, fewest=2)]
    for round_ in range(1, 4):
        generators = [problem.generator("server", round_, "header", epoch) for epoch in range(2)]
        order = [torch.randperm(len(means), generator=g).tolist() for g in generators]
        weight, bias = oracle.train_header(weight, bias, means, order, lr=0.1)

    loop = run_rounds(method, federation, 3)
    torch.testing.assert_close(loop.state.shared["weight"], weight, **NEAR)
    torch.testing.assert_close(loop.state.shared["bias"], bias, **NEAR)
    assert (weight - first["weight"]).abs().max() > 0.01  # the header is really trained
    expected = torch.stack([weight @ h + bias for h in federation.pool.values])
    torch.testing.assert_close(global_logits(method, loop.state, federation), expected, **NEAR)
    sent = [len(oracle.class_means(x, y, 3, fewest=2)) for x, y in zip(xs, labels, strict=True)]
    assert diagnostics(loop.finished[-1], "class_means") == sent
    assert [row.bytes_up for row in loop.finished[-1].clients] == [n * (16 + 1) * 8 for n in sent]


def test_clients_train_the_header_that_they_received(federation):
    """Before aggregation a client predicts with what it trained: CLIP-FC with the settings of the authors."""
    authors = {"lr": 0.05, "batch_size": 4, "momentum": 0.9, "weight_decay": 1e-3, "local_epochs": 10}
    gh = build("fedgh", federation, **{**SETTINGS, "server_epochs": 0})
    fc = build("clip-fc", federation, **authors)
    first = fc.init(federation.problem.generator)
    gh.init = fc.init = lambda generator: first
    assert engine_batches(federation, gh, 1) == engine_batches(federation, fc, 1)
    one, other = (run_rounds(method, federation, 1).finished[-1] for method in (gh, fc))
    before = [[c for c in event.cells if c.stage == BEFORE_AGGREGATION] for event in (one, other)]
    assert before[0] == before[1] and before[0]


def test_a_class_of_one_image_is_not_sent_unless_asked_for():
    federation = tiny_federation(samples=(1, 6, 7))
    loop = run_rounds(build("fedgh", federation, **SETTINGS), federation, 1)
    assert diagnostics(loop.finished[-1], "class_means")[0] == 0
    all_of_them = run_rounds(build("fedgh", federation, **SETTINGS, fewest_images=1), federation, 1)
    assert diagnostics(all_of_them.finished[-1], "class_means")[0] == 1


def test_clients_without_a_mean_are_named():
    from fedcore.base.events import Notice
    from fedcore.engine.round import all_rounds
    from fedcore.engine.server import Server

    federation = tiny_federation(samples=(1, 1, 1))
    method = build("fedgh", federation, **SETTINGS)
    loop = Server(method, federation, 1)
    start = loop.state.shared
    notices = [event.message for event in all_rounds(loop) if isinstance(event, Notice)]
    assert len(notices) == 3 and "has no class of 2 images and sends no mean" in notices[0]
    for name, value in start.items():
        assert torch.equal(loop.state.shared[name], value)  # nothing to learn from
