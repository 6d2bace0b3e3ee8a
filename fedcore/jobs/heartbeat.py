"""A thread that says "still alive" for a process' runs or task, and hears when one is asked to stop."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.store.database import reading, writing
from fedcore.store.liveness import RUNS, Work

BEAT_SECONDS = 5.0
LOOK_SECONDS = 0.5


class Heart:
    """Use as a context manager around the work.

    Attributes:
        stop_asked: the watched row says ``stopping``.
        lost: the watched row is no longer this owner's; nothing may be written to it.
    """

    def __init__(
        self,
        db: str | Path,
        owner: str,
        beat_seconds: float = BEAT_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        work: Work = RUNS,
    ) -> None:
        self._db, self._owner, self._table = db, owner, work.table
        self._beat_seconds, self._look_seconds = beat_seconds, look_seconds
        self._watched: tuple[int, int] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heart", daemon=True)
        self.stop_asked = self.lost = False

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join(timeout=30)

    def watch(self, number: int, attempt: int) -> None:
        """From now on, look at this run (or task) for a stop."""
        self.stop_asked = self.lost = False
        self._watched = (number, attempt)
        self._look()

    def _live(self) -> None:
        beaten = 0.0
        while not self._end.wait(self._look_seconds):
            try:
                if time.monotonic() - beaten >= self._beat_seconds:
                    self._beat()
                    beaten = time.monotonic()
                self._look()
            except (FedLensError, sqlite3.Error):
                # a full disk or a lock held for long: the training thread meets it at its next write and says
                # so
                continue

    def _beat(self) -> None:
        with writing(self._db) as database:
            database.execute(
                f"UPDATE {self._table} SET heartbeat_at=? WHERE owner=? AND status IN ('running','stopping')",
                [time.time(), self._owner],
            )

    def _look(self) -> None:
        watched = self._watched
        if watched is None:
            return
        with reading(self._db) as connection:
            row = connection.execute(
                f"SELECT status, owner, attempt FROM {self._table} WHERE id=?", [watched[0]]
            ).fetchone()
        if watched != self._watched:  # the next run began meanwhile
            return
        mine = row is not None and (row["owner"], row["attempt"]) == (self._owner, watched[1])
        self.lost = not mine or row["status"] not in ("running", "stopping")
        self.stop_asked = mine and row["status"] == "stopping"
