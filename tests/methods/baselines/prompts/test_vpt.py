import pytest
import torch

from tests.support.against import assert_predictions, build, global_logits, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.oracles.vision import embedding
from tests.support.tiny import drawn_backbone, tiny_federation

SMALL = {"batch_size": 4, "lr": 0.05}


@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (9, 3)], ids=["shallow", "deep"])
def test_agrees_with_the_naive_implementation(depth, layers):
    federation = tiny_federation(reads="layer:0", samples=(5, 3, 4))
    problem = federation.problem
    method = build("vpt", federation, **SMALL, depth=depth)
    assert method.init(problem.generator).local["prompts"].shape == (3, layers, 2, 24)
    visual, scale = problem.backbone.model.visual, problem.backbone.logit_scale

    def scores(classifier, prompts, images):
        embeddings = [embedding(visual, tokens, list(prompts)) for tokens in images]
        return [scale * classifier @ (h / h.norm()) for h in embeddings]

    def of_client(params, images):
        return scores(params["classifier"], params["prompts"], images)

    loop, owns = train_both(method, federation, loss_of(of_client), "uniform")
    classifier, shown = owns[0]["classifier"], federation.pool.values[:5]
    prompted = [torch.stack(of_client(params, shown)) for params in owns]
    assert_predictions(loop, torch.stack(scores(classifier, [], shown)), prompted)


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
