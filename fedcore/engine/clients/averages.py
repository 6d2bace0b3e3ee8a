"""The mean of uploads that arrive chunk by chunk: memory holds one chunk and the sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedcore.lazy import torch
from fedcore.methods.base import Method, Ragged, Uploads, overrides
from fedcore.methods.hyperparameters import Weighting
from fedcore.methods.tensors import weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

_LEVELS = 4
"""Partial sums that torch's sum over the first axis keeps on a CPU (``cascade_sum`` in SumKernel.cpp)."""


def needs_only_means(method: Method) -> bool:
    """Return whether the server reads nothing of the uploads but their mean, so that none has to be kept."""
    return method.trains and not overrides(type(method), "aggregate", "diagnostics", "round_log")


@dataclass(frozen=True)
class MeanUploads(Uploads):
    """The means of a round's uploads; the uploads themselves are gone.

    Attributes:
        means: the weighted mean of each parameter. Shape: (...).
    """

    means: dict[str, Tensor] = field(default_factory=dict)

    def mean(self, name: str, weighting: Weighting) -> Tensor:
        """Return the mean that was summed while the uploads arrived."""
        return self.means[name]


class RunningMean:
    """The weighted mean over clients of one parameter, summed in client order in float64.

    It adds in the order in which torch's sum does on a CPU (blocks of 16 rows, blocks of 16 such sums, and
    so on), so that it has the bits of ``weighted_mean`` but for at most 63 elements at the end of a tensor,
    whose sums may differ in the last bit of float64.
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


class RunningMeans:
    """The means of all shared parameters of a method."""

    def __init__(self, names: Iterable[str], weights: Tensor) -> None:
        self.parts = {name: RunningMean(weights) for name in names}

    def add(self, sent: Mapping[str, Tensor | Ragged]) -> None:
        """Add the uploads of the next clients. Shape: (clients, ...) each."""
        for name, part in self.parts.items():
            values = sent[name]
            assert not isinstance(values, Ragged), f"'{name}' is ragged"
            part.add(values)

    def result(self) -> dict[str, Tensor]:
        """Return the mean of each parameter. Shape: (...) each."""
        return {name: part.result() for name, part in self.parts.items()}
