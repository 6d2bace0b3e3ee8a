"""The numbers in which local training multiplies matrices: single precision, or what the config asks for.

Parameters, optimisers, averages and evaluation stay in single precision whatever is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fedcore.methods.base import Params, Step
    from fedcore.methods.hyperparameters import Arithmetic


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Let a GPU round the factors of matrix products to TF32 within; a CPU has no such numbers."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = wanted
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def forward(arithmetic: Arithmetic, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass; its backward pass keeps the types of the forward one."""
    if arithmetic != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def widened(step: Step) -> Step:
    """Return a step whose records and moved parameters, which outlive it, are in single precision."""

    def wide(values: Params) -> Params:
        return {n: v.float() if v.dtype == torch.bfloat16 else v for n, v in values.items()}

    return replace(step, record=wide(step.record), moved=wide(step.moved))
