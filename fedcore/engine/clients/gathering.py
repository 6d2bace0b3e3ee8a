"""The uploads of a round's chunks: counted, averaged as they arrive or joined in client order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedcore.engine.clients.executor import ChunkResult
from fedcore.engine.clients.local import Trained
from fedcore.lazy import Tensor, torch
from fedcore.methods.base import FedLensMethodError, Method, Params, Ragged, Uploads, overrides
from fedcore.methods.hyperparameters import Weighting
from fedcore.methods.tensors import weighted_mean
from fedcore.records.events import Cell

_STORED_UPLOADS = 32
"""Number of participants whose uploads are stored beside the means, for diagnostics."""
_LEVELS = 4
"""Partial sums that torch's sum over the first axis keeps on a CPU (``cascade_sum`` in SumKernel.cpp)."""


@dataclass(frozen=True)
class Traffic:
    """Scalars and bytes per participant. Shape: (participants,) int64 each."""

    scalars: Tensor
    bytes: Tensor


class Transport:
    """The messages of a round; a subclass may inspect every tensor that is sent in either direction."""

    def down(self, sent: Params) -> Params:
        """Send the server's parameters to the participants. Shape: (participants, ...)."""
        return sent

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


class _Stored(dict[str, Tensor | Ragged]):
    """The uploads that are stored beside the means; another one is reported with the remedy."""

    def __missing__(self, name: str) -> Tensor:
        raise ValueError(
            f"the upload '{name}' was not stored, because needs_only_means is True; take its mean "
            "(uploads.mean), or set needs_only_means = False"
        )


@dataclass(frozen=True)
class MeanUploads(Uploads):
    """The means of a round's uploads; the uploads themselves are gone unless diagnostics read a few.

    Attributes:
        means: the mean of each parameter that the method shares. Shape: (...).
        weighting: of these means.
    """

    means: dict[str, Tensor] = field(default_factory=dict)
    weighting: Weighting = "uniform"

    def mean(self, name: str, weighting: Weighting) -> Tensor:
        if name not in self.means or weighting != self.weighting:
            raise FedLensMethodError(
                f"the mean of '{name}' weighted by '{weighting}' was not summed, only the means of "
                f"{', '.join(self.means)} weighted by '{self.weighting}'; set needs_only_means = False"
            )
        return self.means[name]


class RunningMean:
    """The weighted mean over clients of one parameter, summed in client order in float64.

    Why the levels: rows must not depend on whether uploads are stored or summed as they arrive, so this adds
    in the order in which torch's sum does on a CPU (blocks of 16 rows, blocks of 16 such sums, and so on). It
    has the bits of ``weighted_mean`` except for at most 63 elements at the end of a tensor, whose sums may
    differ in the last bit of float64.
    """

    def __init__(self, weights: Tensor) -> None:
        """Begin the mean of all clients with these weights. Shape: weights (participants,)."""
        self.weights = weights
        self.seen = 0
        self.power = max(4, (len(weights) - 1).bit_length() // _LEVELS)
        self.sums: list[Tensor] = []
        self.numbers: list[Tensor] = []
        self.dtype: torch.dtype | None = None

    def add(self, values: Tensor) -> None:
        """Add the next clients. Shape: (clients, ...)."""
        self.dtype = values.dtype
        if values[0].numel() == 1:  # torch sums a vector in another order
            self.numbers.append(values)
            return
        weights = self.weights[self.seen : self.seen + len(values)].tolist()
        if not self.sums:
            shape = values.shape[1:]
            self.sums = [
                torch.zeros(shape, dtype=torch.float64, device=values.device) for _ in range(_LEVELS)
            ]
        for row, weight in zip(values, weights, strict=True):
            self.sums[0] += row.to(torch.float64) * weight
            self.seen += 1
            self._carry()

    def _carry(self) -> None:
        """Move full blocks to the next level."""
        block = (1 << self.power) - 1
        for level in range(1, _LEVELS):
            if self.seen & (block << (level - 1) * self.power):
                return
            self.sums[level] += self.sums[level - 1]
            self.sums[level - 1].zero_()

    def result(self) -> Tensor:
        """Return the mean. Shape: (...)."""
        if self.numbers:
            return weighted_mean(torch.cat(self.numbers), self.weights)
        assert self.dtype is not None and self.seen == len(self.weights), "every client has been added"
        total, *rest = self.sums
        for part in rest:
            total = total + part
        return total.to(self.dtype)


@dataclass(frozen=True)
class Gathered:
    """The participants' side of a round.

    Attributes:
        trained: without records; of a method that needs only means, only the local parameters.
        moments: the optimisers' state after the round, one per chunk.
        cells: accuracy before aggregation, if chunks were evaluated.
        seconds_evaluate: seconds of that evaluation, all chunks together.
    """

    trained: Trained
    uploads: Uploads
    traffic: Traffic
    moments: list[Params]
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
        only_means: sum the uploads instead of storing them; those of a few participants are stored too if
            the method has diagnostics.

    Shape: clients and samples (participants,).
    """
    weights = Uploads({}, clients, samples).weights(method.config.weighting) if only_means else None
    means = {name: RunningMean(weights) for name in method.shared} if weights is not None else {}
    stored = not only_means or (len(clients) <= _STORED_UPLOADS and overrides(type(method), "diagnostics"))
    trained: list[Trained] = []
    sent: list[dict[str, Tensor | Ragged]] = []
    counted: list[Traffic] = []
    moments: list[Params] = []
    cells: list[Cell] = []
    seconds = 0.0
    for result in results:
        uploads = transport.up(result.sent)
        counted.append(traffic(uploads, len(result.trained.steps)))
        for name, mean in means.items():
            value = uploads[name]
            assert not isinstance(value, Ragged), f"'{name}' is ragged"
            mean.add(value)
        if stored:
            sent.append(uploads)
        trained.append(result.trained)
        moments.append(result.moments)
        cells += result.cells
        seconds += result.seconds_evaluate
    values = {n: _join([s[n] for s in sent]) for n in sent[0]} if stored else {}
    joined = Uploads(values, clients, samples)
    if only_means:
        summed = {name: mean.result() for name, mean in means.items()}
        joined = MeanUploads(
            _Stored(values), clients, samples, means=summed, weighting=method.config.weighting
        )
    total = Traffic(torch.cat([t.scalars for t in counted]), torch.cat([t.bytes for t in counted]))
    loss, steps = torch.cat([t.loss for t in trained]), torch.cat([t.steps for t in trained])
    params, terms = (
        {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for parts in ([t.params for t in trained], [t.terms for t in trained])
    )
    return Gathered(Trained(params, {}, loss, steps, terms), joined, total, moments, cells, seconds)


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
