"""Measure a step of learned prompts with the class names of a real data set, in CPU-seconds of one thread.

python -m benchmarks.prompts promptfl                        # 10 clients, the 65 classes of Office-Home
python -m benchmarks.prompts promptfl --own                  # a later step, when prompts differ
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
    own: bool = False,
    together: bool = False,
    padding: bool = False,
) -> None:
    """Print the CPU-seconds and the memory of a step.

    Args:
        own: each client has a prompt of its own, as in the steps behind the first one of a round.
        together: the class names of all clients in one batch, as earlier releases encoded them.
        padding: with the padding of shorter names, as releases before those computed it.
    """
    torch.set_num_threads(1)
    names = json.loads((ASSETS / "classes.json").read_text(encoding="utf-8"))[classes]
    federation = with_names(
        drawn.federation(clients, len(names), train=32), tuple(names), together or padding, padding
    )
    built, everyone = drawn.build(method, federation), torch.arange(clients)
    with torch.no_grad():
        state = built.init(federation.problem.generator)
    params = {name: value.expand(clients, *value.shape).clone() for name, value in state.shared.items()}
    if own:
        noise = torch.Generator().manual_seed(2)
        params = {n: p + 1e-3 * torch.randn(p.shape, generator=noise) for n, p in params.items()}
    before, watch = drawn.peak_mib(), drawn.Stopwatch()
    optimiser = ClientOptimiser(built.config, clients)
    trained = train_clients(
        built, params | state.local, federation.local_data(everyone), 1, optimiser, max_steps=1
    )
    spent, loss = watch(), float(trained.loss.sum())
    more = drawn.peak_mib() - before
    print(f"{method}, {len(names)} classes of {classes}: {spent:.2f} CPU-s, {more:,} MiB more, loss {loss!r}")


def with_names(federation: Federation, names: tuple[str, ...], together: bool, padding: bool) -> Federation:
    """Return a federation with other class names."""
    backbone = replace(federation.problem.backbone, packs_texts=not padding, texts_by_client=not together)
    return replace(federation, problem=replace(federation.problem, classes=names, backbone=backbone))


if __name__ == "__main__":
    typer.run(main)
