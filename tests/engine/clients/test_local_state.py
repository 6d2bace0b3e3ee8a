"""Local parameters on a file, and the participants that are compared in pairs."""

from __future__ import annotations

import pytest
import torch

from fedcore.engine import checkpoint
from fedcore.engine.clients import evaluator as evaluate
from fedcore.engine.clients import memory
from fedcore.engine.loop import Loop
from fedcore.methods import tensors
from fedcore.methods.fedot import FedOT, FedOTConfig
from fedcore.methods.tensors import compared
from fedcore.records.events import RoundFinished
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(tiny_backbone(), samples=(9, 5, 7, 12, 4))


def run(federation, folder, **options):
    method = FedOT(FedOTConfig(lr=0.01, blocks=2), federation.problem)
    return run_rounds(method, federation, 3, participation=0.6, folder=folder, **options)


def test_local_parameters_on_a_file_are_those_in_memory(federation, tmp_path, monkeypatch):
    inside = run(federation, tmp_path / "inside")
    monkeypatch.setattr(memory, "IN_MEMORY", 0)
    mapped = run(federation, tmp_path / "mapped")
    torch.testing.assert_close(mapped.state.local, inside.state.local, rtol=0, atol=0)
    assert [e.cells for e in mapped.finished] == [e.cells for e in inside.finished]
    assert [e.diagnostics for e in mapped.finished] == [e.diagnostics for e in inside.finished]
    assert not list((tmp_path / "mapped").glob(".local*")), "the file has no name, so a kill leaves none"


def test_a_round_leaves_the_rows_of_absent_clients_in_place(federation, monkeypatch):
    monkeypatch.setattr(memory, "IN_MEMORY", 0)
    local = {"matrix": torch.arange(12.0).view(4, 3)}
    rows = memory.LocalRows(local, None)
    before = rows.values["matrix"].data_ptr()
    rows.write(torch.tensor([1, 3]), {"matrix": -torch.ones(2, 3), "shared": torch.ones(2)})
    assert rows.values["matrix"].data_ptr() == before
    assert rows.values["matrix"].tolist() == [[0, 1, 2], [-1] * 3, [6, 7, 8], [-1] * 3]
    assert local["matrix"].min() == 0, "the parameters that were given are not written to"


def test_on_a_file_a_row_is_written_when_its_client_is_first_needed(monkeypatch):
    monkeypatch.setattr(memory, "IN_MEMORY", 0)
    own = torch.arange(12.0).view(4, 3)
    rows = memory.LocalRows({"same": torch.ones(2).expand(4, -1), "own": own}, None)
    rows.need(torch.tensor([2]))
    assert rows.values["same"][:, 0].tolist() == [0, 0, 1, 0] and torch.equal(rows.values["own"], own)
    rows.values["same"][2] = 7.0
    rows.need(torch.tensor([2, 3]))
    assert rows.values["same"][:, 0].tolist() == [0, 0, 7, 1], "a row that is there stays"


@pytest.mark.parametrize("large", [0, 2**28])
def test_only_some_rows_on_a_file_change_no_number_also_after_a_stop(
    federation, tmp_path, monkeypatch, large
):
    monkeypatch.setattr(evaluate, "MAX_EVALUATED_CLIENTS", 2)
    inside = run(federation, tmp_path / "inside")
    monkeypatch.setattr(memory, "IN_MEMORY", 0)
    monkeypatch.setattr(checkpoint, "LARGE", large)
    mapped = run(federation, tmp_path / "mapped")
    assert [(e.cells, e.diagnostics) for e in mapped.finished] == [
        (e.cells, e.diagnostics) for e in inside.finished
    ]
    again = Loop(mapped.method, federation, 3, participation=0.6, folder=tmp_path / "mapped")
    again.resume(tmp_path / "mapped" / "round-2.safetensors")
    (third,) = [event for event in again.events() if isinstance(event, RoundFinished)]
    assert (third.cells, third.diagnostics) == (mapped.finished[3].cells, mapped.finished[3].diagnostics)
    taken = again.state.rounds_trained > 0
    assert torch.equal(again.state.local["matrix"][taken], inside.state.local["matrix"][taken])


def test_pairs_are_of_all_participants_up_to_a_limit():
    assert compared(3).tolist() == [0, 1, 2] and compared(0).tolist() == []
    some = compared(1000)
    assert len(some) == tensors.MAX_COMPARED and (some.diff() == 5).all()
    assert len(compared(201).unique()) == tensors.MAX_COMPARED


def test_gradients_are_compared_between_the_sampled_participants(federation, monkeypatch):
    everyone = run_rounds(FedOT(FedOTConfig(), federation.problem), federation, 1).finished[1]
    monkeypatch.setattr(tensors, "MAX_COMPARED", 2)  # the first client and the third of five
    some = run_rounds(FedOT(FedOTConfig(), federation.problem), federation, 1).finished[1]

    def values(event, name):
        return {d.client_a: d.value for d in event.diagnostics if d.name == name}

    assert len(values(some, "condition_number")) == 5, "what belongs to one client is said of all"
    assert values(some, "gradient_difference")[-1] < values(everyone, "gradient_difference")[-1]
    assert values(some, "gradient_conflict") != values(everyone, "gradient_conflict")
    assert some.cells == everyone.cells
