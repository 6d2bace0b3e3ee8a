"""Two runs that one process does in turn: killing or stopping one never touches the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.store import Store
from fedcore.store.jobs import RUNS
from tests.support.jobs import recorded
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import Defect, Difference, Lab, check_at_rest, copy, train, wait_for
from tools.faults.verdict import Outcome, Verdict

FIRST, SECOND = 1, 2


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Kill the process at a random round of either run, or force one of the runs to stop."""
    db = copy(lab.pair, folder)
    store, process = Store(db), train(db)
    rounds = int(rng.integers(8))
    wait_for(lambda: process.poll() is not None or _rounds(store) >= rounds, f"no round {rounds}")
    if rng.random() < 0.5:
        process.kill()
        did = f"killed after {_rounds(store)} rounds of both"
    else:
        chosen = int(rng.choice([FIRST, SECOND]))
        did = (
            f"run {chosen} was forced to stop after {_rounds(store)} rounds of both: {_force(store, chosen)}"
        )
    return _continued(lab, db, process, did)


def _rounds(store: Store) -> int:
    return sum(run.rounds_done for run in store.runs.get([FIRST, SECOND]))


def _force(store: Store, chosen: int) -> str:
    """Ask a run to stop, then kill its process; another run's process must not be taken for it."""
    store.runs.stop([chosen])
    working = {row["id"] for row in store.jobs.live(RUNS)}
    try:
        killed = jobs.force_stop(store, chosen)
    except FedLensError as error:
        return str(error)
    if killed and chosen not in working:
        raise Defect(f"run {chosen} was not running, but a process was killed for it")
    return "killed" if killed else "nothing to kill"


def _continued(lab: Lab, db: Path, process: Forked, did: str) -> Verdict:
    """Resume what has not ended as done, and compare the rows of both runs."""
    store = Store(db)
    wait_for(lambda: process.poll() is not None, f"{did}: the process does not end")
    check_at_rest(db, [process])
    ended = {run.id: run.status for run in store.runs.get([FIRST, SECOND])}
    waiting = [run for run, status in ended.items() if status != "done"]
    store.runs.resume([run for run in waiting if ended[run] != "queued"])
    if waiting:  # a supervisor that the first process has started may be faster
        process = train(db)
        process.wait()
        done = ["done"] * 2
        wait_for(lambda: [r.status for r in store.runs.get([FIRST, SECOND])] == done, f"{did}: no end")
    check_at_rest(db, [process])
    for run in (FIRST, SECOND):
        if recorded(db, run) != lab.pair_rows[run]:
            raise Difference(f"{did}: run {run} has other rows")
    return Verdict(Outcome.MENDED if waiting else Outcome.UNAFFECTED, f"{did}; then {ended}")


FAMILIES = (Family("pair", "kill or force-stop one of two runs of a process; resumed", 20, attempt),)
