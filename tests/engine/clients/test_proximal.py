"""FedProx's proximal term is the engine's: any method has it, over the parameters that the server sent."""

from __future__ import annotations

import torch

from tests.support.against import build, diagnostics
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation


def test_it_holds_any_method_near_what_it_received():
    federation = tiny_federation(tiny_backbone())
    moved = []
    for mu in (0.0, 10.0):
        method = build("clip-fc", federation, batch_size=4, lr=0.05, proximal=mu)
        first = method.init(federation.problem.generator).shared["weight"]
        loop = run_rounds(method, federation, 1)
        moved.append(float((loop.state.shared["weight"] - first).norm()))
        assert (len(diagnostics(loop.finished[-1], "proximal")) > 0) == (mu > 0)
    assert moved[1] < 0.9 * moved[0]


def test_a_client_s_own_parameters_are_left_alone():
    federation = tiny_federation(tiny_backbone())
    free, held = (
        run_rounds(build("coop", federation, batch_size=4, lr=0.1, proximal=mu), federation, 2).state
        for mu in (0.0, 10.0)
    )
    assert torch.equal(free.local["context"], held.local["context"])
