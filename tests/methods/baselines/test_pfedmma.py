from dataclasses import replace

import pytest
import torch

from fedcore.methods.baselines.pfedmma import PFedMMAConfig, adapted_layers
from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.tiny import drawn_backbone, tiny_federation

SMALL = {"batch_size": 3, "lr": 0.05, "width": 4}


class ValueTimes(torch.autograd.Function):
    """x -> scale x, with the gradient of x -> x."""

    @staticmethod
    def forward(ctx, x, scale):
        return scale * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class GradientTimes(torch.autograd.Function):
    """x -> x, with the gradient of x -> scale x."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.scale * gradient, None


def through(blocks, x, params, tower, alpha, mask=None):
    """All blocks of a tower, the last ones with adapters. Shape: x (tokens, width) -> same."""
    first = len(blocks) - len(params["shared_w"])
    for number, block in enumerate(blocks):
        out = block(x[None], attn_mask=mask)[0]
        if number >= first:
            i = number - first
            hidden = GradientTimes.apply(block.ln_1(x), alpha)
            for layer, active in ((f"{tower}_down", True), ("shared", True), (f"{tower}_up", False)):
                hidden = hidden @ params[f"{layer}_w"][i].T + params[f"{layer}_b"][i]
                hidden = hidden.clamp(min=0) if active else hidden
            out = out + ValueTimes.apply(hidden, alpha)
        x = out
    return x


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation(reads="layer:2", samples=(4, 3, 2))
    problem, backbone = federation.problem, federation.problem.backbone
    method = build("pfedmma", federation, **SMALL, alpha=0.3)
    assert method.reads(method.config, backbone.spec) == "layer:2"  # two of the text tower's three blocks
    drawn = method.init(problem.generator).local
    assert all(torch.equal(value[0], value[1]) for value in drawn.values())
    model, clip = backbone.model, naive_clip(federation)

    def scores(params, images):
        texts = []
        for sequence in clip.ids(problem.template):
            n = int(sequence.argmax()) + 1
            x = model.token_embedding(sequence[:n]) + model.positional_embedding[:n]
            x = through(model.transformer.resblocks, x, params, "text", 0.3, model.attn_mask[:n, :n])
            texts.append(model.ln_final(x)[-1] @ model.text_projection)
        found = []
        for tokens in images:  # they enter the first adapted block
            x = through(model.visual.transformer.resblocks[2:], tokens, params, "image", 0.3)
            found.append(model.visual.ln_post(x[0]) @ model.visual.proj)
        return clip.scores(torch.stack(texts), found)

    loop, owns = train_both(method, federation, loss_of(scores), "uniform")
    assert_predictions(loop, None, [scores(params, federation.pool.values[:3]) for params in owns])
    assert loop.finished[1].scalars_up == 3 * 2 * (4 * 4 + 4)


@pytest.mark.parametrize(("vision", "text", "layers"), [(12, 12, 8), (24, 12, 8), (4, 4, 3), (4, 3, 2)])
def test_as_many_blocks_of_both_towers_have_adapters(vision, text, layers):
    spec = replace(drawn_backbone().spec, vision_layers=vision, text_layers=text)
    assert adapted_layers(PFedMMAConfig(), spec) == layers
