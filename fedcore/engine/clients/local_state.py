"""The clients' local parameters between rounds: in memory, or mapped from a file where they are many.

A round writes its participants' rows in place, so that it costs as much with 10,000 clients as with 1,000.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.cache.durable import make_folder
from fedcore.lazy import torch
from fedcore.methods.base import Params

if TYPE_CHECKING:
    from torch import Tensor

IN_MEMORY = 2**28
"""Bytes of local parameters that stay in memory; more of them are mapped from a file."""


def size_of(params: Params) -> int:
    """Return the bytes that parameters take once every client has rows of its own."""
    return sum(value.numel() * value.element_size() for value in params.values())


def own_rows(local: Params, folder: Path | None) -> Params:
    """Return a copy of the local parameters whose rows can be written in place.

    Args:
        folder: where a file is made if they are many; it has no name, so it is gone when the process ends.
            None: the folder of temporary files.

    Shape: (clients, ...) -> same.

    Raises:
        OSError: when the disk has no room for the file.
    """
    if size_of(local) <= IN_MEMORY or sys.platform == "win32":  # Windows cannot delete a file in use
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in local.items()}
    return {name: _mapped(value, folder).copy_(value) for name, value in local.items()}


def write_rows(local: Params, clients: Tensor, trained: Params) -> None:
    """Write the participants' rows in place. Shape: clients (participants,), trained (participants, ...)."""
    for name, rows in local.items():
        rows.index_copy_(0, clients.to(rows.device), trained[name])


def _mapped(like: Tensor, folder: Path | None) -> Tensor:
    """Return a contiguous tensor of this shape and type, on a file of this process alone."""
    if like.device.type != "cpu":
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    if folder is not None:
        make_folder(folder)
    handle, name = tempfile.mkstemp(prefix=".local-", dir=folder)
    try:
        size = like.numel() * like.element_size()
        if sys.platform == "linux":
            os.posix_fallocate(handle, 0, size)  # a full disk is an error here, not a crash later
        else:
            os.truncate(handle, size)
        return torch.from_file(name, shared=True, size=like.numel(), dtype=like.dtype).view(like.shape)
    finally:
        os.close(handle)
        Path(name).unlink()
