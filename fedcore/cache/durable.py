"""Files that survive a power failure: whole under their name, or not there at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def publish(part: Path, path: Path) -> None:
    """Give a written file its final name, once its content is on the disk.

    Raises:
        OSError: when the disk is full or fails.
    """
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each on the disk before the next."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk; Windows does so by itself."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
