from dataclasses import replace

import pytest
import torch

from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.tiny import run_rounds

SETTINGS = {"lr": 0.02, "batch_size": 4}


@pytest.mark.parametrize("share", ["all", "local"])
def test_agrees_with_the_naive_implementation(federation, share):
    method, clip = build("taskres", federation, **SETTINGS, share=share), naive_clip(federation)
    z = clip.sentences(federation.problem.template)

    def loss(params, x, y):
        return clip.loss(z + 0.5 * params["residual"], x, y)

    def adam(values):
        return torch.optim.Adam(values, lr=0.02, weight_decay=5e-4)

    loop, owns = train_both(method, federation, loss, "uniform", adam)
    shown = [clip.scores(z + 0.5 * params["residual"], federation.pool.values) for params in owns]
    assert_predictions(loop, shown[0] if share == "all" else None, shown)


def test_a_class_that_nobody_trained_on_is_scored_as_zero_shot_clip_does(federation):
    method = build("taskres", federation, **SETTINGS)
    state = run_rounds(method, federation, 2).state
    names = ("green lamp", "dog", *federation.problem.classes[:1])
    problem = replace(federation.problem, classes=names)
    other = type(method)(method.config, problem)
    moved = method.retarget(state, other).shared["residual"]
    assert not moved[:2].any() and torch.equal(moved[2], state.shared["residual"][0]) and moved[2].any()
