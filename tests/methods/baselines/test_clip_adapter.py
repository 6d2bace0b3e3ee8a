import torch

from tests.support.against import assert_predictions, build, train_both
from tests.support.oracles.fedavg import mean_nll

SETTINGS = {"lr": 0.05, "batch_size": 4}


def mixture(w1: torch.Tensor, w2: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """0.2 A(h) + 0.8 h of one normalised image, normalised again. Shape: h (d,) -> (d,)."""
    h = h / h.norm()
    hidden = torch.stack([torch.clamp(row @ h, min=0) for row in w1])
    adapted = torch.stack([torch.clamp(row @ hidden, min=0) for row in w2])
    mixed = 0.2 * adapted + 0.8 * h
    return mixed / mixed.norm()


def test_agrees_with_the_naive_implementation(federation):
    problem, backbone = federation.problem, federation.problem.backbone
    scale = backbone.logit_scale
    method = build("clip-adapter", federation, **SETTINGS)
    first = method.init(problem.generator).shared
    d = backbone.spec.embed_dim
    assert first["w1"].shape == (d // 4, d) and first["w2"].shape == (d, d // 4)
    sentences = [problem.template.format(name) for name in problem.classes]
    texts = backbone.model.encode_text(backbone.tokenizer(sentences))

    def scores(params, images):
        mixed = [mixture(params["w1"], params["w2"], h) for h in images]
        return [torch.stack([scale * one @ t / t.norm() for t in texts]) for one in mixed]

    def loss(params, x, y):
        return mean_nll(scores(params, x), y)

    loop, (naive, *_) = train_both(method, federation, loss, "uniform")
    assert_predictions(loop, torch.stack(scores(naive, federation.pool.values)))
