"""Flipped bits of recorded numbers that decide: which draw of a search is selected, how a run goes on."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.jobs.tuning import advance
from fedcore.store import Store
from tools.faults.bits import resumed
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import RUN, Difference, Lab, copy, tail
from tools.faults.verdict import Outcome, Verdict

VALUES = (
    ("scores", "personal_mean", "split=1 AND"),
    ("scores", "personal_mean", ""),
    ("rounds", "seconds_train", "round>0 AND"),
    ("rounds", "bytes_up", "round>0 AND"),
    ("accuracy", "correct", ""),
)
"""Table, column and condition of the numbers that are changed."""


def flip(db: Path, rng: np.random.Generator) -> str:
    """Flip a bit of a recorded number in its place; returns a description."""
    table, column, condition = VALUES[rng.integers(len(VALUES))]
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
        rows = connection.execute(
            f"SELECT {column}, {', '.join(keys)} FROM {table} WHERE {condition} {column} IS NOT NULL"
        ).fetchall()
        value, *key = rows[rng.integers(len(rows))]
        form = "<q" if isinstance(value, int) else "<d"
        content = bytearray(struct.pack(form, value))
        content[rng.integers(8)] ^= 1 << int(rng.integers(8))
        (changed,) = struct.unpack(form, content)
        which = " AND ".join(f"{name}=?" for name in keys)
        connection.execute(f"UPDATE {table} SET {column}=? WHERE {which}", [changed, *key])
    return f"{table}.{column} of {dict(zip(keys, key, strict=True))}: {changed} instead of {value}"


def selected(db: Path) -> str:
    """Follow a search, and return what was selected and what it has cost."""
    advance(Store(db), RUN)
    final = max(Store(db).experiments.all(), key=lambda row: row.id)
    return json.dumps(
        [method.model_dump(mode="json", exclude={"tuned": {"search"}}) for method in final.config.methods]
    )


@cache
def expected(lab: Lab) -> str:
    """Return what the undamaged search selects."""
    return selected(copy(lab.searched, lab.folder / "followed"))


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Flip a bit of a search whose draws have ended, and follow it; or of a run, and resume it."""
    if rng.random() < 0.2:
        db = copy(lab.interrupted, folder)
        return resumed(lab, db, flip(db, rng))
    db, result = copy(lab.searched, folder), folder / "selected"
    done = flip(db, rng)

    def follow() -> int:
        try:
            result.write_text(selected(db))
        except FedLensError as error:
            result.write_text(str(error))
            return 3
        return 0

    code = Forked(follow, folder / "process.log").wait()
    if code not in (0, 3):
        return Verdict(Outcome.RAW, f"{done}: {tail(folder / 'process.log')}")
    if code == 3:
        return Verdict(Outcome.REFUSED, f"{done}: {result.read_text()}")
    if result.read_text() != expected(lab):
        raise Difference(f"{done}: {result.read_text()} instead of {expected(lab)}")
    return Verdict(Outcome.UNAFFECTED, done)


FAMILIES = (
    Family(
        "decisions", "bit flips of numbers that select a draw or are resumed from; followed", 100, attempt
    ),
)
