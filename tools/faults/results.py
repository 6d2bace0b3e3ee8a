"""Damage to what an analysis has found: the values in its row, and the arrays beside it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np

from fedcore.jobs import analysis
from fedcore.results.analyses import confusion
from fedcore.store import Store
from fedcore.store.jobs import ARRAYS_NAME
from tools.faults.bits import damage
from tools.faults.family import Family
from tools.faults.lab import RUN, Difference, Lab, copy
from tools.faults.verdict import Outcome, Verdict


def shown(db: Path) -> tuple[str, str]:
    """Return what the pages Run and Compare show of an analysis, and why there is nothing to show."""
    task = analysis.find(Store(db), RUN, "predictions")
    assert task is not None
    if task.status != "done" or task.result is None:
        return "", task.error or ""
    arrays = task.arrays()
    counts = confusion(arrays, task.result["classes"], None)
    whole = {name: values.tolist() for name, values in sorted(arrays.items())}
    return f"{task.result} {whole} {counts.table()}", ""


@cache
def expected(lab: Lab) -> str:
    """Return what is shown of the undamaged analysis."""
    return shown(lab.analysed / "runs.db")[0]


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Damage the arrays of an analysis or its row, and look at it as a page does."""
    db = copy(lab.analysed, folder)
    if rng.random() < 0.5:
        done = damage(next(folder.rglob(ARRAYS_NAME)), rng)
    else:
        file = folder / "row"
        with closing(sqlite3.connect(db)) as connection, connection:
            (content,) = connection.execute("SELECT CAST(result AS BLOB) FROM tasks").fetchone()
            file.write_bytes(content)
            done = damage(file, rng)
            connection.execute("UPDATE tasks SET result=CAST(? AS TEXT)", [file.read_bytes()])
    found, error = shown(db)
    if error:
        return Verdict(Outcome.REFUSED, f"{done}: {error}")
    if found != expected(lab):
        raise Difference(f"{done}: {found[:200]} instead of {expected(lab)[:200]}")
    return Verdict(Outcome.UNAFFECTED, done)


FAMILIES = (
    Family("results", "bit flips, zeroed blocks and truncation of analyses; looked at", 200, attempt),
)
