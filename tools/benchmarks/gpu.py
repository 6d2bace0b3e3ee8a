"""Measure a GPU: the peak of its matrix products, FedAlign's share of it, rounds of every method, encoding.

python -m tools.benchmarks.gpu                            # ViT-B-32, ViT-B-16; sizes of PACS, DomainNet-126
python -m tools.benchmarks.gpu --device cpu --tiny        # whether the command works; its figures say nothing

Seconds are those of the clock, after the device has finished. Weights and samples are random.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import typer

from fedcore.clip.backbone import Backbone
from fedcore.clip.encodings import parse_reads
from fedcore.engine.clients.local import train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.federation import Federation, Pool
from fedcore.methods.base import Method
from fedcore.methods.registry import build_config, load_all
from tools.benchmarks import drawn


@dataclass(frozen=True)
class Size:
    """A federation's size: each client has so many training samples."""

    name: str
    clients: int
    classes: int
    samples: int


SIZES = (Size("PACS", 4, 7, 1500), Size("DomainNet-126", 4, 126, 3000))
TINY = (Size("tiny", 4, 3, 4),)


def main(device: str = "cuda", tiny: bool = False, methods: str = "", matrix: int = 8192) -> None:
    """Print the table.

    Args:
        methods: names, separated by commas; all that train unless given.
        matrix: rows and columns of the products that measure the peak.
    """
    where = torch.device(device)
    names = methods.split(",") if methods else [n for n, cls in load_all().items() if cls.trains]
    models, sizes = (("mini-vit",), TINY) if tiny else (("ViT-B-32", "ViT-B-16"), SIZES)
    repeats, images = (1, 4) if tiny else (5, 256)
    peak = matrix_peak(where, 128 if tiny else matrix, repeats)
    print(f"{_name(where)}, torch {torch.__version__}: {peak / 1e12:.3g} TFLOP/s in single precision")
    for model in models:
        backbone = on_device(model, where)
        rate = images / seconds(lambda b=backbone: encode(b, images), where, repeats)
        print(f"{model}: {rate:.3g} images/s encoded")
        for size in sizes:
            for name in names:
                spent, work = a_round(name, backbone, size)
                share = f", {work / spent / peak:.1%} of the peak" if name == "fedalign" else ""
                print(f"{model} {size.name} {name}: {spent:.3g} s a round{share}")


def matrix_peak(device: torch.device, size: int, repeats: int) -> float:
    """Return the operations a second of a product of square matrices."""
    a = torch.randn(size, size, device=device)
    return 2 * size**3 / seconds(lambda: a @ a, device, repeats)


def a_round(name: str, backbone: Backbone, size: Size) -> tuple[float, float]:
    """Return the seconds of a round's local training, and the operations of its matrix products.

    The operations are counted in one step and multiplied, as all steps are alike.
    """
    from torch.utils.flop_counter import FlopCounterMode

    cls = load_all()[name]
    config = build_config(name, {"local_epochs": 1})
    federation = samples(size, backbone, cls.reads(config, backbone.spec))
    method = cls(config, federation.problem)
    steps = -(-size.samples // method.config.batch_size)
    train(method, federation, 1)
    counter = FlopCounterMode(display=False)
    with counter:
        train(method, federation, 1)
    spent = seconds(lambda: train(method, federation, None), backbone.device, 1)
    return spent, counter.get_total_flops() * steps


def train(method: Method, federation: Federation, max_steps: int | None) -> None:
    """Train all clients of a federation for a round, from the method's beginning."""
    everyone = torch.arange(len(federation.problem.clients))
    with torch.no_grad():
        state = method.init(federation.problem.generator)
        shared = {n: v.expand(len(everyone), *v.shape).clone() for n, v in state.shared.items()}
    optimiser = ClientOptimiser(method.config, len(everyone))
    params = {**shared, **state.personal, **state.local}
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
