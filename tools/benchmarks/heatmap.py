"""Measure how long a large heatmap takes on the server, and how long its text for the browser is.

python -m tools.benchmarks.heatmap   # 150 x 150 cells with counts, a second
"""

from __future__ import annotations

import time

import typer

from fedcore.base.seeds import numpy_generator
from fedcore.results.charts.heatmaps import heatmap_grid
from fedcore.results.charts.theme import Theme
from fedcore.results.panels import Panel

REPEATS = 9


def main(clients: int = 150) -> None:
    """Print the minimum CPU-milliseconds to draw and to write a heatmap, and the size of its text."""
    names = tuple(f"client {i:04d}" for i in range(clients))
    draws = numpy_generator(1, "heatmap benchmark")
    total = draws.integers(50, 400, (clients, clients))
    correct = (total * draws.random((clients, clients))).astype(int)
    panel = Panel(
        "FedOT", "fedot", names, names, 100 * correct / total, correct, total, tuple(range(clients))
    )
    times, text = [], ""
    for _ in range(REPEATS):
        start = time.process_time()
        figure = heatmap_grid([panel], Theme()).figure
        text = figure.to_json()
        times.append(time.process_time() - start)
    print(f"{clients * clients:,} cells: {1000 * min(times):.1f} CPU-ms, {len(text) / 1e6:.2f} MB")


if __name__ == "__main__":
    typer.run(main)
