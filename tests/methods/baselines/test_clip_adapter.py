import torch

from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of

SETTINGS = {"lr": 0.05, "batch_size": 4}


def mixture(w1: torch.Tensor, w2: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """0.2 A(h) + 0.8 h of one normalised image, normalised again. Shape: h (d,) -> (d,)."""
    h = h / h.norm()
    hidden = torch.stack([torch.clamp(row @ h, min=0) for row in w1])
    adapted = torch.stack([torch.clamp(row @ hidden, min=0) for row in w2])
    mixed = 0.2 * adapted + 0.8 * h
    return mixed / mixed.norm()


def test_agrees_with_the_naive_implementation(federation):
    method, clip = build("clip-adapter", federation, **SETTINGS), naive_clip(federation)
    first = method.init(federation.problem.generator).shared
    assert first["w1"].shape == (4, 16) and first["w2"].shape == (16, 4)
    texts = clip.sentences(federation.problem.template)

    def scores(params, images):
        return clip.scores(texts, [mixture(params["w1"], params["w2"], h) for h in images])

    loop, (naive, *_) = train_both(method, federation, loss_of(scores), "uniform")
    assert_predictions(loop, scores(naive, federation.pool.values))
