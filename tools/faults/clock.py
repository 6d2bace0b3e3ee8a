"""Steps of the system clock, and heartbeats from the future."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import psutil

from fedcore.store import Store
from fedcore.store.database import writing
from fedcore.store.jobs import JOB_TABLES
from fedcore.store.liveness import STALE_SECONDS
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.kill import wait_for_a_moment
from tools.faults.lab import RUN, Defect, Lab, check_at_rest, copy, finish, run, train, wait_for
from tools.faults.verdict import Outcome, Verdict

STEPS = (-86_400.0, -3_600.0, -60.0, 60.0, 3_600.0, 86_400.0)


class Stepped:
    """The clock of this process, ``seconds`` off once they are set: time.time and what psutil tells by it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        clock, boot, created = time.time, psutil.boot_time, psutil.Process.create_time

        def shifted(read: Callable[..., float]) -> Callable[..., float]:
            return lambda *args: read(*args) + self.seconds

        mock.patch("time.time", shifted(clock)).start()
        mock.patch("psutil.boot_time", shifted(boot)).start()
        mock.patch("psutil.Process.create_time", shifted(created)).start()


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Step the clock of the run or of the process that watches it, or send a heartbeat ahead."""
    db, seconds = copy(lab.encoded, folder), float(rng.choice(STEPS))
    kind = str(rng.choice(["watcher", "run", "heartbeat"]))
    return {"watcher": _watcher, "run": _run, "heartbeat": _heartbeat}[kind](lab, db, seconds, rng)


def _watcher(lab: Lab, db: Path, seconds: float, rng: np.random.Generator) -> Verdict:
    """A page or supervisor reads another clock than the one at which the run began."""

    def watch() -> None:
        Stepped().seconds = seconds
        while not db.with_name("over").exists():
            for table in JOB_TABLES:
                Store(db).jobs.reconcile(table=table)
            time.sleep(0.02)

    process = train(db)
    wait_for_a_moment(db, process, rng)
    watcher = Forked(watch, db.parent / "watcher.log")
    process.wait()
    db.with_name("over").touch()
    watcher.wait()
    if run(db).status != "done" or run(db).attempt > 1:
        raise Defect(f"clock {seconds:+.0f} s: a healthy run became {run(db).status}: {run(db).status_text}")
    lab.check_rows(db)
    return Verdict(Outcome.UNAFFECTED, f"the clock of the watcher {seconds:+.0f} s")


def _run(lab: Lab, db: Path, seconds: float, rng: np.random.Generator) -> Verdict:
    """The clock is stepped while the run trains."""
    moment = float(rng.uniform(0, 1))

    def step() -> None:
        clock, begun = Stepped(), time.monotonic()
        time_of_run = time.time

        def now() -> float:
            clock.seconds = seconds if time.monotonic() - begun > moment else 0.0
            return time_of_run()

        mock.patch("time.time", now).start()

    process = train(db, before=step)
    while process.poll() is None:
        Store(db).jobs.reconcile()
        time.sleep(0.02)
    if run(db).status != "done" or run(db).attempt > 1:
        raise Defect(f"clock {seconds:+.0f} s: a healthy run became {run(db).status}: {run(db).status_text}")
    lab.check_rows(db)
    return Verdict(Outcome.UNAFFECTED, f"the clock of the run {seconds:+.0f} s after {moment:.1f} s")


def _heartbeat(lab: Lab, db: Path, seconds: float, rng: np.random.Generator) -> Verdict:
    """A dead run of another machine has a heartbeat of the future, or an old one."""
    process = train(db)
    wait_for_a_moment(db, process, rng)
    process.kill()
    if run(db).status in ("done", "queued"):
        return Verdict(Outcome.UNAFFECTED, "the run had ended, or had not begun")
    ahead = abs(seconds) + STALE_SECONDS
    with writing(db) as database:
        database.execute(
            "UPDATE runs SET heartbeat_at=?, owner='elsewhere/' || owner WHERE id=?",
            [time.time() + ahead, RUN],
        )

    def reconciled() -> bool:
        Store(db).jobs.reconcile()
        return run(db).status == "interrupted"

    wait_for(reconciled, f"a heartbeat {ahead:.0f} s ahead: the row says {run(db).status}", 60)
    check_at_rest(db, [])
    finish(lab, db, process)
    return Verdict(Outcome.MENDED, f"a heartbeat {ahead:.0f} s ahead")


FAMILIES = (Family("clock", "clock steps of a minute to a day, heartbeats from the future", 24, attempt),)
