"""A whole experiment as one JSON file, for another FedLens, an archive, or a reader without SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedcore.config import Experiment, RunConfig
from fedcore.errors import FedLensError
from fedcore.store.database import DatabaseFile
from fedcore.store.importing import Merged
from fedcore.store.schema import RUN_TABLES

if TYPE_CHECKING:
    from sqlite_utils import Database

FORMAT = "fedlens-experiment-1"
_JSON = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment")}
"""Columns that hold JSON: written as it, not as text within text."""
_HERE = ("id", "experiment_id", "run_id", "owner", "pid", "pid_started", "heartbeat_at")
"""Columns that mean something in one database only."""
_UNENDED = ("queued", "running", "stopping")
Row = dict[str, Any]


def experiments_json(database_file: DatabaseFile, experiment_ids: Iterable[int]) -> str:
    """Everything recorded of some experiments: configs, environments, entities, metrics, diagnostics.

    Tables of a run are ``{"columns": [...], "rows": [[...]]}``. Checkpoints and logs are no part of it.

    Raises:
        FedLensError: for an id that does not exist.
    """
    with database_file.reading() as connection:
        found = [_experiment(connection, int(i)) for i in experiment_ids]
    content = {"format": FORMAT, "experiments": found}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _experiment(connection: Any, number: int) -> Row:
    row = connection.execute("SELECT * FROM experiments WHERE id=?", [number]).fetchone()
    if row is None:
        raise FedLensError(f"no experiment {number}; `fedlens list` shows them", "id")
    runs = connection.execute("SELECT * FROM runs WHERE experiment_id=? ORDER BY id", [number]).fetchall()
    return {
        **_portable("experiments", dict(row)),
        "runs": [
            {
                **_portable("runs", dict(run)),
                "tables": {t: _table(connection, t, run["id"]) for t in RUN_TABLES},
            }
            for run in runs
        ],
    }


def _portable(table: str, row: Row) -> Row:
    kept = {k: v for k, v in row.items() if k not in _HERE}
    return kept | {k: json.loads(kept[k]) for k in _JSON[table] if kept[k] is not None}


def _table(connection: Any, table: str, run_id: int) -> Row:
    cursor = connection.execute(f"SELECT * FROM {table} WHERE run_id=?", [run_id])
    names = [d[0] for d in cursor.description]
    keep = [i for i, name in enumerate(names) if name != "run_id"]
    return {"columns": [names[i] for i in keep], "rows": [[row[i] for i in keep] for row in cursor]}


def import_json(database_file: DatabaseFile, file: str | Path) -> Merged:
    """Record the experiments of a file that ``experiments_json`` wrote, in one transaction.

    Idempotent as ``merge`` is: an experiment (known by its token) that is here already is left as it is. Runs
    that had not ended become ``stopped``.

    Raises:
        FedLensError: naming the file and what is wrong with it; nothing is written then.
    """
    database_file.prepare_for_writing()
    added, present = [], []
    try:
        found = _read(Path(file))
        with database_file.writing() as database:
            for experiment in found:
                token, name = experiment["token"], experiment["name"]
                if database.execute("SELECT 1 FROM experiments WHERE token=?", [token]).fetchone():
                    present.append(name)
                    continue
                _write(database, experiment)
                added.append(name)
    except (sqlite3.Error, ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FedLensError(
            f"{file} is damaged, or was written by a newer FedLens ({what}); nothing was recorded", "file"
        ) from error
    return Merged(tuple(added), tuple(present))


def _read(file: Path) -> list[Row]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FedLensError(f"cannot read {file}: {error}; give the path of a JSON file", "file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FedLensError(
            f"{file} is no experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    return content["experiments"]


def _write(database: Database, experiment: Row) -> None:
    Experiment.model_validate(experiment["config"])
    runs = experiment.pop("runs")
    number = _insert(database, "experiments", experiment)
    for run in runs:
        RunConfig.model_validate(run["config"])
        tables = run.pop("tables")
        run |= {"experiment_id": number}
        if run["status"] in _UNENDED:
            run |= {"status": "stopped", "reason": "imported from a file before it had ended"}
        run_id = _insert(database, "runs", run)
        for table in RUN_TABLES:
            content = tables[table]
            _check(database, table, content["columns"])
            places = ", ".join("?" * (len(content["columns"]) + 1))
            columns = ", ".join(["run_id", *content["columns"]])
            database.conn.executemany(
                f"INSERT INTO {table}({columns}) VALUES ({places})",
                ([run_id, *row] for row in content["rows"]),
            )


def _insert(database: Database, table: str, row: Mapping[str, Any]) -> int:
    _check(database, table, row)
    texts = {k: json.dumps(row[k], ensure_ascii=False) for k in _JSON[table] if row.get(k) is not None}
    columns, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    statement = f"INSERT INTO {table}({columns}) VALUES ({places})"
    return int(database.execute(statement, {**row, **texts}).lastrowid or 0)


def _check(database: Database, table: str, names: Iterable[str]) -> None:
    """Column names end up in a statement: only those that the table has may."""
    known = {row["name"] for row in database.execute(f"PRAGMA table_info({table})")}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"table {table} has no column {unknown[0]!r}")
