"""The power fails while a run trains: what no commit has synced is cut off; the run is then resumed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

from tests.support.jobs import recorded
from tools.faults.family import Family
from tools.faults.lab import (
    EXPERIMENT,
    RUN,
    Defect,
    Difference,
    Lab,
    Rows,
    check_at_rest,
    check_done,
    copy,
    resume,
    run,
    train,
    wait_for,
)
from tools.faults.verdict import Outcome, Verdict

ROUNDS = 8  # so that the log holds rounds whose checkpoints have been deleted
FULL = 2  # of PRAGMA synchronous: each commit syncs the log


def noting_commits(note: Callable[[int, bool], None]) -> type[sqlite3.Connection]:
    """Return a class of connections that note, for each commit, the log's size and whether it is synced."""

    class Noting(sqlite3.Connection):
        def commit(self) -> None:
            super().commit()
            log = Path(super().execute("PRAGMA database_list").fetchone()[2] + "-wal")
            (level,) = super().execute("PRAGMA synchronous").fetchone()
            if log.exists():
                note(log.stat().st_size, level >= FULL)

    return Noting


def _note_synced(file: Path) -> None:
    """Let this process write the size of the synced log to a file; nothing is lost when it is killed."""
    place = os.open(file, os.O_WRONLY)

    def note(size: int, synced: bool) -> None:
        if synced:
            os.pwrite(place, b"%20d" % size, 0)

    sqlite3.connect = partial(sqlite3.connect, factory=noting_commits(note))  # type: ignore[assignment]


@cache
def _queued(lab: Lab) -> Path:
    return lab.encoded_as("power", {**EXPERIMENT, "rounds": ROUNDS})


@cache
def _rows(lab: Lab) -> Rows:
    db = copy(_queued(lab), lab.folder / "power-done")
    train(db).wait()
    check_done(db)
    return recorded(db, RUN)


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Kill a run, cut its log anywhere behind the last synced commit, and resume it."""
    db, file = copy(_queued(lab), folder), folder / "synced"
    file.touch()
    process = train(db, partial(_note_synced, file))
    rounds = rng.integers(ROUNDS)
    wait_for(lambda: process.poll() is not None or run(db).rounds_done >= rounds, f"no round {rounds}")
    log = db.with_name(f"{db.name}-wal")
    process.kill()
    if not log.exists():
        return Verdict(Outcome.UNAFFECTED, "the run had ended, or not begun")
    synced, size = int(file.read_text() or 0), log.stat().st_size
    cut = int(rng.integers(synced, size + 1))
    os.truncate(log, cut)
    log.with_name(f"{db.name}-shm").unlink()  # it was in memory only
    check_at_rest(db, [process])
    done = f"log cut at {cut:,} of {size:,} bytes ({synced:,} synced), round {run(db).rounds_done}"
    process = resume(db)
    process.wait()
    check_at_rest(db, [process])
    if run(db).status != "done":
        raise Defect(f"{done}: the run is {run(db).status}: {run(db).status_text}")
    if recorded(db, RUN) != _rows(lab):
        raise Difference(f"{done}: its rows are others")
    return Verdict(Outcome.MENDED, done)


FAMILIES = (
    Family("power", "the log cut at random places behind its last synced commit; resumed", 100, attempt),
)
