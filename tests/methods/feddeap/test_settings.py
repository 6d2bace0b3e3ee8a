"""FedDEAP's prompts: the settings that they need, and their text features."""

from dataclasses import replace

import pytest
import torch

from fedcore.base.seeds import torch_generator
from fedcore.clip.prompts import class_suffix, encode_class_context
from fedcore.methods.feddeap import FedDEAP, FedDEAPConfig, PromptedTexts
from tests.support.tiny import drawn_backbone, tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}


def test_domains_that_do_not_train_take_no_column():
    problem = tiny_federation().problem
    held_out = replace(problem, domains=("a", "b", "c"), client_domain=torch.tensor([0, 2, 2]))
    method = FedDEAP(FedDEAPConfig(**SMALL), held_out)
    assert method.domain_of.tolist() == [0, 1, 1]
    assert method.etf["phi_d"].shape == (2, 16)


@pytest.fixture
def drawn():
    backbone = drawn_backbone()
    suffix = class_suffix(backbone, ("cat", "very long fire engine", "owl", "snow owl"), "a photo of a {}.")
    generator = torch_generator(0, "two prompts")
    prompts = [torch.randn(3, 4, n, 16, dtype=torch.float64, generator=generator) for n in (3, 2)]
    return backbone, suffix, [prompt.requires_grad_() for prompt in prompts]


def test_features_and_gradients_are_those_of_one_sequence(drawn):
    backbone, suffix, prompts = drawn
    ours = PromptedTexts(backbone, suffix).encode(*prompts)
    plain = encode_class_context(backbone, torch.cat(prompts, 2), suffix)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    towards = torch.randn(plain.shape, dtype=torch.float64, generator=torch_generator(0, "towards"))
    for prompt in prompts:
        (gradient,), (expected,) = (
            torch.autograd.grad((text * towards).sum(), [prompt], retain_graph=True) for text in (ours, plain)
        )
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


def test_the_domain_prompts_gradient_does_not_enter_the_shared_prompt(drawn, monkeypatch):
    backbone, suffix, (shared, personal) = drawn
    entered: list[int] = []

    def watched(prefix: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        prefix.register_hook(lambda gradient: entered.append(len(gradient)))
        return encode(prefix, *rest)

    encode = backbone.text.encode
    monkeypatch.setattr(backbone.text, "encode", watched)
    text = PromptedTexts(backbone, suffix).encode(shared, personal)
    torch.autograd.grad(text.sum(), [personal], retain_graph=True)
    assert not entered
    torch.autograd.grad(text.sum(), [shared])
    assert sum(entered) == 3 * 4, "every client's prompt of every class once"
