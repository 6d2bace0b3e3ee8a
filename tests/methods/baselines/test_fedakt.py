from __future__ import annotations

import pytest
import torch

from fedcore.methods.baselines.fedakt import ADAPTER
from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import headers as oracle

SETTINGS = {"lr": 0.05, "batch_size": 4}


@pytest.mark.parametrize(("beta", "temperature"), [(1.0, 1.0), (0.3, 2.0)])
def test_agrees_with_the_naive_implementation(tiny_backbone, tiny_federation, run_rounds, beta, temperature):
    federation = tiny_federation(tiny_backbone())
    method = build(
        "fedakt", federation, **SETTINGS, hidden=5, distillation_weight=beta, temperature=temperature
    )
    first = method.init(federation.problem.generator)
    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "beta": beta, "temperature": temperature}
    heads = list(zip(first.local["head_w"], first.local["head_b"], strict=True))
    adapter, heads = oracle.fedakt(
        xs,
        labels,
        [first.shared[name] for name in ADAPTER],
        heads,
        engine_batches(federation, method, 3),
        config,
    )

    state = run_rounds(method, federation, 3).state
    near = {"atol": 1e-6, "rtol": 0}
    for name, value in zip(ADAPTER, adapter, strict=True):
        torch.testing.assert_close(state.shared[name], value, **near)
    for i, name in enumerate(("head_w", "head_b")):
        torch.testing.assert_close(state.local[name], torch.stack([head[i] for head in heads]), **near)
    assert (adapter[0] - first.shared["down_w"]).abs().max() > 1e-3
    pool = federation.pool.values
    down_w, down_b, up_w, up_b = adapter
    expected = torch.relu(pool @ down_w.T + down_b) @ up_w.T + up_b
    torch.testing.assert_close(global_logits(method, state, federation), expected, **near)
    for (weight, bias), found in zip(heads, client_logits(method, state, federation), strict=True):
        torch.testing.assert_close(found, pool @ weight.T + bias, **near)


def test_without_distillation_the_head_is_a_local_linear_layer(tiny_backbone, tiny_federation, run_rounds):
    """The head then learns from its client alone, and the adapter does not hear of it."""
    federation = tiny_federation(tiny_backbone())
    states = []
    for seed in (0, 1):
        method = build("fedakt", federation, **SETTINGS, distillation_weight=0)
        first = method.init(federation.problem.generator)
        noise = torch.Generator().manual_seed(seed)
        drawn = torch.randn(first.local["head_w"].shape, generator=noise, dtype=torch.float64)
        first.local["head_w"] = drawn * seed
        method.init = lambda generator, first=first: first
        states.append(run_rounds(method, federation, 2).state)
    for name in ADAPTER:
        assert torch.equal(states[0].shared[name], states[1].shared[name])
    assert not torch.allclose(states[0].local["head_w"], states[1].local["head_w"])


def test_only_the_adapter_is_sent(tiny_backbone, tiny_federation, run_rounds):
    federation = tiny_federation(tiny_backbone())
    loop = run_rounds(build("fedakt", federation, **SETTINGS), federation, 1)
    assert loop.finished[-1].scalars_up == 3 * (4 * 16 + 4 + 3 * 4 + 3)
