"""Train several clients locally as one tensor program.

A loss has one value per client and clients share no parameter within a round, so the gradient of the losses'
sum is every client's own gradient. A client that has run out of batches is left out of the step altogether:
neither its parameters nor its optimiser move.

Matrix products are computed in single precision or in what the config's ``arithmetic`` asks for. Parameters,
optimisers, averages and evaluation stay in single precision in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from fedcore.engine.clients.contract import FirstStep
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.engine.clients.schedule import Schedule, Turn
from fedcore.errors import FedLensError
from fedcore.federation import LocalData
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import Batch, Method, Params, Phase, Step
from fedcore.methods.hyperparameters import Arithmetic


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


def train_clients(
    method: Method,
    params: Params,
    data: LocalData,
    round_: int,
    optimiser: ClientOptimiser,
    should_stop: Callable[[], bool] = lambda: False,
    max_steps: int | None = None,
    received: Collection[str] = (),
    first_step: FirstStep | None = None,
) -> Trained:
    """Train all clients of ``data`` for one round.

    Args:
        max_steps: most steps of each client over all its epochs; None: as many as its batches.
        received: names of the parameters that the server sent, near which a proximal term holds the clients.
        first_step: checks the method's contract with the first step that is taken.

    Shape: params (participants, ...); they are not changed in place.

    Raises:
        Stopped: if ``should_stop`` says so between two steps.
        FedLensError: if a client's loss is no longer finite; names the client.
    """
    with torch.no_grad():
        const = method.round_constants(params, data)
        if method.trains and method.config.arithmetic != "fp32":
            # Computed when first read: in a step, they would have its arithmetic in a resumed run alone.
            _ = method.problem.class_features
    phases = method.phases if first_step is None else first_step.phases()
    if method.trains and method.config.proximal:
        const = const | {_ANCHOR + name: params[name] for name in received}
        phases = tuple(_with_proximal_term(phase, method.config.proximal) for phase in phases)
    params = dict(params)
    epochs, size = (method.config.local_epochs, method.config.batch_size) if method.trains else (0, 1)
    schedule = Schedule(data, round_, epochs, size, max_steps)
    sums = _RoundSums(data, schedule.steps)
    with tf32(wanted=method.trains and method.config.arithmetic == "tf32"):
        for turn in schedule:
            if should_stop():
                raise Stopped
            for number, phase in enumerate(phases):
                step = _step(phase, method, params, const, turn, optimiser)
                sums.add(step, turn, last_phase=number == len(phases) - 1)
    return sums.result(params, round_)


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Let a GPU round the factors of matrix products to TF32 in this block; a CPU has no TF32."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = wanted
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def autocast(arithmetic: Arithmetic, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass; its backward pass has the same types."""
    if arithmetic != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _in_single_precision(step: Step) -> Step:
    """Widen the records and moved parameters of a step from bf16, as they outlive it."""

    def wide(values: Params) -> Params:
        return {n: v.float() if v.dtype == torch.bfloat16 else v for n, v in values.items()}

    return replace(step, record=wide(step.record), moved=wide(step.moved))


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


def _step(
    phase: Callable[[Params, Params, Batch], Step],
    method: Method,
    params: Params,
    const: Params,
    turn: Turn,
    optimiser: ClientOptimiser,
) -> Step:
    """Take one phase of one batch, and write the moved parameters into ``params``."""
    everyone, rows = turn.everyone, turn.rows
    active = {n: (p if everyone else p[rows]).detach() for n, p in params.items()}
    leaves = {n: p.requires_grad_(p.is_floating_point()) for n, p in active.items()}
    constants = const if everyone else {n: c[rows] for n, c in const.items()}
    with autocast(optimiser.config.arithmetic, rows.device):
        step = _in_single_precision(phase(leaves, constants, turn.batch))
    # All gradients are taken before anything moves: the losses of one step must see the same parameters.
    gradients = _gradients(step.losses, leaves, keep_graph=bool(step.guides))
    guides = _gradients(step.guides, leaves)
    with torch.no_grad():
        if guides:
            gradients |= method.combine_gradients({n: gradients[n] for n in guides}, guides)
        moved = {n: optimiser.step(n, active[n].detach(), g, rows) for n, g in gradients.items()}
        for name, value in (moved | step.moved).items():
            params[name] = value if everyone else params[name].index_copy(0, rows, value)
    return step


def _gradients(losses: Mapping[tuple[str, ...], Tensor], leaves: Params, keep_graph: bool = False) -> Params:
    """Return the gradients of losses by the parameters that each of them names."""
    gradients: Params = {}
    for i, (names, loss) in enumerate(losses.items()):
        more = keep_graph or i < len(losses) - 1
        taken = torch.autograd.grad(loss.sum(), [leaves[n] for n in names], retain_graph=more)
        gradients.update(zip(names, taken, strict=True))
    return gradients


class _RoundSums:
    """Losses, terms and records of a round, summed on the device, so that no step waits for a number."""

    def __init__(self, data: LocalData, steps: Tensor) -> None:
        self.data, self.steps = data, steps
        self.loss = torch.zeros(len(data.clients), dtype=torch.float64, device=data.pool.device)
        self.terms: dict[str, Tensor] = {}
        self.record: Params = {}

    def add(self, step: Step, turn: Turn, last_phase: bool) -> None:
        if last_phase:
            self.loss[turn.rows] += next(iter(step.losses.values())).detach().double()
        for name, value in step.terms.items():
            total = self.terms.setdefault(name, torch.zeros_like(self.loss))
            total[turn.rows] += value.detach().double()
        source, target = turn.recorded
        for name, value in step.record.items() if len(source) else ():
            index = self.data.rows.index
            rows = self.record.setdefault(name, value.new_zeros(index.numel(), *value.shape[2:]))
            rows[target] = value.detach().flatten(0, 1)[source]

    def result(self, params: Params, round_: int) -> Trained:
        count = self.steps.clamp(min=1).to(self.loss.device)
        loss = self.loss / count
        bad = (~loss.isfinite()).nonzero()[:, 0].tolist()
        if bad:
            name = self.data.problem.clients[int(self.data.clients[bad[0]])]
            raise FedLensError(f"client '{name}': the loss is not finite in round {round_}; lower lr", "lr")
        params = {n: p.detach() for n, p in params.items()}
        shape = self.data.rows.index.shape
        record = {n: rows.unflatten(0, shape) for n, rows in self.record.items()}
        return Trained(params, record, loss, self.steps, {n: t / count for n, t in self.terms.items()})
