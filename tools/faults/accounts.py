"""Another account tries to hold the locks that FedLens waits for, and to replace their files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np

from fedcore.store.liveness import lock_folder
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.kill import supervise, wait_for_a_moment
from tools.faults.lab import Defect, Lab, copy, run, wait_for
from tools.faults.verdict import Outcome, Verdict

OTHER = 65534  # nobody
WIDE = (0o600, 0o644, 0o666)


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Let another account try every lock file at a random moment of a run."""
    db = copy(lab.encoded, folder)
    folder.chmod(0o755)
    lock, wide = db.with_name(f"{db.name}.lock"), int(rng.choice(WIDE))
    lock.touch()
    lock.chmod(wide)  # as an earlier release, or an umask, left it
    process = supervise(db, folder / "supervisor.log")
    wait_for(lambda: process.poll() is not None or list(lock_folder(db).glob("*.lock")), "no owner's lock")
    wait_for_a_moment(db, process, rng)
    files = [lock, *sorted(lock_folder(db).glob("*"))]
    files += sorted((folder / "artifacts" / "encodings").rglob("*.lock"))
    report = folder / "report"
    report.touch()
    report.chmod(0o666)
    other = Forked(
        lambda: try_locks(folder, [str(file.relative_to(folder)) for file in files], report), folder / "log"
    )
    if other.wait():
        raise Defect(f"the other account could not try: {other.log.read_text()[-200:]}")
    if held := report.read_text():
        raise Defect(f"rights {wide:o}: another account could {held.strip()}")
    wait_for(lambda: run(db).status not in ("queued", "running"), "no end of the run")
    lab.check_rows(db)
    return Verdict(Outcome.REFUSED, f"rights {wide:o}: {len(files)} files, none could be opened or replaced")


def try_locks(folder: Path, names: list[str], report: Path) -> None:
    """Be another account that tries to open, lock and rename files; writes down what it could do."""
    said = report.open("a", buffering=1)
    os.chdir(folder)
    os.setgroups([])
    os.setgid(OTHER)
    os.setuid(OTHER)
    for name in [*names, "runs.db.owners/new.lock"]:
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
            try:
                file = os.open(name, flags)
            except PermissionError:
                continue
            except FileNotFoundError:  # its job has ended
                continue
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            said.write(f"open {name} ({flags}) ")
        try:
            os.rename(name, f"{name}.mine")
            said.write(f"rename {name} ")
        except (PermissionError, FileNotFoundError):
            continue  # as it must be, or its job has ended


def _root() -> str | None:
    return None if os.name == "posix" and os.geteuid() == 0 else "only root can be another account"


FAMILIES = (Family("accounts", "another account tries to hold or replace lock files", 12, attempt, _root),)
