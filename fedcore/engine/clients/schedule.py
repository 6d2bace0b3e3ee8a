"""The steps of a round: the clients and samples of each, drawn before the first one begins.

The host knows which clients still have batches. The positions of clients and samples that the steps need on
the device are sent there in one copy per round: a small copy in each step would make the host wait for the
GPU, or the GPU for the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedcore.federation import LocalData
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Batch


def batch_slots(data: LocalData, round_: int, epoch: int, size: int) -> Tensor:
    """Draw the samples of each client in each step of an epoch, -1 for none.

    A client's order is drawn from (seed, "batches", round, epoch, client name) only, so that it depends
    neither on the other participants nor on the order of clients.

    Shape: -> (participants, steps, size) positions in ``data.rows``.
    """
    counts = data.rows.counts.tolist()
    steps = max(1, -(-max(counts) // size))
    slots = torch.full((len(counts), steps * size), -1, dtype=torch.int64)
    for i, (client, n) in enumerate(zip(data.clients.tolist(), counts, strict=True)):
        name = data.problem.clients[client]
        slots[i, :n] = torch.randperm(n, generator=data.problem.generator("batches", round_, epoch, name))
    return slots.view(len(counts), steps, size)


@dataclass(frozen=True)
class Turn:
    """One step of a round.

    Attributes:
        everyone: whether all participants take it.
        rows: positions of the clients that take it among the participants, ascending, on the device.
        batch: their samples.
        recorded: positions of the samples whose record is stored: in the flattened batch, and in the
            flattened ``data.rows``; on the device, empty before a client's last epoch.

    Shape: rows (active,); recorded two of (samples,).
    """

    everyone: bool
    rows: Tensor
    batch: Batch
    recorded: tuple[Tensor, Tensor]


class Schedule:
    """All steps of a round for some clients.

    Attributes:
        steps: how many each client takes. Shape: (participants,), on the CPU.
    """

    def __init__(
        self, data: LocalData, round_: int, epochs: int, batch_size: int, max_steps: int | None = None
    ) -> None:
        """Draw the batches of ``epochs`` epochs, of which a client takes at most ``max_steps``."""
        self.data = data
        self.steps = torch.zeros(len(data.clients), dtype=torch.int64)
        # One entry per step, on the CPU: the clients' positions; (active, longest) positions in
        # ``data.rows``, -1 on padding; and whether it is in a client's last epoch, whose records are stored.
        self._active: list[Tensor] = []
        self._slots: list[Tensor] = []
        self._last: list[Tensor] = []
        limit = torch.iinfo(torch.int64).max if max_steps is None else max_steps
        batches = -(-data.rows.counts // batch_size)
        last_epoch = ((limit - 1) // batches.clamp(min=1)).clamp(max=epochs - 1)
        for epoch in range(epochs):
            for slots in batch_slots(data, round_, epoch, batch_size).unbind(1):
                rows = ((slots >= 0).any(1) & (self.steps < limit)).nonzero()[:, 0]
                if not len(rows):
                    continue  # all have taken their steps
                self.steps[rows] += 1
                self._active.append(rows)
                self._slots.append(trimmed(slots[rows]))
                self._last.append(last_epoch[rows] == epoch)

    def __iter__(self) -> Iterator[Turn]:
        """Yield the steps in order; a step's samples are read only now."""
        pool = self.data.pool
        rows, clients, samples, masks = self._tables
        sources, targets = self._records
        host = self._samples if pool.values.device != pool.device else samples
        for i, (active, slots) in enumerate(zip(self._active, self._slots, strict=True)):
            everyone = len(active) == len(self.data.clients)
            batch = Batch(pool.x(host[i]), pool.y(samples[i]), masks[i].view(slots.shape), clients[i])
            yield Turn(everyone, rows[i], batch, (sources[i], targets[i]))

    @cached_property
    def _samples(self) -> list[Tensor]:
        """Rows of the pool for each step, on the CPU; padding repeats a client's first sample."""
        index = self.data.rows.index
        pairs = zip(self._active, self._slots, strict=True)
        return [index[rows].gather(1, slots.clamp(min=0)) for rows, slots in pairs]

    @cached_property
    def _tables(self) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """For each step, on the device: the clients' positions and numbers, rows of the pool, and mask."""
        clients = [self.data.clients[rows] for rows in self._active]
        numbers = self._on_device([*self._active, *clients, *self._samples])
        masks = self._on_device([slots >= 0 for slots in self._slots])
        n = len(self._active)
        return numbers[:n], numbers[n : 2 * n], numbers[2 * n :], masks

    @cached_property
    def _records(self) -> tuple[list[Tensor], list[Tensor]]:
        """For each step, on the device: the positions from which and to which records are copied."""
        width, sources, targets = self.data.rows.index.shape[1], [], []
        for rows, slots, last in zip(self._active, self._slots, self._last, strict=True):
            row, place = ((slots >= 0) & last[:, None]).nonzero(as_tuple=True)
            sources.append(row * slots.shape[1] + place)
            targets.append(rows[row] * width + slots[row, place])
        both = self._on_device([*sources, *targets])
        return both[: len(sources)], both[len(sources) :]

    def _on_device(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors of one type on the device, moved there in one copy."""
        if not parts:
            return []
        moved = torch.cat([part.flatten() for part in parts]).to(self.data.pool.device)
        pieces = moved.split([part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def trimmed(slots: Tensor) -> Tensor:
    """Drop the columns that are padding for all. Shape: (active, size) -> (active, longest)."""
    longest = int((slots >= 0).sum(1).max())  # padding is at the end of a client's last batch
    return slots[:, :longest]


def make_batch(data: LocalData, index: Tensor, rows: Tensor) -> Batch:
    """Return the samples of one step. Shape: index (participants, size); rows (active,) clients."""
    slots = trimmed(index[rows])
    pool_rows = data.rows.index[rows].gather(1, slots.clamp(min=0))
    device = data.pool.device
    return Batch(
        data.pool.x(pool_rows), data.pool.y(pool_rows), (slots >= 0).to(device), data.clients[rows].to(device)
    )
