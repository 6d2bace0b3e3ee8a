"""Checkpoints: what is read back is what was written, and damage is noticed wherever it is."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fedcore.cache import durable
from fedcore.engine import checkpoint
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.errors import FedLensError
from fedcore.methods.base import STATE_PARTS, State
from fedcore.methods.hyperparameters import MethodConfig
from tests.support.data.damage import flip_bit, zero_block

CPU = torch.device("cpu")
RUN = '[{"a": "\\u00e9 \\"digest\\":\\"0\\""}, 1]'


@pytest.fixture
def state() -> State:
    draw = torch.Generator().manual_seed(0)
    return State(
        shared={"w": torch.randn(3, 4, generator=draw)},
        personal={"p": torch.randn(2, 0, generator=draw), "q": torch.randn(2, 1, generator=draw)},
        local={"b": torch.randn(2, 5, generator=draw, dtype=torch.float64).T},
        server={},
        rounds_trained=torch.tensor([3, 1]),
    )


@pytest.fixture
def file(state, tmp_path) -> Path:
    optimiser = ClientOptimiser(MethodConfig(), 2, {"w/first": torch.ones(2, 3)})
    return checkpoint.save(tmp_path / "run", state, optimiser, 7, RUN)


def test_what_is_loaded_is_what_was_saved(state, file):
    content = checkpoint.load(file, RUN, CPU)
    loaded, slots, round_ = content.state, content.slots, content.round
    assert round_ == 7 and torch.equal(loaded.rounds_trained, state.rounds_trained)
    for part in STATE_PARTS:
        mine, theirs = getattr(state, part), getattr(loaded, part)
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
    assert torch.equal(slots["w/first"], torch.ones(2, 3))
    assert checkpoint.verify(file) == []


def test_one_flipped_bit_anywhere_is_noticed(file):
    bits = np.random.default_rng(2).integers(8 * file.stat().st_size, size=200)
    for bit in [*range(64), *bits]:
        with flip_bit(file, int(bit)) as place:
            assert len(checkpoint.verify(file)) == 1, place
            with pytest.raises(FedLensError, match="cannot resume from .*damaged"):
                checkpoint.load(file, RUN, CPU)
    assert checkpoint.verify(file) == []


def test_a_zeroed_block_a_cut_and_a_renamed_file_are_noticed(file):
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


def test_a_file_without_a_digest_is_damaged(file):
    file.write_bytes(save({"taken": torch.tensor([1])}, {"round": "7", "run": RUN}))
    assert "its bytes are not those that were written" in checkpoint.verify(file)[0]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(state, tmp_path, monkeypatch):
    """fsync of the content, then the name, then fsync of the folder: a power failure loses no named file."""
    done = []
    sync, rename = os.fsync, os.replace

    def kind(handle: int) -> str:
        return "folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"

    monkeypatch.setattr(durable.os, "fsync", lambda handle: done.append(kind(handle)) or sync(handle))
    monkeypatch.setattr(durable.os, "replace", lambda a, b: done.append("name") or rename(a, b))
    folder = tmp_path / "runs" / "1"
    checkpoint.save(folder, state, ClientOptimiser(MethodConfig(), 2), 1, RUN)
    assert done == ["folder", "folder", "file", "name", "folder"]
    done.clear()
    checkpoint.save(folder, state, ClientOptimiser(MethodConfig(), 2), 2, RUN)
    assert done == ["file", "name", "folder"]
