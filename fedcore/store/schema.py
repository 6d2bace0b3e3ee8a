"""The tables of ``runs.db``, made in one place, and the version that says how a file was made.

Integer entity codes and WITHOUT ROWID keep a million accuracy rows at about 20 MB and one heatmap under a
millisecond. split: 0 train, 1 validation, 2 test. stage: 0 before aggregation, 1 after it.

A later version may add columns, at the end of a table only; see ``VERSION``.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from fedcore.errors import FedLensError
from fedcore.store.damage import create_triggers

VERSION = 1
"""Version of the tables, which SQLite's ``user_version`` stores in the file.

To change a table, raise it and add a function here that brings a database of the version before up to date.
The function adds the column (ALTER TABLE ... ADD COLUMN, which appends it) and writes the definitions in
``copies`` anew (``damage.create_triggers``). Since a digest covers all columns of a row, it also writes the
digests of all rounds, after it has compared the old ones. ``database._create`` calls it within its
transaction, where ``require_current``, which now calls a lower version damaged, has to let it pass.
``imports.copy_of`` copies rows into tables of this version: ``_copy_rows`` refuses a table that lacks one of
their columns, and digests are compared afterwards, so a merged database is brought up to date in between.
"""
SCHEMA = """
CREATE TABLE experiments(
  id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  created_at REAL NOT NULL, config TEXT NOT NULL CHECK(json_valid(config)), notes TEXT NOT NULL DEFAULT '',
  tags TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(tags)), archived INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE runs(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  experiment_id INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
  method TEXT NOT NULL, label TEXT NOT NULL, seed INTEGER NOT NULL, held_out TEXT,
  config TEXT NOT NULL CHECK(json_valid(config)), group_hash TEXT NOT NULL,
  origin TEXT NOT NULL DEFAULT 'engine' CHECK(origin IN ('engine','recorder','import')),
  status TEXT NOT NULL
    CHECK(status IN ('queued','running','stopping','done','failed','stopped','interrupted')),
  priority INTEGER NOT NULL DEFAULT 0, requested_device TEXT NOT NULL DEFAULT 'auto', device TEXT,
  attempt INTEGER NOT NULL DEFAULT 0, owner TEXT, pid INTEGER, pid_started REAL, heartbeat_at REAL,
  created_at REAL NOT NULL, started_at REAL, finished_at REAL,
  rounds_total INTEGER NOT NULL, rounds_done INTEGER NOT NULL DEFAULT 0,
  last_test REAL, best_round INTEGER, best_test REAL, worst_client REAL,
  notices TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(notices)),
  status_text TEXT, error TEXT, environment TEXT, peak_memory INTEGER,
  starred INTEGER NOT NULL DEFAULT 0 CHECK(starred IN (0, 1)),
  tags TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(tags)), notes TEXT NOT NULL DEFAULT '') STRICT;
CREATE INDEX runs_experiment ON runs(experiment_id);
CREATE INDEX runs_queue ON runs(priority DESC, id) WHERE status='queued';
CREATE INDEX runs_live ON runs(owner) WHERE status IN ('running','stopping');
CREATE INDEX runs_measured ON runs(group_hash, peak_memory) WHERE peak_memory IS NOT NULL;

CREATE TABLE entities(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, entity INTEGER NOT NULL,
  kind TEXT NOT NULL
    CHECK(kind IN ('global','client','domain','classes','base','new','transfer','unseen','adapted')),
  name TEXT NOT NULL, domain TEXT, samples INTEGER, class_counts TEXT,
  PRIMARY KEY(run_id, entity)) STRICT, WITHOUT ROWID;

CREATE TABLE rounds(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, train_loss REAL,
  seconds_train REAL, seconds_aggregate REAL, seconds_evaluate REAL,
  scalars_up INTEGER, scalars_down INTEGER, bytes_up INTEGER, bytes_down INTEGER,
  PRIMARY KEY(run_id, round)) STRICT, WITHOUT ROWID;

CREATE TABLE scores(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, split INTEGER NOT NULL, stage INTEGER NOT NULL,
  round INTEGER NOT NULL, personal_mean REAL, personal_weighted REAL, personal_worst REAL, global_mean REAL,
  classes_mean REAL, PRIMARY KEY(run_id, split, stage, round)) STRICT, WITHOUT ROWID;

CREATE TABLE client_rounds(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, client INTEGER NOT NULL,
  steps INTEGER NOT NULL, train_loss REAL, bytes_up INTEGER, bytes_down INTEGER,
  PRIMARY KEY(run_id, round, client)) STRICT, WITHOUT ROWID;

CREATE TABLE accuracy(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, split INTEGER NOT NULL CHECK(split IN (0,1,2)),
  stage INTEGER NOT NULL CHECK(stage IN (0,1)), round INTEGER NOT NULL, model INTEGER NOT NULL,
  test_set INTEGER NOT NULL, correct INTEGER NOT NULL, total INTEGER NOT NULL CHECK(total > 0), loss REAL,
  PRIMARY KEY(run_id, split, stage, round, model, test_set),
  CHECK(correct BETWEEN 0 AND total)) STRICT, WITHOUT ROWID;

CREATE TABLE diagnostics(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, round INTEGER NOT NULL,
  client_a INTEGER NOT NULL DEFAULT -1, client_b INTEGER NOT NULL DEFAULT -1, value REAL,
  PRIMARY KEY(run_id, name, round, client_a, client_b)) STRICT, WITHOUT ROWID;

CREATE TABLE tasks(
  id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, key TEXT NOT NULL,
  run_id INTEGER REFERENCES runs ON DELETE CASCADE, args TEXT NOT NULL, status TEXT NOT NULL,
  done INTEGER NOT NULL DEFAULT 0, total INTEGER, status_text TEXT, owner TEXT, pid INTEGER, pid_started REAL,
  heartbeat_at REAL, result TEXT, attempt INTEGER NOT NULL DEFAULT 0, device TEXT,
  created_at REAL NOT NULL DEFAULT 0, started_at REAL, finished_at REAL, error TEXT,
  UNIQUE(kind, key)) STRICT;
CREATE INDEX tasks_status ON tasks(status);

CREATE TABLE slots(device TEXT PRIMARY KEY, slots INTEGER NOT NULL CHECK(slots > 0)) STRICT;

CREATE TABLE imported_files(
  content_hash TEXT PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE) STRICT;

CREATE TABLE views(
  id INTEGER PRIMARY KEY AUTOINCREMENT, page TEXT NOT NULL, name TEXT NOT NULL, query TEXT NOT NULL,
  created_at REAL NOT NULL, UNIQUE(page, name)) STRICT;

CREATE TABLE digests(
  run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, digest TEXT NOT NULL,
  PRIMARY KEY(run_id, round)) STRICT, WITHOUT ROWID;

CREATE TABLE copies(
  table_name TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL,
  PRIMARY KEY(table_name, key)) STRICT, WITHOUT ROWID;

CREATE VIEW accuracy_named AS
  SELECT a.run_id, a.round, m.name AS model, m.kind AS model_kind, t.name AS test_set,
    t.kind AS test_set_kind,
    CASE a.split WHEN 0 THEN 'train' WHEN 1 THEN 'validation' ELSE 'test' END AS split,
    CASE a.stage WHEN 0 THEN 'before_aggregation' ELSE 'after_aggregation' END AS stage, correct, total, loss
  FROM accuracy a
  JOIN entities m ON m.run_id = a.run_id AND m.entity = a.model
  JOIN entities t ON t.run_id = a.run_id AND t.entity = a.test_set;
"""
"""AUTOINCREMENT never reuses an id: a link or a note must not lead to another run after a deletion.

``content_hash`` identifies an imported CSV file. ``accuracy_named`` serves other tools (pandas, a database
browser); a client may have its domain's name, so kinds distinguish their rows. What tells damage from what
was recorded is in ``digests`` and ``copies``, see ``damage``.
"""
RUN_TABLES = ("entities", "rounds", "scores", "client_rounds", "accuracy", "diagnostics")
"""Tables keyed by ``run_id``, which hold what a run has recorded."""


def create(connection: sqlite3.Connection, definitions: str = SCHEMA) -> None:
    """Make all tables in an empty database, within the caller's transaction."""
    for statement in filter(str.strip, definitions.split(";\n")):
        connection.execute(statement)
    create_triggers(connection)
    connection.execute(f"PRAGMA user_version={VERSION}")


def tables(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all tables of a database."""
    return {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}


@cache
def _expected_columns() -> dict[str, set[str]]:
    """Return the columns of each of our tables."""
    with closing(sqlite3.connect(":memory:")) as empty:
        create(empty)
        return {table: _columns(empty, table) for table in sorted(tables(empty))}


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def require_current(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse what ``require_version`` refuses, and a column that this version does not know."""
    require_version(path, connection)
    for table, expected in _expected_columns().items():
        columns = _columns(connection, table)
        if expected < columns:  # a table without one of ours is damaged
            raise FedLensError(
                f"{path} was written by a newer FedLens, or changed by another program: its table {table} "
                f"has the column {min(columns - expected)!r}, which this version does not know. "
                f"Update FedLens, or copy its experiments into a new database: "
                f"`fedlens merge {path} --db FOLDER/runs.db`",
                "db",
            )


def require_version(path: Path, connection: sqlite3.Connection, field: str = "db") -> None:
    """Refuse a database of another program or version, or one that has lost its version."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not {"experiments", "runs", "accuracy"} <= tables(connection):
        raise FedLensError(
            f"{path} is not a database of FedLens; choose another one with --db or FEDLENS_DB", field
        )
    if version > VERSION:
        raise FedLensError(
            f"{path} was made by a newer FedLens (version {version} of the tables, here {VERSION}); "
            "update FedLens",
            field,
        )
    if version != VERSION:
        raise FedLensError(
            f"{path} is damaged: it does not say the version of its tables; restore a backup", field
        )
