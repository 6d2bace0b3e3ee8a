"""Files of a run in transit: checkpoints through Ray or a shared folder, and the run's temporary folders."""

import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.files import publish, try_lock

Payload = np.ndarray | str
"""The bytes of a file, or the path of its copy in the shared folder."""
Files = list[tuple[str, Payload]]
"""The names and the payloads of a checkpoint's files."""
_OWNER = ".owner"
_MACHINE = platform.node().encode()[:255]


def send(file: Path, folder: str | None) -> Payload:
    """Return the payload of a file: its bytes, or the path of a copy in the shared folder of the run."""
    if folder is None:
        return np.fromfile(file, dtype=np.uint8)
    path = Path(folder) / f"{uuid.uuid4().hex}-{file.name}"
    part = path.with_suffix(".part")
    shutil.copyfile(file, part)
    publish(part, path)
    return str(path)


def receive(payload: Payload, to: Path) -> None:
    """Write a payload to a file; a copy in the shared folder is moved."""
    if isinstance(payload, str):
        shutil.move(payload, to)
    else:
        payload.tofile(to)


@contextmanager
def marked(shared: Path) -> Iterator[str]:
    """Yield the path of a marker in the shared folder, by which a node recognises that folder."""
    if not shared.is_absolute():
        raise FedLensError(f"{shared} is not an absolute path; nodes have other working folders", "shared")
    with ExitStack() as opened:
        try:
            marker = opened.enter_context(run_folder("run-marker", shared))
        except OSError as error:
            raise FedLensError(f"{shared} cannot be written ({error.strerror})", "shared") from error
        yield str(marker)


@contextmanager
def run_folder(key: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for a run's files, which is deleted after the block.

    A killed process leaves its folder behind, so each new run deletes the folders of dead ones. A run's
    process holds a lock on a file in its folder, which the system frees however the process ends. The file
    names the machine, because on a network file system another machine's lock may look free.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_dead_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"fedlens-{key}-", dir=parent))
    owner = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            os.close(owner)


def _remove_dead_folders(parent: Path) -> None:
    """Remove the folders of this machine's dead runs; a folder without a lock file stays."""
    for folder in parent.glob("fedlens-run-*"):
        try:
            owner = os.open(folder / _OWNER, os.O_RDONLY)
        except OSError:  # another account's, not complete yet, or on a file system without locks
            continue
        try:
            is_ours = not folder.is_symlink() and os.read(owner, 255) == _MACHINE
            if is_ours and try_lock(owner, exclusive=True):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(owner)


def _lock(folder: Path) -> int | None:
    """Lock the owner's file of a folder; returns None if the file system has no locks."""
    # The file is locked before it gets its name: others delete the folder of a free lock.
    owner, name = tempfile.mkstemp(dir=folder)
    try:
        os.write(owner, _MACHINE)
        if not try_lock(owner, exclusive=True):
            raise OSError("a new file is locked")
        Path(name).rename(folder / _OWNER)
    except OSError:
        os.close(owner)
        Path(name).unlink()
        return None
    return owner
