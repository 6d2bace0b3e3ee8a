"""The tasks of a store: work in the background other than training.

A page submits a task and polls for its result; a process of the worker does it. The row of a task stays, so
that the result survives a reload and serves every page that asks the same question.
"""

import json
import shutil
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic.dataclasses import dataclass

from fedcore.base.errors import FedLensError, reading_stored
from fedcore.store.database import JSON_TABLE, STORED, Queries, readable, task_folder
from fedcore.store.jobs import ARRAYS_NAME, TASKS, Claim, Jobs, unseal
from fedcore.store.liveness import new_owner, state
from fedcore.store.runs import LOG_NAME

TaskKind = Literal["check", "download", "weights", "analyse", "import_file", "bundle", "fill"]
DAMAGED_RESULT = (
    "its result was changed on the disk, or has no digest (those of FedLens 1.0 have none); start it again"
)
ENDED = ("done", "failed", "stopped", "interrupted")


@dataclass(frozen=True, config=STORED)
class TaskRow:
    """One task; ``status`` is ``interrupted`` once its process has died, ``failed`` if its result is damaged.

    Attributes:
        key: identifies the question among those of its kind; each has one row.
        args: JSON values for the handler.
        done, total: progress of the current part (``status_text``); total is None until it is known.
        created_at, started_at, finished_at: seconds since 1970; started_at is that of the current part.
        result: JSON values that the handler returned, once it is ``done``.
        error: one line, why the task failed or ended early; the traceback is in ``log``.
        folder: the folder of its files; it may not exist.
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
        """The path of the task's log, which has the traceback of an error."""
        return self.folder / LOG_NAME

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def share(self) -> float:
        """Progress of the current part, between 0 and 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the current part still needs at its pace so far; None while that is unknown."""
        if self.status != "running" or not self.started_at or not self.done or not self.total:
            return None
        return (time.time() - self.started_at) * (self.total - self.done) / self.done

    def arrays(self) -> dict[str, np.ndarray]:
        """Read the arrays beside the result; empty if there are none or the file is missing."""
        path = self.folder / ARRAYS_NAME
        if not path.is_file():
            return {}
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


class Tasks(Queries):
    """The tasks of a store (``Store.tasks``)."""

    def submit(
        self,
        kind: TaskKind,
        key: str,
        args: Mapping[str, Any],
        run_id: int | None = None,
        *,
        again: bool = False,
    ) -> int:
        """Queue a task for the worker (``jobs.ensure_worker`` starts one).

        An existing task that is queued, running or done is left unchanged; one that failed, was stopped or
        was interrupted is queued again.

        Args:
            key: everything that the result depends on.
            run_id: the run that it looks at; the task and its files are deleted with the run.
            again: also queue a task that is done.

        Returns: the task's id.
        """
        if kind not in get_args(TaskKind):
            kinds = ", ".join(get_args(TaskKind))
            raise FedLensError(f"unknown kind of task '{kind}'; choose one of {kinds}", "kind")
        Jobs(self._file).reconcile(table=TASKS)
        task = self.find(kind, key)
        again = again or (task is not None and task.status == "failed")  # also of a damaged result
        redo = ("failed", "stopped", "interrupted", *(["done"] if again else []))
        asked = json.dumps(dict(args), allow_nan=False)
        values = {"kind": kind, "key": key, "run": run_id, "args": asked, "now": time.time()}
        with self._file.writing() as database:
            database.execute(
                "INSERT INTO tasks(kind, key, run_id, args, status, created_at) "
                "VALUES (:kind, :key, :run, :args, 'queued', :now) ON CONFLICT(kind, key) DO UPDATE SET "
                "status='queued', args=excluded.args, run_id=excluded.run_id, "
                "created_at=excluded.created_at, done=0, total=NULL, status_text=NULL, owner=NULL, "
                "heartbeat_at=NULL, started_at=NULL, finished_at=NULL, result=NULL, error=NULL "
                f"WHERE status IN ({','.join(map(repr, redo))})",
                values,
            )
            row = database.execute("SELECT id FROM tasks WHERE kind=:kind AND key=:key", values).fetchone()
        return int(row["id"])

    def find(self, kind: TaskKind, key: str) -> TaskRow | None:
        """Return the task that answers a question, None if it was never submitted."""
        rows = self._file.rows(
            "SELECT * FROM tasks WHERE kind=:kind AND key=:key",
            {"kind": kind, "key": key},
            damaged_texts=True,
        )
        return self._row(rows[0]) if rows else None

    def get(self, task_id: int) -> TaskRow:
        rows = self._file.rows("SELECT * FROM tasks WHERE id=:id", {"id": task_id}, damaged_texts=True)
        if not rows:
            raise FedLensError(f"no task {task_id}; `fedlens tasks` shows them", "id")
        return self._row(rows[0])

    def recent(self, kind: TaskKind | None = None, limit: int = 50) -> list[TaskRow]:
        """Return the tasks of a kind (default: of all kinds), the newest first; damaged ones are left out."""
        return self.listed(kind, limit)[0]

    def listed(self, kind: TaskKind | None = None, limit: int = 50) -> tuple[list[TaskRow], list[str]]:
        """Return tasks as ``recent`` does, and one line for each damaged task."""
        rows = self._file.rows(
            "SELECT * FROM tasks WHERE :kind IS NULL OR kind=:kind "
            "ORDER BY created_at DESC, id DESC LIMIT :limit",
            {"kind": kind, "limit": limit},
            damaged_texts=True,
        )
        found, damaged = readable(rows, self._row)
        return found, [*damaged.values()]

    def stop(self, task_id: int) -> bool:
        """Stop a queued task at once, a running one between two steps; return whether it was either."""
        with self._file.writing() as database:
            cursor = database.execute(
                "UPDATE tasks SET finished_at = CASE status WHEN 'queued' THEN ? ELSE NULL END, "
                "status = CASE status WHEN 'queued' THEN 'stopped' ELSE 'stopping' END "
                "WHERE id=? AND status IN ('queued','running')",
                [time.time(), task_id],
            )
        return bool(cursor.rowcount)

    def delete(self, task_id: int) -> None:
        """Delete a task with its files."""
        Jobs(self._file).reconcile(table=TASKS)
        task = self.get(task_id)
        with self._file.writing() as database:
            deleted = database.execute(
                "DELETE FROM tasks WHERE id=? AND status NOT IN ('running','stopping')", [task_id]
            ).rowcount
        if not deleted:
            raise FedLensError(f"task {task_id} is running; stop it first", "id")
        shutil.rmtree(task.folder, ignore_errors=True)

    def claim(self, task_id: int, device: str = "cpu") -> Claim:
        """Claim a certain queued task for this process."""
        task = self.get(task_id)
        claim = Jobs(self._file).claim(new_owner(), device, TASKS, number=task_id)
        if claim is None:
            raise FedLensError(f"task {task_id} is {task.status}; only a queued one can be done", "id")
        return claim

    def folder(self, kind: TaskKind, key: str, run_id: int | None = None) -> Path:
        """Return the folder of a task's files, submitted or not; it may not exist yet."""
        return task_folder(self._file.path, kind, key, run_id)

    def _row(self, row: sqlite3.Row) -> TaskRow:
        values = dict(row)
        with reading_stored(f"task {row['id']}"):
            values["status"] = state(self._file.path, dict(row))
            values["args"] = JSON_TABLE.validate_json(row["args"])
            values["folder"] = self.folder(row["kind"], row["key"], row["run_id"])
            values["result"] = unseal(row["result"], values["folder"]) if row["result"] else None
            if row["result"] and values["result"] is None:
                values |= {"status": "failed", "error": DAMAGED_RESULT}
            return TaskRow(**values)
