"""Compiled steps have the numbers of plain ones, whatever torch makes of them."""

import re

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend

from fedcore.base.errors import is_gpu_memory
from fedcore.engine.clients import compiled
from fedcore.methods.base import Batch, Step
from tests.engine.clients.test_local import QUICK
from tests.support.against import build, build_small, federation_for
from tests.support.method_cases import TRAINED, slow_but
from tests.support.tiny import drawn_backbone, parts, run_rounds, tiny_federation


@pytest.mark.parametrize("name", slow_but(set(QUICK) - {"feddeap"}, TRAINED))
def test_compiled_steps_have_the_same_numbers_and_only_those_of_full_batches_are_compiled(name, monkeypatch):
    graphs, aot_eager = [], lookup_backend("aot_eager")

    def compiler(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(compiled, "COMPILER", {"backend": compiler})
    torch.compiler.reset()
    backbone = drawn_backbone(torch.float32, vision_layers=1, text_layers=1)
    ended, known = [], []
    # clients of 5, 4 and 4 samples: two full batches, and a sample of the first client alone
    for samples, wanted in (((5, 4, 4), False), ((5, 4, 4), True), ((3, 4, 4), True), ((1, 1, 1), True)):
        federation = federation_for(name, backbone=backbone, samples=samples)
        method = build_small(name, federation, batch_size=2, compiled=wanted)
        ended.append(run_rounds(method, federation, 2).state)
        known.append(len(graphs))
    assert known[0] == 0 < known[1]
    torch.testing.assert_close(parts(ended[1]), parts(ended[0]), rtol=1e-5, atol=1e-6)
    assert known[3] == known[2], "batches of one sample are not full"


@pytest.fixture
def step(monkeypatch):
    """Takes a compiled step with constants of some length, for a compiler."""

    def phase(params, const, batch):
        return Step({("w",): (params["w"] * const["c"].sum()).sum(1)})

    def take(compiler, length=2):
        monkeypatch.setattr(compiled, "COMPILER", {"backend": compiler})
        compiled.ready(method, (2, 2), phase)({"w": torch.ones(2, 3)}, {"c": torch.ones(length)}, batch)

    torch.compiler.reset()
    method = build("clip-fc", tiny_federation(samples=(2, 2)), batch_size=2, compiled=True)
    zeros = torch.zeros(2, 2, dtype=torch.int64)
    batch = Batch(torch.ones(2, 2, 4), zeros, zeros == 0, torch.arange(2), zeros)
    return take


def test_constants_of_every_shape_are_compiled_however_many_there_are(step):
    graphs = []

    def compiler(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for length in range(2, 14):  # torch's limit is 8
        step(compiler, length)
    assert len(graphs) == 12


def test_graphs_that_do_not_fit_into_a_gpu_are_dropped(step):
    graphs = []

    def compiler(graph, inputs):
        def full(*values):
            raise torch.OutOfMemoryError("CUDA out of memory")

        graphs.append(graph)
        return graph.forward if graphs[1:] else full

    with pytest.raises(torch.OutOfMemoryError):
        step(compiler)
    step(compiler)
    assert len(graphs) == 2


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no compiler")])
def test_a_gpu_without_memory_for_a_compiled_step_says_so(fault, monkeypatch):
    def compiler(graph, inputs):
        raise fault

    monkeypatch.setattr(compiled, "COMPILER", {"backend": compiler})
    torch.compiler.reset()
    federation = tiny_federation(samples=(4, 4, 4))
    with pytest.raises(Exception) as caught:
        run_rounds(build("clip-fc", federation, batch_size=2, compiled=True), federation, 1)
    assert is_gpu_memory(caught.value) == isinstance(fault, torch.OutOfMemoryError)
    assert is_gpu_memory(caught.value) or re.search(
        r"cannot be compiled here \(.*no compiler\); set compiled = false", str(caught.value)
    )


@pytest.mark.slow
def test_torchs_own_compiler_has_the_numbers_of_plain_steps():
    federation = tiny_federation(samples=(4, 4, 4))
    plain, fused = (
        run_rounds(build("fedclip", federation, batch_size=2, compiled=wanted), federation, 2).state
        for wanted in (False, True)
    )
    torch.testing.assert_close(fused.shared, plain.shared, rtol=1e-4, atol=1e-5)
