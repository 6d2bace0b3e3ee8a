import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedcore.base.errors import FedLensError, ReadOnlyDatabase
from fedcore.base.events import RoundFinished
from fedcore.base.files import PROJECT
from fedcore.store import Store, database, schema
from fedcore.store.backup import back_up
from fedcore.store.liveness import new_owner
from fedcore.store.writer import RunWriter
from tests.support import fake_engine
from tests.support.jobs import recorded

NOBODY = 65534


@pytest.fixture
def without_rights() -> Iterator[None]:
    """Permissions mean nothing to root: be nobody while the test runs."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own are private."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def test_prepare_makes_a_wal_database_and_is_idempotent(tmp_path):
    path = tmp_path / "deep" / "runs.db"
    assert Store(path).prepare() == ""
    assert Store(path).prepare() == ""
    with database.reading(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION


def test_two_processes_may_prepare_at_once(tmp_path):
    code = f"from fedcore.store import Store; assert not Store({str(tmp_path / 'runs.db')!r}).prepare()"
    processes = [subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT) for _ in range(2)]
    assert [p.wait(60) for p in processes] == [0, 0]


def test_writing_sets_the_connection_up_and_rolls_back(db):
    with database.writing(db) as connection:
        assert connection.execute("PRAGMA foreign_keys").fetchone()[0] == 1
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 1
        assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == 1000 * database.BUSY_SECONDS

    def interrupted() -> None:
        with database.writing(db) as connection:
            connection.execute(
                "INSERT INTO experiments(uuid, name, created_at, config) VALUES ('t','n',0,'{}')"
            )
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert Store(db).experiments.all() == []


def test_reading_cannot_write(db):
    with pytest.raises(ReadOnlyDatabase), database.reading(db) as connection:
        connection.execute("DELETE FROM runs")


def test_reads_of_a_block_share_a_connection_and_see_what_is_written(db, queued):
    runs = Store(db).runs
    with Store(db).one_connection(), database.reading(db) as shared:
        runs.get(queued())
        with database.reading(db) as connection:
            assert connection is shared
            connection.execute("BEGIN")  # as the check of a database does
            assert runs.newest_id() == 1
        queued()
        assert runs.newest_id() == 2
        with Store(db).one_connection(), database.reading(db) as connection:
            assert connection is shared
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(runs.newest_id).result() == 2
    with database.reading(db) as connection:
        assert connection is not shared
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        shared.execute("SELECT 1")


def test_missing_database_says_what_to_do(tmp_path):
    with pytest.raises(FedLensError, match="start the app or run an experiment") as caught:
        Store(tmp_path / "none.db").experiments.all()
    assert caught.value.field == "db"


def test_foreign_files_are_refused_and_left_alone(tmp_path):
    text = tmp_path / "letter.db"
    text.write_text("Dear diary, " * 100)
    with pytest.raises(FedLensError, match="not an SQLite file"):
        Store(text).prepare()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE recipes(name TEXT)")
    with pytest.raises(FedLensError, match="not a database of FedLens"):
        Store(other).prepare()
    with sqlite3.connect(other) as connection:
        assert [r[0] for r in connection.execute("SELECT name FROM sqlite_master")] == ["recipes"]


def test_a_database_of_a_newer_fedlens_is_refused(db):
    with database.writing(db) as connection:
        connection.execute(f"PRAGMA user_version={schema.VERSION + 1}")
    with pytest.raises(FedLensError, match=rf"newer FedLens \(version {schema.VERSION + 1} of the tables, h"):
        Store(db).prepare()


@pytest.mark.parametrize("change", ["DROP COLUMN notes", "RENAME COLUMN notes TO Notes"])
def test_a_table_that_lacks_a_column_is_named(db, queued, change):
    """A flipped bit in a column's name was a KeyError."""
    queued()
    other = shutil.copy(db, db.with_name("other.db"))
    with closing(sqlite3.connect(other)) as connection:
        connection.execute(f"ALTER TABLE runs {change}")
    for refused in (Store(other).prepare, Store(other).experiments.all, lambda: back_up(other)):
        with pytest.raises(FedLensError, match=r"its table runs lacks the column 'notes'; `fedlens restore`"):
            refused()


def test_a_database_without_a_version_is_refused(db):
    """Its tables must not be made again over those that are there."""
    with database.writing(db) as connection:
        connection.execute("PRAGMA user_version=0")
    with pytest.raises(FedLensError, match="does not say the version of its tables"):
        Store(db).prepare()


@pytest.mark.parametrize("closed_cleanly", [True, False])
def test_unwritable_place_opens_read_only(open_place, make, closed_cleanly, request):
    path = open_place / "runs.db"
    Store(path).prepare()
    Store(path).experiments.create(make())
    # a writer that has the file open (another process: SQLite shares what one process opened) keeps a -wal
    code = f"import sqlite3, sys; c = sqlite3.connect({str(path)!r}); "
    code += "print(c.execute('SELECT 1 FROM runs').fetchall())" + (
        "" if closed_cleanly else "; sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    keeper = subprocess.Popen([sys.executable, "-u", "-c", code], **pipes)
    request.addfinalizer(keeper.communicate)
    assert keeper.stdout.readline().strip() == b"[(1,)]"
    if closed_cleanly:
        keeper.wait(10)
    assert (open_place / "runs.db-wal").exists() is not closed_cleanly
    for file in open_place.iterdir():
        file.chmod(0o444)
    open_place.chmod(0o555)
    request.getfixturevalue("without_rights")

    assert "cannot be written" in Store(path).prepare()
    assert [e.name for e in Store(path).experiments.all()] == ["a test"]
    with pytest.raises(ReadOnlyDatabase, match="check the permissions"):
        Store(path).experiments.create(make())


def test_no_database_and_no_room_for_one_is_an_error(open_place, without_rights):
    with pytest.raises(FedLensError, match="make its folder writable, or choose a place"):
        Store(open_place / "runs.db").prepare()


def test_full_disk_is_one_line_and_keeps_what_was_recorded(db, queued):
    """A page limit is what a full disk looks like to SQLite."""
    (run_id,) = queued(rounds=2)
    writer = RunWriter(Store(db).jobs.claim(new_owner(), "cpu"))
    events = list(
        fake_engine.train(Store(db).runs.config(run_id), artifacts=db.parent, folder=writer.claim.folder)
    )
    writer.started(events[1])
    rounds = [e for e in events if hasattr(e, "cells")]
    writer.write_round(rounds[0])
    before = recorded(db, run_id)

    plain = database.opened

    def limited(*options):  # the limit belongs to a connection
        manager = plain(*options)

        class Limited:
            def __enter__(self):
                connection = manager.__enter__()
                pages = connection.execute("PRAGMA page_count").fetchone()[0]
                connection.execute(f"PRAGMA max_page_count={pages}")
                return connection

            def __exit__(self, *exception):
                return manager.__exit__(*exception)

        return Limited()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "opened", limited)
        with pytest.raises(FedLensError, match="is full; free some space, then resume"):
            _write_until_full(writer, rounds[1])
    rows = recorded(db, run_id)
    assert [row for row in rows["accuracy"] if row[2] == 0] == before["accuracy"]
    done = Store(db).runs.get([run_id])[0].rounds_done
    assert [r[0] for r in rows["rounds"]] == list(range(done + 1))  # whole rounds only
    writer.write_round(replace(rounds[1], round=done + 1))  # there is room again


def _write_until_full(writer: RunWriter, event: RoundFinished) -> None:
    for number in range(1, 200):
        writer.write_round(replace(event, round=number))


def test_a_lock_held_by_another_program_is_named(db, make, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(db, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(FedLensError, match="stays locked by another program"):
            Store(db).experiments.create(make())
    finally:
        holder.close()


MOUNTS = [
    ("/", "ext4"),
    ("/home", "nfs4"),
    ("/home/local", "xfs"),
    ("/mnt/my files", "cifs"),
    ("/mnt/ssh", "fuse.sshfs"),
    ("/data", "nfs"),
    ("/data", "ext4"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/runs.db", "nfs4"),
        ("/home/local/ann/runs.db", None),
        ("/homework/runs.db", None),
        ("/mnt/my files/runs.db", "cifs"),
        ("/mnt/ssh/runs.db", "fuse.sshfs"),
        ("/data/runs.db", None),
        ("/var/runs.db", None),
    ],
)
def test_network_file_systems_are_told_from_local_ones(path, kind, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: True)  # as if all these places were there
    mounts = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in MOUNTS]
    monkeypatch.setattr(database.psutil, "disk_partitions", lambda all: mounts)
    assert database.network_file_system(Path(path)) == kind


def test_network_file_system_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "network_file_system", lambda path: "nfs4")
    with pytest.raises(FedLensError, match=r"nfs4.*put it on a local disk with --db or FEDLENS_DB"):
        Store(tmp_path / "runs.db").prepare()
    assert not (tmp_path / "runs.db").exists()


def test_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLENS_DB", raising=False)
    assert database.resolve(None) == PROJECT / "runs.db"
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "mine.db"))
    assert database.resolve(None) == tmp_path / "mine.db"
    assert Store(tmp_path / "mine.db").artifacts == tmp_path / "artifacts"


def test_stores_of_one_database_are_one_for_the_caches_of_pages(tmp_path: Path) -> None:
    first, again, other = (repr(Store(tmp_path / name)) for name in ("a.db", "a.db", "b.db"))
    assert first == again != other
