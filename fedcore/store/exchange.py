"""Export experiments as JSON, and import JSON files, CSV files and other databases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedcore.config import Experiment, RunConfig
from fedcore.errors import FedLensError, first_line
from fedcore.store.database import DatabaseFile, applied_migrations, reading_as_it_is, resolve
from fedcore.store.own_results.csv_file import import_csv
from fedcore.store.schema import RENAMED, RUN_TABLES, STEPS, migrations
from fedcore.store.writer import Created, ExperimentRecord, Table, insert_record

FORMAT = "fedlens-experiment-2"
FIRST_FORMAT = "fedlens-experiment-1"
"""The format before columns were renamed; such files are still imported."""
JSON_COLUMNS = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment")}
"""Columns that hold JSON; an exported file contains their values, not JSON within a string."""
LOCAL_COLUMNS = ("id", "experiment_id", "run_id", "owner", "pid", "pid_started", "heartbeat_at")
"""Columns that mean something in one database only."""


@dataclass(frozen=True)
class Merged:
    """Names of the experiments that an import added, and of those that were in the store already."""

    added: tuple[str, ...]
    present: tuple[str, ...]


def experiments_json(database_file: DatabaseFile, experiment_ids: Iterable[int]) -> str:
    """Return everything recorded of some experiments: configs, environments, entities, metrics, diagnostics.

    Tables of a run are ``{"columns": [...], "rows": [[...]]}``. Checkpoints and logs are not included.

    Raises:
        FedLensError: for an id that does not exist.
    """
    with database_file.reading() as connection:
        records = [_read_record(connection, int(i)) for i in experiment_ids]
    content = {"format": FORMAT, "experiments": [_to_json(record) for record in records]}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


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
        try:
            records = [_from_json(values) for values in _experiments_in(Path(file))]
            return _insert_missing(self._file, records, "imported from a file before it had ended")
        except (sqlite3.Error, ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedLensError(
                f"{file} is damaged, or was written by a newer FedLens ({first_line(error)}); "
                "nothing was recorded",
                "file",
            ) from error

    def database(self, other: str | Path) -> Merged:
        """Copy the experiments of another database into this one, in one transaction.

        Repeatable: an experiment (known by its uuid) that is in the store already stays as it is; newer
        rounds are not added. Runs that were queued or running there become ``stopped`` here: their
        checkpoints are not copied, so a resume trains them from the beginning.

        Raises:
            FedLensError: when one of the databases cannot be used.
        """
        self._file.prepare_for_writing()
        source = resolve(other)
        if source == self._file.path:
            raise FedLensError(f"{source} is the database itself; name another one", "other")
        with _reading_migrated(source) as connection:
            ids = [row["id"] for row in connection.execute("SELECT id FROM experiments ORDER BY id")]
            records = (_read_record(connection, i) for i in ids)
            return _insert_missing(self._file, records, "merged from another database before it had ended")

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
            return f"{added} experiment{'s' * (added != 1)} added, {present} already here."
        except FedLensError as error:
            raise FedLensError(str(error).replace(str(file), name or str(file)), error.field) from error


def _insert_missing(database_file: DatabaseFile, records: Iterable[ExperimentRecord], text: str) -> Merged:
    added, present = [], []
    with database_file.writing() as database:
        known = {row["uuid"] for row in database.execute("SELECT uuid FROM experiments")}
        for record in records:
            if record.row["uuid"] in known:
                present.append(record.row["name"])
            else:
                insert_record(database, record, text)
                added.append(record.row["name"])
    return Merged(tuple(added), tuple(present))


@contextmanager
def _reading_migrated(path: Path) -> Iterator[sqlite3.Connection]:
    """Open another database for reading; one of an older FedLens is migrated in a copy in memory."""
    with reading_as_it_is(path) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if not {"experiments", "runs", "accuracy"} <= tables:
            raise FedLensError(f"{path} is not a database of FedLens; name a runs.db", "other")
        applied = applied_migrations(connection)
        if applied == set(STEPS):
            yield connection
            return
        if applied - set(STEPS):
            raise FedLensError(f"{path} was made by a newer FedLens; update FedLens", "other")
        from sqlite_utils import Database

        copy = sqlite3.connect(":memory:")
        try:
            connection.backup(copy)
            copy.row_factory = sqlite3.Row
            migrations().apply(Database(copy))
            yield copy
        finally:
            copy.close()


def _read_record(connection: sqlite3.Connection, experiment_id: int) -> ExperimentRecord:
    row = connection.execute("SELECT * FROM experiments WHERE id=?", [experiment_id]).fetchone()
    if row is None:
        raise FedLensError(f"no experiment {experiment_id}; `fedlens list` shows them", "id")
    runs = connection.execute(
        "SELECT * FROM runs WHERE experiment_id=? ORDER BY id", [experiment_id]
    ).fetchall()
    return ExperimentRecord(
        _portable(row),
        [
            (_portable(run), {name: _table(connection, name, run["id"]) for name in RUN_TABLES})
            for run in runs
        ],
    )


def _portable(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in row.keys() if name not in LOCAL_COLUMNS}  # noqa: SIM118


def _table(connection: sqlite3.Connection, name: str, run_id: int) -> Table:
    cursor = connection.execute(f"SELECT * FROM {name} WHERE run_id=?", [run_id])
    (place,) = (i for i, column in enumerate(cursor.description) if column[0] == "run_id")
    columns = tuple(column[0] for i, column in enumerate(cursor.description) if i != place)
    return Table(columns, [[*row[:place], *row[place + 1 :]] for row in cursor])


def _to_json(record: ExperimentRecord) -> dict[str, Any]:
    return {
        **_parsed("experiments", record.row),
        "runs": [
            {
                **_parsed("runs", row),
                "tables": {
                    name: {"columns": table.columns, "rows": table.rows} for name, table in tables.items()
                },
            }
            for row, tables in record.runs
        ],
    }


def _parsed(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: json.loads(row[name]) for name in JSON_COLUMNS[table] if row[name] is not None}


def _from_json(values: dict[str, Any]) -> ExperimentRecord:
    Experiment.model_validate(values["config"])
    runs = []
    for run in values.pop("runs"):
        RunConfig.model_validate(run["config"])
        tables = {
            name: Table(tuple(content["columns"]), content["rows"])
            for name, content in run.pop("tables").items()
            if name in RUN_TABLES
        }
        if set(tables) != set(RUN_TABLES):
            raise KeyError(*sorted(set(RUN_TABLES) - set(tables)))
        runs.append((_dumped("runs", run), tables))
    return ExperimentRecord(_dumped("experiments", values), runs)


def _dumped(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        name: json.dumps(row[name], ensure_ascii=False, separators=(",", ":"))
        for name in JSON_COLUMNS[table]
        if row.get(name) is not None
    }


def _experiments_in(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FedLensError(f"cannot read {file}: {error}; give the path of a JSON file", "file") from error
    file_format = content.get("format") if isinstance(content, dict) else None
    if file_format not in (FORMAT, FIRST_FORMAT):
        raise FedLensError(
            f"{file} is no experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    experiments: list[dict[str, Any]] = content["experiments"]
    return [_renamed(e) for e in experiments] if file_format == FIRST_FORMAT else experiments


def _renamed(experiment: dict[str, Any]) -> dict[str, Any]:
    """Give the columns of a file in the first format the names that they have now."""

    def new(table: str, name: str) -> str:
        """Return today's name of a column."""
        return RENAMED.get(table, {}).get(name, name)

    return {new("experiments", name): value for name, value in experiment.items()} | {
        "runs": [
            {new("runs", name): value for name, value in run.items() if name != "message"}
            | {
                "tables": {
                    table: {**content, "columns": [new(table, name) for name in content["columns"]]}
                    for table, content in run["tables"].items()
                }
            }
            for run in experiment["runs"]
        ]
    }
