"""Databases of earlier releases open, keep what they hold, and can hold what is new."""

from __future__ import annotations

import sqlite3

import pytest
from sqlite_utils import Database

from fedcore.records.codes import STAGES
from fedcore.records.events import Entity, RoundFinished, Started
from fedcore.store import Store, schema
from fedcore.store.database import reading
from tests.support import fill

DROPPED = {"message": "NULL"}
"""Columns of earlier releases that are gone, and what a row of today has for them."""
NAMES = [m.name for m in schema.migrations().pending(Database(memory=True))]


@pytest.fixture(autouse=True)
def databases_are_copied() -> None:
    """They are made here, as for a user."""


@pytest.fixture
def second_release(tmp_path):
    """As the second migration left it, with one recorded cell."""
    path = tmp_path / "runs.db"
    db = Database(path)
    schema.migrations().apply(db, stop_before="0003_class_sets")
    db.conn.executescript(
        """
        INSERT INTO experiments(id, token, name, created_at, config) VALUES (1, 't', 'old', 0, '{}');
        INSERT INTO runs(id, experiment_id, method, label, seed, config, group_hash, status, created_at,
          rounds_total) VALUES (1, 1, 'fedot', 'FedOT', 1, '{}', 'g', 'done', 0, 1);
        INSERT INTO entities VALUES (1, 0, 'global', 'global', NULL, NULL, NULL),
          (1, 1, 'client', 'a', 'd', 3, '[3]');
        INSERT INTO accuracy VALUES (1, 2, 1, 1, 1, 1, 2, 3, 0.5);
        INSERT INTO scores VALUES (1, 2, 1, 1, 0.6, 0.6, 0.6, NULL);
        """
    )
    db.conn.commit()
    db.conn.close()
    return path


def test_migrations_are_applied_in_order_and_each_once(second_release):
    Store(second_release).prepare()
    Store(second_release).prepare()
    with reading(second_release) as connection:
        found = [r["name"] for r in connection.execute("SELECT name FROM _sqlite_migrations ORDER BY id")]
    assert found == NAMES and NAMES[:3] == ["0001_first", "0002_kinds_in_accuracy_named", "0003_class_sets"]


def test_what_was_recorded_before_there_were_class_sets_stays(second_release):
    with sqlite3.connect(second_release) as old, pytest.raises(sqlite3.IntegrityError):
        old.execute("INSERT INTO entities VALUES (1, 2, 'classes', 'classes of a', NULL, 9, NULL)")
    Store(second_release).prepare()
    assert Store(second_release).cells.entities(1) == [
        (0, "global", "global", None, None),
        (1, "client", "a", "d", 3),
    ]
    assert Store(second_release).rounds.mean_accuracy([1]) == [(1, 1, 0.6, 0.6, 0.6, None, None)]
    with reading(second_release) as connection:
        counts = connection.execute("SELECT class_counts FROM entities ORDER BY entity").fetchall()
        row = connection.execute("SELECT model, model_kind, correct FROM accuracy_named").fetchone()
    assert [tuple(c) for c in counts] == [(None,), ("[3]",)]
    assert tuple(row) == ("a", "client", 2)


def test_no_other_kind_of_entity_is_taken(second_release):
    Store(second_release).prepare()
    with sqlite3.connect(second_release) as new:
        new.execute("INSERT INTO entities VALUES (1, 2, 'classes', 'classes of a', NULL, 9, NULL)")
        with pytest.raises(sqlite3.IntegrityError):
            new.execute("INSERT INTO entities VALUES (1, 3, 'class', 'x', NULL, 9, NULL)")


def test_class_sets_have_a_mean_of_their_own_and_are_no_part_of_the_others(db):
    """Own samples 1/2 and 3/4, all samples of the clients' classes 2/10 and 6/10: means .625 and .4."""
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    names = [(0, "global", "global"), (1, "client", "a"), (2, "client", "b"), (3, "domain", "d")]
    names += [(4, "classes", "classes of a"), (5, "classes", "classes of b")]
    writer.started(Started(entities=tuple(Entity(*n) for n in names), rounds_total=1, environment={}))
    counts = {
        (1, 1): (1, 2),
        (2, 2): (3, 4),
        (0, 1): (2, 2),
        (0, 2): (2, 4),
        (1, 4): (2, 10),
        (2, 5): (6, 10),
    }
    writer.write_round(RoundFinished(round=1, cells=tuple(fill.cell(*at, *n) for at, n in counts.items())))
    (point,) = Store(db).rounds.mean_accuracy([writer.run_id])
    assert point[2:] == pytest.approx((0.625, 4 / 6, 0.5, 0.75, 0.4))
    assert [(o.client, o.correct) for o in Store(db).cells.own_accuracy(writer.run_id)] == [(1, 1), (2, 3)]


@pytest.fixture
def fourth_release(tmp_path):
    """As the fourth migration left it: two experiments with all that runs record, and a task of one."""
    made, path = tmp_path / "made.db", tmp_path / "runs.db"
    fill.done(made, fill.an_experiment("first", methods=("fedot",), seeds=(1, 2), rounds=2))
    fill.mixed(made)
    Store(made).tasks.submit("analyse", "a question", {}, run_id=1)
    db = Database(path)
    schema.migrations().apply(db, stop_before="0005_numbers_once")
    db.conn.commit()
    db.conn.execute("ATTACH ? AS made", [str(made)])
    for table in ("experiments", "runs", *schema.RUN_TABLES, "tasks"):
        old = [row[1] for row in db.conn.execute(f"PRAGMA main.table_info({table})")]
        now = [schema.RENAMED.get(table, {}).get(name) or DROPPED.get(name, name) for name in old]
        db.conn.execute(f"INSERT INTO main.{table} SELECT {', '.join(now)} FROM made.{table}")
    db.conn.commit()
    db.conn.close()
    return path


def contents(path):
    """All rows by table, with the columns' names of today, and the names of all indexes."""

    def rows(db, table):
        cursor = db.execute(f"SELECT * FROM {table}")
        names = [schema.RENAMED.get(table, {}).get(column[0], column[0]) for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor]
        return [
            {name: row[name] for name in row if not (table == "runs" and name in DROPPED)} for row in found
        ]

    with sqlite3.connect(path) as db:
        tables = {t: rows(db, t) for t in ("experiments", "runs", "tasks", *schema.RUN_TABLES)}
        named = "SELECT name FROM sqlite_master WHERE type='index' AND sql IS NOT NULL"
        return tables | {"indexes": set(db.execute(named))}


def without_later_columns(after, before):
    """The rows of ``after`` with the columns of ``before`` alone: later migrations may add some."""
    tables = {t: rows for t, rows in before.items() if t != "indexes"}
    kept = {
        t: [{name: row[name] for name in old} for row, old in zip(after[t], rows, strict=True)]
        for t, rows in tables.items()
    }
    return kept | {"indexes": after["indexes"]}


def test_tables_that_are_built_anew_keep_all_rows_and_what_refers_to_them(fourth_release):
    before = contents(fourth_release)
    assert before["accuracy"] and before["tasks"] and len(before["indexes"]) >= 5
    Store(fourth_release).prepare()
    assert without_later_columns(contents(fourth_release), before) == before
    with sqlite3.connect(fourth_release) as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    Store(fourth_release).experiments.delete(1)
    after = contents(fourth_release)
    assert {row["run_id"] for row in after["accuracy"]} == {3, 4, 5, 6}, (
        "the rows of its runs go with an experiment"
    )
    assert after["tasks"] == []


def test_columns_of_an_older_store_keep_what_they_hold(fourth_release):
    with sqlite3.connect(fourth_release) as db:
        db.execute("UPDATE runs SET message='encoding 3/9' WHERE status='running'")
        db.execute(
            "INSERT INTO tasks(kind, key, run_id, args, status) VALUES ('import','c0ffee',1,'{}','done')"
        )
        running, stopped = (
            db.execute(f"SELECT id FROM runs WHERE status='{s}'").fetchone()[0]
            for s in ("running", "stopped")
        )
    Store(fourth_release).prepare()
    with sqlite3.connect(fourth_release) as db:
        texts = dict(db.execute("SELECT id, status_text FROM runs"))
        assert (texts[running], texts[stopped]) == ("encoding 3/9", "stop requested")
        assert db.execute("SELECT * FROM imported_files").fetchall() == [("c0ffee", 1)]
        assert db.execute("SELECT count(*) FROM tasks WHERE kind='import'").fetchone() == (0,)
        assert {row[0] for row in db.execute("SELECT stage FROM accuracy_named")} <= set(STAGES)


def test_an_older_database_is_brought_up_to_date_by_the_first_read(fourth_release):
    assert [e.name for e in Store(fourth_release).experiments.all()] == ["In the middle of things", "first"]
    assert Store(fourth_release).prepare().writable


def test_an_older_database_is_merged_and_stays_as_it_is(fourth_release, tmp_path):
    before, mine = fourth_release.read_bytes(), tmp_path / "mine.db"
    assert Store(mine).imports.database(fourth_release).added == ("first", "In the middle of things")
    assert fourth_release.read_bytes() == before
    Store(fourth_release).prepare()
    for run in Store(fourth_release).runs.of_experiments([1, 2]):
        theirs, ours = (Store(db).cells.of_runs([run.id]) for db in (fourth_release, mine))
        assert theirs == ours
        assert Store(mine).diagnostics.of_run(run.id, "gradient_conflict") == Store(
            fourth_release
        ).diagnostics.of_run(run.id, "gradient_conflict")


def test_numbers_of_an_older_store_are_given_once_from_then_on(fourth_release):
    Store(fourth_release).prepare()
    Store(fourth_release).experiments.delete(1)
    Store(fourth_release).experiments.get(2)
    with sqlite3.connect(fourth_release) as db:
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("DELETE FROM experiments")
    created = Store(fourth_release).experiments.create(fill.an_experiment(methods=("fedot",), seeds=(1,)))
    assert (created.experiment_id, created.run_ids) == (3, (8,))
    assert Store(fourth_release).tasks.submit("check", "another", {}) == 2


def test_no_table_is_dropped_while_its_rows_are_tied_to_others(fourth_release):
    db = Database(fourth_release)
    db.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(RuntimeError, match="foreign keys are on"):
        schema.migrations().apply(db)
    db.conn.close()
    assert contents(fourth_release)["accuracy"]


def test_runs_whose_best_round_was_0_select_among_the_rounds_after_training(tmp_path):
    """Run 1 trained; run 2 has round 0 alone; run 3 selected another round."""
    path = tmp_path / "runs.db"
    db = Database(path)
    schema.migrations().apply(db, stop_before="0008_best_after_training")
    db.conn.executescript(
        """
        INSERT INTO experiments(id, uuid, name, created_at, config) VALUES (1, 't', 'old', 0, '{}');
        INSERT INTO runs(id, experiment_id, method, label, seed, config, group_hash, status, created_at,
          rounds_total, best_round, best_test)
          SELECT value, 1, 'fedot', 'FedOT', value, '{}', 'g', 'done', 0, 2, iif(value = 3, 1, 0), 0.9
          FROM json_each('[1, 2, 3]');
        INSERT INTO scores(run_id, split, stage, round, personal_mean) VALUES
          (1, 1, 1, 0, 0.9), (1, 1, 1, 1, 0.6), (1, 1, 1, 2, 0.6), (1, 2, 1, 1, 0.5), (1, 2, 1, 2, 0.8),
          (2, 1, 1, 0, 0.9), (3, 1, 1, 1, 0.7), (3, 1, 1, 2, 0.6);
        """
    )
    db.conn.commit()
    db.conn.close()
    Store(path).prepare()
    with reading(path) as connection:
        found = [tuple(r) for r in connection.execute("SELECT best_round, best_test FROM runs ORDER BY id")]
    assert found == [(1, 0.5), (0, 0.9), (1, 0.9)]
