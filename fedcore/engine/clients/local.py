"""Train several clients locally as one tensor program.

A loss has one value per client and clients share no parameter within a round, so the gradient of the losses'
sum is every client's own gradient. A client that has run out of batches is left out of the step altogether:
neither its parameters nor its optimiser move.

Matrix products are computed in single precision or in what the config's ``arithmetic`` asks for. Parameters,
optimisers, averages and evaluation stay in single precision in any case.

A GPU reports that its memory is exhausted, and the round is repeated with smaller chunks. On a CPU the
operating system would kill the process instead, so what a client takes is measured before the run begins
(``clients_at_once``).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.engine.clients import compiled
from fedcore.engine.clients.contract import FirstStep, phases_of, run
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods.base import Batch, Method, Params, Phase, State, Step
from fedcore.methods.federation import Federation, LocalData
from fedcore.methods.tensors import saved_storages

CHUNK = 32
"""Clients trained at once unless memory requires fewer."""
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


def batch_positions(data: LocalData, round_: int, epoch: int, size: int) -> Tensor:
    """Draw the samples of each client in each step of an epoch, -1 for none.

    A client's order is drawn from (seed, "batches", round, epoch, client name) only, so that it depends
    neither on the other participants nor on the order of clients.

    Shape: -> (participants, steps, size) positions in ``data.rows``.
    """
    counts = data.rows.counts.tolist()
    steps = max(1, -(-max(counts) // size))
    positions = torch.full((len(counts), steps * size), -1, dtype=torch.int64)
    for i, (client, n) in enumerate(zip(data.clients.tolist(), counts, strict=True)):
        name = data.problem.clients[client]
        positions[i, :n] = torch.randperm(n, generator=data.problem.generator("batches", round_, epoch, name))
    return positions.view(len(counts), steps, size)


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


class StepSchedule:
    """All steps of a round for some clients, drawn before the first one begins.

    The host knows which clients still have batches. The positions of clients and samples that the steps need
    on the device are sent there in one copy per round: a small copy in each step would make the host wait for
    the GPU, or the GPU for the host.

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
        self._positions: list[Tensor] = []
        self._last: list[Tensor] = []
        limit = torch.iinfo(torch.int64).max if max_steps is None else max_steps
        batches = -(-data.rows.counts // batch_size)
        last_epoch = ((limit - 1) // batches.clamp(min=1)).clamp(max=epochs - 1)
        for epoch in range(epochs):
            for positions in batch_positions(data, round_, epoch, batch_size).unbind(1):
                rows = ((positions >= 0).any(1) & (self.steps < limit)).nonzero()[:, 0]
                if not len(rows):
                    continue  # all have taken their steps
                self.steps[rows] += 1
                self._active.append(rows)
                # Padding is at the end of a client's last batch, and may be so for all.
                held = positions[rows]
                self._positions.append(held[:, : int((held >= 0).sum(1).max())])
                self._last.append(last_epoch[rows] == epoch)

    def __iter__(self) -> Iterator[Turn]:
        """Yield the steps in order; a step's samples are read only now."""
        pool, index, n = self.data.pool, self.data.rows.index, len(self._active)
        # Rows of the pool for each step; padding repeats a client's first sample.
        samples = [
            index[rows].gather(1, positions.clamp(min=0))
            for rows, positions in zip(self._active, self._positions, strict=True)
        ]
        clients = (self.data.clients[rows] for rows in self._active)
        places = (positions.clamp(min=0) for positions in self._positions)
        numbers = self._on_device([*self._active, *clients, *samples, *places])
        masks = self._on_device([positions >= 0 for positions in self._positions])
        sources, targets = [], []
        for rows, positions, last in zip(self._active, self._positions, self._last, strict=True):
            row, place = ((positions >= 0) & last[:, None]).nonzero(as_tuple=True)
            sources.append(row * positions.shape[1] + place)
            targets.append(rows[row] * index.shape[1] + positions[row, place])
        recorded = self._on_device([*sources, *targets])
        host = samples if pool.values.device != pool.device else numbers[2 * n : 3 * n]
        for i, positions in enumerate(self._positions):
            rows, members, taken, own = numbers[i::n]
            batch = Batch(pool.x(host[i]), pool.y(taken), masks[i].view(positions.shape), members, own)
            everyone = len(rows) == len(self.data.clients)
            yield Turn(everyone, rows, batch, (recorded[i], recorded[n + i]))

    def _on_device(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors of one type on the device, moved there in one copy."""
        if not parts:
            return []
        moved = torch.cat([part.flatten() for part in parts]).to(self.data.pool.device)
        pieces = moved.split([part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


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
        const = run(method, "round_constants", params, data)
        has_texts = method.problem.backbone.spec.class_texts != "none"
        if has_texts and method.trains and method.config.arithmetic != "fp32":
            # Computed when first read: in a step, they would have its arithmetic in a resumed run alone.
            _ = method.problem.class_features
    epochs, size = (method.config.local_epochs, method.config.batch_size) if method.trains else (0, 1)
    ready = partial(compiled.ready, method, (len(data.clients), size))
    phases = first_step.phases(ready) if first_step else tuple(map(ready, method.phases))
    if method.trains and method.config.proximal:
        const = const | {_ANCHOR + name: params[name] for name in received}
        phases = tuple(_with_proximal_term(phase, method.config.proximal) for phase in phases)
    params = dict(params)
    schedule = StepSchedule(data, round_, epochs, size, max_steps)
    sums = _RoundSums(data, schedule.steps)
    with devices.tf32(wanted=method.trains and method.config.arithmetic == "tf32"):
        for turn in schedule:
            if should_stop():
                raise Stopped
            for number, phase in enumerate(phases):
                step = _step(phase, params, const, turn, optimiser)
                sums.add(step, turn, last_phase=number == len(phases) - 1)
    return sums.result(params, round_)


def _widened(values: Params) -> Params:
    return {n: v.float() if v.dtype == torch.bfloat16 else v for n, v in values.items()}


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
    arithmetic: AbstractContextManager[object] = nullcontext()
    if optimiser.config.arithmetic == "bf16":  # the backward pass has the types of the forward pass
        arithmetic = torch.autocast(rows.device.type, torch.bfloat16)
    with arithmetic:
        step = phase(leaves, constants, turn.batch)
    # The records and moved parameters of a step in bf16 outlive it.
    step = replace(step, record=_widened(step.record), moved=_widened(step.moved))
    # All gradients are taken before anything moves: the losses of one step must see the same parameters.
    gradients = _gradients(step.losses, leaves, keep_graph=bool(step.guides))
    guides = _gradients(step.guides, leaves)
    with torch.no_grad():
        if guides:
            gradients |= step.combine({n: gradients[n] for n in guides}, guides)
        only = {n: clients.nonzero()[:, 0] for names, clients in step.only.items() for n in names}
        moved = {}
        for name, gradient in gradients.items():
            value, some = active[name].detach(), only.get(name)
            if some is None:
                moved[name] = optimiser.step(name, value, gradient, rows)
            else:
                stepped = optimiser.step(name, value[some], gradient[some], rows[some])
                moved[name] = value.index_copy(0, some, stepped)
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


_LOSS = ""


class _RoundSums:
    """Losses, terms and records of a round, summed on the device, so that no step waits for a number."""

    def __init__(self, data: LocalData, steps: Tensor) -> None:
        self.data, self.steps = data, steps
        self.sums: dict[tuple[str, ...], Tensor] = {}
        self.record: Params = {}

    def add(self, step: Step, turn: Turn, last_phase: bool) -> None:
        values = step.terms | ({_LOSS: next(iter(step.losses.values()))} if last_phase else {})
        if values:
            with torch.no_grad():  # in one sum: a GPU waits for the launches of many small ones
                first, *others = values.values()
                several = (torch.stack([first, *others], -1) if others else first).double()
                if (names := tuple(values)) not in self.sums:
                    self.sums[names] = several.new_zeros(len(self.data.clients), *several.shape[1:])
                self.sums[names][turn.rows] += several
        source, target = turn.recorded
        for name, value in step.record.items() if len(source) else ():
            index = self.data.rows.index
            rows = self.record.setdefault(name, value.new_zeros(index.numel(), *value.shape[2:]))
            rows[target] = value.detach().flatten(0, 1)[source]

    def result(self, params: Params, round_: int) -> Trained:
        count = self.steps.clamp(min=1).to(self.data.pool.device)
        terms: dict[str, Tensor] = {}
        for names, totals in self.sums.items():
            for name, total in zip(names, totals.view(len(count), -1).unbind(-1), strict=True):
                terms[name] = terms[name] + total if name in terms else total
        terms = {name: total / count for name, total in terms.items()}
        loss = terms.pop(_LOSS, torch.zeros(len(count), dtype=torch.float64, device=count.device))
        bad = (~loss.isfinite()).nonzero()[:, 0].tolist()
        if bad:
            name = self.data.problem.clients[int(self.data.clients[bad[0]])]
            raise FedLensError(f"client '{name}': the loss is not finite in round {round_}; lower lr", "lr")
        params = {n: p.detach() for n, p in params.items()}
        shape = self.data.rows.index.shape
        record = {n: rows.unflatten(0, shape) for n, rows in self.record.items()}
        return Trained(params, record, loss, self.steps, terms)


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
