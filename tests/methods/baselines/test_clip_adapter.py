import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedavg as oracle
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"lr": 0.05, "batch_size": 4}


def mixture(w1: torch.Tensor, w2: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """0.2 A(h) + 0.8 h of one normalised image, normalised again. Shape: h (d,) -> (d,)."""
    h = h / h.norm()
    hidden = torch.stack([torch.clamp(row @ h, min=0) for row in w1])
    adapted = torch.stack([torch.clamp(row @ hidden, min=0) for row in w2])
    mixed = 0.2 * adapted + 0.8 * h
    return mixed / mixed.norm()


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation()
    problem, backbone = federation.problem, federation.problem.backbone
    scale = backbone.logit_scale
    method = build("clip-adapter", federation, **SETTINGS)
    first = method.init(problem.generator).shared
    d = backbone.spec.embed_dim
    assert first["w1"].shape == (d // 4, d) and first["w2"].shape == (d, d // 4)
    texts = [
        backbone.model.encode_text(backbone.tokenizer([problem.template.format(name)]))[0]
        for name in problem.classes
    ]

    def scores(values, h):
        mixed = mixture(*values, h)
        return torch.stack([scale * mixed @ t / t.norm() for t in texts])

    def loss(values, received, x, y):
        return sum(oracle.nll(scores(values, h), c) for h, c in zip(x, y, strict=True)) / len(y)

    batches = engine_batches(federation, method, 2)
    start = list(first.values())
    expected = oracle.run(loss, start, *samples(federation), batches, oracle.sgd, [1.0] * 3)[0]
    state = run_rounds(method, federation, 2).state
    for got, value, before in zip(state.shared.values(), expected, start, strict=True):
        torch.testing.assert_close(got, value, atol=1e-6, rtol=0)
        assert (value - before).abs().max() > 1e-3  # it did train
    found = torch.stack([scores(expected, h) for h in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), found, atol=1e-6, rtol=0)
    for own in client_logits(method, state, federation):
        torch.testing.assert_close(own, found, atol=1e-6, rtol=0)
