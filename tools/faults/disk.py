"""A disk that is full, fails or has no more file handles while a run trains."""

from __future__ import annotations

import builtins
import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.store import Store
from tools.faults.family import Family
from tools.faults.kill import supervise, wait_for_a_moment
from tools.faults.lab import (
    RUN,
    TRACEBACK,
    Defect,
    Lab,
    check_at_rest,
    copy,
    finish,
    judge_end,
    run,
    tail,
    train,
    wait_for,
)
from tools.faults.verdict import Outcome, Verdict

TMPFS_BYTES = 24 << 20
LEFT_BYTES = 40_000  # free bytes at most, when the disk has become full


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Let one thing fail while a run trains, mend it, and resume."""
    kinds = {_full: 0.4, _supervised: 0.2, _injected: 0.25, _no_handles: 0.15}
    kind = list(kinds)[rng.choice(len(kinds), p=list(kinds.values()))]
    return kind(lab, folder, rng)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system for one attempt."""
    disk = folder / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "fedlens-faults", str(disk)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, left: int, name: str = "ballast") -> Path:
    """Fill the disk until some bytes are left; returns the file to delete again."""
    ballast = disk / name
    with suppress(OSError):  # others take the last bytes at the same time
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - left)))
    return ballast


def _full(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The disk becomes full at a random moment, with a random rest of free bytes."""
    with small_disk(folder) as disk:
        db = copy(lab.encoded, disk)
        process = train(db, log=folder / "process.log")
        wait_for_a_moment(db, process, rng)
        ballast = fill(disk, int(rng.integers(LEFT_BYTES)))
        process.wait()
        ballast.unlink()
        said = judge_end(db, process)
        check_at_rest(db, [process])
        finish(lab, db, process)
        return Verdict(said.outcome, f"disk full: {said.what}")


def _supervised(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The disk becomes full under a supervisor, which must live on and do the resumed run."""
    with small_disk(folder) as disk:
        db = copy(lab.encoded, disk)
        process = supervise(db, folder / "supervisor.log")
        wait_for_a_moment(db, process, rng)
        ballast = fill(disk, int(rng.integers(LEFT_BYTES)))
        time.sleep(float(rng.uniform(0, 2)))
        if process.poll() is not None:
            raise Defect(f"the supervisor ended with {process.returncode}: {tail(process.log)}")
        ballast.unlink()
        wait_for(lambda: run(db).status not in ("queued", "running"), "no end of the run")
        said = f"{run(db).status}: {run(db).status_text}"
        if run(db).status != "done":
            Store(db).runs.resume([RUN])
            wait_for(lambda: run(db).status == "done", "the same supervisor does not do the resumed run")
        lab.check_rows(db)
        if TRACEBACK in process.log.read_text():
            return Verdict(Outcome.RAW, f"disk full under a supervisor: {tail(process.log)}")
        return Verdict(Outcome.MENDED, f"disk full under a supervisor: {said}")


def _injected(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Some calls that write fail with EIO, for a while."""
    db = copy(lab.encoded, folder)
    first, count = int(rng.integers(1, 60)), int(rng.choice([1, 3, 1000]))
    process = train(db, before=lambda: _failing(first, count))
    process.wait()
    said = judge_end(db, process)
    check_at_rest(db, [process])
    finish(lab, db, process)
    return Verdict(said.outcome, f"EIO at write {first} and {count - 1} after it: {said.what}")


def _failing(first: int, count: int) -> None:
    """Let fsync, rename and opening for writing fail from the ``first`` such call on."""
    calls = 0

    def failing(function: Callable[..., Any], writes: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            if writes(*args, **options):
                calls += 1
                if first <= calls < first + count:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
            return function(*args, **options)

        return call

    def always(*args: Any, **options: Any) -> bool:
        return True

    def opens_to_write(path: Any, mode: str = "r", *args: Any, **options: Any) -> bool:
        return not isinstance(path, int) and any(letter in mode for letter in "wax+")

    os.fsync = failing(os.fsync, always)
    os.replace = failing(os.replace, always)
    builtins.open = failing(builtins.open, opens_to_write)
    Path.open = failing(Path.open, opens_to_write)  # type: ignore[method-assign]


def _no_handles(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The process may open only a few more files."""
    db = copy(lab.encoded, folder)
    handles = int(rng.integers(4, 24))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))

    process = train(db, before=limit)
    process.wait()
    said = judge_end(db, process)
    check_at_rest(db, [process])
    finish(lab, db, process)
    return Verdict(said.outcome, f"{handles} file handles: {said.what}")


def root() -> str | None:
    """Say why a family that needs a small disk cannot be tried here."""
    return None if os.geteuid() == 0 else "a small file system can be mounted by root only"


FAMILIES = (Family("disk", "a full disk, EIO and EMFILE while a run trains; resumed", 40, attempt, root),)
