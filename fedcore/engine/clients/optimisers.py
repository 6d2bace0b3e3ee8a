"""SGD and Adam over parameters with a client axis: every client has its own state and step count."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fedcore.base.lazy import Tensor, torch
from fedcore.methods.hyperparameters import MethodConfig

WARMUP_LR = 1e-5
"""Learning rate of the warm-up rounds in CoOp's code."""
_BLOCK = 2**17
"""Elements that a step updates together on a CPU, so that they stay in its cache through all operations."""


def learning_rate(config: MethodConfig, round_: int, rounds: int) -> float:
    """Return the learning rate for round t (from 1) of T.

    The cosine begins after the warm-up and would reach 0 after T further rounds, as in CoOp's code, whose
    epochs are our rounds.
    """
    done = round_ - 1 - config.warmup_rounds
    if done < 0:
        return min(WARMUP_LR, config.lr)
    if config.schedule == "constant":
        return config.lr
    return config.lr * (1 + math.cos(math.pi * done / rounds)) / 2


@dataclass
class ClientOptimiser:
    """One optimiser per client, batched; a test compares its updates with those of torch.optim.

    Attributes:
        moments: "<parameter>/<moment>" -> tensor with the client axis first; created at the first step.
        lr_factors: parameter -> multiple of the config's learning rate; 1 for all others.
        zeros: makes a moment from a parameter and the number of clients, see ``zero_rows``.
    """

    config: MethodConfig
    clients: int
    moments: dict[str, Tensor] = field(default_factory=dict)
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    zeros: Callable[[Tensor, int], Tensor] = lambda like, clients: like.new_zeros(clients, *like.shape[1:])
    _last: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _spare: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def step(self, name: str, value: Tensor, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return a parameter after one step.

        The returned tensor is reused: the step after the next one overwrites it.

        Shape: value and gradient (active, ...); rows (active,) client positions.
        """
        config = self.config
        if name in self.lr_factors:
            config = config.model_copy(update={"lr": config.lr * self.lr_factors[name]})
        adam = config.optimiser != "sgd"
        kinds = ("first", "second") if adam else ("momentum",) if config.momentum else ()
        moments = [self._moment(f"{name}/{kind}", value) for kind in kinds]
        everyone = len(rows) == self.clients
        state = moments if everyone else [moment[rows] for moment in moments]
        moved = self._buffer(name, value) if everyone else value.new_empty(value.shape)
        matrix = (len(value), math.prod(value.shape[1:]))
        row_wise = [t.reshape(matrix) for t in (value, _contiguous(gradient))]
        row_wise += [t.view(matrix) for t in (moved, *state)]  # views: they are written to
        if adam:
            count = self._moment(f"{name}/steps", value.flatten(1)[:, 0] if value.dim() > 1 else value)
            count[rows] += 1
            _adam(config, *row_wise, steps=count[rows][:, None])
        else:
            for part in _blocks(row_wise[0]):
                _sgd(config, *(t[part] for t in row_wise))
        if not everyone:
            for moment, values in zip(moments, state, strict=False):
                moment[rows] = values
        return moved

    def _buffer(self, name: str, value: Tensor) -> Tensor:
        """Return a tensor for a parameter's next value: the one that held the value before this one, if any.

        The operating system hands out new memory page by page, which takes longer than the arithmetic.
        """
        free, last = self._spare.pop(name, None), self._last.get(name)
        if last is not None and last.data_ptr() == value.data_ptr():
            self._spare[name] = last
        if free is None or free.shape != value.shape or free.data_ptr() == value.data_ptr():
            free = value.new_empty(value.shape)
        self._last[name] = free
        return free

    def _moment(self, name: str, like: Tensor) -> Tensor:
        """Return a moment of all clients, initially zero. Shape: like (any, ...) -> (clients, ...)."""
        if name not in self.moments:
            self.moments[name] = self.zeros(like, self.clients)
        return self.moments[name]

    def select(self, clients: Tensor) -> dict[str, Tensor]:
        """Return a copy of some clients' moments."""
        return {n: t[clients].clone() for n, t in self.moments.items()}

    def put(self, clients: Tensor, moments: Mapping[str, Tensor]) -> None:
        """Write some clients' moments back."""
        for name, values in moments.items():
            self._moment(name, values)[clients] = values


def _contiguous(gradient: Tensor) -> Tensor:
    """Return a gradient in its parameter's memory order; the gradient of a product is often transposed.

    It is copied client by client: torch copies one transposed matrix in tiles, but a stack of them element by
    element.
    """
    if gradient.is_contiguous() or gradient.device.type != "cpu":
        return gradient
    copy = gradient.new_empty(gradient.shape)
    for target, source in zip(copy, gradient, strict=True):
        target.copy_(source)
    return copy


def _blocks(moved: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield parts of a matrix that fit a CPU's cache (rows, or part of a row); on other devices all of it."""
    rows, columns = moved.shape
    height, width = max(1, rows), max(1, columns)
    if columns and moved.device.type == "cpu":
        height, width = max(1, _BLOCK // columns), min(_BLOCK, columns)
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, top + height), slice(left, left + width)


def _sgd(
    c: MethodConfig, value: Tensor, gradient: Tensor, out: Tensor, momentum: Tensor | None = None
) -> None:
    """Write the value after one step into ``out``, and move the momentum."""
    torch.mul(value, c.weight_decay, out=out).add_(gradient)
    moves = out if momentum is None else momentum.mul_(c.momentum).add_(out)
    torch.sub(value, torch.mul(moves, c.lr, out=out), out=out)


def _adam(
    c: MethodConfig,
    value: Tensor,
    gradient: Tensor,
    moved: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    steps: Tensor,
) -> None:
    """Write the value after one step of Adam or AdamW into ``moved``, and move both moments.

    Every intermediate result goes into memory that is in the cache already, not into a new tensor.

    Shape: (active, numbers) each; steps (active, 1).
    """
    b1, b2, eps = c.adam
    lr, decay = c.lr, c.weight_decay
    rates, corrections = lr / (1 - b1**steps), 1 - b2**steps
    scratch: Tensor | None = None
    for part in _blocks(moved):
        old, out, m, v = (t[part] for t in (value, moved, first, second))
        if scratch is None:
            scratch = torch.empty_like(out, memory_format=torch.contiguous_format)
        rest = scratch[: out.shape[0], : out.shape[1]]
        if c.optimiser == "adamw":
            old = old * (1 - lr * decay)
            out.copy_(gradient[part])
        else:
            torch.mul(old, decay, out=out).add_(gradient[part])
        m.mul_(b1).add_(torch.mul(out, 1 - b1, out=rest))
        v.mul_(b2).add_(out.square_().mul_(1 - b2))
        torch.div(v, corrections[part[0]], out=out).sqrt_().add_(eps)
        torch.addcdiv(old, torch.mul(m, rates[part[0]], out=rest), out, value=-1, out=out)
