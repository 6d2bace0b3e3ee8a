"""The guard where numbers leave a store, where they decide, and where pages and commands show them.

Numbers are exported, and decide what is trained or deleted, only after a check. Pages show numbers all the
time, and a check of a million cells takes seconds. Therefore a thread checks each version of the file once,
and pages show its findings.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.store.damage import findings, round_differences
from fedcore.store.database import Queries


class Integrity(Queries):
    """Checks that a store still holds what was recorded (``Store.integrity``)."""

    def findings(self, experiment_ids: Iterable[int] | None = None) -> list[str]:
        """Return one line for each damage (see ``damage.findings``)."""
        with self._file.reading() as connection:
            if not connection.in_transaction:
                connection.execute("BEGIN")  # a run may be recording, or deleting rounds to resume
            return findings(connection, experiment_ids)

    def require(self, experiment_ids: Iterable[int], consequence: str = "nothing is exported") -> None:
        """Refuse damaged experiments; those checked in this snapshot are not checked again."""
        unchecked = set(experiment_ids) - self._file.checked
        if unchecked and (found := self.findings(unchecked)):
            raise FedLensError(self._sentence(found, consequence), "db")

    def require_rounds(self, run_id: int, consequence: str, only: Collection[int] | None = None) -> None:
        """Refuse a run whose rounds are not those that were recorded, before they decide what happens to it.

        Args:
            only: the rounds that decide; default: all.
        """
        with self._file.reading() as connection:
            connection.execute("BEGIN")
            if found := list(round_differences(connection, [run_id], only)):
                raise FedLensError(self._sentence(found, consequence), "db")

    def warning(self) -> str:
        """Check the database now; returns a warning to show beside numbers, empty if there is no damage."""
        return self._warning(self.findings())

    def watched(self) -> str:
        """Return the warning of the last check, and start another in the background if one is due.

        It waits briefly for the first check of this process, and otherwise returns at once.
        """
        path = self._file.path
        return self._warning(_watches.setdefault(path, Watch(path, self.findings)).found())

    def _warning(self, found: list[str]) -> str:
        return self._sentence(found, "numbers that are shown may be wrong") if found else ""

    def _sentence(self, found: list[str], consequence: str) -> str:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return (
            f"{self._file.path} is damaged ({found[0]}{more}), so {consequence}; `fedlens doctor` shows all "
            "of it, `fedlens restore` puts a backup in its place"
        )


SHARE = 0.05
"""Maximum share of one core that repeated checks use, as of a file that changes all the time."""
PAUSE_SECONDS = 2.0
"""Minimum time between two checks."""
REPEAT_SECONDS = 3600.0
"""Time after which an unchanged file is checked again, since a failing disk leaves its date alone."""
FIRST_SECONDS = 0.3
"""Time for which a page waits for the first check; most databases need less."""
logger = logging.getLogger(__name__)
_Version = list[tuple[int, int, int]]


class Watch:
    """The checks of one database."""

    def __init__(self, db: Path, check: Callable[[], list[str]]) -> None:
        self._db, self._check = db, check
        self._found: list[str] = []
        self._version: _Version | None = None
        self._started = self._ended = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def found(self) -> list[str]:
        """Return what the last check has found, and start another one if it is due."""
        with self._lock:
            first = self._thread is None
            if self._is_due():
                self._thread = threading.Thread(target=self._run, name=f"check {self._db}", daemon=True)
                self._thread.start()
            thread = self._thread
        if first and thread is not None:
            thread.join(FIRST_SECONDS)
        return self._found

    def _is_due(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        since, cost = time.monotonic() - self._ended, self._ended - self._started
        if self._thread is not None and since < max(PAUSE_SECONDS, cost / SHARE):
            return False
        return version(self._db) != self._version or since > REPEAT_SECONDS

    def _run(self) -> None:
        self._started, self._version = time.monotonic(), version(self._db)
        try:
            self._found = self._check()
        except (FedLensError, sqlite3.Error) as error:  # e.g. locked; pages report that themselves
            logger.warning("%s was not checked: %s", self._db, error)
            self._version = None
        finally:
            self._ended = time.monotonic()


def version(db: Path) -> _Version:
    """Return values of the file and its log that change with every write."""
    seen = []
    for path in (db, db.with_name(f"{db.name}-wal")):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        if stat.st_size:  # readers create an empty log, and delete it again
            seen.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return seen


_watches: dict[Path, Watch] = {}
"""The watch of each database, which all pages of the process share."""
