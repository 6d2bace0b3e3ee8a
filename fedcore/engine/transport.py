"""The only road between clients and server: whatever crosses is counted here, and tests listen here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.lazy import torch
from fedcore.methods.base import Params, Ragged, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Traffic:
    """Scalars and bytes per participant. Shape: (participants,) int64 each."""

    scalars: Tensor
    bytes: Tensor


class Transport:
    """Counts what is sent. A subclass may look at every tensor that crosses, in either direction."""

    def down(self, state: State, clients: Tensor) -> Params:
        """What the participants receive: shared and personal parameters. Shape: -> (participants, ...)."""
        shared = {n: v.expand(len(clients), *v.shape) for n, v in state.shared.items()}
        return {**shared, **{n: v[clients.to(v.device)] for n, v in state.personal.items()}}

    def up(self, sent: dict[str, Tensor | Ragged]) -> dict[str, Tensor | Ragged]:
        """What the server receives from the participants. Shape: (participants, ...)."""
        return sent


def traffic(sent: dict[str, Tensor | Ragged], participants: int) -> Traffic:
    """Count what each participant sends or receives; of a ragged value only its own rows."""
    scalars = torch.zeros(participants, dtype=torch.int64)
    size = torch.zeros(participants, dtype=torch.int64)
    for value in sent.values():
        if isinstance(value, Ragged):
            row = value.values[0, 0].numel() if value.values.shape[1] else 0
            count = value.lengths.cpu().to(torch.int64) * row
            item = value.values.element_size()
        else:
            count = torch.full((participants,), value[0].numel())
            item = value.element_size()
        scalars += count
        size += count * item
    return Traffic(scalars, size)
