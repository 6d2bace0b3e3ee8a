"""The lock that keeps one supervisor per database; the kernel frees it however its holder dies."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fedcore.store.database import resolve


class SupervisorLock:
    """The lock on the file ``<db>.lock``; tested on Linux, its branch for Windows is untested."""

    def __init__(self, db: str | Path) -> None:
        path = resolve(db)
        self.path = path.with_name(path.name + ".lock")
        self._file: int | None = None

    def acquire(self, patience: float = 0.0) -> bool:
        """Take the lock, trying for ``patience`` seconds; returns False when another process keeps it."""
        end = time.monotonic() + patience
        while not self._try():
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_free(self) -> bool:
        """Return whether no supervisor lives.

        Holds the lock for a moment; a starting supervisor tries long enough for that.
        """
        free = self._try()
        self.release()
        return free

    def _try(self) -> bool:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(file)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True


def _lock(file: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
