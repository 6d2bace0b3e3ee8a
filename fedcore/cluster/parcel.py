"""Checkpoints on their way: through Ray's object store as bytes, or through a folder that both sides see."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from fedcore.cache.durable import publish
from fedcore.cluster.folders import run_folder
from fedcore.errors import FedLensError

Parcel = np.ndarray | str
"""The bytes of a file, or the path of its copy in the shared folder."""


def send(file: Path, folder: str | None) -> Parcel:
    """Return what is sent for a file: its bytes, or where its copy lies.

    Args:
        folder: of the run in the shared folder; None where nothing is shared.
    """
    if folder is None:
        return np.fromfile(file, dtype=np.uint8)
    path = Path(folder) / f"{uuid.uuid4().hex}-{file.name}"
    part = path.with_suffix(".part")
    shutil.copyfile(file, part)
    publish(part, path)
    return str(path)


def receive(parcel: Parcel, to: Path) -> None:
    """Write what was sent to a file; its copy in the shared folder is moved."""
    if isinstance(parcel, str):
        shutil.move(parcel, to)
    else:
        parcel.tofile(to)


@contextmanager
def marked(shared: Path) -> Iterator[str]:
    """Make a folder in the shared one by which a node knows that it sees the same one; yields its path.

    What killed workers of this machine left in the shared folder is removed (see ``run_folder``).

    Raises:
        FedLensError: field ``shared``, for a folder that is none, or cannot be written.
    """
    if not shared.is_absolute():
        raise FedLensError(f"{shared} is no absolute path; nodes have other working folders", "shared")
    with ExitStack() as opened:
        try:
            marker = opened.enter_context(run_folder("run-marker", shared))
        except OSError as error:
            raise FedLensError(f"{shared} cannot be written ({error.strerror})", "shared") from error
        yield str(marker)
