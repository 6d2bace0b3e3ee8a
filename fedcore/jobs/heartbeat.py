"""A thread that renews the heartbeat of a process's jobs, and notices when one has to stop.

The lock of a job's owner tells on this machine whether its process lives; the heartbeat is for those who
cannot ask the lock: other machines, and file systems without locks (see ``fedcore.store.liveness``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from fedcore.errors import FedLensError
from fedcore.store import Store
from fedcore.store.database import kept_open
from fedcore.store.jobs import Claim

BEAT_SECONDS = 5.0
LOOK_SECONDS = 0.5


class Heartbeat:
    """Renews the heartbeat of claimed jobs; use it as a context manager around the work.

    Args:
        waiting: jobs that this process has claimed and not begun yet.
        at_beat: called after each beat.

    Attributes:
        stop_requested: the row of the watched job says ``stopping``.
        lost: the watched job was taken from this process, which may not write to it any more.
    """

    def __init__(
        self,
        store: Store,
        waiting: Iterable[Claim] = (),
        beat_seconds: float = BEAT_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        at_beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._store, self._claims, self._at_beat = store, tuple(waiting), at_beat
        self._beat_seconds, self._look_seconds = beat_seconds, look_seconds
        self._watched: Claim | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heartbeat", daemon=True)
        self.stop_requested = self.lost = False

    def __enter__(self) -> Heartbeat:
        self._open = kept_open(self._store.path)
        self._open.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join(timeout=30)
        self._open.__exit__(None, None, None)

    def watch(self, claim: Claim) -> None:
        """Watch this job for a requested stop from now on; the previously watched job has ended."""
        self.stop_requested = self.lost = False
        self._claims = tuple(c for c in self._claims if c not in (claim, self._watched))
        self._watched = claim
        self._look()

    def _live(self) -> None:
        beaten = -self._beat_seconds
        while not self._end.wait(self._look_seconds):
            try:
                if time.monotonic() - beaten >= self._beat_seconds:
                    beaten = time.monotonic()
                    self._store.jobs.beat(filter(None, (self._watched, *self._claims)))
                    self._at_beat()
                self._look()
            except (FedLensError, OSError):
                # a full disk or a long lock: the working thread runs into it too, and reports it
                continue

    def _look(self) -> None:
        claim = self._watched
        if claim is None:
            return
        status = claim.status()
        if claim is self._watched:  # the next job may have begun while the status was read
            self.lost = status not in ("running", "stopping")
            self.stop_requested = status == "stopping"
