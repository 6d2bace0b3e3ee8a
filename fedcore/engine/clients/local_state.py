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


class OwnRows:
    """The clients' local parameters, in tensors whose rows can be written in place.

    On a file, where all clients begin with the same row, each is written when it is first needed: of 10,000
    clients with a megabyte each, a run of 20 rounds writes those that take part or are evaluated.

    Attributes:
        values: the parameters; rows that were never needed may be zeros. Shape: (clients, ...).
    """

    def __init__(self, local: Params, folder: Path | None) -> None:
        """Copy local parameters.

        Args:
            folder: where a file is made if they are many; it has no name, so it is gone when the process
                ends. None: the folder of temporary files.

        Shape: local (clients, ...).

        Raises:
            OSError: when the disk has no room for the file.
        """
        self._first: Params = {}
        self._missing = torch.ones(max((len(v) for v in local.values()), default=0), dtype=torch.bool)
        if size_of(local) <= IN_MEMORY or sys.platform == "win32":  # Windows cannot delete a file in use
            self.values = {n: v.clone(memory_format=torch.contiguous_format) for n, v in local.items()}
            return
        self.values = {name: _mapped(value, folder) for name, value in local.items()}
        for name, value in local.items():
            if value.stride(0) == 0:
                self._first[name] = value[0].clone()
            else:
                self.values[name].copy_(value)

    def need(self, clients: Tensor) -> None:
        """Write the first rows of clients that have none yet. Shape: clients (some,)."""
        if not self._first:
            return
        new = clients[self._missing[clients]]
        for name, first in self._first.items():
            self.values[name][new.to(first.device)] = first
        self._missing[new] = False


def write_rows(local: Params, clients: Tensor, trained: Params) -> None:
    """Write the participants' rows in place. Shape: clients (participants,), trained (participants, ...)."""
    for name, rows in local.items():
        rows.index_copy_(0, clients.to(rows.device), trained[name])


def _mapped(like: Tensor, folder: Path | None) -> Tensor:
    """Return a contiguous tensor of this shape and type, on a file of this process alone."""
    if like.device.type != "cpu":
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
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
