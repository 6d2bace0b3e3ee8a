"""The guard where numbers leave a store, and where pages and commands show them."""

from __future__ import annotations

from collections.abc import Iterable

from fedcore.errors import FedLensError
from fedcore.store.database import DatabaseFile
from fedcore.store.integrity import watch
from fedcore.store.integrity.check import findings


class Integrity:
    """Tells whether a store holds what was recorded (``Store.integrity``)."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    def findings(self, experiment_ids: Iterable[int] | None = None) -> list[str]:
        """Return one line for each damage (see ``check.findings``).

        Raises:
            FedLensError: when the database cannot be opened.
        """
        with self._file.reading() as connection:
            if not connection.in_transaction:
                connection.execute("BEGIN")  # a run may be recording, or deleting rounds to resume
            return findings(connection, experiment_ids)

    def require(self, experiment_ids: Iterable[int]) -> None:
        """Refuse to go on with damaged experiments; those checked in this snapshot are not checked again.

        Raises:
            FedLensError: field ``db``, with the first damage and the remedy.
        """
        unchecked = set(experiment_ids) - self._file.checked
        if unchecked and (found := self.findings(unchecked)):
            raise FedLensError(self._sentence(found, "nothing is exported"), "db")

    def warning(self) -> str:
        """Check the database now; returns a sentence for where numbers are shown, empty if all is well.

        Raises:
            FedLensError: when the database cannot be opened.
        """
        return self._warning(self.findings())

    def watched(self) -> str:
        """Return the warning of the last check, and start another in the background if one is due.

        It waits for a moment for the first check of this process, and otherwise returns at once.
        """
        return self._warning(watch.found(self._file.path, self.findings))

    def _warning(self, found: list[str]) -> str:
        return self._sentence(found, "numbers that are shown may be wrong") if found else ""

    def _sentence(self, found: list[str], consequence: str) -> str:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return (
            f"{self._file.path} is damaged ({found[0]}{more}), so {consequence}; `fedlens doctor` shows all "
            "of it, `fedlens restore` puts a backup in its place"
        )
