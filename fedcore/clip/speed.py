"""Measure what is faster on this processor: plain products or packed ones, fp32 or bf16.

Packed weights pay for wide towers only, and on some processors only.
"""

import os
import time
from collections.abc import Callable, Iterable
from functools import cache

from fedcore.clip.products import MIN_WIDTH, PACKED, PLAIN
from fedcore.clip.specs import backbone_spec
from fedcore.errors import FedLensError
from fedcore.lazy import functional as F
from fedcore.lazy import torch

VARIABLE = "FEDLENS_PRODUCTS"
"""Environment variable: the way of new runs, instead of the faster one."""
_ENOUGH = 1.4
"""Gain from which on the packed way is taken. Those that were measured were about 1.1 or about 2."""
_ROWS, _REPEATS = 128, 8
"""Size of the measurement: the rows of its products, and the repetitions of which the fastest counts."""


def way(wanted: Iterable[tuple[str, str]], device: str) -> str:
    """Return the way of new runs with these backbones: as the user asks, or else the faster one.

    It is measured only if a backbone is wide enough.

    Args:
        wanted: name and precision of each.
    """
    given = os.environ.get(VARIABLE, "")
    if given not in ("", PLAIN, PACKED):
        raise FedLensError(f"{VARIABLE} is '{given[:40]}'; give plain or packed")
    specs = [backbone_spec(name) for name, precision in wanted if precision == "fp32"]
    wide = any(max(spec.token_width, spec.vision_width) >= MIN_WIDTH for spec in specs)
    if not wide or device != "cpu" or not can_pack():
        return PLAIN
    return given or (PACKED if pays() else PLAIN)


@cache
def can_pack() -> bool:
    """Return whether this build of torch has the packed way."""
    if not torch.backends.mkldnn.is_available():
        return False
    from fedcore.clip.packed import Copies

    try:
        Copies().product(torch.ones(1, 1), torch.ones(1, 1), None)
    except (AttributeError, NotImplementedError, RuntimeError):  # torch's signs of an operation that it lacks
        return False
    return True


@cache
def pays() -> bool:
    """Return whether the packed way is faster by enough, measured once per process."""
    return packing_gain() >= _ENOUGH


def packing_gain(clock: Callable[[], float] = time.thread_time) -> float:
    """Return how many times as fast the packed way is for one layer of ViT-B, within 0.05 CPU-seconds.

    Args:
        clock: in seconds.
    """
    from fedcore.clip.packed import Copies

    x, weight, copies = torch.ones(_ROWS, 768), torch.ones(768, 768), Copies()
    with torch.no_grad():
        ways = lambda: F.linear(x, weight), lambda: copies.product(x, weight, None)
        plain, packed = fastest(ways, _REPEATS, clock)
    return plain / packed


def bf16_gain(width: int) -> float:
    """Return how many times as fast as in fp32 two layers of a tower's MLP are in bf16, with their gradient.

    Args:
        width: of the tower.
    """
    up, down = torch.ones(4 * width, width), torch.ones(width, 4 * width)
    x = torch.ones(_ROWS, width, requires_grad=True)

    def step(bf16: bool) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            y = F.linear(F.gelu(F.linear(x, up)), down)
        torch.autograd.grad(y, x, torch.ones_like(y))

    with torch.enable_grad():
        single, half = fastest((lambda: step(False), lambda: step(True)), _REPEATS // 4, time.thread_time)
    return single / half


def fastest(
    ways: Iterable[Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> tuple[float, ...]:
    """Return the shortest time of each way; they take turns, after one call of each that does not count.

    They have one thread: where several wait for each other on a busy machine, times say little.
    """
    ways, threads = tuple(ways), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for first in ways:
            first()
        found = [float("inf")] * len(ways)
        for _ in range(repeats):
            for i, work in enumerate(ways):
                begun = clock()
                work()
                found[i] = min(found[i], clock() - begun)
    finally:
        torch.set_num_threads(threads)
    return tuple(found)
