"""Measure how far bf16 and TF32 in local training move the logits and counts of the demonstration.

python -m tools.benchmarks.rounding                     # the models after three rounds
python -m tools.benchmarks.rounding fedalign sdfed --rounds 10

A CPU has no TF32. Here the factors of each product and convolution, forward and backward, are rounded to its
ten bits of mantissa, which is what a GPU does before it adds in single precision.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode

from fedcore.base import devices
from fedcore.base.events import RoundFinished
from fedcore.base.progress import result_of
from fedcore.config import RunConfig
from fedcore.engine.plan import plan
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.engine.train import set_up_again
from fedcore.papers.experiments import preset

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward"}
MOST_SAMPLES = 100
"""Test samples whose logits are compared."""


class Tf32(TorchDispatchMode):
    """Rounds the factors of products to ten bits of mantissa."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        name = func.overloadpacket.__name__
        if name in PRODUCTS or "attention" in name:
            first = 1 if name in ("addmm", "baddbmm") else 0  # what is added stays
            args = [*args[:first], *(rounded(a) for a in args[first:])]
        return func(*args, **(kwargs or {}))


def rounded(value: Any) -> Any:
    """Return a tensor of single precision in TF32, and anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    return ((value.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def main(
    methods: Annotated[list[str] | None, typer.Argument(help="all of the demonstration unless given")] = None,
    rounds: int = 3,
) -> None:
    """Print the largest change of any logit and of any count of correct predictions, by method."""
    torch.set_num_threads(1)
    devices.tf32 = lambda wanted: Tf32() if wanted else nullcontext()  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        for run in {r.method.name: r for r in plan(preset("demo")).runs if r.method.name}.values():
            if methods and run.method.name not in methods:
                continue
            exact, cells = trained(run, "fp32", rounds, Path(folder))
            for kind in ("tf32", "bf16"):
                logits, others = trained(run, kind, rounds, Path(folder))
                counts = [abs(a.correct - b.correct) for a, b in zip(cells, others, strict=True)]
                print(
                    f"{run.method.name:12} {kind}: logits of up to {exact.abs().max():.3g} change by at most "
                    f"{(logits - exact).abs().max():.2g}; counts by at most {max(counts)} "
                    f"({sum(c > 0 for c in counts)} of {len(counts)} change)",
                    flush=True,
                )


def trained(run: RunConfig, kind: str, rounds: int, folder: Path) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """Train a run, and return the logits of all clients' models and the cells of its last round."""
    method = run.method.model_copy(update={"config": {**run.method.config, "arithmetic": kind}})
    setup = result_of(set_up_again(run.model_copy(update={"method": method}), folder, "cpu"))
    server = Server(setup.method, setup.federation, rounds)
    *_, last = (event for event in all_rounds(server) if isinstance(event, RoundFinished))
    federation, models = setup.federation, setup.method.models(server.state).clients
    clients = len(federation.problem.clients)
    x = federation.pool.x(federation.test.flat.unique()[:MOST_SAMPLES])
    with torch.no_grad():
        head = setup.method.head(models, federation.local_data(torch.arange(clients)))
        return setup.method.logits(models, head, x.expand(clients, *x.shape)), last.cells


if __name__ == "__main__":
    typer.run(main)
