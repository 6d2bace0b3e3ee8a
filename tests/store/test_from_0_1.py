"""What FedLens 0.1 recorded is merged whole; the stored database was made by its last commit."""

import json
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.numpy import load

from fedcore.cli import main as cli
from fedcore.config.identity import stable_config
from fedcore.engine import checkpoint
from fedcore.errors import FedLensError
from fedcore.store import Store
from fedcore.store.schema import RUN_TABLES
from tests.support import fill

RECORDED = Path(__file__).with_name("recorded_by_0_1.zip")
METHODS = ("zero-shot", "fedot", "facmic", "fedapt", "fedgh", "fedotp", "fedalign")
CHANGED_DEFAULTS = {
    "facmic": {"optimiser_state": "fresh", "weighting": "uniform", "target_features": "adapted"},
    "fedapt": {"keys": "trained", "weight_decay": 5e-4},
    "fedgh": {"local_epochs": 1, "momentum": 0, "weight_decay": 0},
    "fedotp": {"local_start": "own"},
}
"""What a run of 0.1 did where the default of today is different."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with zipfile.ZipFile(RECORDED) as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old" / "runs.db"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A database with other runs, so that ids differ."""
    db = tmp_path / "new" / "runs.db"
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1))
    return db


def rows(db: Path, table: str) -> list[tuple[object, ...]]:
    """The rows of the experiment of 0.1, without the ids of its runs."""
    with closing(sqlite3.connect(db)) as connection:
        found = connection.execute(
            f"SELECT t.* FROM {table} t JOIN runs r ON r.id = t.run_id "
            "WHERE r.experiment_id = (SELECT max(id) FROM experiments) ORDER BY t.run_id"
        )
        return [row[1:] for row in found]


def test_rows_and_digests_arrive_complete(old, new):
    before = old.read_bytes()
    assert Store(new).imports.database(old).added == ("Recorded by 0.1",)
    for table in (*RUN_TABLES, "digests"):
        assert rows(new, table) == rows(old, table) != [], table
    assert len(rows(new, "accuracy")) == 360
    assert Store(new).integrity.findings() == []
    assert [run.method for run in Store(new).experiments.get(2).runs] == list(METHODS)
    assert Store(new).imports.database(old).present == ("Recorded by 0.1",)
    assert old.read_bytes() == before


def test_defaults_that_have_changed_are_written_out(old, new):
    Store(new).imports.database(old)
    entries = {entry.name: entry.config for entry in Store(new).experiments.get(2).config.methods}
    for run in Store(new).experiments.get(2).runs:
        config = Store(new).runs.config(run.id)
        expected = CHANGED_DEFAULTS.get(run.method, {})
        assert expected.items() <= config.method.config.items()
        assert expected.items() <= entries[run.method].items()
        assert ("bias in its query" in str(run.notices)) == (run.method == "fedapt")


def test_checkpoints_are_read_with_the_config_of_today(old, new):
    Store(new).imports.database(old)
    run = next(r for r in Store(new).experiments.get(2).runs if r.method == "fedgh")
    environment = Store(new).runs.environment(run.id)
    content = {name: environment[name] for name in ("data", "pixels", "weights")}
    identity = json.dumps([stable_config(Store(new).runs.config(run.id)), content], sort_keys=True)
    path = Store(new).runs.folder(run.id) / "round-2.safetensors"
    tensors, round_ = checkpoint.load(path, identity, "cpu")
    (former,) = old.parent.glob("artifacts/run-5-*/round-2.safetensors")
    stored = {name.partition("/")[2]: value for name, value in load(former.read_bytes()).items()}
    assert round_ == 2
    shared = {name: value for name, value in tensors.items() if name.startswith("shared/")}
    for name, value in shared.items():
        assert (value.numpy() == stored[name.partition("/")[2]]).all()
    assert shared
    with pytest.raises(FedLensError, match="another config"):
        checkpoint.load(path, identity.replace("fedgh", "fedot"), "cpu")


def test_a_damaged_checkpoint_stays_damaged(old, new):
    (former,) = old.parent.glob("artifacts/run-5-*/round-2.safetensors")
    content = former.read_bytes()
    former.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    Store(new).imports.database(old)
    (path,) = Store(new).artifacts.glob("run-7-*/round-2.safetensors")
    assert "not those that were written" in checkpoint.verify(path)[0]


def test_opened_directly_it_is_refused_with_the_command(old, capsys):
    for attempt in (Store(old).prepare, Store(old).experiments.all):
        with pytest.raises(FedLensError, match=r"recorded by FedLens 0\.1; .*`fedlens merge .*runs\.db"):
            attempt()
    assert cli.main(["list", "--db", str(old)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_is_merged_into_the_folder_of_the_old_database(old):
    beside = old.with_name("new.db")
    with pytest.raises(FedLensError, match=r"merge into a database in another folder"):
        Store(beside).imports.database(old)
    assert Store(beside).experiments.all() == []
    assert len(list(old.parent.glob("artifacts/run-*"))) == 2


def test_a_copy_that_fails_leaves_nothing(old, new, monkeypatch):
    copytree, copied = shutil.copytree, []

    def full(source, target, **options):
        if copied:
            raise OSError(28, "No space left on device")
        copied.append(copytree(source, target, **options))
        return target

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(FedLensError, match="is full"):
        Store(new).imports.database(old)
    assert copied and not copied[0].exists()
    assert len(Store(new).experiments.all()) == 1


def test_an_early_0_1_is_refused(old, new):
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("DELETE FROM _sqlite_migrations WHERE name='0009_marks_and_views'")
    with pytest.raises(FedLensError, match=r"open it once with the last 0\.1"):
        Store(new).imports.database(old)


def test_former_names_of_hyper_parameters_are_replaced(old, new):
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute(
            "UPDATE runs SET label='FedAlign (lr 1, style st)', config=json_set(json_remove(config, "
            "'$.method.config.class_text'), '$.method.config.style', 'st') WHERE method='fedalign'"
        )
        connection.execute(
            "UPDATE experiments SET config=json_set(config, '$.sweep', "
            """json('{"methods.fedalign.style": ["st", "gt"]}'))"""
        )
        connection.execute("DELETE FROM digests WHERE round=1")  # 0.1 did not always write them
    Store(new).imports.database(old)
    run = next(r for r in Store(new).experiments.get(2).runs if r.method == "fedalign")
    assert run.label == "FedAlign (lr 1, class_text template)"
    config = Store(new).runs.config(run.id).method.config
    assert config["class_text"] == "template" and "style" not in config
    sweep = Store(new).experiments.get(2).config.sweep
    assert sweep == {"methods.fedalign.class_text": ("template", "description")}
    assert Store(new).integrity.findings() == []
