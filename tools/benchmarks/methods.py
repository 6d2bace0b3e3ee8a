"""Measure a round of each method with its defaults, in seconds of one thread.

python -m tools.benchmarks.methods                                   # every method that trains
python -m tools.benchmarks.methods vpt --field depth=9 --field prompt_length=10

Six clients of 90 training and 60 test images, ten classes, mini-vit; every model is evaluated on all test
images. Seconds are those of the clock, so the machine must be quiet.
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from fedcore.methods.registry import load_all
from tools.benchmarks import drawn


def main(
    names: Annotated[list[str] | None, typer.Argument(help="methods; all that train unless given")] = None,
    field: Annotated[list[str] | None, typer.Option(help="a field of the methods, NAME=VALUE")] = None,
    rounds: int = 3,
) -> None:
    """Print the quickest training and the quickest evaluation of some rounds after the first evaluation."""
    torch.set_num_threads(1)
    fields = dict(f.split("=", 1) for f in field or ())
    print(f"{'method':20} {'training':>9} {'evaluation':>11}")
    for name in names or [name for name, cls in load_all().items() if cls.trains]:
        training, evaluation = quickest(name, fields, rounds)
        print(f"{name:20} {training:9.3f} {evaluation:11.3f}", flush=True)


def quickest(name: str, fields: dict[str, str], rounds: int) -> tuple[float, float]:
    """Return the seconds of the quickest training and of the quickest evaluation."""
    reads = drawn.reads_of(name, "mini-vit", **fields)
    federation = drawn.federation(6, 10, 90, test=60, reads=reads, clip="mini-vit")
    _, *events = drawn.run(drawn.build(name, federation, **fields), federation, rounds)
    return min(e.seconds_train or 0.0 for e in events), min(e.seconds_evaluate or 0.0 for e in events)


if __name__ == "__main__":
    typer.run(main)
