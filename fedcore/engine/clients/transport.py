"""All messages between clients and server pass through here: traffic is counted, and tests inspect it."""

from __future__ import annotations

from collections.abc import Mapping
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
    """The messages of a round; a subclass may inspect every tensor that is sent in either direction."""

    def down(self, state: State, clients: Tensor) -> Params:
        """Send the shared and personal parameters to the participants. Shape: -> (participants, ...)."""
        shared = {n: v.expand(len(clients), *v.shape) for n, v in state.shared.items()}
        return {**shared, **{n: v[clients.to(v.device)] for n, v in state.personal.items()}}

    def up(self, sent: dict[str, Tensor | Ragged]) -> dict[str, Tensor | Ragged]:
        """Send the participants' uploads to the server. Shape: (participants, ...)."""
        return sent


def traffic(sent: Mapping[str, Tensor | Ragged], participants: int) -> Traffic:
    """Count each participant's scalars and bytes; of a ragged value only the rows that it sends."""
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
