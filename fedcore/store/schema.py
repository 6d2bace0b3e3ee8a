"""The tables of ``runs.db``: those of FedLens 1.0, and what each later version has changed.

Integer entity codes and WITHOUT ROWID keep a million accuracy rows at about 20 MB and one heatmap under a
millisecond. split: 0 train, 1 validation, 2 test. stage: 0 before aggregation, 1 after it.

``migrations`` applies ``STEPS`` to new databases and to those of earlier versions, in place.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from fedcore.base.errors import FedLensError

TABLES_OF_1_0 = """
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

``content_hash`` identifies an imported CSV file. Round -1 in ``digests`` is the run itself, see ``damage``.
"""
VIEWS = """
CREATE VIEW IF NOT EXISTS results AS
  SELECT r.id AS run_id, e.name AS experiment, r.method, r.label, r.seed, r.held_out, a.round, a.split,
    a.stage, a.model, a.model_kind, a.test_set, a.test_set_kind, a.correct, a.total,
    1.0 * a.correct / a.total AS accuracy, a.loss,
    strftime('%Y-%m-%dT%H:%M:%SZ', r.finished_at, 'unixepoch') AS finished
  FROM experiments e JOIN runs r ON r.experiment_id = e.id JOIN accuracy_named a ON a.run_id = r.id;

CREATE VIEW IF NOT EXISTS diagnostics_named AS
  SELECT d.run_id, d.round, d.name, a.name AS client_a, b.name AS client_b, d.value FROM diagnostics d
  LEFT JOIN entities a ON a.run_id = d.run_id AND a.entity = d.client_a
  LEFT JOIN entities b ON b.run_id = d.run_id AND b.entity = d.client_b;

CREATE VIEW IF NOT EXISTS client_rounds_named AS
  SELECT c.run_id, c.round, n.name AS client, n.domain, n.samples, c.steps, c.train_loss, c.bytes_up,
    c.bytes_down
  FROM client_rounds c JOIN entities n ON n.run_id = c.run_id AND n.entity = c.client;
"""
"""For people and other tools (pandas, a database browser); FedLens itself does not read them.

A client may have its domain's name, so kinds distinguish their rows.
"""
RUN_TABLES = ("entities", "rounds", "scores", "client_rounds", "accuracy", "diagnostics")
"""Tables keyed by ``run_id``, which hold what a run has recorded."""


def tables_of_1_0(database: sqlite3.Connection) -> None:
    """Make the tables in an empty database; one of FedLens 1.0 has them."""
    if "runs" not in tables(database):
        _execute(database, TABLES_OF_1_0)


def views_and_named_keys(database: sqlite3.Connection) -> None:
    """Drop the copies of rows, let foreign keys name their column, as Datasette needs it, and add views."""
    _execute(database, "DROP TABLE IF EXISTS copies")
    triggers = database.execute(
        "SELECT name FROM sqlite_master WHERE type='trigger' AND name GLOB 'copies_of_*'"
    )
    for (name,) in triggers.fetchall():
        database.execute(f"DROP TRIGGER {name}")
    _rebuild(database, {f"REFERENCES {t} ON": f"REFERENCES {t}(id) ON" for t in ("experiments", "runs")})
    _execute(database, VIEWS)


STEPS = (tables_of_1_0, views_and_named_keys)
"""Append a function to change the tables, and never change one: databases exist at every step."""
VERSION = len(STEPS)
"""Version of the tables, which SQLite's ``user_version`` stores in the file."""


def _execute(database: sqlite3.Connection, script: str) -> None:
    for statement in filter(str.strip, script.split(";\n")):
        database.execute(statement)


def _rebuild(database: sqlite3.Connection, changes: dict[str, str]) -> None:
    """Make each table that has a certain text in its definition again, with another text and all its rows.

    Columns, indices and triggers that a person has added stay. References between tables are looked up by
    name, so they follow; the caller's connection must not enforce them (``PRAGMA foreign_keys``).
    """
    database.execute("PRAGMA legacy_alter_table=ON")  # leave the names in other definitions alone
    found = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type='table' ORDER BY name"
    ).fetchall()
    for table, sql in found:
        definition = str(sql)
        for text, other in changes.items():
            definition = definition.replace(text, other)
        if definition == sql:
            continue
        attached = database.execute(
            "SELECT sql FROM sqlite_master WHERE tbl_name=? AND type<>'table' AND sql IS NOT NULL", [table]
        ).fetchall()
        rows = database.execute(f"PRAGMA table_xinfo({table})").fetchall()
        names = ", ".join(f'"{row[1]}"' for row in rows if row[6] == 0)  # not those that are generated
        database.execute(f"ALTER TABLE {table} RENAME TO before")
        database.execute(definition)
        database.execute(f"INSERT INTO {table}({names}) SELECT {names} FROM before")
        if "AUTOINCREMENT" in definition:  # no id is used twice, even if the rows that had it were deleted
            database.execute("DELETE FROM sqlite_sequence WHERE name=?", [table])
            database.execute("UPDATE sqlite_sequence SET name=? WHERE name='before'", [table])
        database.execute("DROP TABLE before")
        for (statement,) in attached:
            database.execute(statement)
    database.execute("PRAGMA legacy_alter_table=OFF")


def tables(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all tables of a database."""
    return {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the tables of a database; 0 if it has none."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@cache
def definitions(version: int = VERSION) -> dict[str, str]:
    """Return the SQL of our tables, then of their indices, by name."""
    with closing(sqlite3.connect(":memory:")) as empty:
        for step in STEPS[:version]:
            step(empty)
        return dict(
            empty.execute(
                "SELECT name, sql FROM sqlite_master WHERE type IN ('table','index') AND sql IS NOT NULL "
                "AND name NOT GLOB 'sqlite_*' ORDER BY type DESC, name"
            ).fetchall()
        )


@cache
def columns(table: str) -> tuple[str, ...]:
    """Return the columns of one of our tables; a database may have more, which a person has added."""
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.execute(definitions()[table])
        return tuple(row[1] for row in empty.execute(f"PRAGMA table_info({table})"))


def changed(connection: sqlite3.Connection) -> list[str]:
    """Return the tables and indices of ours whose definition has changed, but for added columns."""
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    different = []
    for name, ours in definitions(version_of(connection)).items():
        theirs = str(found.get(name))
        # SQLite writes all added columns at one place, so the rest of the definition is ours
        pairs = enumerate(zip(ours, theirs, strict=False))
        place = next((i for i, (one, other) in pairs if one != other), len(ours))
        if len(theirs) < len(ours) or not theirs.endswith(ours[place:]):
            different.append(name)
    return different


def require_current(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse what ``require_version`` refuses, and a table that lacks a column of ours."""
    require_version(path, connection)
    for table in tables(connection) & definitions().keys():
        found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if lost := [name for name in columns(table) if name not in found]:
            raise FedLensError(
                f"{path} is damaged, or was changed by another program: its table {table} lacks the column "
                f"{lost[0]!r}; `fedlens restore` puts a backup in its place",
                "db",
            )


def require_version(path: Path, connection: sqlite3.Connection, field: str = "db") -> None:
    """Refuse a database of another program or of a newer version, or one that has lost its version."""
    version = version_of(connection)
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
    if version < 1:
        raise FedLensError(
            f"{path} is damaged: it does not say the version of its tables; restore a backup", field
        )
