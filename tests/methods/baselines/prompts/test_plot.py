from dataclasses import replace

import torch

from fedcore.methods.baselines.prompts.transport import transport
from tests.support.against import build, engine_batches, global_logits, samples
from tests.support.oracles import fedavg as oracle
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import text_features
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4, "schedule": "constant"}
NEAR = {"atol": 1e-6, "rtol": 0}


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
    problem, backbone = federation.problem, federation.problem.backbone
    model, tokenizer, scale = backbone.model, backbone.tokenizer, backbone.logit_scale
    method = build("plot", federation, **SETTINGS, prompts=3)
    first = method.init(problem.generator).shared["context"]
    assert len(first.unique(dim=0)) == 3

    def found(contexts, images):
        texts = [text_features(model, tokenizer, context, problem.classes) for context in contexts]
        return [image_scores(texts, x, scale) for x in images]

    def loss(values, received, x, y):
        return sum(nll(s, label) for s, label in zip(found(values[0], x), y, strict=True)) / len(y)

    xs, labels = samples(federation)
    batches, weights = engine_batches(federation, method, 2), [float(len(y)) for y in labels]
    expected = oracle.run(loss, [first], xs, labels, batches, oracle.sgd, weights)[0][0]
    state = run_rounds(method, federation, 2).state
    torch.testing.assert_close(state.shared["context"], expected, **NEAR)
    assert (expected - first).abs().max() > 1e-3  # it did train
    scores = torch.stack(found(expected, federation.pool.values[:4]))
    torch.testing.assert_close(global_logits(method, state, federation)[:4], scores, **NEAR)


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
