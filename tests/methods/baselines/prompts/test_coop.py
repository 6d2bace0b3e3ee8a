import torch

from tests.support.against import assert_predictions, build, naive_clip, train_both

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


def test_agrees_with_the_naive_implementation(federation):
    method, clip = build("coop", federation, **SETTINGS), naive_clip(federation)
    first = method.init(federation.problem.generator).local["context"]
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])

    def loss(params, x, y):
        return clip.loss(clip.texts(params["context"]), x, y)

    loop, owns = train_both(method, federation, loss, "uniform")
    shown = [clip.scores(clip.texts(params["context"]), federation.pool.values) for params in owns]
    assert_predictions(loop, None, shown)
    assert (owns[0]["context"] - owns[1]["context"]).abs().max() > 1e-3  # each went its own way


def test_starts_where_promptfl_starts(federation):
    shared = build("promptfl", federation).init(federation.problem.generator).shared["context"]
    context = build("coop", federation).init(federation.problem.generator).local["context"]
    assert torch.equal(context, shared.expand(3, -1, -1))
