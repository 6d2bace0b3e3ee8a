"""The clients that fit into memory at once on a CPU, measured before a run begins.

A GPU says when its memory is used up, and the round begins again with smaller chunks; on a CPU the system
would end the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcore import memory_limits
from fedcore.engine.clients.schedule import batch_slots, make_batch
from fedcore.lazy import torch
from fedcore.methods.base import Method, Params, State

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.federation import Federation

CHUNK = 32
"""Clients trained at once unless memory requires fewer."""
_MOST = 4 * 2**30
"""Bytes that the activations of a chunk may take, or a quarter of the run's share of memory if that is less.

Processes that train chunks of one run on one machine have this quarter together.

The whole share counts, not what is free at the moment: the chunk decides the last bits of a run."""


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
    budget = min(_MOST, (memory or memory_limits.share()) // 4 // sharers)
    return max(1, min(most, budget // max(1, bytes_of_client(method, federation, state))))


def bytes_of_client(method: Method, federation: Federation, state: State) -> int:
    """Measure what autograd keeps for one step of the client with the most samples, in its largest phase."""
    client = federation.train.counts.argmax()[None]
    data = federation.local_data(client)
    params: Params = {name: value[None].clone() for name, value in state.shared.items()}
    params |= {n: v[client.to(v.device)] for n, v in (state.personal | state.local).items()}
    with torch.no_grad():
        const = method.round_constants(params, data)
    slots = batch_slots(data, 1, 0, method.config.batch_size)
    batch = make_batch(data, slots[:, 0], torch.tensor([0]))
    frozen = {p.untyped_storage().data_ptr() for p in federation.problem.backbone.model.parameters()}
    largest = 0
    for phase in method.phases:
        kept: dict[int, int] = {}

        def note(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in frozen:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        leaves = {n: p.detach().requires_grad_(p.is_floating_point()) for n, p in params.items()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            step = phase(leaves, const, batch)
        largest = max(largest, sum(kept.values()))
        del step
    return largest
