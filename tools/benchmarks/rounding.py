"""Measure how far bf16 and TF32 move the logits and counts of the demonstration, for every method.

python -m tools.benchmarks.rounding                     # every method after three rounds
python -m tools.benchmarks.rounding fedalign sdfed --rounds 10
python -m tools.benchmarks.rounding --kind tf32 --write # also into the table that New reads

``arithmetic`` is of local training, ``precision`` of the frozen image encoder. Methods outside of the
demonstration have their papers' values there, and its learning rate where theirs suits full-size models only.

A CPU has no TF32. Here the factors of each product and convolution, forward and backward, are rounded to its
ten bits of mantissa, which is what a GPU does before it adds in single precision.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode

from fedcore.base import devices
from fedcore.base.events import RoundFinished
from fedcore.base.presentation import built_in
from fedcore.base.progress import result_of
from fedcore.clip import encodings
from fedcore.config import RunConfig, parse
from fedcore.engine.plan import plan
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.engine.train import set_up_again
from fedcore.methods.base import MINI_RATE
from fedcore.methods.registry import ROUNDING
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
    methods: Annotated[list[str] | None, typer.Argument(help="all methods unless given")] = None,
    rounds: int = 3,
    kind: list[str] = ["tf32", "bf16"],  # noqa: B006 - typer's way
    write: bool = False,
) -> None:
    """Print the largest change of any logit, and how many counts of correct predictions change, by method."""
    torch.set_num_threads(1)
    for module in (devices, encodings):
        module.tf32 = lambda wanted: Tf32() if wanted else nullcontext()  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        for name in methods or built_in():
            run, there = run_of(name), pd.read_csv(ROUNDING, dtype=str)
            exact, cells = trained(run, rounds, Path(folder))
            rows = []
            for field in ("arithmetic", "precision") if "arithmetic" in run.method.config else ("precision",):
                for value in kind:
                    logits, others = trained(run, rounds, Path(folder), **{field: value})
                    counts = [abs(a.correct - b.correct) for a, b in zip(cells, others, strict=True)]
                    largest = f"{exact.abs().max():.3g}", f"{(logits - exact).abs().max():.2g}", max(counts)
                    rows.append((name, field, value, *largest, sum(c > 0 for c in counts), len(counts)))
                    print(*rows[-1], sep=",", flush=True)
            if write:
                table = pd.concat([there, pd.DataFrame(rows, columns=there.columns)])
                of_row = ["method", "field", "value"]
                table.drop_duplicates(of_row, keep="last").sort_values(of_row).to_csv(ROUNDING, index=False)


def run_of(name: str) -> RunConfig:
    """Return a run of a method as in the demonstration."""
    demo = preset("demo").model_dump(mode="json", exclude_none=True)
    entry = next((m for m in demo["methods"] if m["name"] == name), {"name": name})
    made = plan(parse({**demo, "methods": [entry]}))
    if any(f"Set lr = {MINI_RATE:g}," in warning for warning in made.warnings):
        made = plan(parse({**demo, "methods": [{"name": name, "config": {"lr": MINI_RATE}}]}))
    return made.runs[0]


def trained(
    run: RunConfig, rounds: int, folder: Path, arithmetic: str = "", precision: str = "fp32"
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """Train a run, and return the logits of all clients' models and the cells of its last round."""
    config = run.method.config | ({"arithmetic": arithmetic} if arithmetic else {})
    parts = {
        "method": run.method.model_copy(update={"config": config}),
        "backbone": run.backbone.model_copy(update={"precision": precision}),
    }
    setup = result_of(set_up_again(run.model_copy(update=parts), folder, "cpu"))
    server = Server(setup.method, setup.federation, rounds, evaluate_every=rounds)
    server.run_state.done = 0  # without the evaluation before training
    *_, last = (event for event in all_rounds(server) if isinstance(event, RoundFinished))
    federation, clients = setup.federation, torch.arange(len(setup.federation.problem.clients))
    models = setup.method.models(server.state).of(clients)
    x = federation.pool.x(federation.test.flat.unique()[:MOST_SAMPLES])
    with torch.no_grad():
        head = setup.method.head(models, federation.local_data(clients))
        return setup.method.logits(models, head, x.expand(len(clients), *x.shape)), last.cells


if __name__ == "__main__":
    typer.run(main)
