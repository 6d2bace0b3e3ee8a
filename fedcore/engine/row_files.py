"""Row files: what the clients keep between rounds, where it is too large to be written whole every round.

``rows-N.safetensors`` holds the rows of the clients that changed in round N; the checkpoint of a round says,
for each client, which file has its row. A client that has never trained has none: its row is made anew from
the seed. Files that no checkpoint needs are deleted with the checkpoints. So that these do not need ever more
files, a round also writes the rows of the oldest file again, once all clients could have trained since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.engine.clients.local_state import size_of
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods.base import Params, State

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 2**28
"""Bytes of local parameters and optimiser states from which on a round writes only the rows that changed."""
WRITTEN = "written"
"""Name of the tensor in a checkpoint that says which round's file has each client's row; -1: none."""
_NAME = re.compile(r"rows-(\d+)\.safetensors")


def path_of(folder: Path, round_: int) -> Path:
    """Return the path of the rows that changed in a round."""
    return folder / f"rows-{round_}.safetensors"


def rounds_in(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the round and the path of the row files of a folder."""
    for path in folder.glob("rows-*.safetensors"):
        if match := _NAME.fullmatch(path.name):
            yield int(match[1]), path


def are_needed(state: State, optimiser: ClientOptimiser) -> bool:
    """Return whether the clients' rows are too large to be written whole every round."""
    return size_of(state.local) + size_of(optimiser.slots) > LARGE


def due_rows(written: Tensor, trained: Tensor, round_: int) -> Tensor:
    """Return the clients whose rows a round writes.

    Args:
        written: round of the file with each client's row; -1 where the row has changed since, or never.
        trained: rounds in which each client took part.

    Shape: (clients,) each -> (rows,), ascending.
    """
    due = (trained > 0) & (written < 0)
    old = written[written >= 0]
    if len(old) and (round_ - int(old.min())) * int(due.sum()) > len(written):
        due = due | (written == old.min())
    return due.nonzero()[:, 0]


def rows_of(clients: Tensor, state: State, optimiser: ClientOptimiser) -> Params:
    """Return what a row file holds, by name. Shape: clients (rows,) -> (rows, ...) each."""
    rows = {f"local/{n}": v[clients.to(v.device)] for n, v in state.local.items()}
    rows |= {f"optimiser/{n}": v[clients.to(v.device)] for n, v in optimiser.slots.items()}
    return rows | {"clients": clients}


def put_rows(
    files: Iterable[tuple[int, Params]], written: Tensor, local: Params, optimiser: ClientOptimiser
) -> None:
    """Write the rows of row files to where they belong.

    Args:
        files: round and content of each file that ``written`` names.
        local: initial parameters, which clients that never trained keep.
    """
    for round_, content in files:
        clients = content["clients"].cpu()
        some = written[clients] == round_
        slots: Params = {}
        for name, values in content.items():
            part, _, rest = name.partition("/")
            if part == "local":
                local[rest][clients[some].to(local[rest].device)] = values[some.to(values.device)]
            elif rest:
                slots[rest] = values[some.to(values.device)]
        optimiser.put(clients[some], ClientOptimiser(optimiser.config, int(some.sum()), slots))
