"""Temporary folders of the runs of a node: a run that was killed leaves one, and the next start removes it.

Its process holds a lock on a file in the folder for as long as it lives, which the system frees however the
process ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedcore.file_lock import try_lock

_PREFIX = "fedlens-run-"
_OWNER = ".owner"


@contextmanager
def run_folder(key: str) -> Iterator[Path]:
    """Make a folder for a run's files on this node, which is gone after the block.

    Args:
        key: the run's name on the node, ``run-`` and its numbers.
    """
    remove_dead_folders()
    folder = Path(tempfile.mkdtemp(prefix=f"fedlens-{key}-"))
    owner = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            os.close(owner)


def remove_dead_folders() -> None:
    """Remove the folders of runs whose process has died; one without a lock to ask stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            owner = os.open(folder / _OWNER, os.O_RDONLY)
        except OSError:  # another account's, one that is being made, or of a file system without locks
            continue
        try:
            if not folder.is_symlink() and try_lock(owner, exclusive=True):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(owner)


def _lock(folder: Path) -> int | None:
    """Lock the owner's file of a folder before it has its name; returns None where there are no locks."""
    owner, name = tempfile.mkstemp(dir=folder)
    try:
        if not try_lock(owner, exclusive=True):
            raise OSError("a new file is locked")
        Path(name).rename(folder / _OWNER)
    except OSError:
        os.close(owner)
        Path(name).unlink()
        return None
    return owner
