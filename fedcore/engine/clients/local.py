"""Train several clients locally as one tensor program.

A loss has one value per client and clients share no parameter within a round, so the gradient of the losses'
sum is every client's own gradient. A client that has run out of batches is left out of the step altogether:
neither its parameters nor its optimiser move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.methods.base import Batch, Method, Params, Phase, Step
from fedcore.methods.optional import RoundConstants

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.federation import LocalData


class Stopped(Exception):
    """The user asked the run to stop; the unfinished round is discarded."""


@dataclass(frozen=True)
class Trained:
    """The outcome of local training.

    Shape: params and record (participants, ...); loss (participants,) mean over the round's steps;
    steps (participants,) int64; terms name -> (participants,).
    """

    params: Params
    record: Params
    loss: Tensor
    steps: Tensor
    terms: dict[str, Tensor]


def batch_slots(data: LocalData, round_: int, epoch: int, size: int) -> Tensor:
    """Draw the samples of each client in each step of an epoch, -1 for none.

    A client's order is drawn from (seed, "batches", round, epoch, client name) only, so
    that it depends neither on who else takes part nor on the order of clients.

    Shape: -> (participants, steps, size) positions in ``data.rows``.
    """
    counts = data.rows.counts.tolist()
    steps = max(1, -(-max(counts) // size))
    slots = torch.full((len(counts), steps * size), -1, dtype=torch.int64)
    for i, (client, n) in enumerate(zip(data.clients.tolist(), counts, strict=True)):
        name = data.problem.clients[client]
        slots[i, :n] = torch.randperm(n, generator=data.problem.generator("batches", round_, epoch, name))
    return slots.view(len(counts), steps, size)


def train_clients(
    method: Method,
    params: Params,
    data: LocalData,
    round_: int,
    optimiser: ClientOptimiser,
    should_stop: Callable[[], bool] = lambda: False,
    max_steps: int | None = None,
    received: Collection[str] = (),
) -> Trained:
    """Train all clients of ``data`` for one round.

    Args:
        max_steps: most steps of each client over all its epochs; None: as many as its batches.
        received: names of the parameters that the server sent, near which a proximal term holds the clients.

    Shape: params (participants, ...); they are not changed in place.

    Raises:
        Stopped: when ``should_stop`` says so between two steps.
        FedLensError: when a client's loss is no longer finite; names the client.
    """
    with torch.no_grad():
        const = method.round_constants(params, data) if isinstance(method, RoundConstants) else {}
    phases = method.phases
    if method.trains and method.config.proximal:
        const = const | {_ANCHOR + name: params[name] for name in received}
        phases = tuple(_with_proximal_term(phase, method.config.proximal) for phase in phases)
    params = dict(params)
    sums = _RoundSums(data)
    epochs = method.config.local_epochs if method.trains else 0
    limit = torch.iinfo(torch.int64).max if max_steps is None else max_steps
    if epochs:
        batches = -(-data.rows.counts // method.config.batch_size)
        last_epoch = ((limit - 1) // batches.clamp(min=1)).clamp(max=epochs - 1)
    for epoch in range(epochs):
        slots = batch_slots(data, round_, epoch, method.config.batch_size)
        for index in slots.unbind(1):
            if should_stop():
                raise Stopped
            rows = ((index >= 0).any(1) & (sums.steps < limit)).nonzero()[:, 0]
            if not len(rows):
                continue  # all have taken their steps
            batch = make_batch(data, index, rows)
            for number, phase in enumerate(phases):
                step = _step(phase, params, const, batch, rows.to(data.pool.device), optimiser)
                last_phase = number == len(phases) - 1
                sums.add(step, rows, index, last_phase, keep=last_epoch[rows] == epoch)
    return sums.result(params, round_)


_ANCHOR = "received/"
"""Prefix of the round's constants that hold the parameters as received, w_t."""


def _with_proximal_term(phase: Phase, weight: float) -> Phase:
    """Return the phase with a proximal term in its losses: L + (mu/2) |w - w_t|^2.

    Source: Li et al., Federated Optimization in Heterogeneous Networks (FedProx), 2020, Algorithm 2.
    """

    def phase_with_term(params: Params, const: Params, batch: Batch) -> Step:
        step = phase(params, const, batch)
        losses, proximal = {}, torch.zeros_like(next(iter(step.losses.values())))
        for names, loss in step.losses.items():
            pairs = [(params[n], const[_ANCHOR + n]) for n in names if _ANCHOR + n in const]
            term = weight / 2 * sum((now - before).square().flatten(1).sum(1) for now, before in pairs)
            losses[names] = loss + term
            proximal = proximal + term
        return replace(step, losses=losses, terms=step.terms | {"proximal": proximal})

    return phase_with_term


def make_batch(data: LocalData, index: Tensor, rows: Tensor) -> Batch:
    """Return the samples of one step. Shape: index (participants, size); rows (active,) clients."""
    slots = index[rows]
    longest = int((slots >= 0).sum(1).max())  # padding is at the end of a client's last batch
    slots = slots[:, :longest]
    mask = slots >= 0
    pool_rows = data.rows.index[rows].gather(1, slots.clamp(min=0))
    device = data.pool.device
    return Batch(
        data.pool.x(pool_rows), data.pool.y(pool_rows), mask.to(device), data.clients[rows].to(device)
    )


def _step(
    phase: Callable[[Params, Params, Batch], Step],
    params: Params,
    const: Params,
    batch: Batch,
    rows: Tensor,
    optimiser: ClientOptimiser,
) -> Step:
    """Take one phase of one batch, and write the moved parameters into ``params``."""
    everyone = len(rows) == optimiser.clients
    active = {n: (p if everyone else p[rows]).detach() for n, p in params.items()}
    leaves = {n: p.requires_grad_(p.is_floating_point()) for n, p in active.items()}
    step = phase(leaves, const if everyone else {n: c[rows] for n, c in const.items()}, batch)
    gradients: Params = {}
    for i, (names, loss) in enumerate(step.losses.items()):
        more = i < len(step.losses) - 1
        taken = torch.autograd.grad(loss.sum(), [leaves[n] for n in names], retain_graph=more)
        gradients.update(zip(names, taken, strict=True))
    with torch.no_grad():
        moved = {n: optimiser.step(n, active[n].detach(), g, rows) for n, g in gradients.items()}
        for name, value in (moved | step.moved).items():
            params[name] = value if everyone else params[name].index_copy(0, rows, value)
    return step


class _RoundSums:
    """Losses, terms and records of a round, summed without waiting for the device."""

    def __init__(self, data: LocalData) -> None:
        self.data = data
        n, device = len(data.clients), data.pool.device
        self.loss = torch.zeros(n, dtype=torch.float64, device=device)
        self.terms: dict[str, Tensor] = {}
        self.record: Params = {}
        self.steps = torch.zeros(n, dtype=torch.int64)

    def add(self, step: Step, rows: Tensor, index: Tensor, last_phase: bool, keep: Tensor) -> None:
        """Add one phase of one step. Shape: rows (active,); keep (active,), True where records are kept."""
        on_device = rows.to(self.loss.device)
        if last_phase:
            self.steps[rows] += 1
            self.loss[on_device] += next(iter(step.losses.values())).detach().double()
        for name, value in step.terms.items():
            total = self.terms.setdefault(name, torch.zeros_like(self.loss))
            total[on_device] += value.detach().double()
        for name, value in step.record.items() if keep.any() else ():
            chosen = keep.nonzero()[:, 0].to(value.device)
            kept = value.detach() if keep.all() else value.detach()[chosen]
            self._keep(name, kept, rows[keep], index[rows[keep]])

    def _keep(self, name: str, value: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Store per-sample values at the positions of their samples in ``data.rows``."""
        slots = slots[:, : value.shape[1]]
        shape = (*self.data.rows.index.shape, *value.shape[2:])
        kept = self.record.setdefault(name, value.new_zeros(shape))
        row, place = (slots >= 0).nonzero(
            as_tuple=True
        )  # counted here: a mask would be counted on the device
        to = (rows[row].to(kept.device), slots[row, place].to(kept.device))
        kept[to] = value[row.to(value.device), place.to(value.device)]

    def result(self, params: Params, round_: int) -> Trained:
        count = self.steps.clamp(min=1).to(self.loss.device)
        loss = self.loss / count
        bad = (~loss.isfinite()).nonzero()[:, 0].tolist()
        if bad:
            name = self.data.problem.clients[int(self.data.clients[bad[0]])]
            raise FedLensError(f"client '{name}': the loss is not finite in round {round_}; lower lr", "lr")
        params = {n: p.detach() for n, p in params.items()}
        return Trained(params, self.record, loss, self.steps, {n: t / count for n, t in self.terms.items()})
