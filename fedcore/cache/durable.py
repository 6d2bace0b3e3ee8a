"""Files that survive a power failure: a file with its final name is always complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file that gets its name only once it is complete; an error leaves nothing behind.

    Args:
        content: all of it, or its parts, each of which is made when it is written.
    """
    parts = [content] if isinstance(content, bytes) else content
    if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout
        with path.open("wb") as file:
            file.writelines(parts)
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.writelines(parts)
        publish(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def publish(part: Path, path: Path) -> None:
    """Give a written file its final name, once its content is on the disk."""
    # Content, then name, then folder: without the first fsync a power failure may leave an empty file under
    # the name, and without the last one it may undo the rename.
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
