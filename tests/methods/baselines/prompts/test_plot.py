from dataclasses import replace

import torch

from fedcore.methods.baselines.prompts.transport import transport
from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4, "schedule": "constant"}


def sinkhorn(cost: torch.Tensor, eps: float, sweeps: int, tolerance: float) -> torch.Tensor:
    """The plan diag(u) K diag(w) with row sums 1/R and column sums 1/N. Shape: cost (R, N) -> (R, N)."""
    regions, prompts = cost.shape
    kernel = torch.exp(-cost / eps)
    w = torch.ones(prompts, dtype=cost.dtype)
    for _ in range(sweeps):
        before = w
        u = 1 / regions / (kernel @ w)
        w = 1 / prompts / (kernel.T @ u)
        if (w / before).log().abs().max() < tolerance:
            break
    return torch.diag(u) @ kernel @ torch.diag(w)


def image_scores(texts: list[torch.Tensor], regions: torch.Tensor, scale: float) -> torch.Tensor:
    """Shape: texts N times (K, d), regions (R, d) -> (K,)."""
    rows = []
    for k in range(len(texts[0])):
        cosines = torch.stack([torch.stack([f @ t[k] / f.norm() for t in texts]) for f in regions])
        rows.append(scale * (sinkhorn(1 - cosines.detach(), 0.1, 100, 1e-3) * cosines).sum())
    return torch.stack(rows)


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation(reads="regions", samples=(5, 3, 4))
    clip = naive_clip(federation)
    method = build("plot", federation, **SETTINGS, prompts=3)
    assert len(method.init(federation.problem.generator).shared["context"].unique(dim=0)) == 3

    def scores(params, images):
        texts = [clip.texts(context) for context in params["context"]]
        return [image_scores(texts, x, clip.scale) for x in images]

    loop, (naive, *_) = train_both(method, federation, loss_of(scores), "samples")
    assert_predictions(loop, torch.stack(scores(naive, federation.pool.values[:4])))


def test_one_prompt_on_equal_regions_is_promptfl():
    whole = tiny_federation()
    values = whole.pool.values[:, None].expand(-1, 4, -1).contiguous()
    divided = replace(whole, pool=replace(whole.pool, values=values))
    one = build("plot", divided, **SETTINGS, prompts=1)
    other = build("promptfl", whole, context_length=3, lr=0.05, batch_size=4)
    ours = run_rounds(one, divided, 2).state.shared["context"][0]
    theirs = run_rounds(other, whole, 2).state.shared["context"]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


def test_a_balanced_plan_takes_all_of_every_region_and_prompt():
    cost = 1 - 2 * torch.rand(3, 5, 49, 4, generator=torch.Generator().manual_seed(0))
    plan = transport(cost, 1.0, 0.1, 500, 0.0, at_most=False)
    torch.testing.assert_close(plan.sum(-1), torch.full((3, 5, 49), 1 / 49), atol=1e-6, rtol=0)
    torch.testing.assert_close(plan.sum(-2), torch.full((3, 5, 4), 1 / 4), atol=1e-6, rtol=0)
    alone = transport(cost[..., :1], 1.0, 0.1, 500, 0.0, at_most=False)
    torch.testing.assert_close(alone, torch.full_like(alone, 1 / 49), atol=1e-7, rtol=0)
