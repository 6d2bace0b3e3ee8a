import pytest
import torch

from tests.support.against import assert_predictions, build, train_both
from tests.support.oracles.fedavg import loss_of

SETTINGS = {"lr": 0.05, "batch_size": 4}


def naive_scores(params: dict[str, torch.Tensor], x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """One image, one class at a time."""
    weight = params["weight"]
    h = x if scale is None else scale * x / x.norm()
    bias = params.get("bias", torch.zeros(len(weight), dtype=x.dtype))
    return torch.stack([w @ h + b for w, b in zip(weight, bias, strict=True)])


@pytest.mark.parametrize(
    ("options", "weighting"),
    [
        ({}, "uniform"),
        ({"init": "text", "features": "normalised", "bias": False, "local_epochs": 2}, "uniform"),
        ({"init": "text", "weighting": "samples"}, "samples"),
    ],
    ids=["paper", "as-clip", "weighted"],
)
def test_agrees_with_the_naive_implementation(federation, options, weighting):
    method = build("clip-fc", federation, **SETTINGS, **options)
    scale = federation.problem.backbone.logit_scale if method.config.features == "normalised" else None

    def scores(params, images):
        return [naive_scores(params, h, scale) for h in images]

    loop, (naive, *_) = train_both(method, federation, loss_of(scores), weighting)
    assert_predictions(loop, torch.stack(scores(naive, federation.pool.values)))
