"""Measure a GPU: its products, memory and launches, and the rounds of every method beside what these allow.

python -m tools.benchmarks.gpu                            # ViT-B-32, ViT-B-16; sizes of PACS, DomainNet-126
python -m tools.benchmarks.gpu --device cpu --tiny        # whether the command works; its figures say nothing

Seconds are those of the clock, after the device has finished. Weights and samples are random. The roofline of
a round is the sum over its operations of the larger of two times: that of its products, convolutions and
attention at the measured peak in single precision, and that of reading arguments and writing results at the
measured bandwidth. Its launches are the same operations at the measured time of one that computes next to
nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import typer
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fedcore.clip.backbone import Backbone
from fedcore.clip.encodings import parse_reads
from fedcore.engine.clients.local import train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.methods.base import Method
from fedcore.methods.federation import Federation, Pool
from fedcore.methods.registry import build_config, load_all
from fedcore.share.gpu import Launches
from tools.benchmarks import drawn


@dataclass(frozen=True)
class Size:
    """A federation's size: each client has so many training samples."""

    name: str
    clients: int
    classes: int
    samples: int


@dataclass(frozen=True)
class Limits:
    """What a device does at best: operations and bytes a second, and seconds from one kernel to the next."""

    operations: float
    bytes: float
    launch: float


@dataclass(frozen=True)
class Round:
    """Seconds of a round's local training, and the least that its operations and its launches take."""

    spent: float
    roofline: float
    launches: float


SIZES = (Size("PACS", 4, 7, 1500), Size("DomainNet-126", 4, 126, 3000))
TINY = (Size("tiny", 4, 3, 32),)


def main(
    device: str = "cuda", tiny: bool = False, methods: str = "", matrix: int = 8192, compiled: bool = False
) -> None:
    """Print the table.

    Args:
        methods: names, separated by commas; all that train unless given.
        compiled: whether steps of full batches are compiled; roofline and launches are those of plain ones.
        matrix: rows and columns of the products that measure the peak.
    """
    where = torch.device(device)
    names = methods.split(",") if methods else [n for n, cls in load_all().items() if cls.trains]
    models, sizes = (("mini-vit",), TINY) if tiny else (("ViT-B-32", "ViT-B-16"), SIZES)
    repeats, images = (1, 4) if tiny else (5, 256)
    limits = measure(where, 128 if tiny else matrix, repeats)
    print(
        f"{_name(where)}, torch {torch.__version__}: {limits.operations / 1e12:.3g} TFLOP/s in single "
        f"precision, {limits.bytes / 1e9:.3g} GB/s, {limits.launch * 1e6:.3g} us from kernel to kernel"
    )
    for model in models:
        backbone = on_device(model, where)
        rate = images / seconds(lambda b=backbone: encode(b, images), where, repeats)
        print(f"{model}: {rate:.3g} images/s encoded")
        for size in sizes:
            for name in names:
                one = a_round(name, backbone, size, limits, compiled)
                roofline, launches = one.roofline / one.spent, one.spent / one.launches
                print(
                    f"{model} {size.name} {name}: {one.spent:.3g} s a round, "
                    f"{roofline:.1%} of the roofline, {launches:.3g} times its launches"
                )


def measure(device: torch.device, size: int, repeats: int) -> Limits:
    """Measure products of square matrices, a copy as large as one of them, and many small operations."""
    a, one = torch.randn(size, size, device=device), torch.zeros(1, device=device)
    small = 1000

    def launch() -> None:
        for _ in range(small):
            one.add_(1)

    return Limits(
        2 * size**3 / seconds(lambda: a @ a, device, repeats),
        2 * a.nbytes / seconds(a.clone, device, repeats),
        seconds(launch, device, repeats) / small,
    )


def a_round(name: str, backbone: Backbone, size: Size, limits: Limits, compiled: bool) -> Round:
    """Measure a round's local training; one step is counted and multiplied, as all steps are alike."""
    cls = load_all()[name]
    config = build_config(name, {"local_epochs": 1})
    federation = samples(size, backbone, cls.reads(config, backbone.spec))
    method = cls(config, federation.problem)
    steps = -(-size.samples // method.config.batch_size)
    train(method, federation, 1)
    with Counter(limits) as counted:
        train(method, federation, 1)
    if compiled:
        torch.compiler.reset()  # the graphs of the method before
        method = cls(config.model_copy(update={"compiled": True}), federation.problem)
    spent = seconds(lambda: train(method, federation, None), backbone.device, 1)
    return Round(spent, counted.roofline * steps, counted.launches * limits.launch * steps)


class Counter(Launches):
    """Adds up the least seconds of operations, forward and backward, and their number; views take nothing."""

    def __init__(self, limits: Limits) -> None:
        """Begin with nothing."""
        super().__init__()
        self.limits, self.roofline = limits, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        kwargs, before = kwargs or {}, self.launches
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.launches == before:
            return result
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
        memory = {t.untyped_storage().data_ptr(): t for t in tensors}.values()  # views of one are read once
        moved = sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in memory)
        count = flop_registry.get(func._overloadpacket)
        work = count(*args, **kwargs, out_val=result) if count else 0
        self.roofline += max(work / self.limits.operations, moved / self.limits.bytes)
        return result


def train(method: Method, federation: Federation, max_steps: int | None) -> None:
    """Train all clients of a federation for a round, from the method's beginning."""
    everyone = torch.arange(len(federation.problem.clients))
    with torch.no_grad():
        state = method.init(federation.problem.generator)
        received = {n: v.clone() for n, v in method.sends(state, everyone).items()}
    optimiser = ClientOptimiser(method.config, len(everyone))
    params = {**received, **state.local}
    train_clients(method, params, federation.local_data(everyone), 1, optimiser, max_steps=max_steps)


def samples(size: Size, backbone: Backbone, reads: str) -> Federation:
    """Draw a federation whose samples are in a method's encoding; the values repeat those of a few images."""
    federation = drawn.federation(size.clients, size.classes, size.samples, 2)
    few = encode(backbone, 4, reads)
    values = few[torch.arange(len(federation.pool.labels), device=few.device) % len(few)]
    labels = federation.pool.labels.to(backbone.device)
    pool = Pool(values, labels, backbone.device, torch.float32)
    return replace(federation, pool=pool, problem=replace(federation.problem, backbone=backbone))


def on_device(name: str, device: torch.device) -> Backbone:
    """Return a backbone with random weights on a device; of the miniature ones, with its own."""
    from fedcore.clip import backbone as clip_backbone
    from fedcore.clip.specs import MINI_MODELS

    if name in MINI_MODELS:
        return clip_backbone.load(name, device=str(device))
    made = drawn.backbone(name)
    return replace(made, model=made.model.to(device), device=device)


def encode(backbone: Backbone, images: int, reads: str = "embedding") -> torch.Tensor:
    """Encode random images."""
    side = backbone.spec.image_size
    pixels = torch.rand(images, 3, side, side, device=backbone.device)
    with torch.no_grad():
        return parse_reads(reads)(backbone, pixels)


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median seconds of some work, after one time that is not counted."""
    work()
    spent = []
    for _ in range(repeats):
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


if __name__ == "__main__":
    typer.run(main)
