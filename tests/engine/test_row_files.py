"""Checkpoints of many clients: a round writes the rows that changed, and a resume finds all of them."""

from __future__ import annotations

import pytest
import torch

from fedcore.engine import checkpoint
from fedcore.engine.checkpoint import due_rows
from fedcore.engine.loop import Loop
from fedcore.errors import FedLensError
from fedcore.methods.fedot import FedOT, FedOTConfig
from fedcore.records.events import RoundFinished
from tests.support.tiny import tiny_backbone, tiny_federation

ROUNDS = 8


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(tiny_backbone(), samples=(3, 2, 4, 3, 2, 3))


def new_loop(federation, folder=None, **options) -> Loop:
    """Two of six clients take part in a round; momentum is kept."""
    config = FedOTConfig(lr=0.01, optimiser_state="kept", momentum=0.9)
    method = FedOT(config, federation.problem)
    return Loop(method, federation, ROUNDS, participation=0.34, folder=folder, run_key="k", **options)


def finished(loop: Loop) -> list[RoundFinished]:
    return [event for event in loop.events() if isinstance(event, RoundFinished)]


def measured(events: list[RoundFinished]) -> list[object]:
    return [(e.round, e.train_loss, e.cells, e.diagnostics) for e in events]


@pytest.fixture
def in_files(monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGE", 0)


def test_a_run_resumed_from_row_files_has_the_rows_of_one_without(federation, tmp_path, in_files):
    plain = finished(new_loop(federation))
    events = finished(new_loop(federation, tmp_path))
    assert measured(events) == measured(plain)
    for event in events[1:-1]:
        resumed = new_loop(federation, tmp_path / "again")
        resumed.resume(event.checkpoint)
        assert measured(finished(resumed)) == measured(plain[event.round + 1 :])


def test_a_round_writes_its_participants_and_what_no_checkpoint_needs_is_deleted(
    federation, tmp_path, in_files
):
    loop, sizes = new_loop(federation, tmp_path), []
    for event in loop.events():
        if isinstance(event, RoundFinished):
            checkpoint.prune(tmp_path, {event.round - 1, event.round})
            rows = {round_: path.stat().st_size for round_, path in checkpoint.row_files(tmp_path).items()}
            kept = [checkpoint.path_of(tmp_path, r) for r in (event.round - 1, event.round) if r >= 0]
            assert set(rows) == {r for path in kept for r in checkpoint.rows_needed(path)}
            sizes.append(rows.get(event.round, 0))
            assert checkpoint.verify(kept[-1]) == []
    row = 16 * 16 * 8
    assert sizes[0] == 0 and all(2 * row < size for size in sizes[1:])
    assert min(sizes[1:]) < 2 * 3 * row, "not the rows of all six"


def test_the_rows_of_the_oldest_file_are_written_again_once_all_could_have_trained():
    trained = torch.tensor([1, 1, 2, 0])
    assert due_rows(torch.tensor([1, 2, -1, -1]), trained, 3).tolist() == [2], (
        "the last one has never trained"
    )
    assert due_rows(torch.tensor([1, 2, -1, -1]), trained, 6).tolist() == [0, 2]
    assert due_rows(torch.tensor([-1, -1, -1, -1]), trained, 6).tolist() == [0, 1, 2], "all are in one file"


def test_a_checkpoint_in_one_file_goes_on_with_row_files(federation, tmp_path, monkeypatch):
    plain = finished(new_loop(federation, tmp_path / "whole"))
    monkeypatch.setattr(checkpoint, "LARGE", 0)
    loop = new_loop(federation, tmp_path / "rows")
    loop.resume(plain[4].checkpoint)
    events = finished(loop)
    assert measured(events) == measured(plain[5:])
    again = new_loop(federation)
    again.resume(events[0].checkpoint)
    assert measured(finished(again)) == measured(plain[6:])


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_checkpoint_whose_row_file_is_damaged_is_passed_over(federation, tmp_path, in_files, damage):
    last = finished(new_loop(federation, tmp_path))[-1].checkpoint
    file = checkpoint.files_of(checkpoint.path_of(tmp_path, ROUNDS))[-1]
    if damage == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    (finding,) = checkpoint.verify(checkpoint.path_of(tmp_path, ROUNDS))
    assert finding.startswith(file.name)
    with pytest.raises(FedLensError, match="cannot resume from"):
        new_loop(federation).resume(last)


def test_a_checkpoint_that_travels_is_one_file(federation, tmp_path, in_files):
    path = finished(new_loop(federation, tmp_path, whole_checkpoints=True))[-1].checkpoint
    assert checkpoint.files_of(checkpoint.path_of(tmp_path, ROUNDS)) == [checkpoint.path_of(tmp_path, ROUNDS)]
    assert not checkpoint.row_files(tmp_path) and checkpoint.load(path, "k", torch.device("cpu")).slots
