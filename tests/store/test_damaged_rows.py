"""A damaged value costs one line: `doctor` goes to its end; `list`, `queue` and `tasks` show the rest."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.store import Store
from tests.support import command_line, fill


def damage(db: Path, table: str, column: str, value: str) -> None:
    """Write a value that the table forbids into its second row, as a flipped bit does: no trigger sees it."""
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        ((sql,),) = connection.execute("SELECT sql FROM sqlite_master WHERE name=?", [table])
        untyped = re.sub(r"\b(TEXT|INTEGER|REAL)\b(?! PRIMARY)| NOT NULL| STRICT", "", sql)
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET sql=? WHERE name=?", [untyped, table])
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(f"UPDATE {table} SET {column}={value} WHERE id=2")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET sql=? WHERE name=?", [sql, table])
        for _, statement in triggers:
            connection.execute(statement)


@pytest.fixture
def db(sound: Path, tmp_path: Path) -> Path:
    return shutil.copy(sound, tmp_path / "runs.db")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three experiments with one run each, two of them queued, and two tasks."""
    path = tmp_path_factory.mktemp("sound") / "runs.db"
    fill.done(path, fill.an_experiment("Intact", methods=("zero-shot",), seeds=(1,), rounds=1))
    store = Store(path)
    for name in ("Damaged", "Waiting"):
        store.experiments.create(fill.an_experiment(name, methods=("zero-shot",), seeds=(1,)))
    for key in ("first", "second"):
        store.tasks.submit("check", key, {})
    return path


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("runs", "label", "NULL"),
        ("runs", "label", "7"),
        ("runs", "label", "x'ff'"),
        ("runs", "label", "CAST(x'ff' AS TEXT)"),
        ("runs", "last_test", "'high'"),
        ("runs", "config", "NULL"),
        ("experiments", "uuid", "NULL"),
        ("experiments", "name", "CAST(x'ff' AS TEXT)"),
        ("tasks", "args", "7"),
        ("tasks", "run_id", "99"),
    ],
)
def test_a_damaged_value_is_one_line_and_the_rest_stays_usable(db, capsys, table, column, value):
    damage(db, table, column, value)
    said = {}
    for command in ("list", "queue", "tasks", "doctor"):
        status = command_line.run(command, "--db", db)
        said[command], errors = capsys.readouterr()
        assert status == int(command == "doctor")
        assert not errors or (errors.startswith("warning: ") and errors.count("\n") == 1)
    assert "Intact" in said["list"] and "Waiting" in said["list"]
    assert "run 3  Zero-shot CLIP" in said["queue"]
    assert "task 1" in said["tasks"]
    assert "disk" in said["doctor"] and "finding" in said["doctor"]


def test_a_filter_passes_over_a_damaged_config(db, capsys):
    damage(db, "runs", "config", "'{'")
    assert command_line.run("list", "--where", "seed = 1", "--db", db) == 0
    out, errors = capsys.readouterr()
    assert "Intact" in out and "the config of run 2 is damaged" in errors
