"""Backups are complete and checked; restoring keeps what was there."""

import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.base.errors import DiskFull, FedLensError, Locked
from fedcore.store import Store
from fedcore.store import backup as backups
from fedcore.store.backup import back_up, restore, vacuum
from fedcore.store.database import held_open, writing
from tests.support import fill
from tests.support.exported import exported


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    fill.done(path, fill.an_experiment("Kept", methods=("zero-shot",), seeds=(1,), rounds=1))
    return path


def names(db: Path) -> list[str]:
    return [e.name for e in Store(db).experiments.all()]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(4096, len(content), 4096):
        content[place : place + 64] = bytes(64)
    path.write_bytes(bytes(content))


def test_a_backup_holds_what_the_database_held(filled, tmp_path):
    expected = exported(Store(filled), [1], "rounds")
    made = back_up(filled)
    assert made.parent == filled.parent and made.name.startswith("runs-") and made.name.endswith(".backup.db")
    assert exported(Store(made), [1], "rounds") == expected
    assert not list(tmp_path.glob("*.part"))


def test_a_backup_that_is_used_as_a_database_gets_the_journal_of_one(filled: Path) -> None:
    made = back_up(filled)
    Store(made).prepare()
    with closing(sqlite3.connect(made)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_a_backup_is_made_in_the_middle_of_a_transaction(filled, tmp_path):
    with writing(filled) as database:
        database.execute("UPDATE experiments SET name='unfinished'")
        made = back_up(filled, tmp_path / "copy.db")
    assert names(made) == ["Kept"] and names(filled) == ["unfinished"]


def test_a_damaged_database_makes_no_backup(filled, tmp_path):
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(filled)
    with pytest.raises(FedLensError, match="damaged"):
        back_up(filled, tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))


def test_an_existing_file_is_not_replaced(filled, tmp_path):
    target = tmp_path / "mine.txt"
    target.write_text("mine")
    with pytest.raises(FedLensError, match="exists already"):
        back_up(filled, target)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("state", ["changed", "damaged", "no database", "missing"])
def test_a_backup_takes_the_place_of_whatever_is_there(filled, state):
    made = back_up(filled)
    Store(filled).experiments.edit(1, name="later")
    if state != "changed":
        with closing(sqlite3.connect(filled)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if state == "damaged":
        damage(filled)
    elif state == "no database":
        filled.write_text("something else")
    elif state == "missing":
        filled.unlink()
    content = filled.read_bytes() if filled.exists() else b""
    before = restore(filled, made)
    assert names(filled) == ["Kept"] and Store(filled).integrity.findings() == []
    if state == "changed":
        assert before is not None and names(before) == ["later"]
    elif state == "missing":
        assert before is None
    else:
        assert before is not None and before.read_bytes() == content


def test_a_reader_sees_the_restored_database_with_its_next_query(filled):
    made = back_up(filled)
    reader = Store(filled)
    reader.experiments.edit(1, name="later")
    with closing(sqlite3.connect(filled)) as open_all_the_time:
        assert open_all_the_time.execute("SELECT name FROM experiments").fetchall() == [("later",)]
        restore(filled, made)
        assert open_all_the_time.execute("SELECT name FROM experiments").fetchall() == [("Kept",)]
    assert names(filled) == ["Kept"]


def test_a_damaged_or_foreign_backup_changes_nothing(filled, tmp_path):
    made = back_up(filled)
    damage(made)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE other(a)")
    for backup, message in ((made, "damaged"), (foreign, "not a database of FedLens"), (filled, "itself")):
        with pytest.raises(FedLensError, match=message):
            restore(filled, backup)
    assert names(filled) == ["Kept"] and not list(tmp_path.glob("*.replaced.db"))


@pytest.fixture
def crowded(filled, small_disk) -> tuple[Path, Path]:
    """A database of 6 MB, a backup of 3 MB, and room for little more than the database."""
    Store(filled).experiments.edit(1, notes="a" * 1_500_000)  # each row has a second copy
    made = shutil.copy(back_up(filled), small_disk.path / "made.db")
    Store(filled).experiments.edit(1, notes="b" * 3_000_000)
    db = shutil.copy(back_up(filled), small_disk.path / "runs.db")
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    free = shutil.disk_usage(small_disk.path).free
    (small_disk.path / "filler").write_bytes(bytes(free - db.stat().st_size - 900_000))
    return db, made


def test_a_restore_without_room_for_both_copies_is_refused(crowded):
    """The database was deleted when the disk was full, and nothing named the copy of it."""
    db, made = crowded
    with held_open(db), pytest.raises(DiskFull):
        restore(db, made)
    assert Store(db).experiments.get(1).notes == "b" * 3_000_000
    assert not list(db.parent.glob("*.replaced.db"))


def test_a_disk_that_fills_up_during_a_restore_leaves_the_database_as_it_was(crowded, monkeypatch):
    db, made = crowded
    monkeypatch.setattr(backups, "check_room", lambda folder, needed: None)  # room that another program takes
    with held_open(db), pytest.raises(DiskFull, match="is as it was, and a copy of it is ") as refusal:
        restore(db, made)
    assert Store(db).experiments.get(1).notes == "b" * 3_000_000
    assert Store(db).integrity.findings() == []
    (replaced,) = db.parent.glob("*.replaced.db")
    assert str(replaced) in str(refusal.value)
    assert Store(replaced).experiments.get(1).notes == "b" * 3_000_000


def test_a_restore_gives_up_where_another_program_keeps_the_lock(filled):
    made = back_up(filled)
    Store(filled).experiments.edit(1, name="later")
    with closing(sqlite3.connect(filled)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Locked, match="stays locked by another program"):
            restore(filled, made, patience=0.1)
    assert names(filled) == ["later"] and not list(filled.parent.glob("*.replaced.db*"))


def test_every_commit_is_in_the_copy_or_follows_the_restore(filled):
    """Commits that were made between keeping the database and replacing it were lost."""
    Store(filled).experiments.edit(1, notes="a" * 3_000_000)
    made = back_up(filled)
    acknowledged: list[int] = []
    stopping = threading.Event()

    def commit() -> None:
        with closing(sqlite3.connect(filled, timeout=60)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            while not stopping.is_set():
                number = len(acknowledged)
                with connection:
                    connection.execute(
                        "INSERT INTO views(page, name, query, created_at) VALUES ('p', ?, '', 0)", [number]
                    )
                acknowledged.append(number)

    def wait_for_more(count: int) -> None:
        target = len(acknowledged) + count
        while len(acknowledged) < target and writer.is_alive():
            time.sleep(0.001)

    def recorded(db: Path) -> set[int]:
        with closing(sqlite3.connect(db)) as connection:
            return {int(name) for (name,) in connection.execute("SELECT name FROM views")}

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        wait_for_more(20)
        replaced = restore(filled, made)
        wait_for_more(20)
    finally:
        stopping.set()
        writer.join()
    assert replaced is not None
    before, after = recorded(replaced), recorded(filled)
    assert before and after and not before & after
    assert sorted(before | after) == acknowledged


def test_two_restores_in_one_second_keep_both_copies(filled, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20261124-000000")
    made = back_up(filled)
    replaced = []
    for name in ("first", "second"):
        Store(filled).experiments.edit(1, name=name)
        replaced.append(restore(filled, made))
    assert [names(path) for path in replaced] == [["first"], ["second"]]


def test_the_log_of_a_missing_database_is_kept_and_not_applied_to_the_restored_one(filled):
    made = back_up(filled)
    log = filled.with_name("runs.db-wal")
    with closing(sqlite3.connect(filled)) as connection:
        with connection:
            connection.execute("UPDATE experiments SET name='only in the log'")
        content = log.read_bytes()
        filled.unlink()
        for path in filled.parent.glob("runs.db-*"):
            path.rename(path.with_name(f"moved-{path.name}"))
    log.write_bytes(content)
    restore(filled, made)
    assert names(filled) == ["Kept"] and Store(filled).integrity.findings() == []
    (replaced,) = filled.parent.glob("*.replaced.db-wal")
    assert replaced.read_bytes() == content


def test_vacuum_gives_room_back(filled):
    fill.done(filled, fill.an_experiment("Large", methods=("fedot",), seeds=(1, 2, 3), rounds=20))
    Store(filled).experiments.delete(2)
    before, after = vacuum(filled)
    assert after < before and names(filled) == ["Kept"] and Store(filled).integrity.findings() == []
