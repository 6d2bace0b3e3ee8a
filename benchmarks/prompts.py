"""Measure a step of learned prompts with the class names of a real data set, in CPU-seconds of one thread.

python -m benchmarks.prompts promptfl                        # 10 clients, the 65 classes of Office-Home
python -m benchmarks.prompts sdfed --classes domainnet-126 --padding
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import torch
import typer

from benchmarks import drawn
from fedcore.engine.clients.local import train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.federation import Federation
from fedcore.paths import ASSETS


def main(
    method: Annotated[str, typer.Argument()] = "promptfl",
    clients: int = 10,
    classes: str = "office-home",
    padding: bool = False,
) -> None:
    """Print the CPU-seconds and the memory of a step; with padding, as earlier releases computed it."""
    torch.set_num_threads(1)
    names = json.loads((ASSETS / "classes.json").read_text(encoding="utf-8"))[classes]
    federation = with_names(drawn.federation(clients, len(names), train=32), tuple(names), padding)
    built, everyone = drawn.build(method, federation), torch.arange(clients)
    with torch.no_grad():
        state = built.init(federation.problem.generator)
    params = {name: value.expand(clients, *value.shape).clone() for name, value in state.shared.items()}
    before, watch = drawn.peak_mib(), drawn.Stopwatch()
    optimiser = ClientOptimiser(built.config, clients)
    trained = train_clients(
        built, params | state.local, federation.local_data(everyone), 1, optimiser, max_steps=1
    )
    spent, loss = watch(), float(trained.loss.sum())
    more = drawn.peak_mib() - before
    print(f"{method}, {len(names)} classes of {classes}: {spent:.2f} CPU-s, {more:,} MiB more, loss {loss!r}")


def with_names(federation: Federation, names: tuple[str, ...], padding: bool) -> Federation:
    """Return a federation with other class names."""
    backbone = replace(federation.problem.backbone, packs_texts=not padding)
    return replace(federation, problem=replace(federation.problem, classes=names, backbone=backbone))


if __name__ == "__main__":
    typer.run(main)
