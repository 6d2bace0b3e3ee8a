"""Databases and rows that no FedLens has written, or that are damaged."""

import csv
import re
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.store import Store, database
from fedcore.store.damage import rounds_without, write_digests, write_identity
from tests.support import command_line, fill


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    fill.done(folder / "ours.db", fill.an_experiment("Ours", methods=("zero-shot",), seeds=(1,), rounds=1))
    fill.done(folder / "theirs.db", fill.an_experiment("Theirs", methods=("fedot",), seeds=(1,), rounds=2))
    return folder


@pytest.fixture
def ours(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "ours").mkdir()
    return shutil.copy(made / "ours.db", tmp_path / "ours" / "runs.db")


@pytest.fixture
def theirs(made: Path, tmp_path: Path) -> Path:
    return shutil.copy(made / "theirs.db", tmp_path / "theirs.db")


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute("DELETE FROM digests")
        for statement in statements:
            connection.execute(statement)
        with suppress(sqlite3.Error):  # somebody who wants to deceive writes digests too
            for (run_id,) in connection.execute("SELECT id FROM runs").fetchall():
                write_digests(connection, run_id, rounds_without(connection, run_id))
                write_identity(connection, run_id)


def rebuilt(path: Path, table: str, change: str, to: str) -> None:
    """Replace a table by another one, made from its own statement with a change."""
    with closing(sqlite3.connect(path)) as connection, connection:
        ((sql,),) = connection.execute("SELECT sql FROM sqlite_master WHERE name=?", [table])
        names = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        connection.execute(f"ALTER TABLE {table} RENAME TO before")
        connection.execute(sql.replace(change, to))
        connection.execute(f"INSERT INTO {table}({names}) SELECT {names} FROM before")
        connection.execute("DROP TABLE before")


def refused(ours: Path, theirs: Path, message: str) -> None:
    before = dump(ours)
    with pytest.raises(FedLensError, match=message) as caught:
        Store(ours).imports.database(theirs)
    assert caught.value.field in ("other", "db") and "\n" not in str(caught.value)
    assert dump(ours) == before


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_a_column_name_is_never_part_of_a_statement(ours, theirs):
    """Such a column renamed an experiment of the other store."""
    column = "x) VALUES (1); UPDATE experiments SET name='hacked'; --"
    run_sql(theirs, f'ALTER TABLE experiments ADD COLUMN "{column}" TEXT DEFAULT "1"')
    Store(ours).imports.database(theirs)
    assert {e.name for e in Store(ours).experiments.all()} == {"Ours", "Theirs"}


def test_triggers_views_and_further_tables_are_inert(ours, theirs):
    run_sql(
        theirs,
        "CREATE TRIGGER evil AFTER INSERT ON runs BEGIN DELETE FROM experiments; END",
        "CREATE TRIGGER worse AFTER UPDATE ON entities BEGIN SELECT no_such_function(1); END",
        "CREATE VIEW odd AS SELECT no_such_function(1) AS a",
        "CREATE TABLE more(a)",
    )
    Store(ours).imports.database(theirs)
    assert {e.name for e in Store(ours).experiments.all()} == {"Ours", "Theirs"}
    with closing(sqlite3.connect(ours)) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert not names & {"evil", "worse", "odd", "more"}


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("UPDATE experiments SET config='{\"name\": 1}'", "damaged.*ValidationError"),
        ("UPDATE experiments SET config='[' || hex(zeroblob(9)) || ']'", "damaged"),
        ("UPDATE experiments SET uuid='/../../x'", "damaged.*ValidationError"),
        ("UPDATE experiments SET name=''", "damaged.*ValidationError"),
        ("UPDATE experiments SET tags='[1]'", "damaged.*tags.0: Input should be a valid string"),
        ("UPDATE experiments SET created_at=9e999", "created_at is inf"),
        ("UPDATE runs SET config='{}'", "damaged.*ValidationError"),
        ("UPDATE runs SET notices='[1]'", "damaged.*ValidationError"),
        ("UPDATE runs SET seed=77", "seed or held-out domain of a run is not that of its config"),
        ("UPDATE runs SET status='odd'", "CHECK constraint failed"),
        ("UPDATE runs SET best_test=9e999", "best_test is inf"),
        ("UPDATE accuracy SET correct=total + 1", "CHECK constraint failed"),
        ("UPDATE entities SET class_counts='{\"a\": 1}'", "damaged.*ValidationError"),
        ("UPDATE rounds SET run_id=run_id + 99", "rows refer to runs or experiments that do not exist"),
        ("UPDATE experiments SET notes=CAST(x'ff' AS TEXT)", "is damaged"),
        ("UPDATE entities SET name=CAST(x'ff' AS TEXT) WHERE entity=1", "is damaged"),
        (
            "INSERT INTO views(page, name, query, created_at) VALUES ('a', CAST(x'ff' AS TEXT), '', 0)",
            "damaged",
        ),
        ("DROP TABLE rounds", "rounds is not a table"),
        ("DROP TABLE rounds; CREATE VIEW rounds AS SELECT 1 AS run_id, 2 AS round", "rounds is not a table"),
        ("DROP TABLE rounds; CREATE VIRTUAL TABLE rounds USING fts5(run_id, round)", "rounds is not a table"),
        (
            "DROP VIEW results; ALTER TABLE accuracy RENAME COLUMN loss TO kept; "
            "ALTER TABLE accuracy ADD COLUMN loss REAL GENERATED ALWAYS AS (0.5) VIRTUAL",
            "table accuracy has no column 'loss'",
        ),
        ("ALTER TABLE runs DROP COLUMN notices", "no column 'notices'"),
        ("PRAGMA user_version=0", "does not say the version of its tables"),
        ("PRAGMA user_version=99", "a newer FedLens"),
    ],
)
def test_what_no_fedlens_writes_is_refused_in_one_line(ours, theirs, statements, message):
    run_sql(theirs, *statements.split("; "))
    refused(ours, theirs, message)


def test_wrong_types_are_refused(ours, theirs):
    rebuilt(theirs, "accuracy", ") STRICT, WITHOUT ROWID", ") WITHOUT ROWID")
    run_sql(theirs, "UPDATE accuracy SET total='many'")
    refused(ours, theirs, "cannot store TEXT value in INTEGER column")


def test_infinity_arrives_as_a_gap_and_the_rounds_are_sound(ours: Path, theirs: Path) -> None:
    run_sql(theirs, "UPDATE accuracy SET loss=-9e999 WHERE round=1", "UPDATE rounds SET train_loss=9e999")
    Store(ours).imports.database(theirs)
    assert Store(ours).integrity.findings() == []
    with database.reading(ours) as connection:
        for column, rows in (("loss", "accuracy WHERE round=1"), ("train_loss", "rounds WHERE 1")):
            found = connection.execute(f"SELECT DISTINCT {column} FROM {rows} AND run_id=2").fetchall()
            assert [value for (value,) in found] == [None]


def test_a_huge_value_is_refused(ours, theirs, monkeypatch):
    monkeypatch.setattr("fedcore.store.imports.LARGEST_VALUE", 1_000_000)
    run_sql(theirs, "UPDATE experiments SET notes=hex(zeroblob(600000))")
    refused(ours, theirs, "too big")


def test_links_are_followed_and_neither_itself_nor_a_foreign_file_is_merged(ours, theirs, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(theirs)
    assert Store(ours).imports.database(link).added == ("Theirs",)
    circle = tmp_path / "circle.db"
    circle.symlink_to(circle)
    with pytest.raises(FedLensError):
        Store(ours).imports.database(circle)
    link_to_ours = tmp_path / "same.db"
    link_to_ours.symlink_to(ours)
    with pytest.raises(FedLensError, match="is the database itself"):
        Store(ours).imports.database(link_to_ours)
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as connection:
        connection.execute("CREATE TABLE recipes(name TEXT)")
    with pytest.raises(FedLensError, match="not a database of FedLens"):
        Store(ours).imports.database(tmp_path / "foreign.db")


@pytest.mark.parametrize("path", ["/", "/proc", "x" * 5000, "a\0b", "/dev/zero", "~nobody-of-this-name/x.db"])
def test_what_is_no_file_is_refused(ours, path):
    with pytest.raises(FedLensError) as caught:
        Store(ours).imports.database(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("config='{\"name\": 1}'", "name: Input should be a valid string"),
        ("config='[]'", "Input should be an object"),
        ("tags='[[1]]'", "0: Input should be a valid string"),
    ],
)
def test_an_unreadable_experiment_leaves_the_others_readable(ours, theirs, statement, reason):
    """One such row blanked the list and the page for the whole database."""
    Store(ours).imports.database(theirs)
    run_sql(ours, f"UPDATE experiments SET {statement} WHERE id=2")
    store = Store(ours)
    assert [e.name for e in store.experiments.all()] == ["Ours"]
    (damaged,) = store.experiments.listed()[1]
    assert (damaged.id, damaged.name) == (2, "Theirs") and "cannot be read" in damaged.reason
    assert reason in damaged.reason
    with pytest.raises(FedLensError, match="experiment 2 cannot be read"):
        store.experiments.get(2)
    store.experiments.delete(2)
    assert store.experiments.listed()[1] == []


def test_a_run_with_damaged_texts_stays_listed(ours):
    run_sql(ours, "UPDATE runs SET notices='[1]', environment='[1]', config='{}'")
    store = Store(ours)
    ((run,),) = [e.runs for e in store.experiments.all()]
    assert run.notices[0].message == "the notices of this run are damaged"
    for read in (store.runs.environment, store.runs.config):
        with pytest.raises(FedLensError, match="run 1 cannot be read"):
            read(run.id)
    assert store.runs.configs([run.id], skip_damaged=True) == {}


def damage(db: Path, table: str, column: str, value: str) -> None:
    """Write a value that the table forbids into its second row, as a flipped bit does."""
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        ((sql,),) = connection.execute("SELECT sql FROM sqlite_master WHERE name=?", [table])
        untyped = re.sub(r"\b(TEXT|INTEGER|REAL)\b(?! PRIMARY)| NOT NULL| STRICT", "", sql)
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET sql=? WHERE name=?", [untyped, table])
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(f"UPDATE {table} SET {column}={value} WHERE id=2")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET sql=? WHERE name=?", [sql, table])


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


DAMAGED = [
    ("runs", "label", "NULL"),
    ("runs", "last_test", "'high'"),
    ("experiments", "uuid", "NULL"),
    ("tasks", "args", "7"),
    ("runs", "label", "7"),
    ("runs", "label", "x'ff'"),
    ("runs", "label", "CAST(x'ff' AS TEXT)"),
    ("runs", "config", "NULL"),
    ("experiments", "name", "CAST(x'ff' AS TEXT)"),
    ("tasks", "run_id", "99"),
]
"""What stands where; every kind of table and column is among the first four."""


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [*DAMAGED[:4], *(pytest.param(*case, marks=pytest.mark.slow) for case in DAMAGED[4:])],
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
    queued = {row["run"]: row["label"] for row in csv.DictReader(said["queue"].splitlines())}
    assert queued["3"] == "Zero-shot CLIP"
    assert "\n1," in said["tasks"]
    assert "disk" in said["doctor"] and "finding" in said["doctor"]


def test_a_filter_passes_over_a_damaged_config(db, capsys):
    damage(db, "runs", "config", "'{'")
    assert command_line.run("list", "--where", "seed = 1", "--db", db) == 0
    out, errors = capsys.readouterr()
    assert "Intact" in out and "the config of run 2 is damaged" in errors
