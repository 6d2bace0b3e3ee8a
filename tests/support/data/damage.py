"""Damage to files, as a failing disk does it: taken back at the end of the block."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


@contextmanager
def flip_bit(path: Path, bit: int) -> Iterator[tuple[int, int]]:
    """Flip one bit of a file; yields its byte and its place in it."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    with _changed(path, bytes(content)):
        yield bit // 8, bit % 8


@contextmanager
def zero_block(path: Path, start: int, size: int) -> Iterator[None]:
    """Overwrite a block of a file with zeros."""
    content = bytearray(path.read_bytes())
    content[start : start + size] = bytes(len(content[start : start + size]))
    with _changed(path, bytes(content)):
        yield
