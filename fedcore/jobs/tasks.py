"""Work in the background that is no training: checks, encodings, downloads, analyses.

A page submits a task and polls for its result; a process of the supervisor does it (``handlers``). The row of
a task stays, so that its result is there after a reload, and for everybody who asks the same question.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import FedLensError
from fedcore.jobs import devices
from fedcore.jobs.handlers import ARRAYS, HANDLERS, LOG
from fedcore.store.claims import RUNS, TASKS, TRAINING, Claim, claim, reconcile
from fedcore.store.database import artifacts_folder, reading, resolve, run_folder, writing
from fedcore.store.liveness import new_owner, state

_ENDED = ("done", "failed", "stopped", "interrupted")


@dataclass(frozen=True)
class TaskRow:
    """One task. ``status`` is the truth: ``interrupted`` as soon as its process is gone.

    Attributes:
        key: names the question among those of its kind; one row each.
        done, total: progress of the part in work (``status_text``); total is None until it is known.
        started_at: of that part.
        result: what the handler handed back, once it is ``done``.
        error: one line, of a task that did not end as asked; the traceback is in ``log``.
        folder: its files; may not exist.
    """

    id: int
    kind: str
    key: str
    run_id: int | None
    args: dict[str, Any]
    status: str
    done: int
    total: int | None
    status_text: str | None
    result: dict[str, Any] | None
    error: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    folder: Path

    @property
    def log(self) -> Path:
        """The task's log, with the traceback of an error."""
        return self.folder / LOG

    @property
    def ended(self) -> bool:
        """Neither queued nor running."""
        return self.status in _ENDED

    @property
    def share(self) -> float:
        """Progress between 0 and 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long this part will take at its pace so far; None before there is one."""
        if self.status != "running" or not self.started_at or not self.done or not self.total:
            return None
        return (time.time() - self.started_at) * (self.total - self.done) / self.done


def submit(
    db: str | Path,
    kind: str,
    key: str,
    args: Mapping[str, Any],
    run_id: int | None = None,
    *,
    again: bool = False,
) -> int:
    """Ask for a task; the worker does it (wake it with ``runs.ensure_worker``).

    One that is queued, running or done already is left as it is; one that failed, was stopped or interrupted
    is queued anew.

    Args:
        key: everything that the result depends on.
        args: JSON values for the handler.
        run_id: the run that it looks at; the task and its files go with the run.
        again: do it again although it is done.

    Returns: the task's id.
    """
    kinds = [known for known in HANDLERS if known != TRAINING]
    if kind not in kinds:
        raise FedLensError(f"unknown kind of task '{kind}'; choose one of {', '.join(kinds)}", "kind")
    reconcile(db, table=TASKS)
    redo = ("failed", "stopped", "interrupted", *(["done"] if again else []))
    asked = {"kind": kind, "key": key, "run": run_id, "args": json.dumps(dict(args)), "now": time.time()}
    with writing(db) as database:
        database.execute(
            "INSERT INTO tasks(kind, key, run_id, args, status, created_at) "
            "VALUES (:kind, :key, :run, :args, 'queued', :now) ON CONFLICT(kind, key) DO UPDATE SET "
            "status='queued', args=excluded.args, run_id=excluded.run_id, created_at=excluded.created_at, "
            "done=0, total=NULL, status_text=NULL, owner=NULL, heartbeat_at=NULL, started_at=NULL, "
            f"finished_at=NULL, result=NULL, error=NULL WHERE status IN ({','.join(map(repr, redo))})",
            asked,
        )
        row = database.execute("SELECT id FROM tasks WHERE kind=:kind AND key=:key", asked).fetchone()
    return int(row["id"])


def find(db: str | Path, kind: str, key: str) -> TaskRow | None:
    """The task that answers a question, None where nobody has asked yet."""
    with reading(db) as connection:
        row = connection.execute("SELECT * FROM tasks WHERE kind=? AND key=?", [kind, key]).fetchone()
    return None if row is None else _row(db, row)


def get(db: str | Path, task_id: int) -> TaskRow:
    """One task by id.

    Raises:
        FedLensError: when there is none.
    """
    with reading(db) as connection:
        row = connection.execute("SELECT * FROM tasks WHERE id=?", [task_id]).fetchone()
    if row is None:
        raise FedLensError(f"no task {task_id}; `fedlens tasks` shows them", "id")
    return _row(db, row)


def recent(db: str | Path, kind: str | None = None, limit: int = 50) -> list[TaskRow]:
    """Tasks, the last asked for first."""
    only, values = ("WHERE kind=?", [kind]) if kind else ("", [])
    with reading(db) as connection:
        rows = connection.execute(
            f"SELECT * FROM tasks {only} ORDER BY created_at DESC, id DESC LIMIT ?", [*values, limit]
        ).fetchall()
    return [_row(db, row) for row in rows]


def arrays(task: TaskRow) -> dict[str, np.ndarray]:
    """What the handler wrote beside its result; empty where it wrote nothing, or the file is gone."""
    path = task.folder / ARRAYS
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def cancel(db: str | Path, task_id: int) -> bool:
    """Stop a task: a queued one at once, a running one between two steps.

    Returns: whether it was queued or running.
    """
    with writing(db) as database:
        cursor = database.execute(
            "UPDATE tasks SET finished_at = CASE status WHEN 'queued' THEN ? ELSE NULL END, "
            "status = CASE status WHEN 'queued' THEN 'stopped' ELSE 'stopping' END "
            "WHERE id=? AND status IN ('queued','running')",
            [time.time(), task_id],
        )
    return bool(cursor.rowcount)


def forget(db: str | Path, task_id: int) -> None:
    """Delete a task with its files.

    Raises:
        FedLensError: while it runs, and when there is none.
    """
    reconcile(db, table=TASKS)
    task = get(db, task_id)
    with writing(db) as database:
        gone = database.execute(
            "DELETE FROM tasks WHERE id=? AND status NOT IN ('running','stopping')", [task_id]
        ).rowcount
    if not gone:
        raise FedLensError(f"task {task_id} is running; stop it first", "id")
    shutil.rmtree(task.folder, ignore_errors=True)


def claim_queued(db: str | Path, task_id: int) -> Claim:
    """Claim a queued task for this process.

    Raises:
        FedLensError: when there is no such task, or it is not queued.
    """
    task = get(db, task_id)
    claimed = claim(db, new_owner(), devices.CPU, TASKS, number=task_id)
    if claimed is None:
        raise FedLensError(f"task {task_id} is {task.status}; only a queued one can be done", "id")
    return claimed


def job_folder(claimed: Claim) -> Path:
    """Return the folder of a claimed job's files.

    Raises:
        FedLensError: when the job was deleted.
    """
    if claimed.table is RUNS:
        return run_folder(claimed.db, claimed.id)
    return get(claimed.db, claimed.id).folder


def arguments(claimed: Claim) -> dict[str, Any]:
    """Return the arguments of a claimed task; a run has none beside its config."""
    return {} if claimed.table is RUNS else get(claimed.db, claimed.id).args


def _row(db: str | Path, row: sqlite3.Row) -> TaskRow:
    values = {name: row[name] for name in TaskRow.__dataclass_fields__ if name != "folder"}
    values["status"] = state(row)
    values["args"] = json.loads(row["args"])
    folder = folder_of(db, row["kind"], row["key"], row["run_id"])
    values["result"] = json.loads(row["result"]) if row["result"] else None
    return TaskRow(**values, folder=folder)


def folder_of(db: str | Path, kind: str, key: str, run_id: int | None = None) -> Path:
    """Where a task's files lie, asked for or not: with its run's, and gone when it is forgotten.

    The database's name keeps two in one folder apart.
    """
    name = f"{kind}-{hashlib.sha256(repr((resolve(db).name, kind, key)).encode()).hexdigest()[:16]}"
    return (artifacts_folder(db) if run_id is None else run_folder(db, run_id)) / "tasks" / name
