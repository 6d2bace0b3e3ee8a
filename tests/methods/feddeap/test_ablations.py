"""FedDEAP's ablations (Table 3) against the method with a weight of zero, and against a naive loop."""

import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import feddeap as oracle
from tests.support.oracles.promptfl import mean_loss, scores, sgd, weighted
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}
PARTS = ("w1", "b1", "w2", "b2")
NEAR = {"atol": 1e-9, "rtol": 0}


@pytest.mark.parametrize(
    ("switch", "weight", "left"),
    [("semantic_alignment", "semantic_weight", "phi_d"), ("domain_alignment", "domain_weight", "phi_s")],
)
def test_without_an_alignment_is_with_its_weight_zero(switch, weight, left):
    """The weighted form agrees with the oracle; both prompts and the other network go the same way."""
    federation = tiny_federation(samples=(6, 3, 4))
    off, zero, full = (
        run_rounds(build("feddeap", federation, **SMALL, **options), federation, 2).state
        for options in ({switch: False}, {weight: 0.0}, {})
    )
    for name in ("p_s", *(f"{left}_{part}" for part in PARTS)):
        torch.testing.assert_close(off.shared[name], zero.shared[name], **NEAR)
    torch.testing.assert_close(off.local["p_d"], zero.local["p_d"], **NEAR)
    moved = (off.shared["p_s"] - full.shared["p_s"]).abs().max(), off.local["p_d"] - full.local["p_d"]
    assert moved[0] > 1e-5 and moved[1].abs().max() > 1e-5, "the term does something"


@pytest.mark.parametrize("personal", [True, False], ids=["personal-prompt", "baseline"])
def test_without_alignments_both_prompts_hear_the_cross_entropy_alone(personal):
    federation = tiny_federation(samples=(6, 3, 4))
    problem = federation.problem
    off = {"semantic_alignment": False, "domain_alignment": False, "personal_prompt": personal}
    method = build("feddeap", federation, **SMALL, **off)
    first = method.init(problem.generator)
    model, tokenizer, scale = problem.backbone.model, problem.backbone.tokenizer, problem.backbone.logit_scale
    xs, labels = samples(federation)
    config = {name: getattr(method.config, name) for name in ("lr", "momentum", "weight_decay")}

    def texts(prompts, mean):
        own = (prompts[1], mean) if personal else (None, None)
        return oracle.texts(model, tokenizer, problem.classes, prompts[0], *own)

    p_s, p_d = first.shared["p_s"], list(first.local["p_d"]) if personal else [None] * 3
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for k, steps in enumerate(steps_of):
            values = [v.clone().requires_grad_() for v in (p_s, p_d[k]) if v is not None]
            momenta = [None] * len(values)
            for chosen in steps:
                text = texts(values, xs[k][chosen].mean(0))
                loss = mean_loss(text, xs[k][chosen], labels[k][chosen], scale)
                values = sgd(values, list(torch.autograd.grad(loss, values)), momenta, config)
            sent.append(values[0].detach())
            p_d[k] = values[1].detach() if personal else None
        p_s = weighted(sent, [1.0] * 3)

    state = run_rounds(method, federation, 2).state
    torch.testing.assert_close(state.shared["p_s"], p_s, atol=1e-6, rtol=0)
    assert (p_s - first.shared["p_s"]).abs().max() > 1e-3
    for k in range(3):
        if personal:
            torch.testing.assert_close(state.local["p_d"][k], p_d[k], atol=1e-6, rtol=0)
        text = texts((p_s, p_d[k]), xs[k].mean(0))
        expected = torch.stack([scores(text, h, scale) for h in federation.pool.values])
        torch.testing.assert_close(client_logits(method, state, federation)[k], expected, atol=1e-6, rtol=0)
    alone = oracle.texts(model, tokenizer, problem.classes, p_s, None, None)
    expected = torch.stack([scores(alone, h, scale) for h in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("off", "trained", "terms"),
    [
        (("semantic_alignment",), {"p_s", "phi_d"}, {"contrastive", "image_domain", "text_domain"}),
        (("domain_alignment",), {"p_s", "phi_s"}, {"contrastive", "image_semantic", "text_semantic"}),
        (("semantic_alignment", "domain_alignment"), {"p_s"}, {"contrastive"}),
    ],
)
def test_ablations_neither_train_nor_send_what_they_leave_out(off, trained, terms):
    federation = tiny_federation(samples=(6, 3, 4))
    loop = run_rounds(build("feddeap", federation, **SMALL, **dict.fromkeys(off, False)), federation, 1)
    assert {name.rsplit("_", 1)[0] if name != "p_s" else name for name in loop.state.shared} == trained
    assert set(loop.state.local) == {"p_d"}
    names = {d.name for d in loop.finished[-1].diagnostics}
    assert {n for n in names if "etf" not in n and "accuracy" not in n} == terms
