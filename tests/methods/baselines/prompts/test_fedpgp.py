import pytest
import torch
from torch import Tensor

from tests.support.against import assert_predictions, build, naive_clip, train_both

SETTINGS = {"context_length": 3, "rank": 2, "lr": 0.05, "batch_size": 4, "local_epochs": 1}


def contrast(shared: Tensor, local: Tensor, anchor: Tensor, temperature: float) -> Tensor:
    """Mean over classes of -log e^(near/T) / (e^(near/T) + e^(away/T)). Shape: (K, d) each -> ()."""
    total = torch.zeros((), dtype=shared.dtype)
    for g, i, c in zip(shared, local, anchor, strict=True):
        near, away = torch.exp(g @ c / temperature), torch.exp(g @ i / temperature)
        total = total - torch.log(near / (near + away))
    return total / len(shared)


@pytest.mark.parametrize("anchor", ["untrained", "prompt"])
def test_agrees_with_the_naive_implementation(federation, anchor):
    """Cui et al., 2024, Equations 6 to 9."""
    clip = naive_clip(federation)
    method = build("fedpgp", federation, **SETTINGS, anchor=anchor, contrastive_weight=2.0)
    fixed = clip.sentences(federation.problem.template if anchor == "prompt" else "X X X {}.")

    def personal(params):
        return clip.texts(params["context"] + params["u"] @ params["v"])

    def loss(params, x, y):
        shared, ours = clip.texts(params["context"]), personal(params)
        return clip.loss(ours, x, y) + 2.0 * contrast(shared, ours, fixed, 0.5)

    loop, owns = train_both(method, federation, loss, "samples")
    pool = federation.pool.values
    common = clip.scores(clip.texts(owns[0]["context"]), pool)
    assert_predictions(loop, common, [clip.scores(personal(params), pool) for params in owns])
