"""The lock that allows one supervisor per database; the kernel frees it however its holder dies."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fedcore.file_lock import open_lock, try_lock
from fedcore.store.database import resolve

NEXT = ".lock.next"
"""Suffix of the lock that the next supervisor holds while it waits for the present one to leave."""


class SupervisorLock:
    """The lock on the file ``<db>.lock``.

    Args:
        suffix: of the file, ``NEXT`` for a supervisor that waits.
    """

    def __init__(self, db: str | Path, suffix: str = ".lock") -> None:
        path = resolve(db)
        self.path = path.with_name(path.name + suffix)
        self._file: int | None = None

    def acquire(self, patience: float = 0.0) -> bool:
        """Take the lock, trying for ``patience`` seconds; returns False if another process holds it."""
        end = time.monotonic() + patience
        while not self._try():
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_free(self) -> bool:
        """Return whether no supervisor holds the lock."""
        # A shared lock, tried and released: two processes that ask at once do not see each other as holders.
        return self._try(exclusive=False)

    def is_awaited(self) -> bool:
        """Return whether another supervisor waits for this one to leave."""
        waiting = self.path.with_name(self.path.name.removesuffix(".lock") + NEXT)
        if not waiting.exists():
            return False
        file = os.open(waiting, os.O_RDONLY)
        try:
            return not try_lock(file, exclusive=False)
        finally:
            os.close(file)

    def _try(self, exclusive: bool = True) -> bool:
        file = open_lock(self.path)
        locked = False
        try:
            locked = try_lock(file, exclusive)
        finally:
            if locked and exclusive:
                self._file = file
            else:
                os.close(file)
        return locked
