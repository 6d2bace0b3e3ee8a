"""Compare ways of a tower's matrix products on this processor: plain or packed weights, and fp32 or bf16.

python -m tools.benchmarks.products                        # encoding, and steps of FedDEAP, PromptFL, SDFed
python -m tools.benchmarks.products --arithmetic           # local training of the methods on LoRA

Drawn features in ViT-B-32's sizes, one thread, CPU-seconds: the minimum of some repetitions, in which both
ways take turns. Packed weights are forced; a line says which way a run would choose here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import process_time

import torch
import typer

from fedcore.clip import backbone as clip_backbone
from fedcore.clip import speed
from fedcore.clip.encodings import BATCH
from fedcore.clip.packed import pack
from fedcore.engine.environment import bf16_instructions, processor
from fedcore.methods.registry import build_config, load_all
from tools.benchmarks import drawn, gpu, prompts

STEPS = {"feddeap": (4, "office-caltech10"), "promptfl": (10, "office-home"), "sdfed": (10, "office-home")}
"""Method -> clients and class names of a step in which their prompts differ."""
LORA = ("fedalign", "fedavg-lora")


def main(arithmetic: bool = False, repeats: int = 2) -> None:
    """Print the table.

    Args:
        arithmetic: compare fp32 with bf16 instead of plain with packed weights.
    """
    torch.set_num_threads(1)
    instructions = bf16_instructions() or "no known instructions"
    print(f"{processor()}, torch {torch.__version__}; for bf16: {instructions}")
    (training if arithmetic else packing)(repeats)


def packing(repeats: int) -> None:
    """Compare plain with packed weights."""
    gain, chosen = speed.packing_gain(), speed.way([("ViT-B-32", "fp32")], "cpu")
    print(f"one product: packed {gain:.2f} times as fast; a run would take the {chosen} way")
    plain = drawn.backbone()
    packed = replace(plain, model=copy.deepcopy(plain.model), packed=True)
    pack(packed.model)
    ways = [partial(gpu.encode, b, BATCH) for b in (plain, packed)]
    line(f"encode {BATCH} images", ("plain", "packed"), ways, repeats)
    for name, (clients, classes) in STEPS.items():
        ways = [prompts.step_of(name, clients, classes, personal=True, backbone=b) for b in (plain, packed)]
        line(f"step of {name}, {clients} clients, {classes}", ("plain", "packed"), ways, repeats)


def training(repeats: int) -> None:
    """Compare local training in fp32 with that in bf16, by one step of four clients."""
    for backbone, images in ((clip_backbone.load("mini-vit"), 64), (drawn.backbone(), 16)):
        size = gpu.Size("one batch", 4, 10, images)
        gain = speed.bf16_gain(backbone.spec.vision_width)
        print(f"{backbone.spec.name}: products and gradients in bf16 {gain:.2f} times as fast")
        for name in LORA:
            ways = []
            for kind in ("fp32", "bf16"):
                cls, config = load_all()[name], build_config(name, {"arithmetic": kind})
                federation = gpu.samples(size, backbone, cls.reads(config, backbone.spec))
                ways.append(partial(gpu.train, cls(config, federation.problem), federation, 1))
            line(
                f"step of {name}, {backbone.spec.name}, {images} images each", ("fp32", "bf16"), ways, repeats
            )


def line(what: str, names: tuple[str, str], ways: list[Callable[[], object]], repeats: int) -> None:
    """Print the CPU-seconds of two ways."""
    first, second = speed.fastest(ways, repeats, process_time)
    took = f"{names[0]} {first:.2f}, {names[1]} {second:.2f} CPU-s"
    print(f"{what}: {took}, ratio {first / second:.2f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
