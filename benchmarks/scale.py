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
    federation = drawn.federation(clients, classes, max(2, samples // clients), test=max(2, samples // clients))
    fields = dict(f.split("=", 1) for f in field or ())
    loop = Loop(drawn.build(method, federation, **fields), federation, rounds, participation)
    watch, spent, evaluation = drawn.Stopwatch(), [], []
    for event in loop.events():
        if isinstance(event, RoundFinished):
            spent.append(watch())
            evaluation.append(event.seconds_evaluate or 0.0)
    between = spent[1:-1] or spent[1:]
    print(
        f"{method}, {clients:,} clients, {participation:.0%} take part: first evaluation {spent[0]:.2f} CPU-s, "
        f"a round {statistics.median(between):.2f} CPU-s (of them evaluation "
        f"{statistics.median(evaluation[1:-1] or evaluation[1:]):.2f} s by the clock), the last with its "
        f"evaluation {spent[-1]:.2f} CPU-s; {drawn.peak_mib():,} MiB at most"
    )


if __name__ == "__main__":
    typer.run(main)
