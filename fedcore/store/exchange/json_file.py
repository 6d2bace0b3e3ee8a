"""Experiments as one JSON file: everything recorded, to be imported elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedcore.errors import FedLensError
from fedcore.paths import read_text
from fedcore.store.database import DatabaseFile
from fedcore.store.exchange.records import read_record
from fedcore.store.schema import RUN_TABLES
from fedcore.store.writer import ExperimentRecord, Table

FORMAT = "fedlens-experiment-1"
JSON_COLUMNS = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment", "tags")}
"""Columns that hold JSON; an exported file contains their values, not JSON within a string."""


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
    """Read the experiments of a file that ``experiments_json`` wrote; their values are not checked yet.

    Raises:
        FedLensError: field ``file``, when the file cannot be read or is no such file.
        KeyError, TypeError, ValueError, AttributeError: when something is missing or of a wrong type.
    """
    text = read_text(file, "a JSON file")
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FedLensError(f"cannot read {file}: {error}; give the path of a JSON file", "file") from error
    file_format = content.get("format") if isinstance(content, dict) else None
    if file_format != FORMAT:
        raise FedLensError(
            f"{file} is no experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    experiments: list[dict[str, Any]] = content["experiments"]
    return [_from_json(experiment) for experiment in experiments]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


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
    runs = []
    for run in values.pop("runs"):
        content = run.pop("tables")
        tables = {name: Table(tuple(content[name]["columns"]), content[name]["rows"]) for name in RUN_TABLES}
        runs.append((_dumped("runs", run), tables))
    return ExperimentRecord(_dumped("experiments", values), runs)


def _dumped(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        name: json.dumps(row[name], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        for name in JSON_COLUMNS[table]
        if row.get(name) is not None
    }
