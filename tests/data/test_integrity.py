"""Damage to arrays on disk is noticed, wherever it is."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.progress import result_of
from fedcore.data import arrays, integrity
from tests.support.data.damage import flip_bit, zero_block

ABOUT: dict[str, object] = {"key": "k", "folder": "/data/é"}
EXPECTED = {"key": "k", "shape": [40, 3], "dtype": "float32"}


def written(folder: Path, rows: int = 40) -> Path:
    path = folder / "x.npy"
    writer = arrays.ArrayWriter(path, rows, (3,), np.dtype(np.float32), ABOUT)
    writer.write(np.random.default_rng(0).random((rows, 3), np.float32))
    writer.close()
    return path


def check(path: Path, **expected: object) -> integrity.Checked:
    return result_of(integrity.check(path, {**EXPECTED, **expected}))


def test_an_array_is_intact_after_writing_in_one_go_or_in_two(tmp_path):
    whole = written(tmp_path)
    assert check(whole).state == "intact" and integrity.verify(whole) == []
    description = whole.with_suffix(".json").read_bytes()
    half = arrays.ArrayWriter(tmp_path / "y.npy", 40, (3,), np.dtype(np.float32), ABOUT)
    values = np.load(whole)
    half.write(values[:10])
    half.flush()
    rest = arrays.ArrayWriter(tmp_path / "y.npy", 40, (3,), np.dtype(np.float32), ABOUT)
    assert rest.done == 10
    rest.write(values[10:])
    rest.close()
    assert (tmp_path / "y.json").read_bytes() == description


def test_one_flipped_bit_anywhere_is_noticed(tmp_path):
    path = written(tmp_path)
    generator = np.random.default_rng(1)
    for file in (path, path.with_suffix(".json")):
        for _ in range(200):
            with flip_bit(file, int(generator.integers(8 * file.stat().st_size))) as place:
                assert check(path).state == "damaged", (file.name, place)
                assert len(integrity.verify(path)) == 1
    assert check(path).state == "intact"


def test_a_zeroed_block_a_cut_and_an_exchange_are_noticed(tmp_path):
    path, content = written(tmp_path), (tmp_path / "x.npy").read_bytes()
    with zero_block(path, 200, 64):
        assert check(path).state == "damaged"
    for size in (0, 5, 100, len(content) - 1):
        path.write_bytes(content[:size])
        assert check(path).state == "damaged", size
    path.write_bytes(content + b"\0")
    assert "bytes where its header declares" in check(path).damage
    path.write_bytes(content)
    assert check(path, key="j").damage == "its key is k, not j"
    assert check(path, shape=[41, 3]).damage == "its shape is [40, 3], not [41, 3]"
    assert check(path, dtype="float16").damage == "its dtype is float32, not float16"
    assert check(path).state == "intact"


@pytest.mark.parametrize("described", [True, False])
def test_an_array_without_a_digest_is_damaged(tmp_path, described):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((40, 3), np.float32))
    if described:
        path.with_suffix(".json").write_text(json.dumps(EXPECTED))
    assert check(path).state == "damaged" and len(integrity.verify(path)) == 1


def test_an_intact_array_is_read_once_per_process(tmp_path, monkeypatch):
    path, reads = written(tmp_path), []
    real = integrity._read
    monkeypatch.setattr(integrity, "_read", lambda path: reads.append(path) or real(path))
    assert [check(path).state for _ in range(3)] == ["intact"] * 3
    assert reads == [path]


def test_what_is_missing_is_not_damaged(tmp_path):
    assert check(tmp_path / "x.npy").state == "missing"
    assert integrity.verify(tmp_path / "x.npy") == []
