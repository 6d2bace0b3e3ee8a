"""Transfer of checkpoints: as bytes through Ray's object store, or as files through a shared folder."""

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

Payload = np.ndarray | str
"""The bytes of a file, or the path of its copy in the shared folder."""


def send(file: Path, folder: str | None) -> Payload:
    """Return the payload of a file: its bytes, or the path of a copy in ``folder``.

    Args:
        folder: of the run in the shared folder; None: no folder is shared.
    """
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
    """Yield the path of a marker in the shared folder, by which a node recognises that folder.

    Files that killed workers of this machine left in the shared folder are deleted (see ``run_folder``).

    Raises:
        FedLensError: field ``shared``, for a relative path, or a folder that cannot be written.
    """
    if not shared.is_absolute():
        raise FedLensError(f"{shared} is not an absolute path; nodes have other working folders", "shared")
    with ExitStack() as opened:
        try:
            marker = opened.enter_context(run_folder("run-marker", shared))
        except OSError as error:
            raise FedLensError(f"{shared} cannot be written ({error.strerror})", "shared") from error
        yield str(marker)
