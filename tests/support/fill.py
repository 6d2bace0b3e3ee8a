"""A store filled with made-up runs through the writes of a real job: for tests and pictures of the pages."""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedcore.base.events import (
    AFTER_AGGREGATION,
    BEFORE_AGGREGATION,
    Cell,
    ClientRound,
    Diagnostic,
    Entity,
    RoundFinished,
    Started,
)
from fedcore.base.seeds import numpy_generator
from fedcore.config import DataConfig, Experiment, MethodEntry, RunConfig
from fedcore.methods import registry
from fedcore.store import Created, Store
from fedcore.store.database import writing
from fedcore.store.jobs import RUNS
from fedcore.store.liveness import hold, let_go, new_owner
from fedcore.store.writer import RunWriter

CLIENTS = ("0°", "15°", "30°", "45°", "60°", "75°")
TOTAL = 60
FINAL = {"zero-shot": 0.52, "promptfl": 0.66, "fedot": 0.86, "sdfed": 0.74, "fedalign": 0.79, "feddeap": 0.77}
BYTES = {
    "zero-shot": 0,
    "promptfl": 16_384,
    "fedot": 40_960,
    "sdfed": 65_536,
    "fedalign": 180_224,
    "feddeap": 98_304,
}


def an_experiment(
    name: str = "Rotated digits, made up",
    methods: Sequence[str | MethodEntry] = ("zero-shot", "fedot", "promptfl", "sdfed", "fedalign"),
    seeds: Sequence[int] = (1, 2, 3),
    rounds: int = 10,
    data: str | DataConfig = "rotated-digits",
    **changes: object,
) -> Experiment:
    """An experiment of registered methods with their papers' defaults, or as their entries say."""
    return Experiment(
        name=name,
        data=DataConfig(name=data) if isinstance(data, str) else data,
        methods=tuple(
            MethodEntry(name=m, label=registry.get(m).about.title) if isinstance(m, str) else m
            for m in methods
        ),
        seeds=tuple(seeds),
        rounds=rounds,
        **changes,
    )


def entities(clients: Sequence[str] = CLIENTS, domains: Sequence[str] = CLIENTS) -> tuple[Entity, ...]:
    found = [Entity(0, "global", "global")]
    found += [
        Entity(i, "client", c, domain=c, samples=200, class_counts=(20,) * 10)
        for i, c in enumerate(clients, start=1)
    ]
    return (
        *found,
        *(Entity(len(found) + i, "domain", d, domain=d, samples=TOTAL) for i, d in enumerate(domains)),
    )


def cell(
    model: int,
    test_set: int,
    correct: int,
    total: int,
    loss: float | None = 0.1,
    split: int = 2,
    stage: int = AFTER_AGGREGATION,
) -> Cell:
    """A cell of the test split after aggregation, unless told otherwise."""
    return Cell(
        split=split, stage=stage, model=model, test_set=test_set, correct=correct, total=total, loss=loss
    )


def a_round(
    method: str, seed: int, round_: int, rounds: int, clients: Sequence[str] = CLIENTS
) -> RoundFinished:
    """One round with accuracies that rise towards the method's (made-up) level; equal for equal arguments."""
    rng = numpy_generator(seed, "fill", method, round_)
    listed = entities(clients, clients)
    count = len(clients)
    grown = 0.12 + (FINAL.get(method, 0.7) - 0.12) * (
        1.0 if method == "zero-shot" else 1 - np.exp(-4 * round_ / rounds)
    )
    cells = []
    for model in listed[: count + 1]:
        for test_set in listed[1:]:
            distance = (
                0.0 if model.kind == "global" else abs((test_set.code - 1) % count - (model.code - 1)) / count
            )
            level = grown + 0.06 * (distance == 0) - 0.4 * distance + rng.normal(0, 0.02)
            share = float(min(max(level, 0.02), 0.99))
            correct, loss = round(share * TOTAL), float(-np.log(share))
            cells.append(cell(model.code, test_set.code, correct, TOTAL, loss))
            if test_set.code == model.code or (model.kind == "global" and test_set.kind == "client"):
                cells.append(cell(model.code, test_set.code, correct, TOTAL, loss, split=1))
                if model.kind == "client" and round_:
                    cells.append(
                        cell(model.code, test_set.code, correct, TOTAL, loss, stage=BEFORE_AGGREGATION)
                    )
    size = BYTES.get(method, 50_000) if round_ else 0
    took_part = (
        tuple(
            ClientRound(client=c, steps=12, train_loss=2.0 - grown, bytes_up=size, bytes_down=size)
            for c in range(1, count + 1)
        )
        if round_
        else ()
    )
    return RoundFinished(
        round=round_,
        train_loss=None
        if round_ == 0 or method == "zero-shot"
        else 2.2 * float(np.exp(-3 * round_ / rounds)) + 0.1,
        seconds_train=0.8 if round_ else 0.0,
        seconds_aggregate=0.05,
        seconds_evaluate=0.2,
        scalars_up=size * count // 4,
        scalars_down=size * count // 4,
        bytes_up=size * count,
        bytes_down=size * count,
        clients=took_part,
        cells=tuple(cells),
        diagnostics=(Diagnostic("gradient_conflict", 0.2 + 0.01 * round_),) if round_ else (),
    )


def start(db: Path, experiment: Experiment) -> tuple[Created, list[RunWriter]]:
    """Record an experiment and claim all of its runs for this process."""
    Store(db).prepare()
    created = Store(db).experiments.create(experiment)
    owner = new_owner()
    writers = []
    for _ in created.run_ids:
        claim = Store(db).jobs.claim(owner, "cpu", experiment_id=created.experiment_id)
        assert claim is not None, "nothing was queued"
        writer = RunWriter(claim)
        writer.claim.begin()
        writers.append(writer)
    return created, writers


def keep_alive(db: Path) -> list[str]:
    """Hold the locks of the runs that say ``running`` in a copy of a database; returns their owners."""
    owners = sorted({row["owner"] for row in Store(db).jobs.live(RUNS)})
    for owner in owners:
        hold(db, owner)
    return owners


def config_of(writer: RunWriter) -> RunConfig:
    """The config of a claimed run."""
    return Store(writer.claim.db).runs.config(writer.claim.id)


def train(
    writer: RunWriter,
    until: int | None = None,
    since: int = 0,
    clients: Sequence[str] = CLIENTS,
    environment: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write the rounds of a claimed run; all of them ends it as done.

    Args:
        environment: what the run's record says beside device and threads.
    """
    run = config_of(writer)
    if since == 0:
        writer.started(
            Started(
                entities=entities(clients, clients),
                rounds_total=run.rounds,
                environment={"device": "cpu", "threads": 1, **environment},
            )
        )
    last = run.rounds if until is None else until
    for round_ in range(since, last + 1):
        writer.write_round(a_round(run.method.name, run.seed, round_, run.rounds, clients))
    if until is None:
        writer.claim.finish("done")


def record(
    writer: RunWriter,
    listed: Iterable[Entity | tuple[Any, ...]],
    rounds: Mapping[int, Iterable[Cell]],
    total: int = 0,
    **measured: Any,
) -> None:
    """Write the rounds of a claimed run cell by cell, and end it as done.

    Args:
        total: its number of rounds; default: the last of ``rounds``.
        measured: times and traffic of each round but 0.
    """
    described = tuple(e if isinstance(e, Entity) else Entity(*e) for e in listed)
    writer.started(Started(entities=described, rounds_total=total or max(rounds), environment={}))
    for round_, cells in rounds.items():
        costs = measured if round_ else {}
        writer.write_round(RoundFinished(round=round_, cells=tuple(cells), **costs))
    writer.claim.finish("done")


def done(db: Path, experiment: Experiment | None = None) -> int:
    """A finished experiment; returns its id."""
    created, writers = start(db, experiment or an_experiment())
    for writer in writers:
        train(writer)
    let_go(db, writers[0].claim.owner)
    with writing(db) as database:  # made-up runs take no time; a table with 0 s everywhere shows nothing
        database.execute(
            "UPDATE runs SET started_at=finished_at-12.5-id WHERE experiment_id=?", [created.experiment_id]
        )
    return created.experiment_id


def mixed(db: Path) -> int:
    """An experiment in the middle of things: done, running, failed, stopped, queued."""
    created, writers = start(db, an_experiment("In the middle of things", seeds=(1,), rounds=20))
    train(writers[0])
    train(writers[1], until=7)
    train(writers[2], until=3)
    writers[2].claim.finish(
        "failed",
        "CUDA out of memory at round 4; choose a smaller batch_size",
        "Traceback ...\nRuntimeError: out of memory",
    )
    train(writers[3], until=5)
    writers[3].claim.finish("stopped", "stop requested")
    with writing(db) as database:
        now = time.time()
        database.execute(
            "UPDATE runs SET status='queued', owner=NULL, pid=NULL, started_at=NULL, "
            "status_text=NULL WHERE id=?",
            [writers[4].run_id],
        )
        database.execute("UPDATE runs SET started_at=? WHERE id=?", [now - 30, writers[1].run_id])
    return created.experiment_id


def alter(db: Path, statement: str) -> None:
    """Change rows as damage would."""
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(statement)
