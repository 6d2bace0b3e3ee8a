"""Import CSV files, JSON files and other databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedcore.config import RunConfig
from fedcore.errors import DAMAGE, FedLensError, first_line
from fedcore.progress import counted
from fedcore.store.database import DatabaseFile, artifacts_folder, remove_folder, resolve, run_folder_name
from fedcore.store.exchange import from_0_1
from fedcore.store.exchange.json_file import read_records
from fedcore.store.exchange.other_database import copy_of
from fedcore.store.exchange.records import check, read_record
from fedcore.store.own_results.csv_file import import_csv
from fedcore.store.writer import Created, ExperimentRecord, insert_record


@dataclass(frozen=True)
class Merged:
    """Names of the experiments that an import added, and of those that were in the store already."""

    added: tuple[str, ...]
    present: tuple[str, ...]


class Imports:
    """Records results from elsewhere: CSV files, experiments as JSON, other databases (``Store.imports``)."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    def csv(self, file: str | Path, experiment: str | int, dataset: str | None = None) -> Created:
        """Record a CSV file (see ``own_results.csv_file.import_csv``)."""
        return import_csv(self._file, file, experiment, dataset)

    def json(self, file: str | Path) -> Merged:
        """Record the experiments of a file that ``experiments_json`` wrote, in one transaction.

        Repeatable as ``database`` is: an experiment (known by its uuid) that is in the store already stays as
        it is. Runs that had not ended become ``stopped``.

        Raises:
            FedLensError: naming the file and what is wrong with it; nothing is written then.
        """
        self._file.prepare_for_writing()
        with _damage_named(str(file), "file"):
            return self._insert_missing(read_records(Path(file)), "imported from a file before it had ended")

    def database(self, other: str | Path) -> Merged:
        """Copy the experiments of another database into this one, in one transaction.

        Repeatable: an experiment (known by its uuid) that is in the store already stays as it is; newer
        rounds are not added. Runs that were queued or running there become ``stopped`` here: their
        checkpoints are not copied, so they can be resumed where they were trained, or be restarted here. Only
        a database of FedLens 0.1 brings its checkpoints and logs along, since this version cannot open it.

        Raises:
            FedLensError: when one of the databases cannot be used; nothing is written then.
        """
        self._file.prepare_for_writing()
        source = resolve(other)
        if source == self._file.path:
            raise FedLensError(f"{source} is the database itself; name another one", "other")
        with _damage_named(str(source), "other"), copy_of(source) as copy:
            ids = [row["id"] for row in copy.rows.execute("SELECT id FROM experiments ORDER BY id")]
            records = (read_record(copy.rows, i) for i in ids)
            return self._insert_missing(
                records,
                "merged from another database before it had ended",
                partial(self._copy_files, copy.rows, artifacts_folder(source)) if copy.with_files else None,
            )

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
                return f"{counted(count, 'run')} recorded."
            merged = self.json(file)
            added, present = len(merged.added), len(merged.present)
            return f"{counted(added, 'experiment')} added, {present} already here."
        except FedLensError as error:
            raise FedLensError(str(error).replace(str(file), name or str(file)), error.field) from error

    def _insert_missing(
        self,
        records: Iterable[ExperimentRecord],
        text: str,
        copy_files: Callable[[ExperimentRecord, list[int], list[Path]], None] | None = None,
    ) -> Merged:
        added, present = [], []
        folders: list[Path] = []
        try:
            with self._file.writing() as database:
                known = {row["uuid"] for row in database.execute("SELECT uuid FROM experiments")}
                for record in records:
                    if record.row["uuid"] in known:
                        present.append(record.row["name"])
                        continue
                    check(record)
                    run_ids = insert_record(database, record, text)
                    if copy_files is not None:
                        copy_files(record, run_ids, folders)
                    added.append(record.row["name"])
        except BaseException:
            for folder in folders:
                remove_folder(folder)
            raise
        return Merged(tuple(added), tuple(present))

    def _copy_files(
        self,
        rows: sqlite3.Connection,
        source: Path,
        record: ExperimentRecord,
        run_ids: list[int],
        made: list[Path],
    ) -> None:
        """Copy the folders of an experiment's runs; ``made`` gets each before it is filled."""
        uuid, target = record.row["uuid"], artifacts_folder(self._file.path)
        former_ids = rows.execute(
            "SELECT r.id FROM runs r JOIN experiments e ON e.id=r.experiment_id WHERE e.uuid=? ORDER BY r.id",
            [uuid],
        )
        for (former_id,), run_id, (row, _) in zip(former_ids, run_ids, record.runs, strict=True):
            folder, former = target / run_folder_name(run_id, uuid), source / run_folder_name(former_id, uuid)
            if not former.is_dir():
                continue
            if folder.exists():
                raise FedLensError(
                    f"{folder} exists, so the files of a run cannot be copied; merge into a database in "
                    "another folder (--db FOLDER/runs.db)",
                    "other",
                )
            made.append(folder)
            from_0_1.copy_files(former, folder, RunConfig.model_validate_json(row["config"]))


@contextmanager
def _damage_named(source: str, field: str) -> Iterator[None]:
    """Turn whatever a damaged or hostile file raises into one line that names the file."""
    try:
        yield
    except FedLensError:
        raise
    except (sqlite3.Error, *DAMAGE) as error:
        raise FedLensError(
            f"{source} is damaged, or was written by a newer FedLens ({first_line(error)}); "
            "nothing was recorded",
            field,
        ) from error
