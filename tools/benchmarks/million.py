"""Write a store for measuring pages: a million invented accuracy rows, or a run of very many clients.

python -m tools.benchmarks.million million.db                # 4 experiments, 5 methods, 4 seeds, 30 s
python -m tools.benchmarks.million ten.db --experiments 40   # ten times the runs and rows, 5 minutes
python -m tools.benchmarks.million papers.db --papers        # finished runs of the papers' tables, 70 s
python -m tools.benchmarks.million large.db --clients 10000  # two methods, on drawn features, 5 minutes
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import typer

from fedcore.base.events import Entity, Notice, RoundFinished, Started
from fedcore.base.seeds import numpy_generator
from fedcore.config import Experiment, RunConfig
from fedcore.engine.federations import entities
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.papers.experiments import preset
from fedcore.store import Store
from fedcore.store.writer import RunWriter
from tests.support import fill
from tools.benchmarks import drawn

CLIENTS = tuple(f"client-{i:02d}" for i in range(1, 11))
EXPERIMENTS, SEEDS, ROUNDS = 4, 4, 50
PAPERS = {
    "sdfed/table1-flowers102": 7,
    "sdfed/table1-dtd": 7,
    "sdfed/table1-food101": 7,
    "sdfed/table1-caltech101": 7,
    "fedot/table1-office-home": 10,
}
"""Presets of the papers -> how many of their methods are recorded: a million rows together."""
PARTICIPANTS = 100
LARGE: dict[str, dict[str, object]] = {"fedot": {"blocks": 16}, "fedclip": {}}
"""Methods of the store with many clients -> their fields."""


def make(db: Path, experiments: int = EXPERIMENTS) -> int:
    """Write the store as jobs would, round by round; return the number of accuracy rows."""
    for number in range(1, experiments + 1):
        experiment = fill.an_experiment(
            f"Invented, {number} of {experiments}", seeds=tuple(range(1, SEEDS + 1)), rounds=ROUNDS
        )
        _, writers = fill.start(db, experiment)
        for writer in writers:
            fill.train(writer, clients=CLIENTS)
    return _settled(db)


def make_papers(db: Path) -> int:
    """Write finished runs of the papers' tables with invented numbers; return the number of accuracy rows."""
    for name, methods in PAPERS.items():
        paper = preset(name)
        reduced: Experiment = paper.model_copy(update={"methods": paper.methods[:methods]})
        _, writers = fill.start(db, reduced)
        for writer in writers:
            _train_paper(writer, paper.held_out)
    return _settled(db)


def _train_paper(writer: RunWriter, held_out: tuple[str, ...]) -> None:
    """Write all rounds of a run: a client for each domain but the held-out one, or ten on one domain."""
    run = Store(writer.claim.db).runs.config(writer.claim.id)
    domains = held_out or (run.data.name,)
    clients = [d for d in domains if d != run.held_out] if held_out else list(CLIENTS)
    listed = [Entity(0, "global", "global")]
    listed += [Entity(i, "client", c, domain=c if held_out else domains[0]) for i, c in enumerate(clients, 1)]
    listed += [Entity(len(listed) + i, "domain", d, domain=d) for i, d in enumerate(domains)]
    writer.started(Started(entities=tuple(listed), rounds_total=run.rounds, environment={"device": "cpu"}))
    for round_ in range(run.rounds + 1):
        writer.write_round(_paper_round(run, round_, len(clients), len(listed)))
    writer.claim.finish("done")


def _paper_round(run: RunConfig, number: int, clients: int, entities: int) -> RoundFinished:
    """Draw a round with a full matrix of models by test sets."""
    draws = numpy_generator(run.seed, "papers", run.method.label, number, run.held_out)
    hits = draws.integers(1, fill.TOTAL, (clients + 1, entities)).tolist()
    cells = [
        fill.cell(model, test_set, hits[model][test_set], fill.TOTAL)
        for model in range(clients + 1)
        for test_set in range(1, entities)
    ]
    cells += [fill.cell(i, i, hits[i][i], fill.TOTAL, split=1) for i in range(1, clients + 1)]
    return RoundFinished(round=number, cells=tuple(cells))


def make_large(db: Path, clients: int) -> int:
    """Train two methods on the drawn features of many clients; return the number of accuracy rows."""
    share = min(1.0, PARTICIPANTS / clients)
    experiment = fill.an_experiment(
        f"{clients:,} clients", methods=tuple(LARGE), seeds=(1,), rounds=20, participation=share
    )
    _, writers = fill.start(db, experiment)
    federation = drawn.federation(clients, classes=10, train=8, test=4)
    for writer in writers:
        run = Store(db).runs.config(writer.claim.id)
        method = drawn.build(run.method.name, federation, **LARGE[run.method.name])
        listed = entities(federation)
        writer.started(Started(entities=listed, rounds_total=run.rounds, environment={"device": "cpu"}))
        for event in all_rounds(Server(method, federation, run.rounds, share)):
            if isinstance(event, RoundFinished):
                writer.write_round(event)
            elif isinstance(event, Notice):
                writer.notice(event.message, event.repeats_exactly)
        writer.claim.finish("done")
    return _settled(db)


def _settled(db: Path) -> int:
    with sqlite3.connect(db) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return int(connection.execute("SELECT count(*) FROM accuracy").fetchone()[0])


def main(db: Path, experiments: int = EXPERIMENTS, papers: bool = False, clients: int | None = None) -> None:
    """Write a store for measuring pages into a new file, and print its size."""
    if db.exists():
        raise typer.BadParameter(f"{db} exists; name a new file")
    start = time.perf_counter()
    if clients is not None:
        rows = make_large(db, clients)
    else:
        rows = make_papers(db) if papers else make(db, experiments)
    size = db.stat().st_size / 2**20
    print(f"{rows:,} accuracy rows, {size:.0f} MB, in {time.perf_counter() - start:.0f} s: {db}")


if __name__ == "__main__":
    typer.run(main)
