import pytest
import torch

from tests.support.against import assert_predictions, build, train_both
from tests.support.oracles.fedavg import mean_nll
from tests.support.oracles.vision import prompted_embedding, prompted_texts
from tests.support.tiny import tiny_federation

SMALL = {"batch_size": 3, "lr": 0.02, "schedule": "constant"}


@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (9, 2)], ids=["shallow", "deep"])
def test_agrees_with_the_naive_implementation(depth, layers):
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    problem = federation.problem
    method = build("ivlp", federation, **SMALL, depth=depth, visual_length=3)
    assert method.init(problem.generator).shared["visual"].shape == (layers, 3, 24)
    model, scale = problem.backbone.model, problem.backbone.logit_scale
    ids = problem.backbone.tokenizer([f"a photo of a {name}." for name in problem.classes])

    def scores(params, images):
        texts = prompted_texts(model, params, ids)
        embeddings = [prompted_embedding(model, params, tokens) for tokens in images]
        return [torch.stack([scale * (t @ h) / (t.norm() * h.norm()) for t in texts]) for h in embeddings]

    def loss(params, x, y):
        return mean_nll(scores(params, x), y)

    def optimiser(values):
        return torch.optim.SGD(values, lr=0.02, momentum=0.9, weight_decay=5e-4)

    loop, (naive, *_) = train_both(method, federation, loss, "uniform", optimiser)
    assert_predictions(loop, torch.stack(scores(naive, federation.pool.values[:4])))
    assert loop.finished[1].scalars_up == 3 * layers * (4 * 16 + 3 * 24)
