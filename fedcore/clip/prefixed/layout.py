"""The order in which tokens of class names are computed, so that attention among them needs no padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Pairs = list[tuple[slice, slice, int]]
"""Rows of queries, rows of their keys, and the place of these keys in their names."""


class Layout:
    """The real tokens of class names: the first ones of all names, then the second ones, and so on.

    The names are sorted by length, the longest first. So the tokens at place j that attend to those at place
    i <= j of the same names are a slice, and so are these.

    Attributes:
        rows: where each token is among (classes S); places: its place in its name.
        pairs: which tokens attend to which; last_pairs: the same for [EOT] tokens alone, in sorted order.
        eot: rows of [EOT] in sorted order; unsorted: where each class is in that order.
    """

    def __init__(self, eot: Tensor, steps: int) -> None:
        order = torch.argsort(eot, descending=True, stable=True)
        ends = eot[order]
        counts = [int((ends >= j).sum()) for j in range(int(ends[0]) + 1)] + [0]
        starts = [sum(counts[:j]) for j in range(len(counts))]
        places = range(len(counts) - 1)
        self.rows = torch.cat([order[: counts[j]] * steps + j for j in places])
        self.places = torch.cat([torch.full((counts[j],), j, device=eot.device) for j in places])
        self.pairs: Pairs = [
            (slice(starts[j], starts[j] + counts[j]), slice(starts[i], starts[i] + counts[j]), i)
            for j in places
            for i in range(j + 1)
        ]
        self.last_pairs: Pairs = [
            (slice(low, high), slice(starts[i] + low, starts[i] + high), i)
            for j in places
            if (low := counts[j + 1]) < (high := counts[j])
            for i in range(j + 1)
        ]
        self.eot = torch.tensor(starts, device=eot.device)[ends] + torch.arange(len(eot), device=eot.device)
        self.unsorted = torch.argsort(order)
        self.longest = len(places)
        self.tokens = len(self.rows)
