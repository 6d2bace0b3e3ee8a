import pytest
import torch

from fedcore.methods.baselines.prompts.prograd import without_conflict
from tests.support.against import build, diagnostics, engine_batches, global_logits, samples
from tests.support.oracles.promptfl import mean_loss, scores, sgd, text_features, weighted
from tests.support.tiny import few_layers, run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "init": "random", "lr": 0.05, "batch_size": 4, "schedule": "constant"}


def test_agrees_with_the_naive_implementation(federation):
    problem, backbone = federation.problem, federation.problem.backbone
    model, tokenizer, scale = backbone.model, backbone.tokenizer, backbone.logit_scale
    method = build("prograd", federation, **SETTINGS, conflict_weight=0.7, temperature=2)
    first = context = method.init(problem.generator).shared["context"]
    prompts = model.encode_text(tokenizer([problem.template.format(n) for n in problem.classes]))

    def general_loss(text, xs):
        total = 0.0
        for x in xs:
            q = torch.softmax(scores(prompts, x, scale) / 2, 0)
            total = total - (q * torch.log_softmax(scores(text, x, scale) / 2, 0)).sum()
        return 4 * total / len(xs)

    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    conflicts = []
    for steps_of in engine_batches(federation, method, 2):
        sent, general = [], []
        for client, steps in enumerate(steps_of):
            values, momenta = [context.clone().requires_grad_()], [None]
            general.append(0.0)
            for chosen in steps:
                x, y = xs[client][chosen], labels[client][chosen]
                text = text_features(model, tokenizer, values[0], problem.classes)
                g_d = torch.autograd.grad(mean_loss(text, x, y, scale), values, retain_graph=True)[0]
                apart = general_loss(text, x)
                general[-1] += float(apart.detach()) / len(steps)
                g_g = torch.autograd.grad(apart, values)[0]
                inner = sum(float(a @ b) for a, b in zip(g_d, g_g, strict=True))
                conflicts.append(inner < 0)
                if inner < 0:
                    g_d = g_d - 0.7 * inner / (g_g**2).sum() * g_g
                values = sgd(values, [g_d], momenta, config)
            sent.append(values[0])
        context = weighted(sent, [float(len(y)) for y in labels])
    assert set(conflicts) == {True, False}  # both cases are compared

    loop = run_rounds(method, federation, 2)
    state = loop.state
    assert diagnostics(loop.finished[-1], "to_zero_shot") == pytest.approx(general, abs=1e-6)
    torch.testing.assert_close(state.shared["context"], context, atol=1e-6, rtol=0)
    assert (context - first).abs().max() > 1e-3  # it did train
    text = text_features(model, tokenizer, context, problem.classes)
    expected = torch.stack([scores(text, h, scale) for h in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), expected, atol=1e-6, rtol=0)


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
