"""Brings a database of an earlier FedLens up to date, in place: the tables of ``schema``, and their values.

`sqlite-utils migrate runs.db fedcore/store/migrations.py --list` shows which steps a database has. Only what
creates or upgrades a database imports this module, because sqlite-utils takes a third of a second to load.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from pydantic import ValidationError
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from fedcore.config import Experiment, MethodEntry, RunConfig
from fedcore.methods import registry
from fedcore.store import schema
from fedcore.store.damage import write_identity
from fedcore.store.database import task_folder
from fedcore.store.jobs import seal
from fedcore.store.writer import set_config

MIGRATIONS = Migrations("fedlens-runs")


@MIGRATIONS(name="tables of 1.0")
def _tables_of_1_0(database: Database) -> None:
    schema.tables_of_1_0(database.conn)


@MIGRATIONS(name="views and named keys")
def _views_and_named_keys(database: Database) -> None:
    """Also give runs and the results of tasks the digests that those of 1.0 lack."""
    connection = database.conn
    damaged = set(_differ_from_copies(connection))
    schema.views_and_named_keys(connection)
    record_attention_init(connection)
    for (run_id,) in connection.execute("SELECT id FROM runs").fetchall():
        write_identity(connection, run_id)
        if run_id in damaged:  # what the copies have detected is not forgotten with them
            connection.execute("UPDATE digests SET digest='' WHERE run_id=? AND round=-1", [run_id])
    _seal_results(connection)


def upgrade(connection: sqlite3.Connection) -> None:
    """Make the tables, or bring them up to date, within the caller's transaction."""
    if schema.version_of(connection) < schema.VERSION:
        if schema.tables(connection):
            MIGRATIONS.apply(Database(connection))
        else:
            for statement in _of_a_new_database():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={schema.VERSION}")


@cache
def _of_a_new_database() -> list[str]:
    """Return the statements that make what all steps leave behind, in a sixth of their time."""
    with closing(sqlite3.connect(":memory:")) as stepped:
        MIGRATIONS.apply(Database(stepped))
        return [*stepped.iterdump()][1:-1]  # without a transaction of their own


def _differ_from_copies(connection: sqlite3.Connection) -> Iterator[int]:
    """Yield the runs that differ, or whose models differ, from the copies that 1.0 kept of their rows."""
    if "copies" not in schema.tables(connection):
        return
    for table, key in (("runs", "r.id || ''"), ("entities", "r.run_id || ' ' || r.entity")):
        local = ("owner", "pid", "pid_started", "heartbeat_at")
        names = [name for name in schema.columns(table) if name not in local]
        content = " || ',' || ".join(f"quote(r.{name})" for name in names)
        found = connection.execute(
            f"SELECT {key} FROM {table} r LEFT JOIN copies c ON c.table_name='{table}' AND c.key={key} "
            f"WHERE c.content IS NOT {content} UNION SELECT * FROM "
            f"(SELECT key FROM copies WHERE table_name='{table}' EXCEPT SELECT {key} FROM {table} r)"
        )
        yield from (int(row[0].split()[0]) for row in found.fetchall())


def record_attention_init(connection: sqlite3.Connection) -> None:
    """Name the first values that FedTPG's attention had in 1.0; later versions store which they were."""
    of_1_0 = set()
    trained = "SELECT id, experiment_id, config FROM runs WHERE origin='engine' AND method='fedtpg'"
    for run_id, experiment_id, config in connection.execute(trained).fetchall():
        with suppress(ValidationError):  # it stays as unreadable as it was
            run = RunConfig.model_validate_json(config)
            if "attention_init" not in run.method.config:
                registry.get("fedtpg")  # the hash of a group leaves out what is a method's default
                set_config(connection, run_id, run.model_copy(update={"method": _with_linear(run.method)}))
                of_1_0.add(experiment_id)
    experiments = connection.execute("SELECT id, config FROM experiments").fetchall()
    for row in (row for row in experiments if row[0] in of_1_0):
        with suppress(ValidationError):
            experiment = Experiment.model_validate_json(row[1])
            methods = tuple(map(_with_linear, experiment.methods))
            text = experiment.model_copy(update={"methods": methods}).model_dump_json()
            connection.execute("UPDATE experiments SET config=? WHERE id=?", [text, row[0]])


def _with_linear(method: MethodEntry) -> MethodEntry:
    if method.name != "fedtpg" or method.file is not None:
        return method
    return method.model_copy(update={"config": {"attention_init": "linear", **method.config}})


def _seal_results(connection: sqlite3.Connection) -> None:
    """Give the results of tasks a digest, which covers their arrays too."""
    db = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    rows = connection.execute(
        "SELECT id, kind, key, run_id, result FROM tasks WHERE json_valid(result) "
        "AND (run_id IS NULL OR run_id IN (SELECT id FROM runs))"
    )
    for number, kind, key, run_id, result in rows.fetchall():
        sealed = seal(json.loads(result), task_folder(db, kind, key, run_id))
        connection.execute("UPDATE tasks SET result=? WHERE id=?", [sealed, number])
