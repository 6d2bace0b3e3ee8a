"""Writes experiments, runs, entities and rounds within the caller's transaction."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedcore.config import Experiment, RunConfig
from fedcore.config.grouping import group_hash
from fedcore.engine.events import STAGES
from fedcore.methods import registry
from fedcore.store.schema import RUN_TABLES

if TYPE_CHECKING:
    from sqlite_utils import Database

    from fedcore.engine.events import Cell, ClientRound, Diagnostic, RoundFinished

POINTS = {stage: code for code, stage in enumerate(STAGES)}

SCORES = """
INSERT OR REPLACE INTO scores
SELECT a.run_id, a.split, a.point, a.round,
  avg(CASE WHEN a.model = a.test_set THEN 1.0 * correct / total END),
  1.0 * sum(CASE WHEN a.model = a.test_set THEN correct END) / sum(CASE WHEN a.model = a.test_set THEN total
  END), min(CASE WHEN a.model = a.test_set THEN 1.0 * correct / total END), avg(CASE WHEN a.model = 0 AND
  t.kind = 'client' THEN 1.0 * correct / total END),
  avg(CASE WHEN t.kind = 'classes' THEN 1.0 * correct / total END)
FROM accuracy a JOIN entities t ON t.run_id = a.run_id AND t.entity = a.test_set
WHERE a.run_id = :run AND a.split = :split AND a.point = :point AND a.round = :round
GROUP BY a.run_id, a.split, a.point, a.round
"""
"""Means of one (split, point, round), from counts.

personal_mean: every client's model on its own samples, clients weighing equally; personal_weighted: the same,
weighing by samples; personal_worst: the least of them; global_mean: the global model (code 0) over the
clients' test sets, clients weighing equally; classes_mean: every client's model on all test samples of its
classes (FedAlign's local performance), NULL where that is not measured.
"""

SUMMARY = """
UPDATE runs SET last_test = last.personal_mean, worst_client = last.personal_worst,
  best_round = best.round, best_test = best.test
FROM (SELECT 1) LEFT JOIN
  (SELECT personal_mean, personal_worst FROM scores WHERE run_id = :run AND split = 2 AND point = 1
   ORDER BY round DESC LIMIT 1) AS last LEFT JOIN
  (SELECT v.round, t.personal_mean AS test FROM scores v
   LEFT JOIN scores t ON t.run_id = v.run_id AND t.split = 2 AND t.point = 1 AND t.round = v.round
   WHERE v.run_id = :run AND v.split = 1 AND v.point = 1 AND v.personal_mean IS NOT NULL
   ORDER BY v.personal_mean DESC, v.round LIMIT 1) AS best
WHERE id = :run
"""
"""Summary columns of a run, all for the models after aggregation (broadcast).

last_test, worst_client: mean and least personal test accuracy at the last evaluated round. best_round: the
round of the highest unweighted mean validation accuracy, the earliest of equals; best_test: the mean personal
test accuracy at that round. Nothing is selected on test samples.
"""


@dataclass(frozen=True)
class OwnRound:
    """A round that was trained elsewhere, or more of it; None where nobody measured (0 would be a claim)."""

    round: int
    cells: tuple[Cell, ...]
    train_loss: float | None = None
    seconds_train: float | None = None
    seconds_aggregate: float | None = None
    seconds_evaluate: float | None = None
    scalars_up: int | None = None
    scalars_down: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    clients: tuple[ClientRound, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


FIGURES = (
    "train_loss",
    "seconds_train",
    "seconds_aggregate",
    "seconds_evaluate",
    "scalars_up",
    "scalars_down",
    "bytes_up",
    "bytes_down",
)
UPSERT = (
    "INSERT INTO rounds VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT(run_id, round) DO UPDATE SET "
    + ", ".join(f"{name}=coalesce(excluded.{name}, {name})" for name in FIGURES)
)
"""A round may come in several parts (splits, points): what a later part leaves out stays."""


@dataclass(frozen=True)
class Created:
    """A new experiment. ``run_ids`` are in the order of the given runs."""

    experiment_id: int
    run_ids: tuple[int, ...]


def insert_experiment(database: Database, experiment: Experiment, token: str | None = None) -> int:
    """Write the row of an experiment within the caller's transaction; returns its id."""
    cursor = database.execute(
        "INSERT INTO experiments(token, name, created_at, config, notes, tags) VALUES (?,?,?,?,?,?)",
        [
            token or uuid.uuid4().hex,
            experiment.name,
            time.time(),
            experiment.model_dump_json(),
            experiment.notes,
            json.dumps(list(experiment.tags)),
        ],
    )
    return int(cursor.lastrowid or 0)


def insert_runs(
    database: Database,
    experiment_id: int,
    configs: Sequence[RunConfig],
    *,
    device: str,
    priority: int = 0,
    origin: str = "engine",
) -> tuple[int, ...]:
    """Write queued runs within the caller's transaction; returns their ids."""
    titles = {name: cls.about.title for name, cls in registry.load_all().items()}
    return tuple(
        int(
            database.execute(
                "INSERT INTO runs(experiment_id, method, label, seed, held_out, config, group_hash, origin, "
                "status, priority, device_asked, created_at, rounds_total) "
                "VALUES (?,?,?,?,?,?,?,?,'queued',?,?,?,?)",
                [
                    experiment_id,
                    run.method.name,
                    run.method.label or titles.get(run.method.name, run.method.name),
                    int(run.seed),
                    run.held_out,
                    run.model_dump_json(),
                    group_hash(run),
                    origin,
                    priority,
                    device,
                    time.time(),
                    run.rounds,
                ],
            ).lastrowid
            or 0
        )
        for run in configs
    )


def claim_new(
    database: Database, ids: Iterable[int], owner: str, device: str | None, pid: int, started: float
) -> None:
    """Hand runs of the same transaction to their owner, attempt 1."""
    for run_id in ids:
        database.execute(
            "UPDATE runs SET status='running', attempt=1, owner=?, device=?, pid=?, pid_started=?, "
            "heartbeat_at=?, message='waiting for its turn' WHERE id=?",
            [owner, device, pid, started, time.time(), run_id],
        )


def insert_entities(database: Database, run_id: int, entities: tuple[Any, ...]) -> None:
    """Record the models and test sets of a run (``events.Entity``); known codes are kept up to date."""
    database.conn.executemany(
        "INSERT OR REPLACE INTO entities VALUES (?,?,?,?,?,?,?)",
        [
            (
                run_id, int(e.code), e.kind, e.name, e.domain, None if e.samples is None else int(e.samples),
                None if e.class_counts is None else json.dumps([int(n) for n in e.class_counts]),
            )
            for e in entities
        ],
    )  # fmt: skip


def insert_round(database: Database, run_id: int, event: RoundFinished | OwnRound) -> None:
    """Write all rows of a round within the caller's transaction; numpy numbers are cast here."""
    number = int(event.round)
    database.execute(
        UPSERT,
        [
            run_id,
            number,
            _real(event.train_loss),
            _real(event.seconds_train),
            _real(event.seconds_aggregate),
            _real(event.seconds_evaluate),
            _whole(event.scalars_up),
            _whole(event.scalars_down),
            _whole(event.bytes_up),
            _whole(event.bytes_down),
        ],
    )
    database.conn.executemany(
        "INSERT OR REPLACE INTO client_rounds VALUES (?,?,?,?,?,?,?)",
        [
            (
                run_id,
                number,
                int(c.client),
                int(c.steps),
                _real(c.train_loss),
                int(c.bytes_up),
                int(c.bytes_down),
            )
            for c in event.clients
        ],
    )
    database.conn.executemany(
        "INSERT OR REPLACE INTO accuracy VALUES (?,?,?,?,?,?,?,?,?)",
        [
            (
                run_id,
                int(c.split),
                POINTS[c.stage],
                number,
                int(c.model),
                int(c.test_set),
                int(c.correct),
                int(c.total),
                _real(c.loss),
            )
            for c in event.cells
        ],
    )
    database.conn.executemany(
        "INSERT OR REPLACE INTO diagnostics VALUES (?,?,?,?,?,?)",
        [
            (run_id, d.name, number, int(d.client_a), int(d.client_b), _real(d.value))
            for d in event.diagnostics
        ],
    )
    for split, point in sorted({(int(c.split), POINTS[c.stage]) for c in event.cells}):
        database.execute(SCORES, {"run": run_id, "split": split, "point": point, "round": number})


def update_summary(database: Database, run_id: int) -> None:
    """Bring the summary columns of a run in line with its scores."""
    database.execute(SUMMARY, {"run": run_id})


def delete_rounds_after(database: Database, run_id: int, last: int | None) -> None:
    """Delete what a run recorded after round ``last``; None deletes all, the names of its clients too."""
    for table in RUN_TABLES:
        if table == "entities":
            if last is None:
                database.execute("DELETE FROM entities WHERE run_id=?", [run_id])
        else:
            database.execute(
                f"DELETE FROM {table} WHERE run_id=? AND round>?", [run_id, -1 if last is None else last]
            )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _real(value: Any) -> float | None:
    """A plain float; NaN becomes NULL (SQLite has none), which charts show as a gap."""
    return None if value is None else float(value)
