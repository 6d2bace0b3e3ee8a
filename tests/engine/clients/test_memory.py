"""The clients that are trained at once are as many as fit into memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from fedcore.engine.clients import memory
from fedcore.engine.clients.memory import bytes_of_client, clients_at_once
from fedcore.engine.loop import Loop
from fedcore.engine.parallel import Spread
from fedcore.engine.train import _choose_chunk
from fedcore.methods import registry
from fedcore.methods.fedot import FedOT, FedOTConfig
from tests.support.tiny import tiny_backbone, tiny_federation


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(tiny_backbone(), samples=(9, 5, 7))


def loop_of(federation, name: str = "promptfl", **fields: object) -> Loop:
    method = registry.get(name)(registry.build_config(name, fields), federation.problem)
    return Loop(method, federation, 1)


def test_as_many_clients_as_fit_and_at_least_one(federation, monkeypatch):
    loop = loop_of(federation)
    size = bytes_of_client(loop.method, federation, loop.state)
    for budget, fitting in ((size * 5 + 1, 5), (size * 99, 32), (size // 2, 1)):
        monkeypatch.setattr(memory, "_MOST", budget)
        assert clients_at_once(loop.method, federation, loop.state, 32) == fitting


def test_what_is_measured_grows_with_the_batch_and_leaves_the_run_as_it_was(federation):
    def floats(samples: int) -> int:
        method = FedOT(FedOTConfig(batch_size=samples), federation.problem)
        state = Loop(method, federation, 1).state
        before = state.local["matrix"].clone(), torch.get_rng_state()
        size = bytes_of_client(method, federation, state)
        assert torch.equal(state.local["matrix"], before[0]) and torch.equal(torch.get_rng_state(), before[1])
        return size // 8

    one, four = floats(1), floats(4)
    assert four - one >= 3 * 3 * 16, "three samples more keep some vectors of 16 numbers each"
    assert one < federation.pool.values.numel() + 20 * 16 * 16, "the frozen CLIP does not count"


def test_a_method_without_training_takes_all(federation):
    loop = loop_of(federation, "zero-shot")
    assert clients_at_once(loop.method, federation, loop.state, 32) == 32


def test_a_run_says_when_memory_limits_it_and_several_processes_all_have_a_chunk(federation, monkeypatch):
    loop = loop_of(federation)
    two = Spread(2, lambda *_: nullcontext(), "cpu", sharers=2)
    assert list(_choose_chunk(loop, None)) == [] and loop.chunk == 32
    assert list(_choose_chunk(loop, two)) == [] and loop.chunk == 2
    monkeypatch.setattr(memory, "_MOST", 1)
    (notice,) = _choose_chunk(loop, two)
    assert notice.message.startswith("clients trained at once: 1,") and loop.chunk == 1


def test_two_runs_side_by_side_each_count_on_half_of_the_memory(federation, monkeypatch):
    loop = loop_of(federation)
    size = bytes_of_client(loop.method, federation, loop.state)
    for runs, fitting in ((1, 12), (2, 6)):
        monkeypatch.setenv("FEDLENS_MEMORY", str(4 * 12 * size // runs))
        assert clients_at_once(loop.method, federation, loop.state, 32) == fitting
