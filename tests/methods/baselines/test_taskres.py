from dataclasses import replace

import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, samples
from tests.support.oracles import fedavg as oracle
from tests.support.oracles.promptfl import mean_loss, scores
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"lr": 0.02, "batch_size": 4}


@pytest.mark.parametrize("share", ["all", "local"])
def test_agrees_with_the_naive_implementation(share):
    federation = tiny_federation()
    problem, backbone = federation.problem, federation.problem.backbone
    method = build("taskres", federation, **SETTINGS, share=share)
    texts = [
        backbone.model.encode_text(backbone.tokenizer([problem.template.format(name)]))[0]
        for name in problem.classes
    ]
    z = torch.stack([t / t.norm() for t in texts])

    def loss(values, received, x, y):
        return mean_loss(z + 0.5 * values[0], x, y, backbone.logit_scale)

    def adam(values):
        return torch.optim.Adam(values, lr=0.02, weight_decay=5e-4)

    batches, weights = engine_batches(federation, method, 2), [1.0] * 3 if share == "all" else None
    start = [torch.zeros_like(z)]
    expected = [v[0] for v in oracle.run(loss, start, *samples(federation), batches, adam, weights)]
    state = run_rounds(method, federation, 2).state
    ours = [state.shared["residual"]] * 3 if share == "all" else state.local["residual"]
    assert method.models(state).global_model is None or share == "all"
    for i, (got, value) in enumerate(zip(ours, expected, strict=True)):
        torch.testing.assert_close(got, value, atol=1e-6, rtol=0)
        assert value.abs().max() > 1e-3  # it did train
        found = torch.stack(
            [scores(z + 0.5 * value, h, backbone.logit_scale) for h in federation.pool.values]
        )
        torch.testing.assert_close(client_logits(method, state, federation)[i], found, atol=1e-6, rtol=0)


def test_a_class_that_nobody_trained_on_is_scored_as_zero_shot_clip_does():
    federation = tiny_federation()
    method = build("taskres", federation, **SETTINGS)
    state = run_rounds(method, federation, 2).state
    names = ("green lamp", "dog", *federation.problem.classes[:1])
    problem = replace(federation.problem, classes=names)
    other = type(method)(method.config, problem)
    moved = method.retarget(state, other).shared["residual"]
    assert not moved[:2].any() and torch.equal(moved[2], state.shared["residual"][0]) and moved[2].any()
