"""Measure a step of learned prompts with the class names of a real data set, in CPU-seconds of one thread.

python -m tools.benchmarks.prompts promptfl                        # 10 clients, the 65 classes of Office-Home
python -m tools.benchmarks.prompts promptfl --personal             # a later step, when prompts differ
python -m tools.benchmarks.prompts sdfed --classes domainnet-126
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
import typer

from fedcore.base.files import ASSETS
from fedcore.engine.clients.local import Trained, train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from tools.benchmarks import drawn


def main(
    method: Annotated[str, typer.Argument()] = "promptfl",
    clients: int = 10,
    classes: str = "office-home",
    personal: bool = False,
) -> None:
    """Print the CPU-seconds and the memory of a step.

    Args:
        personal: each client has its own prompt, as in the steps behind the first one of a round.
    """
    torch.set_num_threads(1)
    step = step_of(method, clients, classes, personal)
    before, watch = drawn.peak_mib(), drawn.Stopwatch()
    loss = float(step().loss.sum())
    spent, more = watch(), drawn.peak_mib() - before
    print(f"{method}, classes of {classes}: {spent:.2f} CPU-s, {more:,} MiB more, loss {loss!r}")


def step_of(method: str, clients: int, classes: str, personal: bool) -> Callable[[], Trained]:
    """Return a function that takes a step from the same parameters each time.

    Args:
        personal: as in ``main``.
    """
    names = json.loads((ASSETS / "classes.json").read_text(encoding="utf-8"))[classes]
    federation = drawn.federation(clients, len(names), train=32, reads=drawn.reads_of(method))
    problem = replace(federation.problem, classes=tuple(names))
    federation = replace(federation, problem=problem)
    built, everyone = drawn.build(method, federation), torch.arange(clients)
    with torch.no_grad():
        state = built.init(federation.problem.generator)
    params = {name: value.expand(clients, *value.shape).clone() for name, value in state.shared.items()}
    if personal:
        noise = torch.Generator().manual_seed(2)
        params = {n: p + 1e-3 * torch.randn(p.shape, generator=noise) for n, p in params.items()}
    data = federation.local_data(everyone)

    def step() -> Trained:
        optimiser = ClientOptimiser(built.config, clients)
        return train_clients(built, params | state.local, data, 1, optimiser, max_steps=1)

    return step


if __name__ == "__main__":
    typer.run(main)
