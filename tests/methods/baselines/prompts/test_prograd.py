import pytest
import torch

from fedcore.methods.baselines.prompts.prograd import without_conflict
from tests.support.against import (
    assert_predictions,
    build,
    diagnostics,
    engine_batches,
    naive_clip,
    train_both,
)
from tests.support.tiny import few_layers, run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "init": "random", "lr": 0.05, "batch_size": 4, "schedule": "constant"}


def test_agrees_with_the_naive_implementation(federation):
    method = build("prograd", federation, **SETTINGS, conflict_weight=0.7, temperature=2)
    clip, steps = naive_clip(federation), []
    prompts = clip.sentences(federation.problem.template)

    def general_loss(text, xs):
        total = 0.0
        for theirs, ours in zip(clip.scores(prompts, xs), clip.scores(text, xs), strict=True):
            total = total - (torch.softmax(theirs / 2, 0) * torch.log_softmax(ours / 2, 0)).sum()
        return 4 * total / len(xs)

    def loss(params, x, y):
        """Its gradient is the one that ProGrad takes."""
        context, text = params["context"], clip.texts(params["context"])
        (g_d,) = torch.autograd.grad(clip.loss(text, x, y), context, retain_graph=True)
        apart = general_loss(text, x)
        (g_g,) = torch.autograd.grad(apart, context)
        inner = sum(float(a @ b) for a, b in zip(g_d, g_g, strict=True))
        steps.append((inner < 0, float(apart.detach())))
        if inner < 0:
            g_d = g_d - 0.7 * inner / (g_g**2).sum() * g_g
        return (g_d * context).sum()

    loop, (naive, *_) = train_both(method, federation, loss, "samples")
    assert {conflict for conflict, _ in steps} == {True, False}  # both cases are compared
    counts = [len(of_client) for of_client in engine_batches(federation, method, 2)[-1]]
    in_round_2 = torch.tensor([apart for _, apart in steps[-sum(counts) :]])
    means = [float(part.mean()) for part in in_round_2.split(counts)]
    assert diagnostics(loop.finished[-1], "to_zero_shot") == pytest.approx(means, abs=1e-6)
    assert_predictions(loop, clip.scores(clip.texts(naive["context"]), federation.pool.values))


def test_a_conflict_is_removed_for_each_client_by_itself():
    guide = torch.randn(4, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    across = torch.randn(4, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    along = torch.tensor([-2.0, 2.0, -0.1, -2.0], dtype=torch.float64)[:, None, None] * guide
    guide[2] = 0  # no direction, so nothing to contradict
    guide[3] *= 1e-5  # rounding, whose direction means nothing
    gradient = across + along
    found = without_conflict(gradient, guide, 1.0)
    inner = (gradient * guide).sum((1, 2))
    assert inner[0] < 0 < inner[1]
    assert abs(float((found[0] * guide[0]).sum())) < 1e-12
    assert torch.equal(found[1:], gradient[1:])


def test_from_the_words_of_zero_shot_clip_the_first_step_is_that_without_a_guide():
    """In float32 the guide is rounding, 1e-7 of the gradient, and took up to a fifth of a client's step."""
    federation = tiny_federation(few_layers(torch.float32), samples=(9, 5, 7, 6, 8))
    assert federation.problem.template == "a photo of a {}."
    with_guide, without = (
        run_rounds(build("prograd", federation, batch_size=16, conflict_weight=weight), federation, 1).state
        for weight in (1, 0)
    )
    assert torch.equal(with_guide.shared["context"], without.shared["context"])
