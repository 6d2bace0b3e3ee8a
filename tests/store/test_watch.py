"""Damage is said where numbers are shown: the background checks each version of a database once."""

import os
import threading
from pathlib import Path

import pytest

from fedcore.store import Store, damage
from fedcore.store.damage import Watch
from tests.support import fill
from tests.support.jobs import wait_for


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    fill.done(path, fill.an_experiment("Watched", methods=("zero-shot",), seeds=(1,), rounds=1))
    return path


def test_damage_is_found_in_the_background_and_repair_too(db, monkeypatch):
    monkeypatch.setattr(damage, "PAUSE_SECONDS", 0.0)
    store = Store(db)
    wait_for(lambda: not store.integrity.watched())
    fill.alter(db, "UPDATE scores SET personal_mean=personal_mean/2 WHERE run_id=1 AND round=1")
    wait_for(lambda: store.integrity.watched() != "")
    assert "is damaged (run 1, round 1 differs from what was recorded), so numbers that are shown" in (
        store.integrity.watched()
    )
    assert store.integrity.warning() == store.integrity.watched()
    fill.alter(db, "UPDATE scores SET personal_mean=personal_mean*2 WHERE run_id=1 AND round=1")
    wait_for(lambda: store.integrity.watched() == "")


def checks(db: Path) -> tuple[Watch, list[int]]:
    """A watch of a database, and the number of its checks as a growing list."""
    begun: list[int] = []

    def check() -> list[str]:
        begun.append(1)
        return Store(db).integrity.findings()

    return Watch(db, check), begun


def look(watched: Watch) -> None:
    watched.found()
    assert watched._thread is not None
    watched._thread.join(60)


def test_an_unchanged_file_is_checked_once_and_again_after_an_hour(db, monkeypatch):
    monkeypatch.setattr(damage, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(damage, "SHARE", float("inf"))
    watched, begun = checks(db)
    for _ in range(3):
        look(watched)
    assert len(begun) == 1
    Store(db).experiments.edit(1, notes="changed")
    look(watched)
    assert len(begun) == 2
    monkeypatch.setattr(damage, "REPEAT_SECONDS", 0.0)
    look(watched)
    assert len(begun) == 3


def test_a_file_that_changes_all_the_time_is_not_checked_all_the_time(db, monkeypatch):
    monkeypatch.setattr(damage, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(damage, "SHARE", 1e-9)
    watched, begun = checks(db)
    for count in range(3):
        os.utime(db, ns=(count, count))
        look(watched)
    assert len(begun) == 1


def test_pages_do_not_wait_for_a_long_check_and_none_begins_beside_it(db, monkeypatch):
    monkeypatch.setattr(damage, "FIRST_SECONDS", 0.0)
    go_on = threading.Event()

    def check() -> list[str]:
        go_on.wait(60)
        return Store(db).integrity.findings() + ["checked"]

    watched = Watch(db, check)
    assert watched.found() == []
    first = watched._thread
    os.utime(db, ns=(1, 1))
    assert watched.found() == [] and watched._thread is first
    go_on.set()
    wait_for(lambda: watched.found() == ["checked"])
