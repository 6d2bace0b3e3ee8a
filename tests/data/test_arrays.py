"""Arrays on disk: whole or not at all, and resumed after an interruption."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.data import arrays

ABOUT = {"key": "k", "data": "d"}


def part(path: Path, rows: int = 10, **about: str) -> arrays.ArrayWriter:
    return arrays.ArrayWriter(path, rows, (3,), np.dtype(np.float32), {**ABOUT, **about})


def rows(first: int, count: int) -> np.ndarray:
    return np.arange(first * 3, (first + count) * 3, dtype=np.float32).reshape(count, 3)


def test_rows_that_were_flushed_are_taken_up_again(tmp_path):
    first = part(tmp_path / "x.npy")
    first.write(rows(0, 4))
    first.flush()
    first.write(rows(4, 3))  # never flushed: as after a kill, the journal does not know of them
    first._file.flush()
    again = part(tmp_path / "x.npy")
    assert again.done == 4
    again.write(rows(4, 6))
    again.close()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), rows(0, 10))
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob("*.journal"))


def test_rows_that_would_be_stored_wrongly_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected rows of \(3,\) float32, got \(4,\) float32"):
        part(tmp_path / "x.npy").write(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"expected rows of \(3,\) float32, got \(3,\) float64"):
        part(tmp_path / "x.npy").write(np.zeros((2, 3)))


def test_a_finished_part_whose_renaming_was_cut_off_is_not_encoded_again(tmp_path):
    first = part(tmp_path / "x.npy")
    first.write(rows(0, 10))
    first.flush()
    again = part(tmp_path / "x.npy")
    assert again.done == 10
    again.close()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), rows(0, 10))


def _flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "x.part").read_bytes())
    content[-1] ^= 1
    (folder / "x.part").write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a changed byte": _flip_a_byte,
    "a part that is too short": lambda f: os.truncate(f / "x.part", 140),
    "no journal": lambda f: (f / "x.journal").unlink(),
    "a journal of something else": lambda f: (f / "x.journal").write_text("{}\n"),
    "another key": lambda f: (f / "x.json").write_text((f / "x.json").read_text().replace('"k"', '"j"')),
    "no part": lambda f: (f / "x.part").unlink(),
    "a part of another shape": lambda f: (f / "x.part").write_bytes(
        (f / "x.part").read_bytes().replace(b"(10, 3)", b"(10, 4)")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_part_of_other_content_is_never_taken(tmp_path, damage):
    first = part(tmp_path / "x.npy")
    first.write(rows(0, 4))
    first.flush()
    DAMAGE[damage](tmp_path)
    again = part(tmp_path / "x.npy")
    assert again.done == 0
    again.write(rows(0, 10))
    again.close()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), rows(0, 10))


def test_what_fits_of_a_damaged_part_is_kept(tmp_path):
    first = part(tmp_path / "x.npy")
    for at in (0, 4):
        first.write(rows(at, 4))
        first.flush()
    _flip_a_byte(tmp_path)
    again = part(tmp_path / "x.npy")
    assert again.done == 4 and arrays.rows_on_disk(tmp_path / "x.npy") == 4


@pytest.mark.parametrize("text", ["[1]", "3", '"x"', "{", "[" * 100_000])
def test_a_description_of_another_form_says_nothing(tmp_path, text):
    path = tmp_path / "x.npy"
    arrays.description_file(path).write_text(text)
    assert arrays.description(path) == {}
