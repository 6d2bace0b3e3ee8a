"""Temporary folders of single runs, on a node and in the shared folder.

A run's process holds a lock on a file in its folder, which the system frees however the process ends. The
next run deletes folders with a free lock, which killed runs left behind. The file names the machine, because
on a network file system another machine's lock may look free.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedcore.file_lock import try_lock

_PREFIX = "fedlens-run-"
_OWNER = ".owner"
_MAX_NAME = 255


@contextmanager
def run_folder(key: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for a run's files, which is deleted after the block.

    Args:
        key: the run's name, ``run-`` and its numbers.
        parent: default: the folder of this machine's temporary files.
    """
    remove_dead_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"fedlens-{key}-", dir=parent))
    owner = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            os.close(owner)


def remove_dead_folders(parent: Path | None = None) -> None:
    """Remove the folders of this machine's dead runs; a folder without a lock file stays."""
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            owner = os.open(folder / _OWNER, os.O_RDONLY)
        except OSError:  # another account's, not complete yet, or on a file system without locks
            continue
        try:
            is_ours = not folder.is_symlink() and os.read(owner, _MAX_NAME) == _machine()
            if is_ours and try_lock(owner, exclusive=True):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(owner)


def _machine() -> bytes:
    return platform.node().encode()[:_MAX_NAME]


def _lock(folder: Path) -> int | None:
    """Lock the owner's file of a folder; returns None if the file system has no locks."""
    # The file is locked before it gets its name: remove_dead_folders would delete the folder of a free lock.
    owner, name = tempfile.mkstemp(dir=folder)
    try:
        os.write(owner, _machine())
        if not try_lock(owner, exclusive=True):
            raise OSError("a new file is locked")
        Path(name).rename(folder / _OWNER)
    except OSError:
        os.close(owner)
        Path(name).unlink()
        return None
    return owner
