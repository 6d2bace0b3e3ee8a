"""Measure how a run's cost and memory grow with its clients, in CPU-seconds of one thread.

python -m benchmarks.scale fedclip --clients 1000 --participation 0.1
python -m benchmarks.scale fedot --clients 10000 --participation 0.01 --rounds 20 --field blocks=16
"""

from __future__ import annotations

import statistics
from typing import Annotated

import torch
import typer

from benchmarks import drawn
from fedcore.engine.events import RoundFinished
from fedcore.engine.loop import Loop


def main(
    method: str,
    clients: int = 1000,
    participation: float = 0.1,
    classes: int = 10,
    rounds: int = 5,
    samples: Annotated[int, typer.Option(help="training samples of the whole federation")] = 20_000,
    field: Annotated[list[str] | None, typer.Option(help="a field of the method, NAME=VALUE")] = None,
) -> None:
    """Print the first evaluation, the median round, the last round with its evaluation, and the memory."""
    torch.set_num_threads(1)
    federation = drawn.federation(
        clients, classes, max(2, samples // clients), test=max(2, samples // clients)
    )
    fields = dict(f.split("=", 1) for f in field or ())
    loop = Loop(drawn.build(method, federation, **fields), federation, rounds, participation)
    watch, spent, evaluation = drawn.Stopwatch(), [], []
    for event in loop.events():
        if isinstance(event, RoundFinished):
            spent.append(watch())
            evaluation.append(event.seconds_evaluate or 0.0)
    rows = {
        "first evaluation, CPU-s": spent[0],
        "a round, CPU-s": statistics.median(spent[1:-1] or spent[1:]),
        "of it evaluation, seconds by the clock": statistics.median(evaluation[1:-1] or evaluation[1:]),
        "the last round with its evaluation, CPU-s": spent[-1],
        "memory at most, MiB": float(drawn.peak_mib()),
    }
    print(f"{method}, {clients:,} clients, {participation:.0%} take part")
    for what, value in rows.items():
        print(f"  {what:45} {value:10,.2f}")


if __name__ == "__main__":
    typer.run(main)
