"""Another program holds the database's lock for seconds to minutes while a run trains."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.kill import wait_for_a_moment
from tools.faults.lab import Lab, check_at_rest, copy, finish, run, train, wait_for
from tools.faults.verdict import Outcome, Verdict

SECONDS = (3, 12, 31, 45)
PATIENCE = 300.0


def hold(db: Path, seconds: float) -> None:
    """Hold the write lock, as a database browser with an open transaction does."""
    with closing(sqlite3.connect(db, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        db.with_name("held").touch()
        time.sleep(seconds)
        connection.execute("ROLLBACK")


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Lock the database at a random moment of a run."""
    db = copy(lab.encoded, folder)
    seconds = float(rng.choice(SECONDS))
    process = train(db)
    wait_for_a_moment(db, process, rng)
    locker = Forked(lambda: hold(db, seconds), folder / "locker.log")
    wait_for(db.with_name("held").exists, "the lock is not taken")
    process.wait(PATIENCE)
    ended_in_time = locker.poll() is None
    locker.wait(PATIENCE)
    check_at_rest(db, [process])
    ended = f"locked for {seconds:.0f} s; the run was then {run(db).status} {run(db).status_text or ''}"
    finish(lab, db, process)
    return Verdict(Outcome.UNAFFECTED if ended_in_time else Outcome.MENDED, ended)


FAMILIES = (Family("lock", "the database locked for 3 to 45 s by another program", 8, attempt),)
