import pytest
import torch

from fedcore.methods import tensors
from fedcore.methods.baselines.prompts.transport import transport
from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedotp as oracle
from tests.support.oracles.promptfl import text_features
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


@pytest.mark.parametrize("solved", [{}, {"mass": 0.5, "regularisation": 0.03, "tolerance": 0.0}])
def test_agrees_with_the_naive_implementation(solved):
    federation = tiny_federation(reads="regions", samples=(5, 3, 4))
    problem, model = federation.problem, federation.problem.backbone.model
    method = build("fedotp", federation, **SETTINGS, **solved, iterations=20)
    first = method.init(problem.generator)
    xs, labels = samples(federation)
    tokenizer, scale = problem.backbone.tokenizer, problem.backbone.logit_scale
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "iterations": 20}
    config |= {
        "mass": method.config.mass,
        "eps": method.config.regularisation,
        "tolerance": method.config.tolerance,
    }
    shared, owns = oracle.run(
        model,
        tokenizer,
        problem.classes,
        xs,
        labels,
        first.shared["context"],
        first.local["own"],
        engine_batches(federation, method, 2),
        scale,
        config,
    )

    state = run_rounds(method, federation, 2).state
    near = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(state.shared["context"], shared, **near)
    torch.testing.assert_close(state.local["own"], torch.stack(owns), **near)
    assert (shared - first.shared["context"]).abs().max() > 1e-4
    shown = federation.pool.values[:4]

    def scores(contexts):
        texts = [text_features(model, tokenizer, context, problem.classes) for context in contexts]
        return torch.stack([oracle.image_scores(texts, x, scale, config) for x in shown])

    torch.testing.assert_close(global_logits(method, state, federation)[:4], scores([shared]), **near)
    for own, found in zip(owns, client_logits(method, state, federation), strict=True):
        torch.testing.assert_close(found[:4], scores([shared, own]), **near)


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
    for own, plan in zip(cost, together, strict=True):
        torch.testing.assert_close(transport(own[None], 0.8, 0.05, 100, 1e-3)[0], plan, atol=0, rtol=0)


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


def test_training_in_pieces_gives_the_same_numbers(monkeypatch):
    federation = tiny_federation(reads="regions")
    states = []
    for most in (tensors.PIECE_BYTES, {"cpu": 1}):
        monkeypatch.setattr(tensors, "PIECE_BYTES", most)
        states.append(run_rounds(build("fedotp", federation, **SETTINGS), federation, 1).state)
    one, other = states
    torch.testing.assert_close(one.shared["context"], other.shared["context"], atol=1e-9, rtol=0)
    torch.testing.assert_close(one.local["own"], other.local["own"], atol=1e-9, rtol=0)
