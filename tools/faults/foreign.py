"""Checkpoints of other runs in a run's folder, of the same and of other configs; the run is then resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from fedcore.store import Store
from tests.support.jobs import recorded
from tools.faults.bits import resumed
from tools.faults.family import Family
from tools.faults.lab import RUN, Difference, Lab, copy
from tools.faults.verdict import Outcome, Verdict


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Put another run's checkpoints into an interrupted run's folder, beside its own or instead of them."""
    db = copy(lab.interrupted, folder)
    rows, checkpoints = recorded(db, RUN), Store(db).runs.folder(RUN)
    other = int(rng.integers(1, 5))
    giver = Store(lab.others / "runs.db").runs.folder(other)
    done = f"checkpoints of run {other}"
    if rng.random() < 0.5:
        done += ", its own gone"
        for file in checkpoints.glob("round-*"):
            file.unlink()
    for number in rng.choice(4, size=rng.integers(1, 4), replace=False):
        for file in giver.glob(f"*-{number}.safetensors"):
            shutil.copy(file, checkpoints)
            done += f", {file.name}"
    verdict = resumed(lab, db, done)
    if verdict.outcome is Outcome.REFUSED and recorded(db, RUN) != rows:
        raise Difference(f"{done}: refused, but its recorded rows are not those of before")
    return verdict


FAMILIES = (Family("foreign", "checkpoints of other runs in a run's folder, resumed", 40, attempt),)
