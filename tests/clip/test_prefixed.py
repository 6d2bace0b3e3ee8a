"""Class names encoded client by client equal those of one batch, forward and backward."""

import math

import pytest
import torch

from fedcore.clip import prefixed
from fedcore.clip.prompts import class_suffix, encode_context
from tests.support.tiny import tiny_backbone

NAMES = ("x", "a much longer name of a class", "snow owl", "cat", "two words")


@pytest.fixture
def calls(monkeypatch):
    """Encode client by client however few tokens there are; returns the calls."""
    made, encode = [], prefixed.encode
    monkeypatch.setattr(prefixed, "_FEWEST_NUMBERS", 0)
    monkeypatch.setattr(prefixed, "encode", lambda *a: (made.append(a), encode(*a))[1])
    return made


def both_ways(backbone, suffix, context, lengths=None):
    """Return features and gradients, client by client and in one batch."""
    weights = torch.randn(len(context), len(suffix.classes), backbone.spec.embed_dim, dtype=context.dtype)
    found = []
    for fewest in (0, math.inf):
        leaf = context.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(prefixed, "_FEWEST_NUMBERS", fewest)
            features = encode_context(backbone, leaf, suffix, lengths)
        found.append((features.detach(), torch.autograd.grad((features * weights).sum(), leaf)[0]))
    return found


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("activation", ["GELU", "QuickGELU"])
def test_client_by_client_equals_one_batch_with_its_gradients(calls, layers, activation):
    backbone = tiny_backbone(text_layers=layers)
    if activation == "QuickGELU":
        from open_clip.transformer import QuickGELU

        for block in backbone.text.blocks:
            block.mlp.gelu = QuickGELU()
    suffix = class_suffix(backbone, NAMES)
    context = torch.randn(4, 3, 16, dtype=torch.float64)
    (ours, our_gradient), (plain, gradient) = both_ways(backbone, suffix, context)
    assert len(calls) == 1
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=0)
    torch.testing.assert_close(our_gradient, gradient, atol=1e-10, rtol=0)


def test_contexts_of_different_lengths_equal_those_of_one_batch(calls):
    backbone = tiny_backbone()
    suffix, lengths = class_suffix(backbone, NAMES), torch.tensor([2, 5, 1, 5])
    context = torch.randn(4, 5, 16, dtype=torch.float64)
    context[3] = context[1]
    (ours, our_gradient), (plain, gradient) = both_ways(backbone, suffix, context, lengths)
    assert len(calls) == 1
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=0)
    torch.testing.assert_close(our_gradient, gradient, atol=1e-10, rtol=0)
    assert not our_gradient[0, 2:].any() and our_gradient[0, :2].all()


def test_clients_with_the_same_context_share_a_forward_pass_and_have_own_gradients(calls, monkeypatch):
    backbone, passes = tiny_backbone(), []
    forward = prefixed.PrefixEncoder.forward
    monkeypatch.setattr(prefixed.PrefixEncoder, "forward", lambda *a: (passes.append(a), forward(*a))[1])
    suffix = class_suffix(backbone, NAMES)
    context = torch.randn(1, 3, 16, dtype=torch.float64).repeat(3, 1, 1)
    context[1, 0, 0] += 1e-9
    (ours, our_gradient), (plain, gradient) = both_ways(backbone, suffix, context)
    assert len(passes) == 2
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=0)
    torch.testing.assert_close(our_gradient, gradient, atol=1e-10, rtol=0)
    assert not torch.equal(our_gradient[0], our_gradient[2])


def test_a_client_alone_has_the_same_bits_as_among_others(calls):
    backbone = tiny_backbone(torch.float32)
    suffix, context = class_suffix(backbone, NAMES), torch.randn(4, 3, 16)
    together = encode_context(backbone, context, suffix)
    assert torch.equal(together[2], encode_context(backbone, context[2:3], suffix)[0])


def test_a_tower_with_other_parts_or_few_tokens_is_encoded_in_one_batch(monkeypatch):
    backbone = tiny_backbone()
    suffix, context = class_suffix(backbone, NAMES), torch.randn(2, 3, 16, dtype=torch.float64)
    assert not prefixed.pays(backbone.text, suffix.order, context)
    monkeypatch.setattr(prefixed, "_FEWEST_NUMBERS", 0)
    assert prefixed.pays(backbone.text, suffix.order, context)
    backbone.text.blocks[1].mlp.gelu = torch.nn.GELU("tanh")
    assert not prefixed.pays(backbone.text, suffix.order, context)
