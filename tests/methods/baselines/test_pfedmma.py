from dataclasses import replace

import pytest
import torch

from fedcore.methods.baselines.pfedmma import PFedMMAConfig, adapted_layers
from tests.support.against import build, client_logits, engine_batches, samples
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import sgd
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {"batch_size": 3, "lr": 0.05, "width": 4}
NEAR = {"atol": 1e-6, "rtol": 0}


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


def through(blocks, x, own, tower, alpha, mask=None):
    """All blocks of a tower, the last ones with adapters. Shape: x (tokens, width) -> same."""
    first = len(blocks) - len(own["shared_w"])
    for number, block in enumerate(blocks):
        out = block(x[None], attn_mask=mask)[0]
        if number >= first:
            i = number - first
            hidden = GradientTimes.apply(block.ln_1(x), alpha)
            for layer, active in ((f"{tower}_down", True), ("shared", True), (f"{tower}_up", False)):
                hidden = hidden @ own[f"{layer}_w"][i].T + own[f"{layer}_b"][i]
                hidden = hidden.clamp(min=0) if active else hidden
            out = out + ValueTimes.apply(hidden, alpha)
        x = out
    return x


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation(reads="layer:2", samples=(4, 3, 2))
    problem, backbone = federation.problem, federation.problem.backbone
    method = build("pfedmma", federation, **SMALL, alpha=0.3)
    assert method.reads(method.config, backbone.spec) == "layer:2"  # two of the text tower's three blocks
    first = method.init(problem.generator)
    model, scale = backbone.model, backbone.logit_scale
    ids = backbone.tokenizer([problem.template.format(name) for name in problem.classes])

    def scores(own, images):
        texts = []
        for sequence in ids:
            n = int(sequence.argmax()) + 1
            x = model.token_embedding(sequence[:n]) + model.positional_embedding[:n]
            x = through(model.transformer.resblocks, x, own, "text", 0.3, model.attn_mask[:n, :n])
            texts.append(model.ln_final(x)[-1] @ model.text_projection)
        found = []
        for tokens in images:  # they enter the first adapted block
            x = through(model.visual.transformer.resblocks[2:], tokens, own, "image", 0.3)
            h = model.visual.ln_post(x[0]) @ model.visual.proj
            found.append(torch.stack([scale * (t @ h) / (t.norm() * h.norm()) for t in texts]))
        return found

    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    common = dict(first.shared)
    owns = [{name: value[i] for name, value in first.local.items()} for i in range(3)]
    assert all(torch.equal(owns[0][name], owns[1][name]) for name in owns[0])
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for i, steps in enumerate(steps_of):
            names = [*common, *owns[i]]
            values = [v.clone().requires_grad_() for v in (*common.values(), *owns[i].values())]
            momenta = [None] * len(values)
            for chosen in steps:
                found = scores(dict(zip(names, values, strict=True)), xs[i][chosen])
                loss = sum(nll(s, y) for s, y in zip(found, labels[i][chosen], strict=True)) / len(found)
                values = sgd(values, list(torch.autograd.grad(loss, values)), momenta, config)
            trained = {name: value.detach() for name, value in zip(names, values, strict=True)}
            owns[i] = {name: trained[name] for name in owns[i]}
            sent.append({name: trained[name] for name in common})
        common = {name: sum(values[name] for values in sent) / 3 for name in common}

    loop = run_rounds(method, federation, 2)
    for name, value in common.items():
        torch.testing.assert_close(loop.state.shared[name], value, **NEAR)
        assert (value - first.shared[name]).abs().max() > 1e-4, f"{name} did train"
    for name, value in loop.state.local.items():
        torch.testing.assert_close(value, torch.stack([own[name] for own in owns]), **NEAR)
        assert (value - first.local[name]).abs().max() > 1e-4, f"{name} did train"
    shown = federation.pool.values[:3]
    for own, found in zip(owns, client_logits(method, loop.state, federation), strict=True):
        torch.testing.assert_close(found[:3], torch.stack(scores(common | own, shown)), **NEAR)
    assert method.models(loop.state).global_model is None
    assert loop.finished[1].scalars_up == 3 * 2 * (4 * 4 + 4)


@pytest.mark.parametrize(("vision", "text", "layers"), [(12, 12, 8), (24, 12, 8), (4, 4, 3), (4, 3, 2)])
def test_as_many_blocks_of_both_towers_have_adapters(vision, text, layers):
    spec = replace(drawn_backbone().spec, vision_layers=vision, text_layers=text)
    assert adapted_layers(PFedMMAConfig(), spec) == layers
