import pytest
import torch
from torch.nn import functional as F

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedpgp as oracle
from tests.support.oracles.promptfl import scores, text_features
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "rank": 2, "lr": 0.05, "batch_size": 4, "local_epochs": 1}


@pytest.mark.parametrize("anchor", ["untrained", "prompt"])
def test_agrees_with_the_naive_implementation(anchor):
    federation = tiny_federation()
    problem, model = federation.problem, federation.problem.backbone.model
    method = build("fedpgp", federation, **SETTINGS, anchor=anchor, contrastive_weight=2.0)
    first = method.init(problem.generator)
    sigma, us, vs = first.shared["context"], first.local["u"], first.local["v"]
    xs, labels = samples(federation)
    tokenizer, scale = problem.backbone.tokenizer, problem.backbone.logit_scale
    template = problem.template if anchor == "prompt" else "X X X {}."
    sentences = [template.format(name) for name in problem.classes]
    fixed = F.normalize(model.encode_text(tokenizer(sentences)), dim=-1)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "mu": 2.0, "temperature": 0.5}
    batches = engine_batches(federation, method, 2)
    context, own_us, own_vs = oracle.run(
        model, tokenizer, problem.classes, xs, labels, sigma, us, vs, fixed, batches, scale, config
    )

    state = run_rounds(method, federation, 2).state
    near = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(state.shared["context"], context, **near)
    torch.testing.assert_close(state.local["u"], torch.stack(own_us), **near)
    torch.testing.assert_close(state.local["v"], torch.stack(own_vs), **near)
    assert (context - sigma).abs().max() > 1e-3 and (state.local["u"] - us).abs().max() > 1e-4
    personal = [context] + [context + u @ v for u, v in zip(own_us, own_vs, strict=True)]
    found = [global_logits(method, state, federation), *client_logits(method, state, federation)]
    for ours, prompt in zip(found, personal, strict=True):
        text = text_features(model, tokenizer, prompt, problem.classes)
        expected = torch.stack([scores(text, h, scale) for h in federation.pool.values])
        torch.testing.assert_close(ours, expected, **near)
