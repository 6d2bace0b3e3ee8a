"""Our batched optimisers against torch.optim, one client at a time."""

import pytest
import torch

from fedcore.base.seeds import torch_generator
from fedcore.engine.clients.optimisers import ClientOptimiser, learning_rate
from fedcore.methods.hyperparameters import MethodConfig


def _reference(config: MethodConfig, value: torch.Tensor):
    leaf = value.clone().requires_grad_()
    if config.optimiser == "sgd":
        o = torch.optim.SGD([leaf], lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    else:
        cls = torch.optim.Adam if config.optimiser == "adam" else torch.optim.AdamW
        o = cls([leaf], lr=config.lr, weight_decay=config.weight_decay)
    return leaf, o


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("shape", [(3,), (3, 2, 4)])
def test_equal_to_torch_with_ragged_step_counts(kind, shape):
    config = MethodConfig(optimiser=kind, lr=0.05, momentum=0.9, weight_decay=0.01)
    generator = torch_generator(0, kind)
    value = torch.randn(shape, dtype=torch.float64, generator=generator)
    references = [_reference(config, value[c]) for c in range(3)]
    ours, optimiser = value.clone(), ClientOptimiser(config, 3)
    for step in range(5):
        rows = torch.tensor([c for c in range(3) if step < 5 - c])  # client c makes 5 - c steps
        gradient = torch.randn(shape, dtype=torch.float64, generator=generator)[rows]
        ours[rows] = optimiser.step("w", ours[rows], gradient, rows)
        for i, c in enumerate(rows.tolist()):
            leaf, o = references[c]
            leaf.grad = gradient[i].clone()
            o.step()
    torch.testing.assert_close(
        ours, torch.stack([leaf.detach() for leaf, _ in references]), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_parameter_with_a_factor_has_that_learning_rate(kind):
    config, everyone = MethodConfig(optimiser=kind, lr=0.1), torch.arange(2)
    scaled = ClientOptimiser(config, 2, lr_factors={"w": 0.5})
    halved = ClientOptimiser(config.model_copy(update={"lr": 0.05}), 2)
    plain = ClientOptimiser(config, 2)
    value, gradient = torch.ones(2, 3), torch.arange(6.0).view(2, 3)
    assert torch.equal(
        scaled.step("w", value, gradient, everyone), halved.step("w", value, gradient, everyone)
    )
    assert torch.equal(
        scaled.step("v", value, gradient, everyone), plain.step("v", value, gradient, everyone)
    )


def test_select_and_put_move_the_state_of_some_clients_only():
    config = MethodConfig(optimiser="adam")
    optimiser = ClientOptimiser(config, 4)
    everyone = torch.arange(4)
    optimiser.step("w", torch.ones(4, 2), torch.ones(4, 2), everyone)
    part = ClientOptimiser(config, 2, optimiser.select(torch.tensor([1, 3])))
    part.step("w", torch.ones(2, 2), torch.ones(2, 2), torch.arange(2))
    optimiser.put(torch.tensor([1, 3]), part.moments)
    assert optimiser.moments["w/steps"].tolist() == [1, 2, 1, 2]


def test_learning_rates_by_round():
    constant, warm = MethodConfig(lr=0.1), MethodConfig(lr=0.1, warmup_rounds=2)
    assert [learning_rate(constant, r, 3) for r in (1, 2, 3)] == [0.1, 0.1, 0.1]
    assert [learning_rate(warm, r, 4) for r in (1, 2, 3, 4)] == [1e-5, 1e-5, 0.1, 0.1]
    assert learning_rate(MethodConfig(lr=1e-6, warmup_rounds=1), 1, 2) == 1e-6
    cosine = [learning_rate(MethodConfig(lr=0.1, schedule="cosine"), r, 4) for r in (1, 2, 3, 4)]
    assert cosine == pytest.approx([0.1, 0.1 * 0.8535534, 0.05, 0.1 * 0.1464466])


def _plain_adam(config, value, gradient, first, second, steps):
    """One step of the formulas, a new tensor for every sum."""
    b1, b2, eps = config.adam
    if config.optimiser == "adamw":
        value = value * (1 - config.lr * config.weight_decay)
    else:
        gradient = value * config.weight_decay + gradient
    first = first * b1 + gradient * (1 - b1)
    second = second * b2 + gradient.square() * (1 - b2)
    below = (second / (1 - b2**steps)).sqrt() + eps
    return value - first * (config.lr / (1 - b1**steps)) / below, first, second


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("shape", [(3, 2, 40), (2, 300, 250), (5, 131, 100)])
def test_blocks_change_no_bit(kind, shape):
    config = MethodConfig(optimiser=kind, lr=0.05, weight_decay=0.01)
    generator = torch_generator(0, kind)
    value = torch.randn(shape, generator=generator)
    optimiser, everyone = ClientOptimiser(config, len(value)), torch.arange(len(value))
    first = second = torch.zeros_like(value)
    for step in (1, 2, 3):
        gradient = torch.randn(shape, generator=generator).transpose(1, 2).contiguous().transpose(1, 2)
        steps = torch.full((len(value), 1, 1), float(step))
        expected, first, second = _plain_adam(config, value, gradient, first, second, steps)
        value = optimiser.step("w", value, gradient, everyone)
        assert torch.equal(value, expected)
        assert torch.equal(optimiser.moments["w/first"], first)
        assert torch.equal(optimiser.moments["w/second"], second)


def test_a_value_that_is_kept_is_not_overwritten():
    config = MethodConfig(optimiser="adam", lr=0.1)
    optimiser, everyone = ClientOptimiser(config, 2), torch.arange(2)
    first = optimiser.step("w", torch.ones(2, 3), torch.ones(2, 3), everyone)
    copy = first.clone()
    for _ in range(3):  # the same value again, not what the step before returned
        optimiser.step("w", first, torch.ones(2, 3), everyone)
        assert torch.equal(first, copy)
