"""Work that a process has claimed: a write carries owner and attempt, so that who lost it cannot write."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedcore.store.database import writing
from fedcore.store.liveness import RUNS, Work, this_process

if TYPE_CHECKING:
    from sqlite_utils import Database

MINE = "id=:id AND owner=:owner AND attempt=:attempt AND status IN ('running','stopping')"


class LostRun(RuntimeError):
    """This process no longer owns the work: it was declared dead, or given to another. It must not write."""


@dataclass(frozen=True)
class Claim:
    """The right to write to one row of ``runs`` or ``tasks``.

    Raises (all methods that write):
        LostRun: when the row is no longer this owner's and attempt's.
    """

    db: Path
    id: int
    owner: str
    attempt: int

    work: ClassVar[Work] = RUNS

    def set_process(self, pid: int, started: float) -> None:
        """Record which process does it."""
        self._update("pid=:pid, pid_started=:started", pid=pid, started=started)

    def begin(self) -> None:
        """This process starts (or goes on) with it."""
        pid, started = this_process()
        self._update(
            "pid=:pid, pid_started=:started, started_at=coalesce(started_at, :now), heartbeat_at=:now",
            pid=pid, started=started, now=time.time(),
        )  # fmt: skip

    def _update(self, assignments: str, **values: object) -> None:
        with writing(self.db) as database:
            self._fenced(database, assignments, **values)

    def _end(self, assignments: str, **values: object) -> None:
        self._update(
            f"{assignments}, finished_at=:now, heartbeat_at=:now, message=NULL, pid=NULL, pid_started=NULL",
            **values, now=time.time(),
        )  # fmt: skip

    def _fenced(self, database: Database, assignments: str, **values: object) -> None:
        key = {"id": self.id, "owner": self.owner, "attempt": self.attempt}
        statement = f"UPDATE {self.work.table} SET {assignments} WHERE {MINE}"
        if database.execute(statement, {**values, **key}).rowcount == 0:
            name = f"{self.work.name} {self.id}, attempt {self.attempt}"
            raise LostRun(f"{name}, is no longer {self.owner}'s")
