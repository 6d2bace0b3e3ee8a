"""Results from elsewhere: CSV files, experiments as JSON, other databases."""

from __future__ import annotations

from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.store.csv_import import import_csv
from fedcore.store.database import DatabaseFile
from fedcore.store.exchange import Merged, import_json, merge
from fedcore.store.writer import Created


class Imports:
    """What other programs and databases recorded is written to the store (``Store.imports``)."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    def csv(self, file: str | Path, experiment: str | int, dataset: str | None = None) -> Created:
        """Record a CSV file (see ``csv_import.import_csv``)."""
        return import_csv(self._file, file, experiment, dataset)

    def json(self, file: str | Path) -> Merged:
        """Record the experiments of a JSON file (see ``exchange.import_json``)."""
        return import_json(self._file, file)

    def database(self, other: str | Path) -> Merged:
        """Copy the experiments of another database (see ``exchange.merge``)."""
        return merge(self._file, other)

    def file(self, file: Path, experiment: str = "", dataset: str = "", name: str | None = None) -> str:
        """Record a JSON or CSV file, by its suffix, and return a sentence that says what was recorded.

        Args:
            experiment, dataset: of a CSV file, which does not name them.
            name: as the user knows the file.

        Raises:
            FedLensError: as ``json`` and ``csv``, naming the file as the user knows it.
        """
        try:
            if file.suffix.lower() == ".csv":
                count = len(self.csv(file, experiment, dataset or None).run_ids)
                return f"{count} run{'s' * (count != 1)} recorded."
            merged = self.json(file)
            added, present = len(merged.added), len(merged.present)
            return f"{added} experiment{'s' * (added != 1)} added, {present} here already."
        except FedLensError as error:
            raise FedLensError(str(error).replace(str(file), name or str(file)), error.field) from error
