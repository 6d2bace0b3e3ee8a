"""A thread that renews the heartbeat of a process' jobs, and notices when one has to stop."""

from __future__ import annotations

import sqlite3
import threading
import time

from fedcore.errors import FedLensError
from fedcore.store import Store
from fedcore.store.jobs import Claim

BEAT_SECONDS = 5.0
LOOK_SECONDS = 0.5


class Heartbeat:
    """Renews the heartbeat of an owner's jobs; use it as a context manager around the work.

    Attributes:
        stop_requested: the watched job says ``stopping``.
        lost: the watched job is no longer this owner's; nothing may be written to it.
    """

    def __init__(
        self,
        store: Store,
        owner: str,
        beat_seconds: float = BEAT_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._store, self._owner = store, owner
        self._beat_seconds, self._look_seconds = beat_seconds, look_seconds
        self._watched: Claim | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heartbeat", daemon=True)
        self.stop_requested = self.lost = False

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join(timeout=30)

    def watch(self, claim: Claim) -> None:
        """Look from now on whether this job was asked to stop."""
        self.stop_requested = self.lost = False
        self._watched = claim
        self._look()

    def _live(self) -> None:
        beaten = 0.0
        while not self._end.wait(self._look_seconds):
            try:
                if time.monotonic() - beaten >= self._beat_seconds:
                    self._store.jobs.beat(self._owner)
                    beaten = time.monotonic()
                self._look()
            except (FedLensError, sqlite3.Error):
                # a full disk or a lock held for long: the working thread meets it too, and reports it
                continue

    def _look(self) -> None:
        claim = self._watched
        if claim is None:
            return
        status = claim.status()
        if claim is self._watched:  # else the next job has begun
            self.lost = status not in ("running", "stopping")
            self.stop_requested = status == "stopping"
