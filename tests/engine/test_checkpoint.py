"""Checkpoints: what is read back is what was written, damage is noticed, large states are in row files."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fedcore.base import files
from fedcore.base.errors import FedLensError
from fedcore.base.events import RoundFinished
from fedcore.engine import checkpoint
from fedcore.engine.checkpoint import RunState, due_rows
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.base import STATE_PARTS, State
from fedcore.methods.fedot import FedOT, FedOTConfig
from tests.support.against import build
from tests.support.data.damage import flip_bit, zero_block
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import run_rounds, tiny_federation

CPU = torch.device("cpu")
ROUNDS = 8
RUN = '[{"a": "\\u00e9 \\"digest\\":\\"0\\""}, 1]'


class Parts(BiasMethod):
    """A state with every part, of odd shapes and types."""

    trains = False

    def init(self, generator) -> State:
        draw = torch.Generator().manual_seed(0)
        return State(
            shared={"w": torch.randn(3, 4, generator=draw)},
            personal={"p": torch.randn(2, 0, generator=draw), "q": torch.randn(2, 1, generator=draw)},
            local={"b": torch.randn(5, 2, generator=draw, dtype=torch.float64).T},
            server={name: torch.arange(3) for name in "stuvwxyz"},
        )


def new_state() -> RunState:
    return RunState(Parts(BiasConfig(), tiny_federation(samples=(3, 2)).problem), torch.arange(2), None)


@pytest.fixture
def file(tmp_path) -> Path:
    run = new_state()
    run.optimiser.moments = {"w/first": torch.ones(2, 3)}
    run.advance(7, replace(run.state, rounds_trained=torch.tensor([3, 1])), torch.arange(2), {})
    return run.save(tmp_path / "run", RUN)


def test_what_is_loaded_is_what_was_saved(file):
    first, loaded = new_state().state, new_state()
    for part in STATE_PARTS:
        for value in getattr(loaded.state, part).values():
            value.zero_()
    loaded.resume(file, RUN)
    assert loaded.done == 7 and loaded.state.rounds_trained.tolist() == [3, 1]
    for part in STATE_PARTS:
        mine, theirs = getattr(first, part), getattr(loaded.state, part)
        assert list(mine) == list(theirs), "sums over parameters go on in the same order"
        assert all(torch.equal(mine[n], theirs[n]) for n in mine)
    assert torch.equal(loaded.optimiser.moments["w/first"], torch.ones(2, 3))
    assert checkpoint.verify(file) == []


def test_one_flipped_bit_anywhere_is_noticed(file):
    bits = np.random.default_rng(2).integers(8 * file.stat().st_size, size=200)
    for bit in [*range(64), *bits]:
        with flip_bit(file, int(bit)) as place:
            assert len(checkpoint.verify(file)) == 1, place
            with pytest.raises(FedLensError, match="cannot resume from .*damaged"):
                checkpoint.load(file, RUN, CPU)
    assert checkpoint.verify(file) == []


def test_a_zeroed_block_a_cut_a_renamed_file_and_one_without_a_digest_are_noticed(file):
    size = file.stat().st_size
    with zero_block(file, size - 64, 64):
        assert checkpoint.verify(file)
    content = file.read_bytes()
    for cut in (0, 4, 50, size // 2, size - 1):
        os.truncate(file, cut)
        assert "is damaged" in checkpoint.verify(file)[0]
        file.write_bytes(content)
    file.write_bytes(content + b"\0")
    assert checkpoint.verify(file)
    file.with_stem("round-8").write_bytes(content)
    assert "is the checkpoint after round 7" in checkpoint.verify(file.with_stem("round-8"))[0]
    assert checkpoint.verify(file.with_stem("round-9")), "a missing file"
    file.write_bytes(save({"taken": torch.tensor([1])}, {"round": "7", "run": RUN}))
    assert "its bytes are not those that were written" in checkpoint.verify(file)[0]


@pytest.mark.parametrize(
    "header",
    [
        "[1]",
        "{}",
        '{"__metadata__": ["round"]}',
        '{"__metadata__": {"round": "x", "run": "", "digest": ""}}',
        '{"__metadata__": {"round": "7", "run": ""}, "w": {"data_offsets": [0]}}',
        '{"__metadata__": {"round": "7", "run": ""}, "w": 3}',
        "[" * 100_000,
    ],
)
def test_a_header_of_other_types_is_damage(file, header):
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    (found,) = checkpoint.verify(file)
    assert found.startswith(f"{file.name} is damaged"), found


def test_a_fault_of_our_own_is_not_reported_as_damage(file, monkeypatch):
    monkeypatch.setattr(checkpoint, "_digest", lambda content, place: content.no_such_attribute)
    with pytest.raises(AttributeError):
        checkpoint.verify(file)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """fsync of the content, then the name, then fsync of the folder: a power failure loses no named file."""
    done = []
    sync, rename = os.fsync, os.replace

    def kind(handle: int) -> str:
        return "folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"

    monkeypatch.setattr(files.os, "fsync", lambda handle: done.append(kind(handle)) or sync(handle))
    monkeypatch.setattr(files.os, "replace", lambda a, b: done.append("name") or rename(a, b))
    folder = tmp_path / "runs" / "1"
    run = new_state()
    run.save(folder, RUN)
    assert done == ["folder", "folder", "file", "name", "folder"]
    done.clear()
    run.done = 1
    run.save(folder, RUN)
    assert done == ["file", "name", "folder"]


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(samples=(3, 2, 4, 3, 2, 3))


def new_loop(federation, folder=None, **options) -> Server:
    """Two of six clients take part in a round; momentum is kept."""
    config = FedOTConfig(lr=0.01, optimiser_state="kept", momentum=0.9)
    method = FedOT(config, federation.problem)
    return Server(method, federation, ROUNDS, participation=0.34, folder=folder, run_key="k", **options)


def finished(loop: Server) -> list[RoundFinished]:
    return [event for event in all_rounds(loop) if isinstance(event, RoundFinished)]


def measured(events: list[RoundFinished]) -> list[object]:
    return [(e.round, e.train_loss, e.cells, e.diagnostics) for e in events]


@pytest.fixture
def in_files(monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGE", 0)
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)


def test_a_run_resumed_from_row_files_has_the_rows_of_one_without(federation, tmp_path, in_files):
    plain = finished(new_loop(federation))
    events = finished(new_loop(federation, tmp_path))
    assert measured(events) == measured(plain)
    for event in events[1:-1]:
        resumed = new_loop(federation, tmp_path / "again")
        resumed.resume(event.checkpoint)
        assert measured(finished(resumed)) == measured(plain[event.round + 1 :])


def test_row_files_hold_optimisers_of_clients_without_parameters_of_their_own(federation, tmp_path, in_files):
    method = build("clip-fc", federation, optimiser_state="kept", momentum=0.9)
    options = {"participation": 0.34, "run_key": "k"}
    events = run_rounds(method, federation, ROUNDS, folder=tmp_path, **options).finished
    resumed = Server(method, federation, ROUNDS, **options)
    resumed.resume(events[ROUNDS - 2].checkpoint)
    assert measured(finished(resumed)) == measured(events[ROUNDS - 1 :])


def test_a_round_writes_its_participants_and_what_no_checkpoint_needs_is_deleted(
    federation, tmp_path, in_files
):
    loop, sizes = new_loop(federation, tmp_path), []
    for event in all_rounds(loop):
        if isinstance(event, RoundFinished):
            checkpoint.prune(tmp_path, {event.round - 1, event.round})
            rows = {round_: path.stat().st_size for round_, path in checkpoint.row_files(tmp_path).items()}
            paths = [checkpoint.path_of(tmp_path, r) for r in (event.round - 1, event.round) if r >= 0]
            assert set(rows) == {r for path in paths for r in checkpoint.rows_needed(path)}
            sizes.append(rows.get(event.round, 0))
            assert checkpoint.verify(paths[-1]) == []
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
    with flip_bit(file, 8 * file.stat().st_size - 24):
        if damage == "missing":
            file.unlink()
        (finding,) = checkpoint.verify(checkpoint.path_of(tmp_path, ROUNDS))
        assert finding.startswith(file.name)
        with pytest.raises(FedLensError, match="cannot resume from"):
            new_loop(federation).resume(last)


def test_a_checkpoint_that_travels_is_one_file(federation, tmp_path, in_files):
    path = finished(new_loop(federation, tmp_path, whole_checkpoints=True))[-1].checkpoint
    assert checkpoint.files_of(checkpoint.path_of(tmp_path, ROUNDS)) == [checkpoint.path_of(tmp_path, ROUNDS)]
    assert not checkpoint.row_files(tmp_path) and any(
        name.startswith("optimiser/") for name in checkpoint.load(Path(path), "k", CPU)[0]
    )
