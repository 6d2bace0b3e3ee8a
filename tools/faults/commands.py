"""kill -9 inside commands that write: nothing of them has happened, or all, and they can be repeated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedcore.cli.main import main as fedlens
from fedcore.jobs.analysis import submit
from fedcore.jobs.process import run_process
from fedcore.store import Store
from fedcore.store.jobs import TASKS
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import RUN, Defect, Lab, check_at_rest, copy, tail, wait_for
from tools.faults.restore import check_sound
from tools.faults.verdict import Outcome, Verdict

COMMANDS: dict[str, list[str]] = {
    "merge": ["merge", "{folder}/other.db"],
    "import": ["import", "{folder}/experiment.json"],
    "import csv": ["import", "{folder}/results.csv", "--experiment", "New"],
    "restore": ["restore", "{folder}/other.db"],
    "vacuum": ["vacuum"],
    "delete": ["delete", "1", "--experiment", "--yes"],
    "report": ["report", "1", "-o", "{folder}/report"],
    "page": ["report", "1", "-o", "{folder}/report.html"],
    "export": ["export", "1", "--table", "rounds", "-o", "{folder}/rounds.csv"],
}
_seconds: dict[str, float] = {}
"""How long each command takes undisturbed."""
_afterwards: dict[str, str] = {}
"""The exports of the database after each command."""


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Kill a command at a random moment and look at the database; then repeat it."""
    if rng.random() < 0.15:
        return _analysis(lab, folder, rng)
    name = str(rng.choice(list(COMMANDS)))
    if name not in _seconds:
        begun, undisturbed = time.monotonic(), lab.folder / name
        _run(lab, undisturbed, name).wait()
        _seconds[name] = time.monotonic() - begun
        _afterwards[name] = check_sound(undisturbed / "runs.db")
    process = _run(lab, folder, name)
    before = lab.later_exported
    if rng.random() < 0.5:
        time.sleep(float(rng.uniform(0, 1.1 * _seconds[name])))
    else:  # at its first file, which may be SQLite's log, or at one of the next
        there = _files(folder) | {"process.log"}
        some = len(there) + int(rng.integers(1, 4))
        wait_for(
            lambda: process.poll() is not None or len(_files(folder) | there) >= some, "nothing is written"
        )
        time.sleep(float(rng.uniform(0, 0.005)))
    process.kill()
    exported = check_sound(folder / "runs.db")
    done = f"{name} killed" if process.returncode == -9 else name
    if exported not in (before, _afterwards[name]):
        raise Defect(f"{done}: a part of it has happened")
    made = _results(folder)
    if made and made != _results(lab.folder / name):
        raise Defect(f"{done}: its file or folder is incomplete")
    if exported == before and not made and process.returncode:
        process = Forked(_call(folder, name), folder / "again.log")
        if process.wait():
            raise Defect(f"{done}: it cannot be repeated: {tail(process.log)}")
        if check_sound(folder / "runs.db") != _afterwards[name] or _results(folder) != _results(
            lab.folder / name
        ):
            raise Defect(f"{done}: repeated, it did something else")
        return Verdict(Outcome.MENDED, f"{done}, repeated")
    return Verdict(Outcome.UNAFFECTED, f"{done}: all of it had happened")


def _call(folder: Path, name: str) -> Callable[[], int]:
    arguments = [part.format(folder=folder) for part in COMMANDS[name]]
    return lambda: fedlens([*arguments, "--db", str(folder / "runs.db")])


def _run(lab: Lab, folder: Path, name: str) -> Forked:
    """Start a command on a database that holds two experiments."""
    copy(lab.later, folder)
    (folder / "experiment.json").write_bytes(Store(lab.pair / "runs.db").experiments.to_json([1]).encode())
    (folder / "results.csv").write_bytes(lab.table)
    shutil.copy(lab.pair / "runs.db", folder / "other.db")
    return Forked(_call(folder, name), folder / "process.log")


def _files(folder: Path) -> set[str]:
    return {str(path) for pattern in ("*", "report*/*") for path in folder.glob(pattern)}


def _results(folder: Path) -> dict[str, int]:
    """Return the files that a report or an export has made, with their sizes."""
    made = [folder / "report.html", folder / "rounds.csv", *(folder / "report").rglob("*")]
    return {str(path.relative_to(folder)): path.stat().st_size for path in made if path.is_file()}


def _analyse(db: Path) -> Forked:
    task = submit(Store(db), RUN, "predictions")
    return Forked(lambda: run_process(Store(db).tasks.claim(task), "cpu"), db.with_name("process.log"))


def _analysis(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Kill an analysis, and submit it again."""
    name = "analysis"
    if name not in _seconds:
        begun, db = time.monotonic(), copy(lab.done, lab.folder / name)
        _analyse(db).wait()
        _seconds[name] = time.monotonic() - begun
    db = copy(lab.done, folder)
    process = _analyse(db)
    time.sleep(float(rng.uniform(0, 1.1 * _seconds[name])))
    process.kill()
    check_at_rest(db, [process])
    Store(db).jobs.reconcile(table=TASKS)
    was = Store(db).tasks.recent()[0].status
    if was not in ("done", "interrupted", "queued"):
        raise Defect(f"the killed analysis is {was}")
    if was != "done":
        process = _analyse(db)
        process.wait()
    task, expected = Store(db).tasks.recent()[0], Store(lab.folder / name / "runs.db").tasks.recent()[0]
    if task.status != "done":
        raise Defect(f"the analysis is {task.status} when it is repeated: {task.error}")
    arrays, others = task.arrays(), expected.arrays()
    if task.result != expected.result or any(not np.array_equal(arrays[n], others[n]) for n in others):
        raise Defect("the repeated analysis has another result")
    if check_sound(db) != lab.exported:
        raise Defect("the analysis has changed what was recorded")
    return Verdict(Outcome.UNAFFECTED if was == "done" else Outcome.MENDED, f"analysis killed: {was}")


FAMILIES = (
    Family(
        "commands",
        "`kill -9` of merge, import, restore, vacuum, delete, report, export and analyses; repeated",
        100,
        attempt,
    ),
)
