import pytest
import torch
from torch import Tensor

from fedcore.methods.baselines.prompts.transport import transport
from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.tiny import tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


def naive_plan(cost: Tensor, mass: float, eps: float, iterations: int, tolerance: float) -> Tensor:
    """Scaling u_v K_vp w_p with row sums at most 1/V and column sums mass/P. Shape: cost (V, P) -> (V, P)."""
    regions, prompts = cost.shape
    kernel = torch.exp(-cost / eps)
    u, w = torch.ones(regions, dtype=cost.dtype), torch.ones(prompts, dtype=cost.dtype)
    for _ in range(iterations):
        before = w
        u = torch.stack(
            [min((1 / regions) / (kernel[v] @ w), torch.ones((), dtype=cost.dtype)) for v in range(regions)]
        )
        w = torch.stack([(mass / prompts) / (kernel[:, p] @ u) for p in range(prompts)])
        if (torch.log(w) - torch.log(before)).abs().max() < tolerance:
            break
    return u[:, None] * kernel * w


def image_scores(texts: list[Tensor], regions: Tensor, scale: float, *solved: float) -> Tensor:
    """One image's scores. Shape: texts P times (K, d), regions (V, d) -> (K,)."""
    rows = []
    for k in range(len(texts[0])):
        cosines = torch.stack([torch.stack([h @ t[k] / h.norm() for t in texts]) for h in regions])
        with torch.no_grad():
            shares = naive_plan(1 - cosines, *solved)
        rows.append(scale * (shares * cosines).sum())
    return torch.stack(rows)


@pytest.mark.parametrize("solved", [{}, {"mass": 0.5, "regularisation": 0.03, "tolerance": 0.0}])
def test_agrees_with_the_naive_implementation(solved):
    federation = tiny_federation(reads="regions", samples=(5, 3, 4))
    clip = naive_clip(federation)
    method = build("fedotp", federation, **SETTINGS, **solved, iterations=20)
    c = method.config

    def scores(prompts, images):
        texts = [clip.texts(context) for context in prompts.values()]
        solved = c.mass, c.regularisation, 20, c.tolerance
        return [image_scores(texts, x, clip.scale, *solved) for x in images]

    loop, owns = train_both(method, federation, loss_of(scores), "samples")
    shown = federation.pool.values[:4]
    common = torch.stack(scores({"context": owns[0]["context"]}, shown))
    assert_predictions(loop, common, [torch.stack(scores(params, shown)) for params in owns])


def test_local_prompts_start_from_one_draw_unless_each_has_its_own():
    federation = tiny_federation(reads="regions")
    start = build("fedotp", federation, **SETTINGS).init(federation.problem.generator)
    assert torch.equal(start.local["own"], start.local["own"][:1].expand(3, -1, -1))
    assert not torch.equal(start.local["own"][0], start.shared["context"])
    apart = build("fedotp", federation, **SETTINGS, local_start="own").init(federation.problem.generator)
    assert len(apart.local["own"].unique(dim=0)) == 3


@pytest.mark.parametrize(("mass", "regularisation"), [(0.3, 0.1), (0.8, 0.01), (1.0, 1e-4), (0.3, 1e-4)])
def test_a_plan_keeps_its_margins_and_is_finite_in_single_precision(mass, regularisation):
    cost = 1 - 2 * torch.rand(3, 5, 49, 2, generator=torch.Generator().manual_seed(0))
    plan = transport(cost, mass, regularisation, 500, 0.0)
    assert plan.isfinite().all() and (plan >= 0).all()
    torch.testing.assert_close(plan.sum(-2), torch.full((3, 5, 2), mass / 2), atol=1e-4, rtol=0)
    if regularisation >= 0.1:  # converged: no region gives more than it has
        assert plan.sum(-1).max() < 1 / 49 + 1e-4


def test_a_plan_leaves_out_the_regions_that_fit_worst():
    cost = torch.zeros(10, 1, dtype=torch.float64)
    cost[7:] = 1.0
    plan = transport(cost, 0.7, 0.01, 1000, 0.0)
    torch.testing.assert_close(plan[:7, 0], torch.full((7,), 0.1, dtype=torch.float64), atol=1e-6, rtol=0)
    assert plan[7:].max() < 1e-6


def test_a_plan_does_not_depend_on_its_neighbours():
    cost = torch.rand(6, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = transport(cost, 0.8, 0.05, 100, 1e-3)
    for single, plan in zip(cost, together, strict=True):
        torch.testing.assert_close(transport(single[None], 0.8, 0.05, 100, 1e-3)[0], plan, atol=0, rtol=0)


def test_no_gradient_goes_through_the_plan():
    federation = tiny_federation(reads="regions")
    method = build("fedotp", federation, **SETTINGS)
    state = method.init(federation.problem.generator)
    params = {n: v.requires_grad_() for n, v in method.models(state).clients.items()}
    x = federation.pool.values[None, :2].expand(3, -1, -1, -1)
    head = method.head(params, None)
    logits = method.logits(params, head, x)
    cosines = torch.einsum("csvd,cpkd->cskvp", torch.nn.functional.normalize(x, dim=-1), head["prompts"])
    c = method.config
    plan = transport(1 - cosines.detach(), c.mass, c.regularisation, c.iterations, c.tolerance)
    expected = federation.problem.backbone.logit_scale * (plan * cosines).sum((-2, -1))
    wanted, found = (
        torch.autograd.grad(s[..., 0].sum(), params["own"], retain_graph=True)[0] for s in (expected, logits)
    )
    torch.testing.assert_close(found, wanted)
