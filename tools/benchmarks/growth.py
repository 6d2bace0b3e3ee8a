"""Measure what grows with a store: every page and ``fedlens list``, and the writing of a round.

python -m tools.benchmarks.growth experiments   # 10 to 3,000 experiments, 30 in a setting
python -m tools.benchmarks.growth long          # Live and Run, 100 to 10,000 rounds
python -m tools.benchmarks.growth wide          # Compare of 60 and 600 runs
python -m tools.benchmarks.growth write         # one more round after 100 to 100,000 stored ones

All figures are CPU-milliseconds of the server, the smallest of some visits: with Streamlit's caches empty,
when all configs have been read before, then with warm ones.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import typer

from fedcore.base.events import RoundFinished, Started
from fedcore.cli.experiments import list_experiments
from fedcore.config import PartitionConfig
from fedcore.store.database import writing
from fedcore.store.writer import RunWriter, insert_round
from tests.support import fill
from tools.benchmarks import pages

METHODS = ("fedot", "promptfl")
IN_SETTING = 30
"""Experiments of one setting."""
CLIENTS = fill.CLIENTS[:3]
REPEATS = 5
WRITES = 40
Visits = dict[str, tuple[str, dict[str, str | list[str]]]]
SEVERAL: Visits = {
    "Experiments": ("experiments", {}),
    "Leaderboard": ("leaderboard", {}),
    "Compare of one run": ("compare", {"ids": ["1"]}),
    "Live": ("live", {"id": "1"}),
    "New": ("new", {"preset": "demo"}),
    "Papers, a table": ("papers", {"table": "fedot-1"}),
    "Run": ("run", {"id": "2"}),
}
LONG: Visits = {
    "Live": ("live", {"id": "1"}),
    "Live, clients by round": ("live", {"id": "1", "live_view": "Client by round"}),
    "Run": ("run", {"id": "1"}),
    "Run, diagnostics": ("run", {"id": "1", "run_tab": "Diagnostics"}),
    "Compare, curves": ("compare", {"ids": ["1"], "tab": "Curves"}),
}
WIDE: Visits = {
    "Compare, summary": ("compare", {"ids": ["1"]}),
    "Compare, cost": ("compare", {"ids": ["1"], "tab": "Cost"}),
}
app = typer.Typer(add_completion=False)


def add(db: Path, number: int, rounds: int, methods: Iterable[str] = METHODS, seeds: int = 1) -> None:
    """Write a finished experiment as jobs would."""
    partition = PartitionConfig(kind="dirichlet", clients=3, alpha=0.1 + number // IN_SETTING)
    experiment = fill.an_experiment(
        f"Number {number}", methods=tuple(methods), seeds=tuple(range(1, seeds + 1)), rounds=rounds
    )
    _, writers = fill.start(db, experiment.model_copy(update={"partition": partition}))
    for writer in writers:
        write(writer, rounds)
        writer.claim.finish("done")
    fill.let_go(db, writers[0].claim.owner)


def write(writer: RunWriter, rounds: int) -> None:
    """Write the rounds of a run, of which all but the last go into one transaction, to be quick."""
    run = fill.config_of(writer)
    entities = fill.entities(CLIENTS, CLIENTS)
    writer.started(Started(entities=entities, rounds_total=rounds, environment={"device": "cpu"}))
    with writing(writer.claim.db) as database:
        for round_ in range(rounds):
            insert_round(database, writer.run_id, drawn(run.method.name, run.seed, round_))
    writer.write_round(drawn(run.method.name, run.seed, rounds))


def drawn(method: str, seed: int, round_: int) -> RoundFinished:
    """Draw a round of three clients; accuracies of long runs no longer rise."""
    return fill.a_round(method, seed, round_, 100, CLIENTS)


def cpu_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the smallest CPU time of some calls."""
    spent = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        spent.append(1000 * (time.process_time() - begun))
    return min(spent)


def listed(db: Path) -> None:
    """Do what ``fedlens list`` does, without the start of Python."""
    with redirect_stdout(io.StringIO()):
        list_experiments(db=db)


def table(name: str, sizes: Iterable[int], grow: Callable[[Path, int], None], visits: Visits) -> None:
    """Print a row for every visit, with a pair of figures for every size of one store that grows."""
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        for size in sizes:
            db = Path(folder) / f"{size}.db" if name != "experiments" else Path(folder) / "runs.db"
            grow(db, size)
            with pages.served(db):
                for title, (page, query) in visits.items():
                    cpus = [min(cpu for _, cpu in of) for of in pages.visited(page, query, REPEATS)]
                    found.setdefault(title, []).append(f"{cpus[0]:.0f} {cpus[1]:.0f}")
            if name == "experiments":
                found.setdefault("fedlens list", []).append(f"{cpu_ms(partial(listed, db)):.0f}")
            print(f"  {size:,} {name}:", {title: row[-1] for title, row in found.items()}, flush=True)
    print(f"| page | {' | '.join(f'{size:,}' for size in sizes)} |")
    for title, row in found.items():
        print(f"| {title} | {' | '.join(row)} |")


@app.command()
def experiments(sizes: list[int] = [10, 100, 300, 1000, 3000]) -> None:  # noqa: B006 - typer's way
    """Measure the pages of a store of more and more experiments."""
    there = 0

    def grow(db: Path, size: int) -> None:
        nonlocal there
        for number in range(there, size):
            add(db, number, rounds=3)
        there = size

    table("experiments", sizes, grow, SEVERAL)


@app.command()
def long(sizes: list[int] = [100, 1000, 10_000]) -> None:  # noqa: B006
    """Measure the pages of two runs of more and more rounds."""
    table("rounds", sizes, lambda db, size: add(db, 0, size), LONG)


@app.command()
def wide(sizes: list[int] = [60, 600]) -> None:  # noqa: B006
    """Measure the comparison of more and more runs, five methods with equal seeds."""
    methods = ("zero-shot", "fedot", "promptfl", "sdfed", "fedalign")
    table("runs", sizes, lambda db, size: add(db, 0, 10, methods, size // len(methods)), WIDE)


@app.command("write")
def writes(sizes: list[int] = [100, 1000, 10_000, 100_000]) -> None:  # noqa: B006
    """Measure the writing of a round of ten clients after more and more stored ones."""
    clients = tuple(f"client {i}" for i in range(10))
    with tempfile.TemporaryDirectory(prefix="fedlens-bench-") as folder:
        db, there = Path(folder) / "runs.db", 0
        rounds = max(sizes) + WRITES
        _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=10_000))
        entities = fill.entities(clients, clients)
        writer.started(Started(entities=entities, rounds_total=rounds, environment={"device": "cpu"}))
        for size in sizes:
            with writing(db) as database:
                for round_ in range(there, size):
                    insert_round(database, writer.run_id, fill.a_round("fedot", 1, round_, 100, clients))
            following = [fill.a_round("fedot", 1, size + i, 100, clients) for i in range(WRITES)]
            spent = [cpu_ms(lambda event=event: writer.write_round(event), 1) for event in following]
            there = size + WRITES
            print(f"{size:7,} stored rounds: {statistics.median(spent):.1f} CPU-ms a round", flush=True)


if __name__ == "__main__":
    app()
