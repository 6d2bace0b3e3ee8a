"""kill -9 at random moments: of the process that trains, of the supervisor, of `fedlens run`."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from fedcore.base.errors import FedLensError
from fedcore.cli.main import main as fedlens
from fedcore.config import dumps, parse
from fedcore.jobs import supervisor
from fedcore.jobs.launcher import ThisMachine
from fedcore.store import Store
from fedcore.store.jobs import RUNS
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import EXPERIMENT, RUN, Lab, check_at_rest, copy, resume, run, train, wait_for
from tools.faults.verdict import Outcome, Verdict

SHARES = {"job": 0.8, "supervisor": 0.1, "foreground": 0.1}
AGAIN = 0.3  # of the resumed runs are killed once more
ROUNDS = EXPERIMENT["rounds"]
PART_OF_A_ROUND = 0.3  # seconds


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Kill a run at a random moment, resume it, and compare its rows with those of the undisturbed run."""
    kind = rng.choice(list(SHARES), p=list(SHARES.values()))
    return {"job": _job, "supervisor": _supervisor, "foreground": _foreground}[kind](lab, folder, rng)


def wait_for_a_moment(db: Path, process: Forked, rng: np.random.Generator) -> None:
    """Wait until the run has recorded a random number of rounds, and a random part of the next one."""
    rounds = rng.integers(ROUNDS)
    wait_for(lambda: process.poll() is not None or run(db).rounds_done >= rounds, f"no round {rounds}")
    time.sleep(float(rng.uniform(0, PART_OF_A_ROUND)))


def _kill_and_resume(lab: Lab, db: Path, process: Forked, rng: np.random.Generator) -> str:
    """Kill the process again and again until the run ends as done; returns when it was killed."""
    killed = []
    while True:
        wait_for_a_moment(db, process, rng)
        if process.poll() is None:
            process.kill()
            killed.append(f"after round {run(db).rounds_done}")
        check_at_rest(db, [process])
        if run(db).status == "done":
            break
        process = resume(db)
        if rng.random() >= AGAIN:
            process.wait()
            break
    check_at_rest(db, [process])
    lab.check_rows(db)
    return ", ".join(killed)


def _job(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    db = copy(lab.encoded if rng.random() < 0.8 else lab.queued, folder)
    killed = _kill_and_resume(lab, db, train(db), rng)
    return Verdict(Outcome.MENDED if killed else Outcome.UNAFFECTED, f"the job was killed {killed}")


def _foreground(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """`fedlens run` is killed; what it has recorded is resumed by a job."""
    db, file = folder / "runs.db", folder / "experiment.toml"
    copy(lab.encoded, folder)
    db.unlink()
    file.write_text(dumps(parse(EXPERIMENT)))
    process = Forked(lambda: fedlens(["run", str(file), "--db", str(db)]), folder / "process.log")
    store = Store(db)
    wait_for(lambda: is_prepared(db) and store.runs.newest_id() == RUN, "fedlens run records nothing")
    killed = _kill_and_resume(lab, db, process, rng)
    return Verdict(Outcome.MENDED if killed else Outcome.UNAFFECTED, f"fedlens run was killed {killed}")


def is_prepared(db: Path) -> bool:
    """Return whether the tables exist."""
    try:
        return db.exists() and Store(db).runs.newest_id() >= 0
    except FedLensError:
        return False


def supervise(db: Path, log: Path) -> Forked:
    """Start a supervisor.

    Its jobs are not forked but started as usual, which takes seconds: it keeps a connection of SQLite open,
    and a process with one must not be forked.
    """
    serve = partial(supervisor.serve, db, machines=lambda store: ThisMachine(["cpu"]), tick=0.05)
    return Forked(serve, log)


def _supervisor(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The supervisor dies, its job or both; the next supervisor takes over what lives."""
    db = copy(lab.encoded, folder)
    store, victim = Store(db), str(rng.choice(["supervisor", "job", "both"]))
    first = supervise(db, folder / "supervisor.log")
    try:
        wait_for_a_moment(db, first, rng)
        pids = [row["pid"] for row in store.jobs.live(RUNS) if row["pid"]]
        if victim != "job":
            first.kill()
        if victim != "supervisor":
            for pid in pids:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
        second = supervise(db, folder / "supervisor.log")
        wait_for(lambda: run(db).ended and run(db).status not in ("running", "stopping"), "no end of the run")
        if run(db).status != "done":
            store.runs.resume([RUN])
            wait_for(lambda: run(db).status in ("done", "failed"), "no end of the resumed run")
        lab.check_rows(db)
        second.kill()
    finally:
        first.kill()
    return Verdict(Outcome.MENDED, f"killed: {victim}")


FAMILIES = (Family("kill", "kill -9 of a job, its supervisor or `fedlens run`; resumed", 100, attempt),)
