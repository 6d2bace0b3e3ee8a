"""The guard at the doors through which numbers leave a store."""

from __future__ import annotations

from collections.abc import Iterable

from fedcore.errors import FedLensError
from fedcore.store.database import DatabaseFile
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
            return findings(connection, experiment_ids)

    def require(self, experiment_ids: Iterable[int]) -> None:
        """Refuse to go on with damaged experiments.

        Raises:
            FedLensError: field ``db``, with the first damage and the remedy.
        """
        found = self.findings(experiment_ids)
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise FedLensError(
                f"{self._file.path} is damaged ({found[0]}{more}), so nothing is exported; `fedlens doctor` "
                "shows all of it, `fedlens restore` puts a backup in its place",
                "db",
            )
