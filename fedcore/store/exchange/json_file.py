"""Experiments as one JSON file: everything recorded, to be imported elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from fedcore.errors import FedLensError
from fedcore.paths import read_text
from fedcore.store.database import DatabaseFile
from fedcore.store.exchange.records import read_record
from fedcore.store.schema import RUN_TABLES
from fedcore.store.writer import ExperimentRecord, Table

FORMAT = "fedlens-experiment-1"
JSON_COLUMNS = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment", "tags")}
"""Columns that hold JSON; an exported file contains their values, not JSON within a string."""


class _TableContent(BaseModel):
    columns: tuple[str, ...]
    rows: list[list[Any]]

    @model_validator(mode="after")
    def _complete(self) -> _TableContent:
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} has {len(row)} values for {len(self.columns)} columns")
        return self


class _RunContent(BaseModel):
    """A run; its other fields are the columns of ``runs``."""

    model_config = ConfigDict(extra="allow")
    tables: dict[str, _TableContent]

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

    Raises:
        FedLensError: for an id that does not exist.
    """
    with database_file.reading() as connection:
        records = [read_record(connection, int(i)) for i in experiment_ids]
    content = {"format": FORMAT, "experiments": [_to_json(record) for record in records]}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def read_records(file: Path) -> list[ExperimentRecord]:
    """Read the experiments of a file that ``experiments_json`` wrote; ``records.check`` checks their values.

    Raises:
        FedLensError: field ``file``, when the file cannot be read or is not such a file.
        ValidationError: when something is missing or of a wrong type.
    """
    text = read_text(file, "a JSON file")
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FedLensError(f"cannot read {file}: {error}; give the path of a JSON file", "file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FedLensError(
            f"{file} is not an experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    return [_from_json(experiment) for experiment in _FileContent.model_validate(content).experiments]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


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


def _from_json(content: _ExperimentContent) -> ExperimentRecord:
    runs = []
    for run in content.runs:
        tables = {name: Table(run.tables[name].columns, run.tables[name].rows) for name in RUN_TABLES}
        runs.append((_dumped("runs", run.model_extra), tables))
    identity = {"uuid": content.uuid, "name": content.name}
    return ExperimentRecord(_dumped("experiments", {**identity, **(content.model_extra or {})}), runs)


def _dumped(table: str, row: dict[str, Any] | None) -> dict[str, Any]:
    row = row or {}
    return row | {
        name: json.dumps(row[name], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        for name in JSON_COLUMNS[table]
        if row.get(name) is not None
    }
