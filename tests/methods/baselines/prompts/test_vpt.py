import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles.promptfl import sgd, weighted
from tests.support.oracles.vision import embedding
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {"batch_size": 4, "lr": 0.05}


@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (9, 3)], ids=["shallow", "deep"])
def test_agrees_with_the_naive_implementation(depth, layers):
    federation = tiny_federation(reads="layer:0", samples=(5, 3, 4))
    problem = federation.problem
    method = build("vpt", federation, **SMALL, depth=depth)
    first = method.init(problem.generator)
    assert first.local["prompts"].shape == (3, layers, 2, 24)
    visual, scale = problem.backbone.model.visual, problem.backbone.logit_scale
    xs, labels = samples(federation)
    batches = engine_batches(federation, method, 2)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}

    def scores(classifier, prompts, tokens):
        h = embedding(visual, tokens, list(prompts))
        return scale * classifier @ (h / h.norm())

    classifier, own = first.shared["classifier"], list(first.local["prompts"])
    for steps_of in batches:
        sent = []
        for k, steps in enumerate(steps_of):
            values = [classifier.clone().requires_grad_(), own[k].clone().requires_grad_()]
            momenta = [None, None]
            for chosen in steps:
                each = [
                    -torch.log_softmax(scores(*values, xs[k][i]), 0)[labels[k][i]] / len(chosen)
                    for i in chosen
                ]
                values = sgd(values, list(torch.autograd.grad(sum(each), values)), momenta, config)
            sent.append(values[0])
            own[k] = values[1].detach()
        classifier = weighted(sent, [1.0] * 3).detach()

    state = run_rounds(method, federation, 2).state
    near = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(state.shared["classifier"], classifier, **near)
    torch.testing.assert_close(state.local["prompts"], torch.stack(own), **near)
    assert (torch.stack(own) - first.local["prompts"]).abs().max() > 1e-3  # they did train
    shown = federation.pool.values[:5]
    plain = torch.stack([scores(classifier, [], x) for x in shown])
    torch.testing.assert_close(global_logits(method, state, federation)[:5], plain, **near)
    for prompts, found in zip(own, client_logits(method, state, federation), strict=True):
        prompted = torch.stack([scores(classifier, prompts, x) for x in shown])
        torch.testing.assert_close(found[:5], prompted, **near)


def test_before_training_the_global_model_is_zero_shot_clip():
    backbone = drawn_backbone()
    federation, plain = tiny_federation(backbone, "layer:0"), tiny_federation(backbone)
    method, zero = build("vpt", federation), build("zero-shot", plain)
    torch.testing.assert_close(
        global_logits(method, method.init(federation.problem.generator), federation),
        global_logits(zero, zero.init(plain.problem.generator), plain),
    )


def test_prompts_start_alike_within_the_bound_of_the_authors_code():
    federation = tiny_federation(reads="layer:0")
    prompts = build("vpt", federation, prompt_length=50).init(federation.problem.generator).local["prompts"]
    bound = (6 / (3 * 8 * 8 + 24)) ** 0.5
    assert 0.9 * bound < prompts.abs().max() <= bound
    assert torch.equal(prompts[0], prompts[2])
