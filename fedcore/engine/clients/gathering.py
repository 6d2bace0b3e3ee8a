"""What a round's chunks send back, joined in client order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.engine.clients.averages import MeanUploads, RunningMeans
from fedcore.engine.clients.executor import ChunkResult
from fedcore.engine.clients.local import Trained
from fedcore.engine.clients.transport import Traffic, Transport, traffic
from fedcore.lazy import torch
from fedcore.methods.base import Method, Params, Ragged, Uploads
from fedcore.records.events import Cell

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gathered:
    """The participants' side of a round.

    Attributes:
        trained: without records; of a method that needs only means, only the local parameters.
        slots: the optimisers' state after the round, one per chunk.
        cells: accuracy before aggregation, where chunks were evaluated.
        seconds_evaluate: what that took, all chunks together.
    """

    trained: Trained
    uploads: Uploads
    traffic: Traffic
    slots: list[Params]
    cells: list[Cell]
    seconds_evaluate: float


def gather(
    results: Iterable[ChunkResult],
    clients: Tensor,
    samples: Tensor,
    transport: Transport,
    method: Method,
    only_means: bool,
) -> Gathered:
    """Join the results of a round's chunks as they arrive.

    Args:
        only_means: sum the uploads instead of keeping them.

    Shape: clients and samples (participants,).
    """
    given = Uploads({}, clients, samples)
    means = RunningMeans(method.shared, given.weights(method.config.weighting)) if only_means else None
    trained: list[Trained] = []
    sent: list[dict[str, Tensor | Ragged]] = []
    crossed: list[Traffic] = []
    slots: list[Params] = []
    cells: list[Cell] = []
    seconds = 0.0
    for result in results:
        uploads = transport.up(result.sent)
        crossed.append(traffic(uploads, len(result.trained.steps)))
        if means is None:
            sent.append(uploads)
        else:
            means.add(uploads)
        trained.append(result.trained)
        slots.append(result.slots)
        cells += result.cells
        seconds += result.seconds_evaluate
    if means is None:
        joined = Uploads({n: _join([s[n] for s in sent]) for n in sent[0]}, clients, samples)
    else:
        joined = MeanUploads({}, clients, samples, means.result())
    total = Traffic(torch.cat([t.scalars for t in crossed]), torch.cat([t.bytes for t in crossed]))
    return Gathered(_join_trained(trained), joined, total, slots, cells, seconds)


def _join(parts: Sequence[Tensor | Ragged]) -> Tensor | Ragged:
    """Join the uploads of several chunks on one client axis; ragged ones are padded to the longest."""
    ragged = [p for p in parts if isinstance(p, Ragged)]
    if not ragged:
        return torch.cat([p for p in parts if not isinstance(p, Ragged)])
    longest = max(p.values.shape[1] for p in ragged)
    padded = []
    for p in ragged:
        clients, rows, *rest = p.values.shape
        padded.append(torch.cat([p.values, p.values.new_zeros(clients, longest - rows, *rest)], 1))
    return Ragged(torch.cat(padded), torch.cat([p.lengths for p in ragged]))


def _join_trained(parts: list[Trained]) -> Trained:
    params = {name: torch.cat([p.params[name] for p in parts]) for name in parts[0].params}
    terms = {name: torch.cat([p.terms[name] for p in parts]) for name in parts[0].terms}
    return Trained(params, {}, torch.cat([p.loss for p in parts]), torch.cat([p.steps for p in parts]), terms)
