import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedavg as oracle
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"lr": 0.05, "batch_size": 4}


def naive_scores(values: list[torch.Tensor], x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """One image, one class at a time."""
    h = x if scale is None else scale * x / x.norm()
    bias = values[1] if len(values) > 1 else torch.zeros(len(values[0]), dtype=x.dtype)
    return torch.stack([w @ h + b for w, b in zip(values[0], bias, strict=True)])


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [1.0, 1.0, 1.0]),
        ({"init": "text", "features": "normalised", "bias": False, "local_epochs": 2}, [1.0, 1.0, 1.0]),
        ({"init": "text", "weighting": "samples"}, [9.0, 5.0, 7.0]),
    ],
    ids=["paper", "as-clip", "weighted"],
)
def test_agrees_with_the_naive_implementation(options, weights):
    federation = tiny_federation()
    method = build("clip-fc", federation, **SETTINGS, **options)
    first = method.init(federation.problem.generator).shared
    scale = federation.problem.backbone.logit_scale if method.config.features == "normalised" else None

    def loss(values, received, x, y):
        return sum(oracle.nll(naive_scores(values, h, scale), c) for h, c in zip(x, y, strict=True)) / len(y)

    batches = engine_batches(federation, method, 2)
    expected = oracle.run(loss, list(first.values()), *samples(federation), batches, oracle.sgd, weights)[0]
    state = run_rounds(method, federation, 2).state
    for got, value in zip(state.shared.values(), expected, strict=True):
        torch.testing.assert_close(got, value, atol=1e-6, rtol=0)
    assert (expected[0] - first["weight"]).abs().max() > 1e-3  # it did train
    scores = torch.stack([naive_scores(expected, h, scale) for h in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), scores, atol=1e-6, rtol=0)
    for own in client_logits(method, state, federation):
        torch.testing.assert_close(own, scores, atol=1e-6, rtol=0)
