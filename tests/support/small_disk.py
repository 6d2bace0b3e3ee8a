"""A small disk in memory, to be filled; mounting one needs root on Linux."""

import errno
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A disk of ``size`` bytes at ``path``."""

    path: Path
    size: int

    def fill(self) -> None:
        """Write a file until no byte is left."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for step in (2**16, 512, 1):
                try:
                    while True:
                        file.write(bytes(step))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def empty(self) -> None:
        """Delete the file that fills it."""
        (self.path / "filler").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 24 MiB."""
    disk = SmallDisk(tmp_path / "disk", 24 * 2**20)
    disk.path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={disk.size}", "tmpfs", str(disk.path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount on this system")
    if done.returncode:
        pytest.skip("this account cannot mount a disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk.path)], check=True)
