"""Random generators that are keyed by their purpose: run seed, purpose, round, client name.

No draw depends on the draws before it, so neither the order of clients nor the number of threads matters.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from fedcore.base.lazy import Generator, torch


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose; equal on every machine and Python version (no ``hash``)."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a NumPy generator for one purpose (partitions and splits, without torch)."""
    return np.random.default_rng(derive(seed, *purpose))


def draw_names(names: Sequence[str], count: int, seed: int, *purpose: str | int) -> list[int]:
    """Draw some names, the same whatever their order; return their positions, ascending."""
    by_name = sorted(range(len(names)), key=names.__getitem__)
    drawn = numpy_generator(seed, *purpose).choice(len(names), count, replace=False)
    return sorted(by_name[i] for i in drawn)


def torch_generator(seed: int, *purpose: str | int) -> Generator:
    """Return a CPU torch generator for one purpose; its stream is the same whichever device trains."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
