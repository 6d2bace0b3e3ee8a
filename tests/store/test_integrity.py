"""Damage is noticed before numbers leave the database, whatever it hit; a change by a person is none."""

import hashlib
import itertools
import random
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.jobs import doctor
from fedcore.store import Store
from fedcore.store.damage import findings, round_differences, round_digest
from fedcore.store.database import reading, writing
from fedcore.store.schema import RUN_TABLES
from fedcore.store.writer import delete_rounds_after
from tests.support import fill
from tests.support.exported import exported

EXPORTS = (
    exported,
    partial(exported, table="summary", format="json"),
    partial(exported, table="rounds"),
    partial(exported, table="clients"),
    lambda store, ids: store.experiments.to_json(ids),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in one file, without a write-ahead log."""
    db = tmp_path_factory.mktemp("sound") / "runs.db"
    fill.done(db, fill.an_experiment("Sound", methods=("fedot", "zero-shot"), seeds=(1, 2), rounds=3))
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return db


@pytest.fixture
def db(sound: Path, tmp_path: Path) -> Path:
    return shutil.copy(sound, tmp_path / "runs.db")


def exports(db: Path) -> list[str]:
    return [export(Store(db), [1]) for export in EXPORTS]


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE accuracy SET correct=correct-1 WHERE rowid_is", "differs from what was recorded"),
        ("UPDATE accuracy SET loss=loss*(1+1e-15) WHERE rowid_is", "differs from what was recorded"),
        ("DELETE FROM accuracy WHERE rowid_is", "differs from what was recorded"),
        ("UPDATE rounds SET train_loss=train_loss/2 WHERE run_id=1 AND round=2", "run 1, round 2 differs"),
        ("DELETE FROM rounds WHERE run_id=2 AND round=2", "run 2, round 2 differs"),
        ("UPDATE runs SET label='GedOT' WHERE id=1", "run 1: its config, names or models differ"),
        ("UPDATE runs SET config=replace(config, '3', '4') WHERE id=2", "run 2: its config, names or"),
        ("UPDATE runs SET seed=seed+1 WHERE id=3", "run 3: its config, names or models differ"),
        ("UPDATE runs SET environment='{}' WHERE id=1", "run 1: its config, names or models differ"),
        ("UPDATE runs SET best_test=best_test*(1+1e-15) WHERE id=1", "run 1: its summary is not that"),
        ("UPDATE entities SET name='odd' WHERE run_id=1 AND entity=1", "run 1: its config, names or models"),
        ("DELETE FROM entities WHERE run_id=1 AND entity=1", "run 1: its config, names or models differ"),
        ("DELETE FROM experiments", "refers to a row of experiments that does not exist"),
        ("DELETE FROM runs WHERE id=2", "refers to a row of runs that does not exist"),
        ("UPDATE digests SET digest='0' WHERE run_id=1 AND round=1", "run 1, round 1 differs"),
        ("DELETE FROM digests WHERE run_id=1 AND round=-1", "run 1: its config, names or models differ"),
        ("DROP INDEX runs_experiment", "the definition of runs_experiment has changed"),
        ("UPDATE runs SET notices='[]' || ' ' WHERE id=2", "run 2: its config, names or models differ"),
    ],
)
def test_every_changed_value_is_noticed(db, statement, finding):
    fill.alter(db, statement.replace("rowid_is", "run_id=1 AND split=2 AND stage=1 AND round=2 AND model=1"))
    assert any(finding in line for line in Store(db).integrity.findings())
    assert finding in Store(db).integrity.warning([1]), "a long list checks its experiments only"
    if "does not exist" not in finding:
        for export in EXPORTS:
            with pytest.raises(FedLensError, match="is damaged .* nothing is exported; `fedlens doctor`"):
                export(Store(db), [1])


def test_a_finding_of_the_check_is_damage_and_not_a_failure_of_the_machine(db):
    """A lock that outlasts the wait was listed as damage."""
    with closing(sqlite3.connect(db)) as other, closing(sqlite3.connect(db, timeout=0.01)) as connection:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            findings(connection)


def test_every_value_of_a_round_is_in_its_digest(db):
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        recorded = round_digest(connection, 1, 1)
        for table in set(RUN_TABLES) - {"entities"}:
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            for column in [name for _, name, _, _, _, key in columns if not key]:
                connection.execute(
                    f"UPDATE {table} SET {column}=coalesce({column}, 0)+1 WHERE run_id=1 AND round=1"
                )
                assert round_digest(connection, 1, 1) != recorded, f"{table}.{column}"
                connection.rollback()


@pytest.mark.parametrize(
    "losses", [(0.1, None, 1 / 3, 100.0, -0.0, 2e15), (1e-4, 1e-5, 9e-324, 1e16, 0.00001234)]
)
def test_a_digest_is_that_of_the_rows_as_python_writes_them(db, losses):
    """Stored digests are compared with it for ever, whatever writes the numbers here."""
    digest = hashlib.blake2b(digest_size=16)
    with closing(sqlite3.connect(db)) as connection:
        cells = connection.execute(
            "SELECT split, stage, model, test_set FROM accuracy WHERE run_id=1 AND round=1"
        )
        for cell, loss in zip(cells.fetchall(), itertools.cycle(losses), strict=False):
            connection.execute(
                "UPDATE accuracy SET loss=? WHERE run_id=1 AND round=1 AND split=? AND stage=? AND model=? "
                "AND test_set=?",
                [loss, *cell],
            )
        for table in ("rounds", "client_rounds", "scores", "accuracy", "diagnostics"):
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            names = ", ".join(name for _, name, *_ in columns if name != "run_id")
            rows = connection.execute(
                f"SELECT {names} FROM {table} WHERE run_id=1 AND round=1 ORDER BY {names}"
            ).fetchall()
            assert rows
            digest.update(repr(rows).encode())
        assert round_digest(connection, 1, 1) == digest.hexdigest()


def test_what_a_person_changes_with_another_program_is_no_damage(db):
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE experiments SET name='renamed elsewhere'")
        connection.execute("UPDATE runs SET starred=1, notes='mine' WHERE id=1")
        connection.execute("CREATE TABLE notes_of_mine(a)")
        connection.execute("CREATE VIEW view_of_mine AS SELECT * FROM runs")
        connection.execute("DELETE FROM entities WHERE run_id=1 AND entity=99")
    assert Store(db).integrity.findings() == []
    assert "renamed elsewhere" in exported(Store(db), [1], "rounds")


def test_what_fedlens_changes_is_no_damage(db):
    store = Store(db)
    store.experiments.edit(1, name="edited", tags=("a",), notes="n")
    created = store.experiments.create(store.experiments.get(1).config)
    store.runs.stop(created.run_ids)
    assert store.runs.resume(created.run_ids, restart=True) == list(created.run_ids)
    store.experiments.delete(created.experiment_id)
    assert store.integrity.findings() == []


def test_damage_of_another_experiment_stops_no_export(db):
    fill.done(db, fill.an_experiment("Other", methods=("zero-shot",), seeds=(1,), rounds=1))
    fill.alter(db, "UPDATE rounds SET train_loss=1 WHERE run_id=(SELECT max(id) FROM runs) AND round=0")
    assert len(Store(db).integrity.findings()) == 1
    assert all(exports(db)) and not Store(db).integrity.warning([1])


def test_a_resumed_run_leaves_no_digest_of_a_deleted_round_and_what_else_lost_it_is_noticed(db):
    with writing(db) as database:
        delete_rounds_after(database, 1, 1)
    with reading(db) as connection:
        assert [r[0] for r in connection.execute("SELECT round FROM digests WHERE run_id=1")] == [-1, 0, 1]
    assert Store(db).integrity.findings() == ["run 1 lost rounds: 3 were recorded"]


def test_flipped_bits_are_refused_or_change_nothing(sound, tmp_path):
    expected, refused = exports(sound), 0
    content, draw = sound.read_bytes(), random.Random(5)
    used = [i for i, byte in enumerate(content) if byte]
    for _ in range(25):
        damaged = bytearray(content)
        damaged[draw.choice(used)] ^= 1 << draw.randrange(8)
        db = tmp_path / "damaged.db"
        for suffix in ("", "-wal", "-shm"):
            db.with_name(db.name + suffix).unlink(missing_ok=True)
        db.write_bytes(bytes(damaged))
        try:
            assert exports(db) == expected
        except FedLensError:
            refused += 1
    assert refused > 5


def test_a_fault_of_our_own_is_not_reported_as_damage(db, monkeypatch):
    """It surfaces with its traceback, also in `fedlens doctor`, in a merge and in the list of experiments."""

    def faulty(*given):
        raise AttributeError("a fault of our own")

    monkeypatch.setattr("fedcore.store.damage.round_digest", faulty)
    for door in (
        Store(db).integrity.findings,
        lambda: list(doctor.examine(Store(db), mend=False)),
        lambda: Store(db.with_name("other.db")).imports.database(db),
    ):
        with pytest.raises(AttributeError, match="a fault of our own"):
            door()
    monkeypatch.setattr("fedcore.store.runs.state", faulty)
    with pytest.raises(AttributeError, match="a fault of our own"):
        Store(db).experiments.all()


def test_the_check_of_many_clients_takes_time_in_proportion_to_them(db: Path) -> None:
    """10,000 clients once took a minute: each row was compared with every other."""

    def steps(clients: int) -> int:
        with writing(db) as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO entities(run_id, entity, kind, name) VALUES (1, ?, 'client', ?)",
                [(code, f"c{code}") for code in range(1, clients + 1)],
            )
        count = itertools.count()
        with reading(db) as connection:
            connection.set_progress_handler(lambda: next(count) < 0, 100)
            assert list(round_differences(connection, [1], []))
        return next(count)

    few = steps(500)
    assert steps(2_000) < 8 * few
