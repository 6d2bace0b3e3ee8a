"""Measure a round of FedOT and FedCLIP, in CPU-seconds of one thread, beside a loop written by hand.

python -m tools.benchmarks.rounds                          # beside their floors, with the goal of each
python -m tools.benchmarks.rounds --clients 10 --classes 65 --samples 160
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import typer
from torch import nn

from fedcore.base.events import RoundFinished
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.federation import Federation
from tools.benchmarks import drawn, floors

ROUNDS = 400
"""Of the run whose rounds are measured, so that none of them is the last."""


@dataclass(frozen=True)
class Floor:
    """A loop written by hand, and the round of a method that is measured beside it.

    Attributes:
        goal: the largest ratio that is wanted; None: the loop has FedLens' own shortcut.
        evaluated: whether both sides predict the test samples with every client's model.
        later: whether the rounds are such that FedOT measures one in five of them.
    """

    method: str
    module: Callable[[Federation], nn.Module]
    loss: floors.Loss
    optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    goal: float | None
    batch: int = 32
    blocks: int = 0
    evaluated: bool = False
    later: bool = False


one_block = partial(Floor, "fedot", floors.Rotated, floors.cross_entropy, floors.sgd, blocks=1)
blocks = partial(Floor, "fedot", floors.RotatedInBlocks, floors.cross_entropy, floors.sgd, blocks=16)
series = partial(Floor, "fedot", floors.RotatedBySeries, floors.cross_entropy, floors.sgd, blocks=1)
adapter = partial(Floor, "fedclip", floors.Adapted, floors.contrastive, floors.adam)
FLOORS = {
    "fedot, every round measured": one_block(None),
    "fedot": one_block(0.5, later=True),
    "fedot, evaluated": one_block(0.5, later=True, evaluated=True),
    "fedot, both with a series": series(None, later=True),
    "fedot, 16 blocks, every round measured": blocks(None),
    "fedot, 16 blocks": blocks(1.0, later=True),
    "fedot, 16 blocks, evaluated": blocks(1.0, later=True, evaluated=True),
    "fedclip": adapter(1.1),
    "fedclip, batches of 8": adapter(1.1, batch=8),
    "fedclip, batches of 4": adapter(1.1, batch=4),
}


def main(clients: int = 10, classes: int = 65, samples: int = 160, repeats: int = 10) -> None:
    """Print the mean of some rounds, after one that is not counted; ten contain two that FedOT measures."""
    torch.set_num_threads(1)
    federation = drawn.federation(clients, classes, samples, test=60)
    print(f"{clients} clients of {samples} samples, {classes} classes, ViT-B-32's sizes, CPU-seconds a round")
    for name, floor in FLOORS.items():
        sides = round_of(floor, federation), round_of_floor(floor, federation)
        ours, by_hand = means_in_turn(sides, repeats)
        goal = "" if floor.goal is None else f", goal {floor.goal}"
        print(f"{name:40} {ours:7.3f}  by hand {by_hand:7.3f}  ratio {ours / by_hand:.2f}{goal}", flush=True)


def round_of(floor: Floor, federation: Federation) -> Callable[[], object]:
    """Return what trains a method's next round, with all that it records."""
    fields = {"blocks": floor.blocks} if floor.blocks else {"batch_size": floor.batch}
    method = drawn.build(floor.method, federation, **fields)
    loop = Server(method, federation, ROUNDS, evaluate_every=1 if floor.evaluated else ROUNDS)
    events = (event for event in all_rounds(loop) if isinstance(event, RoundFinished))
    next(events)  # round 0 is an evaluation
    if floor.later:
        while next(events).round < 20:
            pass
    return lambda: next(events)


def round_of_floor(floor: Floor, federation: Federation) -> Callable[[], object]:
    """Return what trains the next round of the loop written by hand."""
    model, loss, optimiser = floor.module(federation), floor.loss, floor.optimiser
    return lambda: floors.one_round(model, federation, loss, optimiser, floor.batch, floor.evaluated)


def means_in_turn(sides: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return each side's mean; they take turns, so that other work on the machine meets all of them."""
    spent: list[list[float]] = [[] for _ in sides]
    for number in range(repeats + 1):
        for work, seconds in zip(sides, spent, strict=True):
            watch = drawn.Stopwatch()
            work()
            if number:
                seconds.append(watch())
    return [statistics.mean(seconds) for seconds in spent]


if __name__ == "__main__":
    typer.run(main)
