"""A database of FedLens 1.0 is brought up to date in place; a kill or a full disk leaves it as it was."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.base.errors import ReadOnlyDatabase
from fedcore.base.files import PROJECT
from fedcore.store import Recorder, Store, database, schema
from fedcore.store.backup import back_up, restore
from fedcore.store.jobs import TRAINING, Claim
from fedcore.store.schema import RUN_TABLES
from fedcore.store.writer import RunWriter
from tests.support import fill
from tests.support.exported import exported

DUMP = Path(__file__).with_name("runs-1.0.sql")
"""Written by FedLens 1.0 (``.dump``): runs of FedOT and FedTPG, a task, a view, and a deleted experiment."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    db = tmp_path / "runs.db"
    with closing(sqlite3.connect(db)) as connection:
        connection.executescript(DUMP.read_text(encoding="utf-8"))
        connection.execute("PRAGMA journal_mode=WAL")
    return db


def dump(db: Path) -> list[str]:
    with closing(sqlite3.connect(db)) as connection:
        return list(connection.iterdump())


def rows(db: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute(statement).fetchall()


def test_an_old_database_becomes_like_a_new_one_and_keeps_its_rows(old: Path, tmp_path: Path) -> None:
    before = {t: rows(old, f"SELECT * FROM {t}") for t in (*RUN_TABLES, "views", "slots")}
    store = Store(old)
    assert store.prepare() == "" and store.prepare() == ""
    assert {t: rows(old, f"SELECT * FROM {t}") for t in before} == before
    new = Store(tmp_path / "new.db")
    new.prepare()
    made = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert rows(old, made) == rows(new.path, made)
    assert rows(old, "PRAGMA user_version") == [(schema.VERSION,)]
    assert rows(old, "PRAGMA foreign_key_list(runs)")[0][2:5] == ("experiments", "experiment_id", "id")
    assert store.integrity.findings() == []
    assert store.runs.config(1).method.config == {}
    assert store.runs.config(2).method.config == {"attention_init": "linear"}
    assert store.experiments.get(1).config.methods[1].config == {"attention_init": "linear"}
    assert rows(old, "SELECT count(DISTINCT group_hash) FROM runs") == [(2,)]
    assert store.tasks.get(1).result == {"images": 3} and store.tasks.get(1).status == "done"
    fill.done(old, fill.an_experiment("New", methods=("fedot",), seeds=(1,), rounds=1))
    assert [(e.id, e.runs[0].id) for e in store.experiments.all()] == [(3, 4), (1, 1)]  # never a used number


def test_it_is_brought_up_to_date_by_a_script_as_well(old: Path) -> None:
    with Recorder(old, method="mine", seed=1, experiment="Own") as run:
        run.round(1, {("a", "a"): (1, 2)})
    assert rows(old, "PRAGMA user_version") == [(schema.VERSION,)]
    assert Store(old).integrity.findings() == []


def test_a_backup_of_1_0_is_restored_and_brought_up_to_date(old: Path, tmp_path: Path) -> None:
    backup = back_up(old)
    assert rows(backup, "PRAGMA user_version") == [(1,)]
    Store(old).prepare()
    restore(old, backup)
    assert rows(old, "PRAGMA user_version") == [(schema.VERSION,)]


def test_one_that_cannot_be_written_is_read_as_it_is(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(old)

    def refused(*given: object, **options: object) -> None:
        raise ReadOnlyDatabase("read-only")

    monkeypatch.setattr(database, "opened", refused)
    store = Store(old)
    assert store.prepare() != ""
    assert store.experiments.get(1).name == "Made by 1.0" and store.integrity.findings() == []
    assert exported(store, [1], "rounds")
    assert dump(old) == before


def test_what_the_copies_of_1_0_detect_stays_damage(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE runs SET label='GedOT' WHERE id=1")
        connection.execute("DELETE FROM entities WHERE run_id=2 AND entity=3")
    Store(old).prepare()
    found = "its config, names or models differ from what was recorded"
    assert Store(old).integrity.findings() == [f"run 1: {found}", f"run 2: {found}"]


ADDED = """
ALTER TABLE runs ADD COLUMN warmth REAL;
ALTER TABLE scores ADD COLUMN mine TEXT DEFAULT 'x';
ALTER TABLE rounds ADD COLUMN mine TEXT;
ALTER TABLE experiments ADD COLUMN "two words" TEXT;
CREATE INDEX runs_of_mine ON runs(warmth);
CREATE VIEW results AS SELECT id, warmth FROM runs;
CREATE TABLE notes_of_mine(a);
CREATE TRIGGER warm AFTER UPDATE OF notes ON runs BEGIN INSERT INTO notes_of_mine VALUES (NEW.notes); END;
UPDATE runs SET warmth=0.5;
"""


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_person_has_added_stays_and_locks_nobody_out(old: Path, tmp_path: Path, version: int) -> None:
    """A column made FedLens refuse the whole database as "written by a newer FedLens"."""
    if version == 2:
        Store(old).prepare()
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(ADDED if version == 1 else ADDED.replace("VIEW results", "VIEW mine"))
    store = Store(old)
    assert store.prepare() == ""
    assert rows(old, "SELECT warmth FROM runs") == [(0.5,), (0.5,)]
    store.runs.mark([1], notes="hot")
    assert rows(old, "SELECT a FROM notes_of_mine") == [("hot",)]
    fill.done(old, fill.an_experiment("New", methods=("fedot",), seeds=(1,), rounds=1))
    assert store.integrity.findings() == [] and len(store.rounds.measured([1, 4])) == 4
    other = Store(tmp_path / "other.db")
    file = tmp_path / "experiment.json"
    file.write_text(store.experiments.to_json([1]), encoding="utf-8")
    assert other.imports.json(file).added == ("Made by 1.0",)
    assert other.imports.database(old).added == ("New",)
    assert other.integrity.findings() == []


def test_a_database_of_1_0_is_merged_as_what_it_trained(old: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "ours.db")
    store.imports.database(old)
    assert store.runs.config(2).method.config == {"attention_init": "linear"}
    assert store.integrity.findings() == []


def test_a_json_file_of_1_0_is_imported_as_what_it_trained(old: Path, tmp_path: Path) -> None:
    upgraded, file, ours = Store(old), tmp_path / "experiment.json", Store(tmp_path / "ours.db")
    upgraded.prepare()
    text = upgraded.experiments.to_json([1])
    assert text.count('"attention_init":"linear"') == 2
    file.write_text(text.replace('"attention_init":"linear"', ""), encoding="utf-8")  # 1.0 knew no other
    ours.imports.json(file)
    assert ours.runs.config(2).method.config == {"attention_init": "linear"}
    assert ours.experiments.get(1).config.methods[1].config == {"attention_init": "linear"}
    assert ours.runs.get([2])[0].group_hash == upgraded.runs.get([2])[0].group_hash


def test_what_a_run_records_before_the_upgrade_is_not_damage(old: Path) -> None:
    """A worker of 1.0 that still serves the queue starts jobs of the version that is installed now."""
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("UPDATE runs SET status='running', owner='w', attempt=1 WHERE id=1")
    RunWriter(Claim(old, TRAINING, 1, "w", 1)).notice("the CPU is slow", repeats_exactly=True)
    assert rows(old, "PRAGMA user_version") == [(1,)]
    assert Store(old).integrity.findings() == []
    assert Store(old).prepare() == "" and Store(old).integrity.findings() == []


def test_a_kill_at_any_statement_leaves_the_former_database(old: Path) -> None:
    def upgraded(statement: int | None) -> int:
        """Bring the database up to date in a child process, killed before a statement; return its status."""
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        connect, count = sqlite3.connect, 0

        def traced(*given: object, **options: object) -> sqlite3.Connection:
            nonlocal count
            connection = connect(*given, **options)

            def before(text: str) -> None:
                nonlocal count
                count += 1
                if count == statement or (statement is None and text == "COMMIT"):
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.set_trace_callback(before)
            return connection

        sqlite3.connect = traced
        try:
            Store(old).prepare()
        finally:
            os._exit(0)

    before = dump(old)
    for statement in (*range(20, 180, 20), None):
        assert upgraded(statement) == signal.SIGKILL, statement
        assert dump(old) == before
    assert upgraded(100_000) == 0
    assert rows(old, "PRAGMA user_version") == [(schema.VERSION,)] and Store(old).integrity.findings() == []


def test_the_command_of_sqlite_utils_lists_the_steps(old: Path) -> None:
    Store(old).prepare()
    command = ["migrate", old, PROJECT / "fedcore/store/migrations.py", "--list"]
    said = subprocess.check_output([sys.executable, "-m", "sqlite_utils", *command], text=True, cwd=PROJECT)
    assert "fedlens-runs" in said and said.index("views and named keys") < said.index("Pending")
