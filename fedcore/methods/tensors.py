"""Small functions on tensors with a client axis that several methods use."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.federation import LocalData


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the mean cross-entropy per client, without padding.

    Shape: logits (clients, batch, classes), labels and mask (clients, batch) -> (clients,).
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}; "
            "logits are (clients, batch, classes), labels (clients, batch)"
        )
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return masked_mean(loss.view(labels.shape), mask)


def cosine_logits(image: Tensor, text: Tensor, scale: float | Tensor) -> Tensor:
    """Return the scaled cosines of all pairs of an image and a class.

    Shape: image (clients, samples, d), text (clients, classes, d) -> (clients, samples, classes).
    """
    image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
    return scale * (image @ text.transpose(-1, -2))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply each client's linear layer, x W^T + b.

    Shape: x (clients, n, in), weight (clients, out, in), bias (clients, out) -> (clients, n, out).
    """
    is_large = weight.device.type == "cpu" and weight.shape[1] * weight.shape[2] >= _LARGE
    product: Tensor = _rows_times()(x, weight) if is_large else x @ weight.transpose(1, 2)
    return product + bias[:, None]


_LARGE = 2**16
"""Numbers of a client's weight from which on a CPU takes longer to transpose its gradient than to compute it.

MKL sums the same products in the same order for both memory orders of these, but not of much smaller ones."""


@cache
def _rows_times() -> Any:
    """Return the function for autograd, defined on first use because its base class is torch's."""

    class RowsTimes(torch.autograd.Function):
        """x W^T, with a gradient of W in the memory order of W, so that the optimiser copies nothing."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return x @ weight.transpose(1, 2)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
            x, weight = (t.to(gradient.dtype) for t in ctx.saved_tensors)  # bf16 if the product was
            of_x, of_weight = ctx.needs_input_grad
            return (
                gradient @ weight if of_x else None,
                gradient.transpose(1, 2) @ x if of_weight else None,
            )

    return RowsTimes.apply


class Adam:
    """torch.optim.Adam with its usual settings, for a server's own training.

    A class of torch.optim imports torch's compiler when it is first used, which takes 1.7 seconds.
    """

    def __init__(self, values: Iterable[Tensor], lr: float) -> None:
        """Begin with moments of 0. The values are moved in place."""
        self.values, self.lr = list(values), lr
        self.first, self.second = ([torch.zeros_like(value) for value in self.values] for _ in range(2))
        self.steps = [torch.zeros(()) for _ in self.values]

    def step(self, gradients: Iterable[Tensor]) -> None:
        """Move all values. Shape: gradients, like values."""
        from torch.optim.adam import adam

        usual: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
        off: dict[str, Any] = {"amsgrad": False, "maximize": False}
        with torch.no_grad():
            adam(
                self.values, [*gradients], self.first, self.second, [], self.steps, lr=self.lr, **usual, **off
            )


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average over a batch without its padding.

    Shape: values (clients, batch, ...), mask like it or with axes of 1 -> (clients, ...).
    """
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def class_means(x: Tensor, labels: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each class's samples, 0 for a class without any, and the classes' counts.

    Shape: x (clients, n, d), labels and mask (clients, n) -> (clients, classes, d), (clients, classes).
    """
    members = F.one_hot(labels, classes).to(x.dtype) * mask[..., None]
    counts = members.sum(1)
    return members.transpose(1, 2) @ x / counts.clamp(min=1)[..., None], counts


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Average over the client axis, summed in client order in float64. Shape: (clients, ...) -> (...)."""
    # The engine computes this sum as uploads arrive (``RunningMean`` in engine/server.py) and has to have
    # its bits: change both or none.
    weights = weights.to(values.device).view(-1, *[1] * (values.dim() - 1))
    return (values.to(torch.float64) * weights).sum(0).to(values.dtype)


def mean_cosine(updates: Tensor) -> Tensor:
    """Return the mean pairwise cosine of the clients' updates; a zero update has cosine 0 with all others.

    Shape: updates (clients, ...) with clients >= 2 -> ().
    """
    unit = F.normalize(updates.detach().double().flatten(1), dim=-1)
    cosines = unit @ unit.T
    n = len(unit)
    return (cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1))


MAX_COMPARED = 64
"""Participants that are compared in pairs at most, because pairs grow with the square."""


_READ_AT_ONCE = 32
"""Samples that ``OncePerSample`` reads at once; always as many, so that a resumed run has the same bits."""


def compared(participants: int) -> Tensor:
    """Return the positions of the participants that a round compares in pairs: all, or some in equal steps.

    Participants are in client order, so that equal participants give equal pairs.

    Shape: -> (compared,), ascending.
    """
    count = min(participants, MAX_COMPARED)
    return torch.arange(count) * participants // max(1, count)


def measured(round_: int, rounds: int) -> bool:
    """Return whether a round measures what is dear: one of the first 20, every fifth, and the last."""
    return round_ <= 20 or round_ % 5 == 0 or round_ == rounds


class OncePerSample:
    """What a frozen network makes of the clients' training samples, each of which it reads once in a run."""

    def __init__(self, network: Callable[[Tensor], Tensor]) -> None:
        """Know nothing yet. Shape of the network: (1, samples, ...) -> (1, samples, d)."""
        self.network = network
        self._known: dict[str, Tensor] = {}

    def __call__(self, data: LocalData) -> Tensor:
        """Return the results for some clients, 0 on padding.

        Shape: -> (participants, longest, d), where longest is 0 if none of them has a sample.
        """
        found = []
        each = data.rows.flat.split(data.rows.counts.tolist())
        for client, rows in zip(data.clients.tolist(), each, strict=True):
            name = data.problem.clients[client]
            if name not in self._known:  # alone, so that no bit depends on who takes part
                parts = [self.network(data.pool.x(some[None])) for some in rows.split(_READ_AT_ONCE)]
                self._known[name] = torch.cat(parts, 1)[0]
            found.append(self._known[name])
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)


def draw_linear(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw a linear layer as torch.nn.Linear does, uniform within 1/sqrt(columns), in float64.

    Shape: -> weight (rows, columns), bias (rows,).
    """
    bound = columns**-0.5
    weight = torch.empty(rows, columns, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(rows, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    return weight, bias


@contextmanager
def saved_storages() -> Iterator[dict[int, int]]:
    """Collect what autograd saves in this block for the backward pass: address of a storage -> its bytes.

    A storage counts once, because several saved tensors can be views of it. The block has to hold the graph
    to its end, since storages that are freed earlier may leave their address to others.
    """
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield storages


def saved_bytes(function: Callable[..., Tensor], *samples: Tensor) -> int:
    """Return the bytes that autograd holds for one more sample until the backward pass.

    Args:
        samples: arguments of the function, of two samples or more along the first axis.
    """
    # What two samples hold minus what one holds: weights, which autograd saves as well, are in both.
    sizes = []
    for count in (1, 2):
        with saved_storages() as saved:
            result = function(*(s[:count].detach().clone().requires_grad_() for s in samples))
            del result
        sizes.append(sum(saved.values()))
    return max(1, sizes[1] - sizes[0])


PIECE_BYTES = {"cpu": 2**29, "cuda": 2**33}
"""Bytes of activations that training holds at once if a method works in pieces, by type of device."""


def piece_size(bytes_of_sample: int, device: "torch.device") -> int:
    """Return how many samples of this size training holds at once on a device."""
    return max(1, PIECE_BYTES.get(device.type, PIECE_BYTES["cpu"]) // max(1, bytes_of_sample))


def in_pieces(function: Callable[..., Tensor], size: int, *samples: Tensor) -> Tensor:
    """Apply a function of samples to at most ``size`` of them at once, so that memory holds one piece.

    The backward pass computes a piece again instead of keeping its activations. The result is that of one
    call, up to rounding.

    Shape: samples (n, ...) each -> the function's result (n, ...).
    """
    if len(samples[0]) <= size:
        return function(*samples)
    from torch.utils.checkpoint import checkpoint

    pieces = zip(*(s.split(size) for s in samples), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([function(*piece) for piece in pieces])
    return torch.cat([checkpoint(function, *piece, use_reentrant=False) for piece in pieces])
