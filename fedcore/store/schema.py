"""The tables of ``runs.db`` and how an older file is brought up to date.

Integer entity codes and WITHOUT ROWID keep a million accuracy rows at about 20 MB and one heatmap under a
millisecond. split: 0 train, 1 validation, 2 test. stage: 0 before aggregation, 1 after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedcore.store.integrity.digests import rounds_without, write_digests

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

MIGRATION_SET = "fedlens"

TABLES = """
CREATE TABLE experiments(
  id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, name TEXT NOT NULL, created_at REAL NOT NULL,
  config TEXT NOT NULL CHECK(json_valid(config)), notes TEXT NOT NULL DEFAULT '',
  tags TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(tags)), archived INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE runs(
  id INTEGER PRIMARY KEY, experiment_id INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
  method TEXT NOT NULL, label TEXT NOT NULL, seed INTEGER NOT NULL, held_out TEXT,
  config TEXT NOT NULL CHECK(json_valid(config)), group_hash TEXT NOT NULL,
  origin TEXT NOT NULL DEFAULT 'engine' CHECK(origin IN ('engine','recorder','import')),
  status TEXT NOT NULL
    CHECK(status IN ('queued','running','stopping','done','failed','stopped','interrupted')),
  priority INTEGER NOT NULL DEFAULT 0, device_asked TEXT NOT NULL DEFAULT 'auto', device TEXT,
  attempt INTEGER NOT NULL DEFAULT 0, owner TEXT, pid INTEGER, pid_started REAL, heartbeat_at REAL,
  created_at REAL NOT NULL, started_at REAL, finished_at REAL,
  rounds_total INTEGER NOT NULL, rounds_done INTEGER NOT NULL DEFAULT 0,
  last_test REAL, best_round INTEGER, best_test REAL, worst_client REAL,
  message TEXT, notices TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(notices)),
  reason TEXT, error TEXT, environment TEXT) STRICT;
CREATE INDEX runs_experiment ON runs(experiment_id);
CREATE INDEX runs_queue ON runs(priority DESC, id) WHERE status='queued';
CREATE INDEX runs_live ON runs(owner) WHERE status IN ('running','stopping');

CREATE TABLE entities(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, entity INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK(kind IN ('global','client','domain')), name TEXT NOT NULL, domain TEXT,
  samples INTEGER, class_counts TEXT, PRIMARY KEY(run_id, entity)) STRICT, WITHOUT ROWID;

CREATE TABLE rounds(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, train_loss REAL,
  seconds_train REAL, seconds_aggregate REAL, seconds_evaluate REAL,
  scalars_up INTEGER, scalars_down INTEGER, bytes_up INTEGER, bytes_down INTEGER,
  PRIMARY KEY(run_id, round)) STRICT, WITHOUT ROWID;

CREATE TABLE scores(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, split INTEGER NOT NULL, point INTEGER NOT NULL,
  round INTEGER NOT NULL, personal_mean REAL, personal_weighted REAL, personal_worst REAL, global_mean REAL,
  PRIMARY KEY(run_id, split, point, round)) STRICT, WITHOUT ROWID;

CREATE TABLE client_rounds(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, client INTEGER NOT NULL,
  steps INTEGER NOT NULL, train_loss REAL, bytes_up INTEGER, bytes_down INTEGER,
  PRIMARY KEY(run_id, round, client)) STRICT, WITHOUT ROWID;

CREATE TABLE accuracy(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, split INTEGER NOT NULL CHECK(split IN (0,1,2)),
  point INTEGER NOT NULL CHECK(point IN (0,1)), round INTEGER NOT NULL, model INTEGER NOT NULL,
  test_set INTEGER NOT NULL, correct INTEGER NOT NULL, total INTEGER NOT NULL CHECK(total > 0), loss REAL,
  PRIMARY KEY(run_id, split, point, round, model, test_set),
  CHECK(correct BETWEEN 0 AND total)) STRICT, WITHOUT ROWID;

CREATE TABLE diagnostics(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, round INTEGER NOT NULL,
  a INTEGER NOT NULL DEFAULT -1, b INTEGER NOT NULL DEFAULT -1, value REAL,
  PRIMARY KEY(run_id, name, round, a, b)) STRICT, WITHOUT ROWID;

CREATE TABLE tasks(
  id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL,
  run_id INTEGER REFERENCES runs ON DELETE CASCADE, args TEXT NOT NULL, status TEXT NOT NULL,
  done INTEGER NOT NULL DEFAULT 0, total INTEGER, message TEXT, owner TEXT, pid INTEGER, pid_started REAL,
  heartbeat_at REAL, result TEXT, UNIQUE(kind, key)) STRICT;
"""


def _named_view(stage: str, before: str, after: str) -> str:
    """Return the statement of the view for other tools (pandas, a database browser)."""
    return f"""
CREATE VIEW accuracy_named AS
  SELECT a.run_id, a.round, m.name AS model, m.kind AS model_kind, t.name AS test_set,
    t.kind AS test_set_kind,
    CASE a.split WHEN 0 THEN 'train' WHEN 1 THEN 'validation' ELSE 'test' END AS split,
    CASE a.{stage} WHEN 0 THEN '{before}' ELSE '{after}' END AS {stage}, correct, total, loss
  FROM accuracy a
  JOIN entities m ON m.run_id = a.run_id AND m.entity = a.model
  JOIN entities t ON t.run_id = a.run_id AND t.entity = a.test_set
"""


FIRST_NAMED_VIEW = _named_view("point", "local", "broadcast")
NAMED_VIEW = _named_view("stage", "before_aggregation", "after_aggregation")

RUN_TABLES = ("entities", "rounds", "scores", "client_rounds", "accuracy", "diagnostics")
"""Tables keyed by ``run_id``, which hold what a run has recorded."""


def _create_tables(db: Database) -> None:
    db.executescript(TABLES)


def _add_named_view(db: Database) -> None:
    """Add the view for other tools; a client may have its domain's name, so kinds distinguish their rows."""
    db.execute("DROP VIEW IF EXISTS accuracy_named")
    db.execute(FIRST_NAMED_VIEW)


def _add_class_sets(db: Database) -> None:
    """Add test sets of a client's classes (kind ``classes``) and their mean; SQLite cannot change a CHECK."""
    db.execute("DROP VIEW accuracy_named")
    db.execute("ALTER TABLE entities RENAME TO entities_before")
    db.execute("""
CREATE TABLE entities(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, entity INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK(kind IN ('global','client','domain','classes')), name TEXT NOT NULL, domain TEXT,
  samples INTEGER, class_counts TEXT, PRIMARY KEY(run_id, entity)) STRICT, WITHOUT ROWID
""")
    db.execute("INSERT INTO entities SELECT * FROM entities_before")
    db.execute("DROP TABLE entities_before")
    db.execute("ALTER TABLE scores ADD COLUMN classes_mean REAL")
    db.execute(FIRST_NAMED_VIEW)


def _claim_tasks(db: Database) -> None:
    """Tasks are claimed as runs are; a run's measured memory says whether another fits beside it."""
    for column in (
        "attempt INTEGER NOT NULL DEFAULT 0", "device TEXT", "created_at REAL NOT NULL DEFAULT 0",
        "started_at REAL", "finished_at REAL", "error TEXT",
    ):  # fmt: skip
        db.execute(f"ALTER TABLE tasks ADD COLUMN {column}")
    db.execute("CREATE INDEX tasks_status ON tasks(status)")
    db.execute("ALTER TABLE runs ADD COLUMN peak_memory INTEGER")
    db.execute("CREATE INDEX runs_measured ON runs(group_hash, peak_memory) WHERE peak_memory IS NOT NULL")
    db.execute("CREATE TABLE slots(device TEXT PRIMARY KEY, slots INTEGER NOT NULL CHECK(slots > 0)) STRICT")


def _never_reuse_ids(db: Database) -> None:
    """Never reuse an id: a link or a note must not mean another run after the newest one was deleted.

    AUTOINCREMENT cannot be added to an existing table. Foreign keys must be off: otherwise dropping a table
    would delete its rows and, with them, every round.
    """
    if db.execute("PRAGMA foreign_keys").fetchone()[0]:
        raise RuntimeError("foreign keys are on: the rounds of all runs would be deleted with the old table")
    for table in ("experiments", "runs", "tasks"):
        query = "SELECT sql FROM sqlite_master WHERE tbl_name=? AND type=? AND sql IS NOT NULL"
        ((old,), *_) = db.execute(query, [table, "table"]).fetchall()
        indexes = [row[0] for row in db.execute(query, [table, "index"]).fetchall()]
        columns = old[old.index("(") :].replace(
            "id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY AUTOINCREMENT", 1
        )
        db.execute(f"CREATE TABLE {table}_new{columns}")
        db.execute(f"INSERT INTO {table}_new SELECT * FROM {table}")
        db.execute(f"DROP TABLE {table}")
        db.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
        for index in indexes:
            db.execute(index)


RENAMED = {
    "experiments": {"token": "uuid"},
    "runs": {"device_asked": "requested_device", "reason": "status_text"},
    "tasks": {"message": "status_text"},
    "accuracy": {"point": "stage"},
    "scores": {"point": "stage"},
    "diagnostics": {"a": "client_a", "b": "client_b"},
}
"""Column names of the fifth release by table, and their present names; old exports have them too."""


IMPORTED_FILES = """
CREATE TABLE imported_files(
  content_hash TEXT PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE) STRICT
"""
"""CSV files that were imported, by their content; a row is deleted with the first of its runs."""


def _rename_columns(db: Database) -> None:
    """Give columns names that say what they hold; imports are no longer kept as tasks."""
    db.execute("DROP VIEW accuracy_named")
    for table, columns in RENAMED.items():
        for old, new in columns.items():
            db.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    db.execute("UPDATE runs SET status_text=message WHERE status='running'")
    db.execute("ALTER TABLE runs DROP COLUMN message")
    db.execute(IMPORTED_FILES)
    db.execute("INSERT INTO imported_files SELECT key, run_id FROM tasks WHERE kind='import'")
    db.execute("DELETE FROM tasks WHERE kind='import'")
    db.execute(NAMED_VIEW)


INTEGRITY = """
CREATE TABLE digests(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, digest TEXT NOT NULL,
  PRIMARY KEY(run_id, round)) STRICT, WITHOUT ROWID;

CREATE TABLE copies(
  table_name TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL,
  PRIMARY KEY(table_name, key)) STRICT, WITHOUT ROWID;
"""
"""What tells damage from what was recorded: see ``digests`` and ``copies``."""


def _add_integrity(db: Database) -> None:
    """Add the tables of digests of rounds, and of second copies of the other rows."""
    for statement in filter(str.strip, INTEGRITY.split(";")):
        db.execute(statement)


BEST_AFTER_TRAINING = """
UPDATE runs SET best_round = best.round, best_test = best.test FROM (
  SELECT v.run_id, v.round, t.personal_mean AS test,
    row_number() OVER (PARTITION BY v.run_id ORDER BY v.personal_mean DESC, v.round) AS place
  FROM scores v LEFT JOIN scores t
    ON t.run_id = v.run_id AND t.split = 2 AND t.stage = 1 AND t.round = v.round
  WHERE v.split = 1 AND v.stage = 1 AND v.round > 0 AND v.personal_mean IS NOT NULL) AS best
WHERE best.run_id = runs.id AND best.place = 1 AND runs.best_round = 0
"""


def _select_after_training(db: Database) -> None:
    """Select the best round of runs whose stored one is round 0 among the rounds after training."""
    db.execute(BEST_AFTER_TRAINING)


MARKS = """
ALTER TABLE runs ADD COLUMN starred INTEGER NOT NULL DEFAULT 0 CHECK(starred IN (0, 1));
ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(tags));
ALTER TABLE runs ADD COLUMN notes TEXT NOT NULL DEFAULT '';

CREATE TABLE views(
  id INTEGER PRIMARY KEY AUTOINCREMENT, page TEXT NOT NULL, name TEXT NOT NULL, query TEXT NOT NULL,
  created_at REAL NOT NULL, UNIQUE(page, name)) STRICT;
"""
"""What a user writes beside runs, and views of pages that a user has saved: ``query`` is of their address."""


def _add_marks(db: Database) -> None:
    """Add a star, tags and notes of runs, and saved views."""
    for statement in filter(str.strip, MARKS.split(";")):
        db.execute(statement)


def _complete_digests(db: Database) -> None:
    """Write the digests of rounds that were recorded before there were any; a round without one is damage."""
    for (run_id,) in db.execute("SELECT id FROM runs").fetchall():
        write_digests(db, run_id, rounds_without(db.conn, run_id))


STEPS: dict[str, Callable[[Database], None]] = {
    "0001_first": _create_tables,
    "0002_kinds_in_accuracy_named": _add_named_view,
    "0003_class_sets": _add_class_sets,
    "0004_tasks_and_slots": _claim_tasks,
    "0005_numbers_once": _never_reuse_ids,
    "0006_clear_names": _rename_columns,
    "0007_integrity": _add_integrity,
    "0008_best_after_training": _select_after_training,
    "0009_marks_and_views": _add_marks,
    "0010_complete_digests": _complete_digests,
}
"""Migrations in their order; a file that records all of these names is up to date."""


def migrations() -> Migrations:
    """Return the steps for sqlite-utils, whose import takes 0.3 s; an up-to-date file never needs it."""
    from sqlite_utils import Migrations

    steps = Migrations(MIGRATION_SET)
    for name, step in STEPS.items():
        steps(name=name)(step)
    return steps


def applied_migrations(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the migrations that a database has had; empty if it holds no FedLens tables."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name='_sqlite_migrations'").fetchone():
        return set()
    names = "SELECT name FROM _sqlite_migrations WHERE migration_set=?"
    return {str(name) for (name,) in connection.execute(names, [MIGRATION_SET])}
