"""A disk that is full, fails or has no more file handles while a run trains."""

from __future__ import annotations

import builtins
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from faults.kill import wait_for_a_moment
from faults.lab import Lab, check_at_rest, copy, finish, judge_end, train
from faults.verdict import Family, Verdict

TMPFS_BYTES = 24 << 20
LEFT_BYTES = 40_000  # free bytes at most, when the disk has become full


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Let one thing fail while a run trains, mend it, and resume."""
    kinds: dict[str, Callable[..., Verdict]] = {"full": _full, "EIO": _injected, "EMFILE": _no_handles}
    kind = str(rng.choice(list(kinds), p=[0.5, 0.3, 0.2]))
    return kinds[kind](lab, folder, rng)


def _full(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """The disk becomes full at a random moment, with a random rest of free bytes."""
    disk = folder / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "fedlens-faults", str(disk)]
    subprocess.run(["mount", *options], check=True)
    try:
        db, ballast = copy(lab.encoded, disk), disk / "ballast"
        process = train(db, log=folder / "process.log")
        wait_for_a_moment(db, process, rng)
        free = shutil.disk_usage(disk).free - int(rng.integers(LEFT_BYTES))
        ballast.write_bytes(bytes(max(0, free)))
        process.wait()
        ballast.unlink()
        said = judge_end(db, process)
        check_at_rest(db, [process])
        finish(lab, db, process)
        return Verdict(said.outcome, f"disk full: {said.what}")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


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
    builtins.open = failing(builtins.open, opens_to_write)  # type: ignore[assignment]
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


def _root() -> str | None:
    return None if os.geteuid() == 0 else "a small file system can be mounted by root only"


FAMILIES = (Family("disk", "a full disk, EIO and EMFILE while a run trains; resumed", 40, attempt, _root),)
