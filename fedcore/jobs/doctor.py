"""The doctor checks a store and the files beside it, and repairs faults that can be repaired without loss."""

import platform
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedcore.base.errors import RESERVE, FedLensError, disk_usage, plain_errors
from fedcore.base.lazy import torch
from fedcore.data import integrity as arrays
from fedcore.engine import checkpoint
from fedcore.store import Store
from fedcore.store.database import read_only, task_folder
from fedcore.store.jobs import JOB_TABLES
from fedcore.store.liveness import is_held, lock_folder
from fedcore.store.schema import VERSION, tables

RUN_FOLDER = re.compile(r"run-\d+-[0-9a-zA-Z]{8}")


@dataclass(frozen=True)
class Fault:
    """A fault, with the repair that was made or the remedy for the user."""

    text: str
    mended: bool = False


@dataclass(frozen=True)
class Check:
    """One part of an examination, which passed if it found no faults; ``about`` is a fact in one line."""

    title: str
    faults: tuple[Fault, ...]
    about: str = ""


def examine(store: Store, mend: bool = False) -> Iterator[Check]:
    """Yield the checks of a store, one after the other.

    Args:
        mend: delete orphaned and unusable files, and mark jobs of dead processes. Recorded results are never
            changed.
    """
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    versions += f", SQLite {sqlite3.sqlite_version}, database version {VERSION}"
    yield Check("versions", (), versions)
    remedy = "put a backup in its place with `fedlens restore`, or delete the experiments that it concerns"
    damage = tuple(Fault(f"{line}; {remedy}") for line in store.integrity.findings())
    yield Check("database", damage, str(store.path))
    for title, part in PARTS.items():
        faults: list[Fault] = []
        try:
            for fault in part(store, mend):  # those before an error count too
                faults.append(fault)
        except FedLensError as error:
            faults.append(Fault(error.line()))
        yield Check(title, tuple(faults))


def _jobs(store: Store, mend: bool) -> Iterator[Fault]:
    dead = [(table, row["id"]) for table in JOB_TABLES for row in store.jobs.orphans(table)]
    if mend and dead and not store.prepare():
        store.jobs.reconcile()
    for table, number in dead:
        yield Fault(f"{table.name} {number} is marked as running, but its process has ended", mend)


def _locks(store: Store, mend: bool) -> Iterator[Fault]:
    owners = {str(row["owner"]).rpartition("/")[2] for table in JOB_TABLES for row in store.jobs.live(table)}
    for path in sorted(lock_folder(store.path).glob("*.lock")):
        if path.stem not in owners and is_held(store.path, path.stem) is False:
            yield _delete(path, f"the lock {path.name} belongs to no job", mend)


def _checkpoints(store: Store, mend: bool) -> Iterator[Fault]:
    """Find damaged checkpoints; a resumed run continues from the previous one, or starts again."""
    for folder in _run_folders(store):
        for path in sorted(folder.glob("round-*.safetensors")):
            if wrong := checkpoint.verify(path):
                yield _delete(path, f"{folder.name}: {wrong[0]}", mend)


def _encodings(store: Store, mend: bool) -> Iterator[Fault]:
    """Find damaged encodings of images; they are computed again when a run needs them."""
    for path in sorted((store.artifacts / "encodings").glob("*.npy")):
        if wrong := arrays.verify(path):
            yield _delete(path, f"encodings: {wrong[0]}", mend)
            if mend:
                arrays.description_file(path).unlink(missing_ok=True)


def _folders(store: Store, mend: bool) -> Iterator[Fault]:
    """Find folders of deleted runs and tasks; a process that is killed during a deletion leaves them."""
    used = _used_folders(store)
    for path in [*_run_folders(store), *sorted(store.artifacts.glob("tasks/*-*"))]:
        if used is not None and path not in used:
            yield _delete(path, f"{path.relative_to(store.artifacts)} belongs to no run or task", mend)


def _disk(store: Store, mend: bool) -> Iterator[Fault]:
    total, free = disk_usage(store.path)
    if free < min(RESERVE, total // 50):
        yield Fault(f"only {free / 1e6:.0f} MB are free on the disk of {store.path}; free some space")


PARTS: dict[str, Callable[[Store, bool], Iterator[Fault]]] = {
    "experiments": lambda store, mend: (
        Fault(f"experiment {damaged.id}: {damaged.reason}") for damaged in store.experiments.listed()[1]
    ),
    "tasks": lambda store, mend: map(Fault, store.tasks.listed(limit=-1)[1]),
    "jobs": _jobs,
    "locks": _locks,
    "checkpoints": _checkpoints,
    "encodings": _encodings,
    "folders": _folders,
    "disk": _disk,
}
"""Titles of the checks of single rows, files and processes, in their order."""


def _run_folders(store: Store) -> list[Path]:
    return [p for p in sorted(store.artifacts.glob("run-*")) if RUN_FOLDER.fullmatch(p.name) and p.is_dir()]


def _used_folders(store: Store) -> set[Path] | None:
    """Return the folders of all runs and tasks of all databases in the folder; None if one is unreadable."""
    # All databases of a folder share `artifacts/`, and also backups refer to its files.
    used: set[Path] = set()
    for db in sorted(path for path in store.path.parent.iterdir() if path.is_file() and _is_sqlite(path)):
        try:
            with plain_errors(db), closing(read_only(db)) as connection:
                if not {"experiments", "runs", "tasks"} <= tables(connection):
                    continue
                runs = connection.execute(
                    "SELECT r.id, e.uuid FROM runs r JOIN experiments e ON e.id=r.experiment_id"
                ).fetchall()
                if not all(isinstance(uuid, str) for _, uuid in runs):
                    return None  # any of the folders may belong to a damaged experiment
                used |= {store.artifacts / f"run-{number}-{uuid[:8]}" for number, uuid in runs}
                tasks = connection.execute("SELECT kind, key FROM tasks WHERE run_id IS NULL")
                used |= {task_folder(db, kind, key) for kind, key in tasks}
        except (FedLensError, sqlite3.Error):
            return None  # any of the folders may belong to it
    return used


def _is_sqlite(path: Path) -> bool:
    if path.suffix.lower() == ".db":  # also one whose first bytes are damaged
        return True
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _delete(path: Path, text: str, mend: bool) -> Fault:
    """Return a fault of a file or folder, which is deleted if faults are to be mended."""
    if not mend:
        return Fault(f"{text} ({path})")
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise FedLensError(f"cannot delete {path}: {error.strerror}; delete it yourself") from error
    return Fault(f"{text}: deleted", mended=True)
