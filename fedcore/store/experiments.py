"""Writing to ``runs.db``: experiments are created, queued, stopped, resumed, archived, deleted.

The rounds of a running run are written through its ``lease.Lease`` alone.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedcore.config import Experiment, MethodEntry, RunConfig, expand
from fedcore.config.grouping import group_hash
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.store.database import reading, resolve, writing
from fedcore.store.lease import Lease, run_folder
from fedcore.store.liveness import this_process
from fedcore.store.rounds import delete_rounds_after, update_summary
from fedcore.store.statements import STATEMENTS

if TYPE_CHECKING:
    from sqlite_utils import Database


@dataclass(frozen=True)
class Created:
    """A new experiment. ``run_ids`` in the order of the runs given."""

    experiment_id: int
    run_ids: tuple[int, ...]


def create_experiment(
    db: str | Path,
    experiment: Experiment,
    runs: Sequence[RunConfig] | None = None,
    *,
    device: str = "auto",
    priority: int = 0,
) -> Created:
    """Record an experiment and queue its runs.

    Args:
        runs: what to run; default: ``expand(experiment)``. Give it where ``held_out = ["each"]`` was
            resolved.
        device: ``auto``, ``cpu`` or a GPU's UUID.

    Raises:
        FedLensError: for a method that is not known, and when the database cannot be written.
    """
    experiment, configs = _complete(experiment, runs)
    with writing(db) as database:
        experiment_id = insert_experiment(database, experiment)
        ids = insert_runs(database, experiment_id, configs, device=device, priority=priority)
    return Created(experiment_id, ids)


def create_claimed(
    db: str | Path, experiment: Experiment, runs: Sequence[RunConfig] | None, owner: str, device: str
) -> tuple[Created, list[Lease]]:
    """Record an experiment whose runs this process will train: never queued, so nobody else takes them."""
    experiment, configs = _complete(experiment, runs)
    pid, started = this_process()
    with writing(db) as database:
        experiment_id = insert_experiment(database, experiment)
        ids = insert_runs(database, experiment_id, configs, device="auto", priority=0)
        claim_new(database, ids, owner, device, pid, started)
    leases = [Lease(resolve(db), run_id, owner, 1) for run_id in ids]
    return Created(experiment_id, ids), leases


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


def _complete(experiment: Experiment, runs: Sequence[RunConfig] | None) -> tuple[Experiment, list[RunConfig]]:
    """Refuse unknown methods; write the file of a user's own method into the config, to repeat from it."""
    entries = tuple(_with_file(entry, f"methods.{i}") for i, entry in enumerate(experiment.methods))
    configs = expand(experiment) if runs is None else list(runs)
    if not configs:
        raise FedLensError("the experiment has no runs; name at least one method and one seed", "methods")
    return (
        experiment.model_copy(update={"methods": entries}),
        [c.model_copy(update={"method": _with_file(c.method, "methods")}) for c in configs],
    )


def _with_file(entry: MethodEntry, field: str) -> MethodEntry:
    if entry.file:
        registry.load_file(entry.file)
    registry.get(entry.name, f"{field}.name")
    return entry.model_copy(update={"file": entry.file or registry.file_of(entry.name)})


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
    titles = {name: cls.title for name, cls in registry.load_all().items()}
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


def stop(db: str | Path, run_ids: Iterable[int]) -> list[int]:
    """Ask runs to stop: a queued one is ``stopped`` at once, a running one between two steps of its training.

    Returns: the runs that were asked; others had ended already.
    """
    return _change(
        db,
        run_ids,
        "status = CASE status WHEN 'queued' THEN 'stopped' ELSE 'stopping' END, "
        "finished_at = CASE status WHEN 'queued' THEN :now ELSE NULL END, "
        "reason = CASE status WHEN 'queued' THEN 'stopped before it began' ELSE 'stop asked for' END",
        "status IN ('queued','running')",
    )


def resume(db: str | Path, run_ids: Iterable[int]) -> list[int]:
    """Queue stopped, interrupted, failed runs again; they go on after the last round with a checkpoint."""
    return _change(db, run_ids, QUEUED, "status IN ('stopped','interrupted','failed') AND origin='engine'")


def retry(db: str | Path, run_ids: Iterable[int]) -> list[int]:
    """Queue stopped, interrupted and failed runs anew; what they recorded is deleted."""
    chosen = list(run_ids)
    with writing(db) as database:
        ids = _changed(
            database,
            chosen,
            QUEUED + ", rounds_done=0, environment=NULL, notices='[]', started_at=NULL",
            "status IN ('stopped','interrupted','failed') AND origin='engine'",
        )
        for run_id in ids:
            delete_rounds_after(database, run_id, None)
            database.execute("DELETE FROM tasks WHERE run_id=?", [run_id])  # they looked at what is deleted
            update_summary(database, run_id)
            # before the commit makes it 'queued' for others: a worker may be in the folder a moment later
            _remove_folder(run_folder(db, run_id))
    return ids


QUEUED = (
    "status='queued', owner=NULL, pid=NULL, pid_started=NULL, heartbeat_at=NULL, finished_at=NULL, "
    "reason=NULL, error=NULL, message=NULL"
)


def set_priority(db: str | Path, run_ids: Iterable[int], priority: int) -> list[int]:
    """Queued runs of higher priority start first (default 0)."""
    return _change(db, run_ids, f"priority={int(priority)}", "status='queued'")


def prioritise(
    db: str | Path, run_ids: Iterable[int], move: Literal["top", "up", "down", "bottom"] = "top"
) -> list[int]:
    """Move queued runs within the queue; their order among each other stays. Later ones queue behind all.

    Returns: those that were moved; others had started or ended meanwhile.
    """
    asked = set(run_ids)
    with writing(db) as database:
        order = [row["id"] for row in database.execute(STATEMENTS["queue"])]
        chosen = [run for run in order if run in asked]
        if not chosen:
            return []
        rest = [run for run in order if run not in asked]
        first, last = order.index(chosen[0]), order.index(chosen[-1]) - len(chosen) + 1
        place = {"top": 0, "up": max(0, first - 1), "down": min(len(rest), last + 1), "bottom": len(rest)}
        rest[place[move] : place[move]] = chosen
        for priority, run in enumerate(reversed(rest)):
            database.execute("UPDATE runs SET priority=? WHERE id=?", [priority, run])
    return chosen


def _change(db: str | Path, run_ids: Iterable[int], assignments: str, condition: str) -> list[int]:
    with writing(db) as database:
        return _changed(database, run_ids, assignments, condition)


def _changed(database: Database, run_ids: Iterable[int], assignments: str, condition: str) -> list[int]:
    now = time.time()
    statement = f"UPDATE runs SET {assignments} WHERE id=:id AND {condition}"
    return [i for i in run_ids if database.execute(statement, {"id": int(i), "now": now}).rowcount]


def edit(
    db: str | Path,
    experiment_id: int,
    *,
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    archived: bool | None = None,
) -> None:
    """Change what is written about an experiment; what is None stays.

    Raises:
        FedLensError: for an empty name, and when there is no such experiment.
    """
    if name is not None and not name.strip():
        raise FedLensError("an experiment needs a name; write at least one character", "name")
    values = {
        "name": name,
        "notes": notes,
        "tags": None if tags is None else json.dumps(list(tags)),
        "archived": None if archived is None else int(archived),
    }
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        return
    with writing(db) as database:
        assignments = ", ".join(f"{key}=:{key}" for key in given)
        cursor = database.execute(
            f"UPDATE experiments SET {assignments} WHERE id=:id", {**given, "id": experiment_id}
        )
        _must_exist(cursor.rowcount, experiment_id)


def archive(db: str | Path, experiment_id: int, archived: bool = True) -> None:
    """Hide an experiment from the list, or show it again."""
    edit(db, experiment_id, archived=archived)


def delete(db: str | Path, experiment_id: int) -> None:
    """Delete an experiment with its runs, rounds, checkpoints and logs.

    Raises:
        FedLensError: while one of its runs is running, and when there is no such experiment.
    """
    with reading(db) as connection:
        ids = [
            r["id"] for r in connection.execute("SELECT id FROM runs WHERE experiment_id=?", [experiment_id])
        ]
    folders = [run_folder(db, run_id) for run_id in ids]
    with writing(db) as database:
        live = database.execute(
            "SELECT count(*) AS n FROM runs WHERE experiment_id=? AND status IN ('running','stopping')",
            [experiment_id],
        ).fetchone()["n"]
        if live:
            raise FedLensError(f"{live} of its runs are running; stop them first, then delete the experiment")
        _must_exist(
            database.execute("DELETE FROM experiments WHERE id=?", [experiment_id]).rowcount, experiment_id
        )
    for folder in folders:
        _remove_folder(folder)


def clone(db: str | Path, experiment_id: int, name: str | None = None) -> Created:
    """Queue an experiment again, as a new one with the same runs.

    Raises:
        FedLensError: when there is no such experiment, or its runs were not trained here.
    """
    with reading(db) as connection:
        row = connection.execute("SELECT config FROM experiments WHERE id=?", [experiment_id]).fetchone()
        _must_exist(int(row is not None), experiment_id)
        runs = connection.execute(
            "SELECT config FROM runs WHERE experiment_id=? AND origin='engine' ORDER BY id", [experiment_id]
        ).fetchall()
    if not runs:
        raise FedLensError(
            f"experiment {experiment_id} holds recorded results only; there is nothing to train"
        )
    experiment = Experiment.model_validate_json(row["config"])
    experiment = experiment.model_copy(update={"name": name or f"{experiment.name} (copy)"})
    return create_experiment(db, experiment, [RunConfig.model_validate_json(r["config"]) for r in runs])


def _must_exist(count: int, experiment_id: int) -> None:
    if not count:
        raise FedLensError(f"no experiment {experiment_id}; `fedlens list` shows them")


def _remove_folder(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
