"""Compare fp32 with bf16 on this processor: single products, and local training of the methods on LoRA.

python -m tools.benchmarks.arithmetic

Drawn features in ViT-B-32's sizes, one thread, CPU-seconds: the minimum of some repetitions, in which both
kinds take turns.
"""

from __future__ import annotations

from functools import partial
from time import process_time

import torch
import torch.nn.functional as F
import typer

from fedcore.clip import backbone as clip_backbone
from fedcore.engine.environment import bf16_instructions, processor
from fedcore.methods.registry import build_config, load_all
from tools.benchmarks import drawn, gpu

LORA = ("fedalign", "fedavg-lora")


def main(repeats: int = 2) -> None:
    """Print the table; a step of local training has four clients."""
    torch.set_num_threads(1)
    instructions = bf16_instructions() or "no known instructions"
    print(f"{processor()}, torch {torch.__version__}; for bf16: {instructions}")
    for backbone, images in ((clip_backbone.load("mini-vit"), 64), (drawn.backbone(), 16)):
        size = gpu.Size("one batch", 4, 10, images)
        gain = bf16_gain(backbone.spec.vision_width)
        print(f"{backbone.spec.name}: products and gradients in bf16 {gain:.2f} times as fast")
        for name in LORA:
            steps = []
            for kind in ("fp32", "bf16"):
                cls, config = load_all()[name], build_config(name, {"arithmetic": kind})
                federation = gpu.samples(size, backbone, cls.reads(config, backbone.spec))
                steps.append(partial(gpu.train, cls(config, federation.problem), federation, 1))
            turns = [[_seconds(step) for step in steps] for _ in range(repeats + 1)]
            single, half = (min(kind[1:]) for kind in zip(*turns, strict=True))  # the first turn warms up
            took = f"fp32 {single:.2f}, bf16 {half:.2f} CPU-s, ratio {single / half:.2f}"
            print(f"step of {name}, {backbone.spec.name}, {images} images each: {took}", flush=True)


def _seconds(step: partial[object]) -> float:
    begun = process_time()
    step()
    return process_time() - begun


def bf16_gain(width: int) -> float:
    """Return how many times as fast as in fp32 two layers of a tower's MLP and their gradient are in bf16."""
    up, down = torch.ones(4 * width, width), torch.ones(width, 4 * width)
    x = torch.ones(128, width, requires_grad=True)

    def products(bf16: bool) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            y = F.linear(F.gelu(F.linear(x, up)), down)
        torch.autograd.grad(y, x, torch.ones_like(y))

    turns = [[_seconds(partial(products, kind)) for kind in (False, True)] for _ in range(3)]
    single, half = (min(kind[1:]) for kind in zip(*turns, strict=True))
    return single / half


if __name__ == "__main__":
    typer.run(main)
