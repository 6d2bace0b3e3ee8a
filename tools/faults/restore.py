"""`fedlens restore` while the disk fills, another program holds the lock, and others commit."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.store import Store, backup
from tools.faults.disk import fill, root, small_disk
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import Defect, Lab, copy, export, tail, wait_for
from tools.faults.lock import hold
from tools.faults.verdict import Outcome, Verdict

NOTES_BYTES = 1 << 20
REFUSED = 3  # exit status of a process whose restore was refused


def restoring(db: Path, backup_file: Path, number: int = 0, patience: float = 1.0) -> Forked:
    """Start a restore in another process; its log then holds the path of the kept copy, or the refusal."""

    def restore() -> int:
        try:
            print(backup.restore(db, backup_file, patience))
        except FedLensError as error:
            print(error)
            return REFUSED
        return 0

    return Forked(restore, backup_file.with_name(f"restore-{number}.log"))


def outcome(process: Forked) -> Verdict:
    """Wait for a restore and say how it ended.

    Raises:
        Defect: when it did not end, or with a raw error.
    """
    code = process.wait(60)
    if code not in (0, REFUSED):
        return Verdict(Outcome.RAW, tail(process.log))
    return Verdict(Outcome.REFUSED if code else Outcome.UNAFFECTED, tail(process.log))


def check_sound(db: Path) -> str:
    """Return the exports of a database that must be sound.

    Raises:
        Defect: when it is damaged.
    """
    if found := Store(db).integrity.findings():
        raise Defect(f"{db.name} is damaged: {found[0]}")
    return export(db)


def check_kept(lab: Lab, db: Path, said: Verdict) -> Verdict:
    """Check that a refused restore changed nothing, or that the backup is in place with a kept copy."""
    expected = lab.later_exported if said.outcome is Outcome.REFUSED else lab.exported
    if check_sound(db) != expected:
        raise Defect(f"neither as it was nor the backup: {said.what}")
    if said.outcome is Outcome.UNAFFECTED and check_sound(Path(said.what)) != lab.later_exported:
        raise Defect(f"{said.what} is not the database as it was")
    return said


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Restore under a lock or while others commit, once or twice at once."""
    db, file = copy(lab.later, folder), folder / "backup.db"
    file.write_bytes((lab.done / "runs.db").read_bytes())
    return (_locked if rng.random() < 0.3 else _committed)(lab, db, file, rng)


def _locked(lab: Lab, db: Path, file: Path, rng: np.random.Generator) -> Verdict:
    """Another program holds the write lock, for less or more time than the restore waits."""
    seconds = float(rng.uniform(0.1, 2.5))
    locker = Forked(lambda: hold(db, seconds), db.with_name("locker.log"))
    wait_for(db.with_name("held").exists, "the lock is not taken")
    said = outcome(restoring(db, file))
    locker.wait()
    check_kept(lab, db, said)
    return Verdict(said.outcome, f"locked for {seconds:.1f} s: {said.what}")


def _committed(lab: Lab, db: Path, file: Path, rng: np.random.Generator) -> Verdict:
    """Another program commits all the time; no acknowledged commit may be missing afterwards."""
    acknowledged = db.with_name("acknowledged")

    def commit() -> None:
        with acknowledged.open("w") as log:
            for number in range(100_000):
                with suppress(FedLensError), closing(sqlite3.connect(db, timeout=30)) as connection:
                    with connection:
                        connection.execute("INSERT INTO slots VALUES (?, 1)", [f"commit {number}"])
                    print(number, file=log, flush=True)

    writers = Forked(commit, db.with_name("commits.log"))
    wait_for(lambda: acknowledged.exists() and acknowledged.stat().st_size, "nothing is committed")
    time.sleep(float(rng.uniform(0, 0.2)))
    restores = [restoring(db, file, i, patience=20.0) for i in range(rng.integers(1, 3))]
    said = [outcome(process) for process in restores]
    time.sleep(float(rng.uniform(0, 0.1)))
    writers.kill()
    if error := db.with_name("commits.log").read_text():
        raise Defect(f"a commit failed: {error.strip().splitlines()[-1]}")
    copies = [Path(each.what) for each in said if each.outcome is Outcome.UNAFFECTED]
    if len({*copies}) < len(copies):
        raise Defect(f"two restores have one kept copy: {copies[0]}")
    there = set[str]()
    for each in (db, *copies):
        check_sound(each)
        with closing(sqlite3.connect(each)) as connection:
            there |= {name for (name,) in connection.execute("SELECT device FROM slots")}
    numbers = acknowledged.read_text().split()
    if lost := {f"commit {number}" for number in numbers} - there:
        raise Defect(f"{len(lost)} of {len(numbers)} acknowledged commits are lost: {min(lost)}")
    worst = max(said, key=lambda each: list(Outcome).index(each.outcome))
    return Verdict(
        worst.outcome, f"{len(numbers)} commits, {len(copies)} of {len(said)} restores: {worst.what}"
    )


def attempt_full(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Restore on a disk with little room, or that becomes full meanwhile; a program has the database open."""
    with small_disk(folder) as disk:
        db, file = copy(lab.later, disk), folder / "backup.db"
        file.write_bytes((lab.done / "runs.db").read_bytes())
        for each in (db, file):  # so that copying takes a while
            Store(each).experiments.edit(1, notes="note" * (NOTES_BYTES // 4))
        opened = Forked(lambda: _keep_open(db), folder / "open.log")
        wait_for(db.with_name("opened").exists, "the database is not opened")
        room, gradual = int(rng.integers(12 << 20)), bool(rng.random() < 0.7)
        ballast = fill(disk, room)
        process = restoring(db, file)
        if gradual:
            seen = str(rng.choice(["*.replaced.db.*.part", "*.replaced.db"]))
            wait_for(lambda: process.poll() is not None or any(disk.glob(seen)), f"no {seen}")
            time.sleep(float(rng.uniform(0, 0.03)))
            fill(disk, int(rng.integers(200_000)), "more")
        said = outcome(process)
        opened.kill()
        for each in (ballast, disk / "more"):
            each.unlink(missing_ok=True)
        check_kept(lab, db, said)
        return Verdict(said.outcome, f"{room:,} bytes of room{', then none' if gradual else ''}: {said.what}")


def _keep_open(db: Path) -> None:
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("SELECT count(*) FROM runs").fetchall()
        db.with_name("opened").touch()
        time.sleep(60)


FAMILIES = (
    Family("restore", "`fedlens restore` under a lock, or while others commit; once or twice", 40, attempt),
    Family("restore-full", "`fedlens restore` on a disk that is or becomes full", 40, attempt_full, root),
)
