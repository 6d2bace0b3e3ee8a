"""All that a database holds of one experiment: read, written as a JSON file, and checked on its way back.

A JSON file and another database are both foreign: all their values are checked here, once.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from fedcore.config import Experiment, RunConfig
from fedcore.config.identity import group_hash
from fedcore.errors import FedLensError
from fedcore.files import read_text
from fedcore.store.database import DatabaseFile
from fedcore.store.schema import RUN_TABLES, columns
from fedcore.store.writer import AttachedRun, ExperimentRecord, Table, Tables

LOCAL_COLUMNS = ("id", "experiment_id", "run_id", "owner", "pid", "pid_started", "heartbeat_at")
"""Columns that mean something in one database only."""
LATEST = 1e11
"""Seconds since 1970, in the year 5138; of much later ones the system cannot tell the date."""
Name = Annotated[str, Field(min_length=1, max_length=1000)]
LongText = Annotated[str, Field(max_length=1_000_000)]


class _NoticeChecks(BaseModel):
    message: LongText
    repeats_exactly: bool


class _ExperimentChecks(BaseModel):
    """The values of an experiment's row; the schema checks types and ranges of its other columns."""

    # the start of a uuid names folders, which are deleted with the experiment
    uuid: Annotated[str, StringConstraints(pattern=r"^[0-9a-zA-Z]{8,64}$")]
    name: str
    config: Json[Experiment]
    tags: Json[list[str]]

    @model_validator(mode="after")
    def _readable_by_its_name(self) -> _ExperimentChecks:
        """Check the config under the row's name, which an experiment that was renamed is read with."""
        Experiment.model_validate({**self.config.model_dump(), "name": self.name})
        return self


class _RunChecks(BaseModel):
    """The values of a run's row; the schema checks types and ranges of its other columns."""

    config: Json[RunConfig]
    method: Name
    label: Name
    seed: int
    held_out: str | None
    group_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    origin: Literal["engine", "recorder", "import"]
    status: str
    notices: Json[list[_NoticeChecks]]
    environment: Json[dict[str, JsonValue]] | None
    rounds_total: int = Field(ge=0)
    rounds_done: int = Field(ge=0)
    status_text: LongText | None
    error: LongText | None
    tags: Json[list[LongText]]
    notes: LongText

    @model_validator(mode="after")
    def _as_configured(self) -> _RunChecks:
        run = self.config
        if (run.method.name, run.seed, run.held_out) != (self.method, self.seed, self.held_out):
            raise ValueError("the method, seed or held-out domain of a run is not that of its config")
        return self


_ROUNDS = TypeAdapter(list[int])
_CLASS_COUNTS = TypeAdapter(list[Json[list[Annotated[int, Field(ge=0)]]] | None])


def read_record(connection: sqlite3.Connection, experiment_id: int) -> ExperimentRecord[Tables]:
    """Read an experiment with its runs and all of their rows."""
    row, runs = _rows_of(connection, experiment_id)
    tables = ({name: _table(connection, name, run["id"]) for name in RUN_TABLES} for run in runs)
    return ExperimentRecord(row, list(zip(map(_portable, runs), tables, strict=True)))


def read_attached(connection: sqlite3.Connection, experiment_id: int) -> ExperimentRecord[AttachedRun]:
    """Read an experiment with its runs, whose rows stay in a database that will be attached."""
    row, runs = _rows_of(connection, experiment_id)

    def column(table: str, name: str, run_id: int) -> list[Any]:
        return [row[0] for row in connection.execute(f"SELECT {name} FROM {table} WHERE run_id=?", [run_id])]

    rows = (
        AttachedRun(i, column("rounds", "round", i), column("entities", "class_counts", i))
        for i in (run["id"] for run in runs)
    )
    return ExperimentRecord(row, list(zip(map(_portable, runs), rows, strict=True)))


def _rows_of(connection: sqlite3.Connection, experiment_id: int) -> tuple[dict[str, Any], list[sqlite3.Row]]:
    names = ", ".join(columns("experiments"))
    row = connection.execute(f"SELECT {names} FROM experiments WHERE id=?", [experiment_id]).fetchone()
    if row is None:
        raise FedLensError(f"no experiment {experiment_id}; `fedlens list` shows them", "id")
    names = ", ".join(columns("runs"))
    runs = connection.execute(f"SELECT {names} FROM runs WHERE experiment_id=? ORDER BY id", [experiment_id])
    return _portable(row), runs.fetchall()


def _portable(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in row.keys() if name not in LOCAL_COLUMNS}  # noqa: SIM118


def _table(connection: sqlite3.Connection, name: str, run_id: int) -> Table:
    names = tuple(column for column in columns(name) if column != "run_id")
    cursor = connection.execute(f"SELECT {', '.join(names)} FROM {name} WHERE run_id=?", [run_id])
    rows = [list(row) for row in cursor]
    for row in rows:
        if math.inf in row or -math.inf in row:  # NULL, as when a round is recorded: JSON has no infinity
            row[:] = [None if value in (math.inf, -math.inf) else value for value in row]
    return Table(names, rows)


def check(record: ExperimentRecord[Tables | AttachedRun]) -> None:
    """Refuse a record that no FedLens can have written.

    Raises:
        ValueError: (also pydantic's ``ValidationError``) saying which value is wrong; types and ranges of
            columns are left to the schema of the database that it is written to.
    """
    _ExperimentChecks.model_validate(record.row)
    _check_row(record.row)
    groups: dict[str, str] = {}
    for row, recorded in record.runs:
        checked = _RunChecks.model_validate(row)
        # The hash itself may differ here, if the method's file is not on this machine; equal ones may not.
        computed = group_hash(checked.config)
        if groups.setdefault(checked.group_hash, computed) != computed:
            raise ValueError("runs of one group, which tables average, have different configs")
        _check_row(row)
        if isinstance(recorded, AttachedRun):  # SQLite has no other numbers
            rounds, class_counts = recorded.rounds, recorded.class_counts
        else:
            rounds = _ROUNDS.validate_python(recorded["rounds"].column("round"))
            class_counts = recorded["entities"].column("class_counts")
            for name, table in recorded.items():
                for column, values in zip(table.columns, zip(*table.rows, strict=True), strict=False):
                    _check_column(f"{name}.{column}", values)
        if checked.rounds_done > max(rounds, default=0):
            raise ValueError(f"rounds_done is {checked.rounds_done}, but later rounds are missing")
        _CLASS_COUNTS.validate_python(class_counts)


def _check_row(row: dict[str, Any]) -> None:
    for name, value in row.items():
        _check_column(name, [value])


def _check_column(name: str, values: Sequence[object]) -> None:
    """Refuse a column of one database, such as an id: the largest would leave none for any later row.

    Refuse numbers that no column holds; a column has millions, so each kind is looked at as a whole.
    """
    if name.rpartition(".")[2] in LOCAL_COLUMNS:
        raise ValueError(f"{name} belongs to one database and is in no file")
    floats: list[Any] = [value for value in values if type(value) is float]
    integers: list[Any] = [value for value in values if type(value) is int]
    if not all(map(math.isfinite, floats)):
        raise ValueError(f"{name} is {next(v for v in floats if not math.isfinite(v))}, not a number")
    if name.endswith("_at") and not all(0 <= value < LATEST for value in floats + integers):
        raise ValueError(f"{name} is not a time in seconds since 1970")
    if integers and not -(2**63) <= min(integers) <= max(integers) < 2**63:
        raise ValueError(f"{name} has more than 64 bits")


FORMAT = "fedlens-experiment-1"
JSON_COLUMNS = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment", "tags")}
"""Columns that hold JSON; an exported file contains their values, not JSON within a string."""


class _RunContent(BaseModel):
    """A run; its other fields are the columns of ``runs``."""

    model_config = ConfigDict(extra="allow")
    tables: dict[str, Table]

    @model_validator(mode="after")
    def _complete(self) -> _RunContent:
        if missing := [name for name in RUN_TABLES if name not in self.tables]:
            raise ValueError(f"the table '{missing[0]}' is missing")
        return self


class _ExperimentContent(BaseModel):
    """An experiment; its other fields are the columns of ``experiments``."""

    model_config = ConfigDict(extra="allow")
    uuid: str
    name: str
    runs: list[_RunContent]


class _FileContent(BaseModel):
    experiments: list[_ExperimentContent]


def experiments_json(database_file: DatabaseFile, experiment_ids: Iterable[int]) -> str:
    """Return everything recorded of some experiments: configs, environments, entities, metrics, diagnostics.

    Tables of a run are ``{"columns": [...], "rows": [[...]]}``. Checkpoints and logs are not included.
    """
    with database_file.reading() as connection:
        records = [read_record(connection, int(i)) for i in experiment_ids]
    experiments = []
    for record in records:
        runs = [
            _parsed("runs", row) | {"tables": {name: vars(table) for name, table in tables.items()}}
            for row, tables in record.runs
        ]
        experiments.append(_parsed("experiments", record.row) | {"runs": runs})
    content = {"format": FORMAT, "experiments": experiments}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def read_records(file: Path) -> list[ExperimentRecord[Tables]]:
    """Read the experiments of a file that ``experiments_json`` wrote; ``records.check`` checks their values.

    Raises:
        FedLensError: field ``file``, when the file cannot be read or is not such a file.
        ValidationError: when something is missing or of a wrong type.
    """
    text = read_text(file, "a JSON file")
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise FedLensError(f"cannot read {file}: {error}; give the path of a JSON file", "file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FedLensError(
            f"{file} is not an experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    records = []
    for experiment in _FileContent.model_validate(content).experiments:
        runs = [
            (_dumped("runs", run.model_extra), {name: run.tables[name] for name in RUN_TABLES})
            for run in experiment.runs
        ]
        row = {"uuid": experiment.uuid, "name": experiment.name, **(experiment.model_extra or {})}
        records.append(ExperimentRecord(_dumped("experiments", row), runs))
    return records


def parse_json(text: str) -> Any:
    """Parse JSON; raises ValueError for NaN and Infinity too, which Python would accept."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number in JSON")

    return json.loads(text, parse_constant=refuse)


def _parsed(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: json.loads(row[name]) for name in JSON_COLUMNS[table] if row[name] is not None}


def _dumped(table: str, row: dict[str, Any] | None) -> dict[str, Any]:
    row = row or {}
    return row | {
        name: json.dumps(row[name], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        for name in JSON_COLUMNS[table]
        if row.get(name) is not None
    }
