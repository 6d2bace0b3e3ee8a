"""SDFed's readings that the oracle does not hold, its lengths and backbones, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from tests.support.against import build, client_logits, diagnostics, global_logits, naive_clip, samples
from tests.support.oracles import sdfed as oracle
from tests.support.tiny import run_rounds, tiny_federation


def first(**config):
    federation = tiny_federation(**config.pop("federation", {}))
    return build("sdfed", federation, **config).init(federation.problem.generator)


def test_every_prompt_is_drawn_by_itself():
    """G_s and each G_c: none equals another, and none moves when another has a different length."""
    state = first(global_length=4, local_length="fixed:4")
    drawn = [state.shared["global_prompt"], *state.local["local_prompt"]]
    for i, one in enumerate(drawn):
        assert 0.01 < float(one.std()) < 0.03
        assert all((one - other).abs().max() > 1e-3 for other in drawn[:i])
    longer = first(global_length=6, local_length="7,4,4")
    torch.testing.assert_close(longer.local["local_prompt"][1:, :4], state.local["local_prompt"][1:])
    other = first(global_length=4, local_length="4,9,2")
    assert torch.equal(other.shared["global_prompt"], state.shared["global_prompt"])


def test_a_client_s_label_space_bounds_all_its_losses_and_predictions():
    """Client 2 holds classes 0 and 2: cross-entropy, L_str and L_sep over these two alone."""
    federation = tiny_federation()
    held = [[0, 1, 2], [0, 2], [0, 1, 2]]
    labels = federation.pool.labels.clone()
    labels[federation.train.held_by(1)] = torch.tensor([0, 2, 0, 2, 2])
    counts = federation.problem.class_counts.clone()
    counts[1] = torch.tensor([2, 0, 3])
    assert (counts[[0, 2]] > 0).all()
    federation = replace(
        federation,
        pool=replace(federation.pool, labels=labels),
        problem=replace(federation.problem, class_counts=counts),
    )
    config = {"global_length": 3, "local_length": "2,5,3", "margin": 1.5, "lr": 0.0, "batch_size": 64}
    method = build("sdfed", federation, label_space="client", **config)
    loop = run_rounds(method, federation, 1)
    event = loop.finished[-1]
    assert all(row.train_loss is not None for row in event.clients), "None is a loss that is not finite"
    predicted = client_logits(method, loop.state, federation)
    assert predicted[1, :, 1].isneginf().all() and predicted[1, :, held[1]].isfinite().all()
    assert global_logits(method, loop.state, federation).isfinite().all()
    state, clip = method.init(federation.problem.generator), naive_clip(federation)
    g_s = state.shared["global_prompt"]
    r = oracle.projector(g_s, method.config.truncation)
    for client, (x, y) in enumerate(zip(*samples(federation), strict=True)):
        mine = replace(clip, classes=[clip.classes[k] for k in held[client]])
        positions = torch.tensor([held[client].index(int(label)) for label in y])
        g_c = state.local["local_prompt"][client, : method.lengths[client]]
        local, common, refined = (mine.texts(g) for g in (g_c, g_s, g_c @ r))
        gaps = [float((a - b).norm()) for a, b in zip(local, common, strict=True)]
        expected = {
            "ce_local": mine.loss(local, x, positions),
            "ce_global": mine.loss(common, x, positions),
            "stretch": sum(((a - b) ** 2).sum() for a, b in zip(local, refined, strict=True)) / len(gaps),
            "separate": sum(max(0.0, 1.5 - gap) for gap in gaps) / len(gaps),
        }
        for name, value in expected.items():
            assert diagnostics(event, name)[client] == pytest.approx(float(value), abs=1e-8), name
