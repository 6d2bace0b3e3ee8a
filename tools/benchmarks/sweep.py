"""Measure what short runs of a sweep cost beside their rounds, in CPU-seconds of one thread.

python -m tools.benchmarks.sweep                            # 54 runs of FedCLIP on the embedded digits
python -m tools.benchmarks.sweep --method fedot --rounds 20
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import typer

from fedcore import config
from fedcore.base.events import Event, Finished, Started
from fedcore.jobs.process import run_local
from fedcore.store import Store

RATES = tuple(round(0.001 * i, 3) for i in range(1, 19))
SEEDS = (1, 2, 3)


def main(method: str = "fedclip", rounds: int = 10) -> None:
    """Train a sweep of 18 learning rates and 3 seeds in one process that has trained a run before."""
    os.environ["FEDLENS_THREADS"] = "1"
    experiment = config.parse(
        {
            "name": "sweep",
            "data": {"name": "rotated-digits"},
            "backbone": {"name": "mini-vit"},
            "methods": [{"name": method}],
            "rounds": rounds,
            "seeds": SEEDS,
            "sweep": {f"methods.{method}.lr": RATES},
        }
    )
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        store = Store(Path(folder) / "runs.db")
        store.prepare()
        first = experiment.model_copy(update={"sweep": {}, "seeds": SEEDS[:1], "rounds": 1})
        run_local(store, first, config.expand(first), device="cpu")
        watch = RoundsWatch()
        begun = time.process_time()
        _, done = run_local(store, experiment, config.expand(experiment), device="cpu", listen=watch)
        total = time.process_time() - begun
    outside = (total - watch.spent) / len(done)
    print(
        f"{len(done)} runs of {rounds} rounds: {total:.1f} CPU-s, of them {watch.spent:.1f} in rounds; "
        f"{outside:.3f} a run beside them, {100 * (1 - watch.spent / total):.0f} %"
    )


class RoundsWatch:
    """Adds up the CPU-seconds of all runs from their start to their last round, recording included."""

    def __init__(self) -> None:
        self.spent = self._started = 0.0

    def __call__(self, run_id: int, event: Event) -> None:
        """Note an event of a run."""
        if isinstance(event, Started):
            self._started = time.process_time()
        elif isinstance(event, Finished):
            self.spent += time.process_time() - self._started


if __name__ == "__main__":
    typer.run(main)
