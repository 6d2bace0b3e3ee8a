"""Jobs in the store: how a process claims one, writes to it, and gives it back.

Runs and tasks are two tables of jobs. The path of a claim:

1. ``Jobs.claim`` turns the first queued row into ``running`` in one statement, with a new owner, and counts
   the attempt up. Two processes cannot claim the same row.
2. The process that executes it holds the owner's lock (``liveness.hold``) and renews the heartbeat.
3. Every write names owner and attempt (fencing): if the job was declared dead and given to another process,
   the row does not match any more, the write raises ``LostClaim``, and nothing of it is recorded.
4. ``Claim.finish`` ends the job. If the process dies before, ``Jobs.reconcile`` marks the row.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.base.errors import FedLensError, reading_stored
from fedcore.base.files import new_digest
from fedcore.base.progress import Progress
from fedcore.config.models import WEIGHTS
from fedcore.data.integrity import file_digest
from fedcore.store.damage import write_identity
from fedcore.store.database import (
    BUSY_SECONDS,
    JSON_TABLE,
    DatabaseFile,
    Queries,
    run_folder,
    task_folder,
    writing,
)
from fedcore.store.liveness import (
    RESTING,
    STALE_SECONDS,
    hold,
    is_alive,
    is_held,
    is_resting,
    remove_dead_lock,
)

ARRAYS_NAME = "arrays.npz"
"""The file of large results in a task's folder."""
_DIGEST = len(new_digest().hexdigest())


def seal(result: Mapping[str, Any], folder: Path) -> str:
    """Return a result as its row stores it: a digest, and then JSON with a digest of the arrays."""
    content = {"result": result, "arrays": _arrays_digest(folder)}
    text = json.dumps(content, allow_nan=False)
    return new_digest(text.encode()).hexdigest() + text


def unseal(stored: str | bytes, folder: Path) -> dict[str, Any] | None:
    """Return a sealed result; None if it or the arrays are not what was written. Arrays may be missing."""
    sealed = stored if isinstance(stored, bytes) else stored.encode()
    if new_digest(sealed[_DIGEST:]).hexdigest().encode() != sealed[:_DIGEST]:
        return None
    content = JSON_TABLE.validate_json(sealed[_DIGEST:])
    return content["result"] if _arrays_digest(folder) in (None, content["arrays"]) else None


def _arrays_digest(folder: Path) -> str | None:
    try:
        return file_digest(folder / ARRAYS_NAME)
    except FileNotFoundError:
        return None


PATIENCE_SECONDS = 600.0
"""Seconds for which a job waits to record a round, or its end, while the database is locked."""
PROGRESS_PATIENCE = 0.5
"""Seconds for which it waits to record progress, which the next step records again anyway."""
LEFT = """
status = CASE status WHEN 'stopping' THEN 'stopped' ELSE 'queued' END,
owner = CASE status WHEN 'stopping' THEN owner END, pid=NULL, heartbeat_at=NULL, error=NULL,
status_text = CASE status WHEN 'stopping' THEN 'stopped while it waited for its turn' END
"""
"""SQL assignments of a resting run whose process ends; it lost nothing, so another process continues it."""
QUEUED_AGAIN = "status='queued', owner=NULL, pid=NULL, heartbeat_at=NULL, status_text=NULL, error=NULL"
"""``finished_at`` stays until the job is claimed, which tells how long it has rested."""
NEEDS = f"""
SELECT json_extract(runs.config, '$.data.root') AS need
UNION SELECT json_extract(value, '$.root') FROM json_each(runs.config, '$.transfer')
UNION SELECT json_extract(value, '$.root') FROM json_each(runs.config, '$.further_data')
UNION SELECT '{WEIGHTS}' || json_extract(runs.config, '$.backbone.name') || ' ' ||
  json_extract(runs.config, '$.backbone.pretrained')
UNION SELECT '{WEIGHTS}' || json_extract(value, '$.backbone.name') || ' ' ||
  json_extract(value, '$.backbone.pretrained') FROM json_each(runs.config, '$.cohorts')
"""
"""SQL: the folders and the weights that a run of ``runs`` reads, NULL for those that come with FedLens."""
TRAINING = "train"
"""The job kind of every run; tasks have their kind in their rows."""


@dataclass(frozen=True)
class JobTable:
    """One of the two tables of jobs; the attributes hold their differences.

    Attributes:
        name: the word for a job in messages.
        kind: SQL for the kind of job, which selects the handler.
        order: SQL that sorts the queued rows; the first is claimed.
        progress: SQL assignments that record ``:message``, ``:done``, ``:total`` at the time ``:now``.
        outcome: SQL assignments that record ``:error`` (one line), ``:traceback`` and ``:result`` (JSON).
        remedy: advice to the user if the process has died.
    """

    table: str
    name: str
    kind: str
    order: str
    progress: str
    outcome: str
    remedy: str

    @property
    def live(self) -> str:
        """SQL that selects the rows marked as running or stopping; a test reads its plan."""
        return (
            "SELECT id, status, owner, attempt, device, pid, heartbeat_at, finished_at, status_text "
            f"FROM {self.table} WHERE status IN ('running','stopping')"
        )


RUNS = JobTable(
    table="runs",
    name="run",
    kind=f"'{TRAINING}'",
    order="priority DESC, id",
    # a requested stop stays visible
    progress="status_text = CASE status WHEN 'stopping' THEN status_text "
    "ELSE :message || ' ' || :done || '/' || :total END",
    outcome="status_text=:error, error=:traceback",
    remedy="resume continues after the last round",
)
TASKS = JobTable(
    table="tasks",
    name="task",
    kind="kind",
    order="created_at, id",
    # each part of the work has its own pace, so its estimate starts anew
    progress="started_at = CASE WHEN status_text IS NOT :message OR total IS NOT :total THEN :now "
    "ELSE started_at END, done=:done, total=:total, status_text=:message",
    outcome="status_text=NULL, error=:error, result=:result",
    remedy="start it again",
)
JOB_TABLES = (RUNS, TASKS)


class LostClaim(RuntimeError):
    """The job was declared dead, stopped or claimed again; this process must not write to it."""


@dataclass(frozen=True)
class Claim:
    """The right to write to one row of ``runs`` or ``tasks``.

    The owner alone would not do: a process may lose a run, let it be queued again, and claim it once more.
    What its first attempt still wants to write is then refused by the number of the attempt.

    Raises (all methods that write):
        LostClaim: when owner or attempt of the row have changed.
        SystemFault: for a full disk, and for a database that stays locked for minutes.
    """

    db: Path
    kind: str
    id: int
    owner: str
    attempt: int

    @property
    def table(self) -> JobTable:
        return RUNS if self.kind == TRAINING else TASKS

    @property
    def folder(self) -> Path:
        """The folder of the job's files; it may not exist yet."""
        if self.table is RUNS:
            return run_folder(self.db, self.id)
        row = self._row("key, run_id")
        return task_folder(self.db, self.kind, row["key"], row["run_id"])

    def arguments(self) -> dict[str, Any]:
        """Read the arguments of a task; a run has only its config."""
        if self.table is RUNS:
            return {}
        with reading_stored(f"what task {self.id} was asked for"):
            return JSON_TABLE.validate_json(self._row("args")["args"])

    def status(self) -> str | None:
        """Read the status of the job; None if owner or attempt have changed."""
        rows = DatabaseFile(self.db).rows(
            f"SELECT status FROM {self.table.table} WHERE id=:id AND owner=:owner AND attempt=:attempt",
            {"id": self.id, "owner": self.owner, "attempt": self.attempt},
        )
        return str(rows[0]["status"]) if rows else None

    def _row(self, columns: str) -> sqlite3.Row:
        rows = DatabaseFile(self.db).rows(
            f"SELECT {columns} FROM {self.table.table} WHERE id=:id", {"id": self.id}
        )
        if not rows:
            raise FedLensError(f"{self.table.name} {self.id} was deleted", "id")
        return rows[0]

    def begin(self, *, elsewhere: bool = False) -> None:
        """Record that this process starts the job or ends its rest, and hold its owner's lock from now on.

        Args:
            elsewhere: whether another machine does the work and this process only records it. The row then
                has no process id, since killing this process would end all the runs that it records.
        """
        hold(self.db, self.owner)
        self.update(
            "pid=:pid, started_at=coalesce(started_at + :now - finished_at, started_at, :now), "
            "finished_at=NULL, heartbeat_at=:now, "
            f"status_text = CASE status_text WHEN '{RESTING}' THEN 'training' ELSE status_text END",
            pid=None if elsewhere else os.getpid(),
            now=time.time(),
        )

    def rest(self) -> None:
        """Record that this process works on another run; the time until it continues is not the run's."""
        self.update(
            "pid=NULL, finished_at=:now, heartbeat_at=:now, "
            "status_text = CASE status WHEN 'stopping' THEN status_text ELSE :text END",
            PROGRESS_PATIENCE,
            now=time.time(),
            text=RESTING,
        )

    def leave(self) -> None:
        """Queue a resting run again to which its process does not come back, or end it if it is to stop."""
        with suppress(LostClaim):
            self.update(LEFT, BUSY_SECONDS)

    def progress(self, step: Progress) -> None:
        """Record the progress of the job, without waiting long for a locked database."""
        self.update(
            f"{self.table.progress}, heartbeat_at=:now",
            PROGRESS_PATIENCE,
            message=step.message,
            done=int(step.done),
            total=int(step.total),
            now=time.time(),
        )

    def finish(
        self,
        status: str,
        error: str | None = None,
        traceback: str | None = None,
        result: Mapping[str, Any] | None = None,
        patience: float | None = None,
    ) -> None:
        """Give the job back.

        Args:
            status: ``done``, ``failed``, ``stopped`` or ``interrupted``.
            error: one line, why it failed or ended early.
            traceback: of a failed run; that of a task is only in its log.
            result: JSON values of a task; the results of a run are its rounds.
            patience: seconds to wait while another program has locked the database; default: minutes.
        """
        self.update(
            f"status=:status, {self.table.outcome}, finished_at=coalesce(finished_at, :now), "
            "heartbeat_at=:now, pid=NULL",
            patience,
            status=status,
            error=error,
            traceback=traceback,
            now=time.time(),
            result=None if result is None or self.table is RUNS else seal(result, self.folder),
        )

    def give_back(self) -> None:
        """Queue the job again before any work on it, as if it had not been claimed; its rest begins anew."""
        self.update(
            "status='queued', attempt=attempt-1, owner=NULL, device=NULL, pid=NULL, heartbeat_at=NULL, "
            "finished_at=CASE WHEN started_at IS NULL THEN NULL ELSE :now END, status_text=NULL",
            BUSY_SECONDS,
            now=time.time(),
        )

    def queue_again(self, why: str) -> bool:
        """Queue a run again whose machine failed, and note why; another machine then continues it.

        Returns: False if that would not help: it has recorded no round since this was done before, or is
        asked to stop. Nothing is changed then.
        """
        with self.writing("heartbeat_at=heartbeat_at", BUSY_SECONDS) as database:
            row = self._row("status, rounds_done, notices")
            again = f"after round {row['rounds_done']} it was queued again by itself"
            if row["status"] == "stopping" or again in row["notices"]:
                return False
            database.execute(
                f"UPDATE runs SET {QUEUED_AGAIN}, finished_at=?, "
                "notices=json_insert(notices, '$[#]', json(?)) WHERE id=?",
                [time.time(), json.dumps({"message": f"{why}; {again}", "repeats_exactly": True}), self.id],
            )
            write_identity(database, self.id)
        return True

    def update(self, assignments: str, patience: float | None = None, **values: object) -> None:
        """Change columns of the row, given as SQL assignments with named values."""
        with self.writing(assignments, patience, synced=False, **values):
            pass

    @contextmanager
    def writing(
        self, assignments: str, patience: float | None = None, *, synced: bool = False, **values: object
    ) -> Iterator[sqlite3.Connection]:
        """Open a transaction that first changes the row; the caller adds rows of other tables."""
        # The row first: its WHERE is the fence. If the job was lost, the transaction ends before any result
        # is written; if not, the write lock is held, and nobody can take the job until the commit.
        key = {"id": self.id, "owner": self.owner, "attempt": self.attempt}
        mine = "id=:id AND owner=:owner AND attempt=:attempt AND status IN ('running','stopping')"
        patience = PATIENCE_SECONDS if patience is None else patience
        with writing(self.db, patience, synced=synced) as database:
            statement = f"UPDATE {self.table.table} SET {assignments} WHERE {mine}"
            if database.execute(statement, {**values, **key}).rowcount == 0:
                name = f"{self.table.name} {self.id}, attempt {self.attempt}"
                raise LostClaim(f"{name}, is no longer {self.owner}'s")
            yield database


class Jobs(Queries):
    """The queued and running jobs of a store, runs and tasks alike (``Store.jobs``)."""

    def claim(
        self,
        owner: str,
        device: str,
        table: JobTable = RUNS,
        *,
        accepts: tuple[str, ...] = ("auto",),
        experiment_id: int | None = None,
        number: int | None = None,
    ) -> Claim | None:
        """Take the next queued job of a table, by its order; None when there is none.

        Args:
            device: where the job will run, for its row: ``cpu``, a GPU's UUID, or the pool of the tasks.
            accepts: values of a run's ``requested_device`` that this device serves.
            experiment_id: only runs of this experiment, and only while no other run has a higher priority.
            number: only the job with this id.
        """
        condition, values = _waiting(table, accepts, experiment_id, number)
        values |= {"owner": owner, "device": device, "now": time.time()}
        with self._file.writing() as database:
            row = database.execute(
                f"UPDATE {table.table} SET status='running', owner=:owner, attempt=attempt+1, "
                "device=:device, heartbeat_at=:now, pid=NULL, "
                "started_at=coalesce(started_at + :now - finished_at, started_at), finished_at=NULL, "
                "status_text='starting', error=NULL "
                f"WHERE id=(SELECT id FROM {table.table} WHERE {condition} ORDER BY {table.order} LIMIT 1) "
                "AND status='queued' "
                f"RETURNING id, attempt, {table.kind} AS kind",
                values,
            ).fetchone()
        return Claim(self._file.path, row["kind"], row["id"], owner, row["attempt"]) if row else None

    def next_run(self, accepts: tuple[str, ...]) -> int | None:
        """Return the id of the run that ``claim`` would take."""
        condition, values = _waiting(RUNS, accepts)
        rows = self._file.rows(f"SELECT id FROM runs WHERE {condition} ORDER BY {RUNS.order} LIMIT 1", values)
        return int(rows[0]["id"]) if rows else None

    def is_overtaken(self, owner: str, accepts: tuple[str, ...]) -> bool:
        """Return whether a queued run, which a device accepts, has a higher priority than all of an owner."""
        condition, values = _waiting(RUNS, accepts)
        rows = self._file.rows(
            f"SELECT 1 FROM runs WHERE {condition} AND priority > (SELECT max(priority) FROM runs "
            "WHERE owner=:owner AND status IN ('running','stopping')) LIMIT 1",
            {**values, "owner": owner},
        )
        return bool(rows)

    def any_queued(self) -> bool:
        return any(
            self._file.rows(f"SELECT 1 FROM {table.table} WHERE status='queued' LIMIT 1")
            for table in JOB_TABLES
        )

    def live(self, table: JobTable) -> list[dict[str, Any]]:
        """Return the rows marked as running or stopping."""
        return [dict(row) for row in self._file.rows(table.live)]

    def orphans(
        self, table: JobTable, stale: float = STALE_SECONDS, gone: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows marked as running or stopping whose process has died."""
        return [
            row
            for row in self.live(table)
            if row["owner"] in gone or not is_alive(self._file.path, row, stale=stale)
        ]

    def owner_lives(self, owner: str) -> bool:
        """Return whether the process of an owner lives (see ``is_alive``)."""
        if is_held(self._file.path, owner):
            return True
        rows = [row for table in JOB_TABLES for row in self.live(table) if row["owner"] == owner]
        return any(is_alive(self._file.path, row) for row in rows)

    def beat(self, claims: Iterable[Claim]) -> None:
        """Renew the heartbeat of these jobs, except lost ones."""
        with self._file.writing() as database:
            for claim in claims:
                database.execute(
                    f"UPDATE {claim.table.table} SET heartbeat_at=? "
                    "WHERE id=? AND owner=? AND attempt=? AND status IN ('running','stopping')",
                    [time.time(), claim.id, claim.owner, claim.attempt],
                )

    def reconcile(
        self,
        stale: float = STALE_SECONDS,
        exit_reason: Callable[[str], str | None] = lambda owner: None,
        table: JobTable = RUNS,
        gone: Collection[str] = (),
    ) -> list[int]:
        """Mark jobs of dead processes as ``interrupted``, or ``stopped`` if a stop was requested.

        A run that waited for its turn in such a process is queued again, as its process died of another. If
        there is nothing to do, it costs one indexed read; pages call it at each poll.

        Args:
            stale: seconds, see ``is_alive``.
            exit_reason: returns how an owner's process ended, None if unknown.
            gone: owners whose process has ended for certain.

        Returns: the ids of the rows marked as ended. They are not queued again automatically, since a run
        that kills its process (memory, a driver) would do so again; `resume` continues after the last
        checkpoint.
        """
        dead = self.orphans(table, stale, gone)
        if not dead:
            return []
        marked = []
        with self._file.writing() as database:
            for row in dead:
                reason = exit_reason(row["owner"]) or "its process ended unexpectedly (no exit status)"
                ended = (
                    "status = CASE status WHEN 'stopping' THEN 'stopped' ELSE 'interrupted' END, "
                    f"finished_at=coalesce(heartbeat_at, :now), {table.outcome}, pid=NULL "
                )
                cursor = database.execute(
                    f"UPDATE {table.table} SET {LEFT if is_resting(row) else ended} "
                    "WHERE id=:id AND owner=:owner AND attempt=:attempt AND status IN ('running','stopping')",
                    {
                        **row,
                        "now": time.time(),
                        "error": f"{reason}; {table.remedy}",
                        "traceback": None,
                        "result": None,
                    },
                )
                marked += [row["id"]] if cursor.rowcount and not is_resting(row) else []
        for row in dead:
            remove_dead_lock(self._file.path, row["owner"])
        return marked


def _waiting(
    table: JobTable, accepts: tuple[str, ...], experiment_id: int | None = None, number: int | None = None
) -> tuple[str, dict[str, object]]:
    """Return the SQL condition and values that select the queued rows a process may claim."""
    queued = "status='queued'"
    if table is RUNS:
        queued += " AND requested_device IN (SELECT value FROM json_each(:accepts))"
    condition = queued
    if experiment_id is not None:
        condition += (
            f" AND experiment_id=:experiment AND priority=(SELECT max(priority) FROM runs WHERE {queued})"
        )
    if number is not None:
        condition += " AND id=:number"
    values: dict[str, object] = {
        "accepts": json.dumps(accepts),
        "experiment": experiment_id,
        "number": number,
    }
    return condition, values
