"""Memory: how many clients are trained at once on a CPU, and clients' rows that are mapped from a file.

A GPU reports that its memory is exhausted, and the round is repeated with smaller chunks. On a CPU the
operating system would kill the process instead, so what a client takes is measured before the run begins.
"""

import os
import sys
import tempfile
from pathlib import Path

from fedcore.base import devices
from fedcore.base.files import make_folder
from fedcore.base.lazy import Tensor, torch
from fedcore.engine.clients.contract import phases_of, run
from fedcore.engine.clients.local import StepSchedule
from fedcore.methods.base import Method, Params, State
from fedcore.methods.federation import Federation
from fedcore.methods.tensors import saved_storages

CHUNK = 32
"""Clients trained at once unless memory requires fewer."""
IN_MEMORY = 2**28
"""Bytes of clients' rows that stay in memory; larger ones are mapped from a file."""
_MOST = 2**30
"""Bytes that the steps of a chunk may take, or a quarter of the run's share of memory if that is less.

Processes that train chunks of one run on one machine divide them. A process takes up to 2 GiB besides, with a
CLIP as large as ViT-B-32. Where steps are so large, more clients at once are no faster on a CPU."""
_HEAP = 1.8
"""Bytes by which a process grows for each byte that autograd saves in blocks that come from the heap.

glibc cannot reuse a freed block for an aligned one of the same size, and torch aligns all of its blocks, so
temporary results leave holes between the saved ones. Measured: 1.25 (ProDA) to 2.3 (FedMaPLe); a ResNet,
whose blocks are larger, 1.06."""
_COPIES = 3
"""Copies of a client's parameters beside those that autograd saves: as received, gradient, next value."""


def clients_at_once(
    method: Method,
    federation: Federation,
    state: State,
    most: int,
    sharers: int = 1,
    memory: int | None = None,
) -> int:
    """Return how many clients one tensor program takes: as many as fit, and at most ``most``.

    Args:
        sharers: processes of one machine that train at the same time.
        memory: bytes of that machine; None: this run's share of this one.
    """
    if not method.trains or federation.problem.device.type != "cpu" or most == 1:
        return most
    # The whole share counts, not what is free at this moment: the number of clients in a chunk decides the
    # last bits of a run, which must not depend on what else the machine does.
    budget = min(_MOST, (memory or devices.memory_share()) // 4 // sharers)
    return max(1, min(most, budget // max(1, bytes_of_client(method, federation, state))))


def bytes_of_client(method: Method, federation: Federation, state: State) -> int:
    """Estimate what the step with the most samples takes, from what autograd saves in its largest phase."""
    client = federation.train.counts.argmax()[None]
    data = federation.local_data(client)
    params: Params = {
        name: value.clone() for name, value in run(method, "sends", state.server_side(), client).items()
    }
    params |= {name: value[client.to(value.device)] for name, value in state.local.items()}
    with torch.no_grad():
        const = run(method, "round_constants", params, data)
    (turn,) = StepSchedule(data, 1, 1, method.config.batch_size, max_steps=1)
    frozen = {p.untyped_storage().data_ptr() for p in federation.problem.backbone.model.parameters()}
    largest = 0.0
    for phase in phases_of(method):
        leaves = {n: p.detach().requires_grad_(p.is_floating_point()) for n, p in params.items()}
        with saved_storages() as saved:
            step = phase(leaves, const, turn.batch)
            del step  # it holds the graph
        own = [size for address, size in saved.items() if address not in frozen]
        largest = max(largest, sum(size if size >= devices.MAPPED_BLOCK else _HEAP * size for size in own))
    return round(largest) + _COPIES * size_of(params)


def size_of(params: Params) -> int:
    """Return the bytes that parameters take once every client has its own rows."""
    return sum(value.numel() * value.element_size() for value in params.values())


class ClientRows:
    """Parameters with a row for each client, in tensors whose rows are written in place.

    A round writes its participants' rows only, so it costs as much with 10,000 clients as with 1,000. In a
    file, if all clients begin with the same row, each row is written when it is first needed: of 10,000
    clients with a megabyte each, a run of 20 rounds writes those that take part or are evaluated.

    Attributes:
        values: the parameters; rows that were never needed may be zeros. Shape: (clients, ...).
    """

    def __init__(self, first: Params, folder: Path | None) -> None:
        """Copy parameters.

        Args:
            folder: where a file is made if they are large; the file has no name, so it disappears with the
                process. None: the folder of temporary files.

        Shape: first (clients, ...).
        """
        self._first: Params = {}
        self._missing = torch.ones(max((len(v) for v in first.values()), default=0), dtype=torch.bool)
        if size_of(first) <= IN_MEMORY or sys.platform == "win32":  # Windows cannot delete a file in use
            self.values = {n: v.clone(memory_format=torch.contiguous_format) for n, v in first.items()}
            return
        self.values = {name: _mapped(value, folder) for name, value in first.items()}
        for name, value in first.items():
            if value.stride(0) == 0:  # ``Method.repeat`` has broadcast one row to all clients
                self._first[name] = value[0].clone()
            else:
                self.values[name].copy_(value)

    def need(self, clients: Tensor) -> None:
        """Write the initial rows of clients that have none yet. Shape: clients (some,)."""
        if not self._first:
            return
        new = clients[self._missing[clients]]
        for name, first in self._first.items():
            self.values[name][new.to(first.device)] = first
        self._missing[new] = False

    def write(self, clients: Tensor, trained: Params) -> None:
        """Write the rows of the clients that have trained. Shape: clients (some,), trained (some, ...)."""
        for name, rows in self.values.items():
            rows.index_copy_(0, clients.to(rows.device), trained[name])


def zero_rows(like: Tensor, clients: int, folder: Path | None) -> Tensor:
    """Return a row of zeros for each client; in a file, if they are large, a row takes memory once written.

    Args:
        folder: see ``ClientRows``.

    Shape: like (any, ...) -> (clients, ...).
    """
    row_bytes = like[:1].numel() * like.element_size()
    if clients * row_bytes <= IN_MEMORY or sys.platform == "win32":
        return like.new_zeros(clients, *like.shape[1:])
    return _mapped(like[:1].expand(clients, *like.shape[1:]), folder)


def _mapped(like: Tensor, folder: Path | None) -> Tensor:
    """Return a contiguous tensor of this shape and type, in a file that only this process can reach."""
    if like.device.type != "cpu":
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    if folder is not None:
        make_folder(folder)
    handle, name = tempfile.mkstemp(prefix=".local-", dir=folder)
    try:
        size = like.numel() * like.element_size()
        if sys.platform == "linux":
            os.posix_fallocate(handle, 0, size)  # so that a full disk is an error here, not a SIGBUS later
        else:
            os.truncate(handle, size)
        return torch.from_file(name, shared=True, size=like.numel(), dtype=like.dtype).view(like.shape)
    finally:
        os.close(handle)
        Path(name).unlink()
