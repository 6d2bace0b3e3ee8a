"""Linear algebra that is the same on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_SAFE_BATCH = 64
"""Matrices up to this size are solved in one batched call on the CPU."""


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Return a^-1 b for a batch of square matrices, differentiable in both.

    On the CPU large matrices are solved one after the other: torch 2.15 with two or more threads returns
    wrong numbers, or fails on its own pivots, for batched LU above 140 x 140 (right at 140, wrong at 160;
    single matrices are right, and keep their threads). ``tests/test_linalg.py`` holds us to it.

    Shape: a (..., n, n), b (..., n, k) -> (..., n, k).
    """
    if a.device.type != "cpu" or a.shape[-1] <= _SAFE_BATCH:
        solved: Tensor = torch.linalg.solve(a, b)
        return solved
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    pairs = zip(
        a.expand(*batch, *a.shape[-2:]).flatten(0, -3),
        b.expand(*batch, *b.shape[-2:]).flatten(0, -3),
        strict=True,
    )
    return torch.stack([torch.linalg.solve(x, y) for x, y in pairs]).view(*batch, *b.shape[-2:])
