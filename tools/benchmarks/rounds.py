"""Measure a round of each method, in CPU-seconds of one thread, beside a loop written by hand.

python -m tools.benchmarks.rounds                          # FedOT and FedCLIP beside their floors
python -m tools.benchmarks.rounds --clients 10 --classes 65 --samples 160
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
import typer

from fedcore.base.events import RoundFinished
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.federation import Federation
from tools.benchmarks import drawn, floors

FLOORS = {
    "fedot": ("fedot", floors.Rotated, floors.cross_entropy, floors.sgd),
    "fedot, by hand with a series": ("fedot", floors.RotatedBySeries, floors.cross_entropy, floors.sgd),
    "fedclip": ("fedclip", floors.Adapted, floors.contrastive, floors.adam),
}


def main(clients: int = 10, classes: int = 65, samples: int = 160, repeats: int = 5) -> None:
    """Print the median of some rounds, after one that is not counted, without their evaluation."""
    torch.set_num_threads(1)
    federation = drawn.federation(clients, classes, samples)
    print(f"{clients} clients of {samples} samples, {classes} classes, ViT-B-32's sizes, CPU-seconds a round")
    for name, (method, *_) in FLOORS.items():
        sides = round_of(method, federation, repeats), round_of_floor(name, federation)
        ours, floor = medians_in_turn(sides, repeats)
        print(f"{name:28} {ours:7.3f}  by hand {floor:7.3f}  ratio {ours / floor:.2f}")


def round_of(name: str, federation: Federation, repeats: int) -> Callable[[], object]:
    """Return what trains a method's next round, with all that it records but its evaluation."""
    loop = Server(drawn.build(name, federation), federation, repeats + 2, evaluate_every=repeats + 3)
    events = (event for event in all_rounds(loop) if isinstance(event, RoundFinished))
    next(events)  # round 0 is an evaluation
    return lambda: next(events)


def round_of_floor(name: str, federation: Federation) -> Callable[[], object]:
    """Return what trains the next round of a loop of ``FLOORS``, written by hand."""
    _, module, loss, optimiser = FLOORS[name]
    model = module(federation)
    return lambda: floors.one_round(model, federation, loss, optimiser)


def medians_in_turn(sides: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return each side's median; they take turns, so that other work on the machine meets all of them."""
    spent: list[list[float]] = [[] for _ in sides]
    for number in range(repeats + 1):
        for work, seconds in zip(sides, spent, strict=True):
            watch = drawn.Stopwatch()
            work()
            if number:
                seconds.append(watch())
    return [statistics.median(seconds) for seconds in spent]


if __name__ == "__main__":
    typer.run(main)
