"""The doctor finds damage and leftovers, and mends what can be mended without a loss."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcore.cli.main import main
from fedcore.data.integrity import verify
from fedcore.jobs.doctor import examine
from fedcore.store import Store
from tests.support import fill


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "runs.db")
    fill.done(store.path, fill.an_experiment("Kept", methods=("zero-shot",), seeds=(1,), rounds=1))
    return store


def findings(store: Store, mend: bool = False) -> dict[str, list[str]]:
    return {c.title: [f.text for f in c.faults] for c in examine(store, mend) if c.faults}


def test_a_healthy_store_has_no_findings(store, capsys):
    assert findings(store) == {}
    assert main(["doctor", "--db", str(store.path)]) == 0
    out = capsys.readouterr().out
    assert "✓ database" in out and re.search("^✓ versions: Python .* SQLite ", out)


def test_damage_is_reported_and_left_as_it_is(store, capsys):
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE rounds SET train_loss=9 WHERE round=0")
    assert list(findings(store, mend=True)) == ["database"]
    assert main(["doctor", "--mend", "--db", str(store.path)]) == 1
    out = capsys.readouterr().out
    assert "run 1, round 0 differs from what was recorded; put a backup" in out and "1 finding" in out


def test_a_damaged_checkpoint_is_found_and_deleted(store):
    folder = store.runs.folder(1)
    folder.mkdir(parents=True)
    file = folder / "round-00001.safetensors"
    file.write_bytes(b"damaged")
    assert list(findings(store)) == ["checkpoints"] and file.exists()
    assert "deleted" in findings(store, mend=True)["checkpoints"][0]
    assert findings(store) == {} and not file.exists()


def test_a_damaged_encoding_is_found_and_deleted(store):
    file = store.artifacts / "encodings" / "digits.npy"
    file.parent.mkdir(parents=True)
    np.save(file, np.zeros(9))
    file.with_suffix(".json").write_text('{"digest": "0"}')
    assert verify(file) and list(findings(store)) == ["encodings"]
    findings(store, mend=True)
    assert findings(store) == {} and not list(file.parent.iterdir())


def test_folders_of_deleted_runs_are_found_and_deleted(store):
    mine, other = store.runs.folder(1), store.artifacts / "run-1-abcdef12"
    task = store.artifacts / "tasks" / "check-0123456789abcdef"
    unrelated = store.artifacts / "run-notes"
    for folder in (mine, other, task, unrelated):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    assert len(findings(store)["folders"]) == 2
    findings(store, mend=True)
    assert mine.exists() and unrelated.exists() and not other.exists() and not task.exists()
    assert findings(store) == {}


def test_folders_of_another_database_in_the_folder_are_no_leftovers(store, tmp_path):
    second = Store(tmp_path / "second.db")
    fill.done(second.path, fill.an_experiment("Other", methods=("zero-shot",), seeds=(1,), rounds=1))
    second.runs.folder(1).mkdir(parents=True)
    assert findings(store) == {}
    second.path.write_bytes(second.path.read_bytes()[:3000])  # now nobody knows what belongs to it
    for end in ("-wal", "-shm"):
        second.path.with_name(second.path.name + end).unlink(missing_ok=True)
    assert findings(store, mend=True) == {} and second.artifacts.exists()


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [(b"CREATE TABLE runs", b"CR\xc5ATE TABLE runs"), (b"SQLite format 3", b"SQLite formap 3")],
    ids=["a message that is not UTF-8", "its first bytes"],
)
def test_another_database_that_cannot_be_read_keeps_its_folders(store, tmp_path, sound, damaged):
    second = Store(tmp_path / "second.db")
    fill.done(second.path, fill.an_experiment("Other", methods=("zero-shot",), seeds=(1,), rounds=1))
    second.runs.folder(1).mkdir(parents=True)
    content = second.path.read_bytes()
    assert sound in content
    second.path.write_bytes(content.replace(sound, damaged))
    assert findings(store, mend=True) == {} and second.artifacts.exists()


def test_a_job_without_a_process_is_ended(store):
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE runs SET status='running', owner='nobody/1', heartbeat_at=1 WHERE id=1")
    assert findings(store)["jobs"] == ["run 1 is marked as running, but its process has ended"]
    findings(store, mend=True)
    assert findings(store) == {} and store.runs.get([1])[0].status == "interrupted"


def test_a_lock_without_a_job_is_deleted(store):
    lock = store.path.with_name("runs.db.owners") / "abc.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    assert findings(store)["locks"][0].startswith("the lock abc.lock belongs to no job")
    findings(store, mend=True)
    assert findings(store) == {} and not lock.exists()


def test_backup_restore_and_vacuum_on_the_command_line(store, tmp_path, capsys):
    db, copy = str(store.path), str(tmp_path / "copy.db")
    assert main(["backup", copy, "--db", db]) == 0
    store.experiments.edit(1, name="later")
    assert main(["restore", copy, "--db", db]) == 0
    assert "the replaced database is" in capsys.readouterr().out
    assert [e.name for e in store.experiments.all()] == ["Kept"]
    assert main(["vacuum", "--db", db]) == 0
    assert main(["backup", copy, "--db", db]) == 2
    assert main(["restore", str(tmp_path / "nothing.db"), "--db", db]) == 2


def test_a_run_that_trained_when_the_backup_was_made_is_interrupted_after_a_restore(store, tmp_path, capsys):
    db, copy = str(store.path), str(tmp_path / "copy.db")
    _, (writer,) = fill.start(store.path, fill.an_experiment("Training", ("fedot",), (1,), rounds=2))
    assert main(["backup", copy, "--db", db]) == 0
    writer.claim.finish("done")
    assert main(["restore", copy, "--db", db]) == 0
    assert main(["list", "--db", db]) == 0
    said = " ".join(capsys.readouterr().out.split())
    why = "it was running when the backup was made; resume continues after the last round"
    assert f",interrupted,0,2,,{why}," in said
    assert store.runs.resume([writer.run_id]) == [writer.run_id]
