"""Local training in less exact arithmetic, and with FedProx's proximal term."""

import pytest
import torch

from fedcore.base import devices
from fedcore.clip import towers
from fedcore.config import parse
from fedcore.engine import environment
from fedcore.engine.clients import local
from fedcore.engine.environment import arithmetic_notices, resolve_environment
from fedcore.engine.plan import plan
from tests.support.against import build, build_small, diagnostics, federation_for
from tests.support.method_cases import TRAINED, slow_but
from tests.support.tiny import drawn_backbone, few_layers, parts, run_rounds, tiny_federation

LOSSES = 0.05
"""Largest difference of a loss, as a share of it: a number of bf16 has 8 bits."""


QUICK = ("fedot", "promptfl", "fedavg-lora", "feddeap")
"""A matrix, a prompt, adapters of the image tower, and several losses."""


@pytest.mark.parametrize("name", slow_but(QUICK, TRAINED))
def test_every_method_has_nearly_the_same_losses_in_bf16(name):
    federation = federation_for(name, backbone=few_layers(torch.float32), samples=(3, 2, 3))
    exact, rounded = (
        run_rounds(build_small(name, federation, batch_size=4, arithmetic=kind), federation, 2)
        for kind in ("fp32", "bf16")
    )
    for state in (exact.state, rounded.state):
        assert {v.dtype for v in parts(state).values() if v.is_floating_point()} == {torch.float32}
    losses, again = ([e.train_loss for e in loop.finished[1:]] for loop in (exact, rounded))
    assert again == pytest.approx(losses, rel=LOSSES)
    assert again != losses


@pytest.mark.parametrize("name", ["prograd", "promptsrc"])
def test_fixed_class_features_have_single_precision_in_bf16_too(name):
    """Else they would depend on whether they are first read in a step, as in a resumed run, or before."""
    backbone = drawn_backbone(torch.float32, vision_layers=1, text_layers=1)
    found = []
    for kind in ("fp32", "bf16"):
        federation = federation_for(name, {}, backbone, samples=(3,))
        method = build(name, federation, batch_size=4, arithmetic=kind)
        run_rounds(method, federation, 1)
        found.append(method._anchors if name == "promptsrc" else federation.problem.class_features)
    assert torch.equal(*found)


def test_a_cpu_says_which_arithmetic_brings_it_nothing(monkeypatch):
    def said(kind: str) -> list[str]:
        (run,) = plan(parse({"methods": [{"name": "fedot", "config": {"arithmetic": kind}}]})).runs
        resolved = resolve_environment(run, "cpu", {"threads": 1})
        assert resolved["tf32"] == (kind == "tf32")
        return [notice.message for notice in arithmetic_notices(run, resolved, "cpu")]

    assert said("fp32") == []
    assert said("tf32") == [
        "its arithmetic is tf32, which only GPUs have: its clients are trained in fp32 here"
    ]
    monkeypatch.setattr(environment, "_cpuinfo", {"flags": "fma avx512f avx512_bf16"}.get)
    assert said("bf16") == []
    monkeypatch.setattr(environment, "_cpuinfo", {"flags": "fma avx512f"}.get)
    (notice,) = said("bf16")
    assert "no instructions of this processor were found: local training can take ten times as long" in notice


def test_attention_in_bf16_is_computed_in_single_precision_on_a_cpu():
    """torch's kernel for its gradient in bf16 takes several times as long."""
    q, k, v = torch.randn(3, 2, 4, 5, 8).bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for causal in (False, True):
            attended = towers._attention(q, k, v, causal)
            mask = torch.full((5, 5), -torch.inf).triu(1) if causal else torch.zeros(5, 5)
            with torch.autocast("cpu", enabled=False):
                scores = q.float() @ k.float().transpose(-1, -2) / 8**0.5 + mask
                expected = scores.softmax(-1) @ v.float()
            assert attended.dtype == torch.float32
            torch.testing.assert_close(attended, expected)


def test_a_gpu_may_round_to_tf32_in_local_training_alone(monkeypatch):
    seen, step = [], local._step

    def looking(*arguments):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return step(*arguments)

    monkeypatch.setattr(local, "_step", looking)
    federation = tiny_federation()
    for kind in ("fp32", "tf32"):
        loop = run_rounds(build("clip-fc", federation, batch_size=4, arithmetic=kind), federation, 1)
        assert loop.finished and not torch.backends.cuda.matmul.allow_tf32
    assert set(seen[: len(seen) // 2]) == {False} and set(seen[len(seen) // 2 :]) == {True}
    with pytest.raises(ZeroDivisionError), devices.tf32(wanted=True):
        raise ZeroDivisionError
    assert not torch.backends.cuda.matmul.allow_tf32


def test_it_holds_any_method_near_what_it_received():
    federation = tiny_federation()
    moved = []
    for mu in (0.0, 10.0):
        method = build("clip-fc", federation, batch_size=4, lr=0.05, proximal=mu)
        first = method.init(federation.problem.generator).shared["weight"]
        loop = run_rounds(method, federation, 1)
        moved.append(float((loop.state.shared["weight"] - first).norm()))
        assert (len(diagnostics(loop.finished[-1], "proximal")) > 0) == (mu > 0)
    assert moved[1] < 0.9 * moved[0]


def test_a_client_s_own_parameters_are_left_alone():
    federation = tiny_federation()
    free, held = (
        run_rounds(build("coop", federation, batch_size=4, lr=0.1, proximal=mu), federation, 2).state
        for mu in (0.0, 10.0)
    )
    assert torch.equal(free.local["context"], held.local["context"])
