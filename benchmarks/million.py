"""Write a store of a million invented accuracy rows, as a group has after a year of work.

python -m benchmarks.million million.db                  # 4 experiments, 5 methods, 4 seeds, 50 rounds, 30 s
python -m benchmarks.million ten.db --experiments 40     # ten times the runs and rows, 5 minutes
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import typer

from tests.support import fill

CLIENTS = tuple(f"client-{i:02d}" for i in range(1, 11))
EXPERIMENTS, SEEDS, ROUNDS = 4, 4, 50


def make(db: Path, experiments: int = EXPERIMENTS) -> int:
    """Write the store as jobs would, round by round; return the number of accuracy rows."""
    for number in range(1, experiments + 1):
        experiment = fill.an_experiment(
            f"Invented, {number} of {experiments}", seeds=tuple(range(1, SEEDS + 1)), rounds=ROUNDS
        )
        _, writers = fill.start(db, experiment)
        for writer in writers:
            fill.train(writer, clients=CLIENTS)
    with sqlite3.connect(db) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return int(connection.execute("SELECT count(*) FROM accuracy").fetchone()[0])


def main(db: Path, experiments: int = EXPERIMENTS) -> None:
    """Write a store of a million invented accuracy rows into a new file, and print its size."""
    if db.exists():
        raise typer.BadParameter(f"{db} exists; name a new file")
    start = time.perf_counter()
    rows = make(db, experiments)
    size = db.stat().st_size / 2**20
    print(f"{rows:,} accuracy rows, {size:.0f} MB, in {time.perf_counter() - start:.0f} s: {db}")


if __name__ == "__main__":
    typer.run(main)
