"""A limit of memory (RLIMIT_AS) that is met while a run trains, or before it can."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import numpy as np
import psutil

from fedcore.config import dumps, parse
from fedcore.jobs import job
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import (
    EXPERIMENT,
    Defect,
    Lab,
    check_at_rest,
    copy,
    finish,
    resume,
    run,
    tail,
    train,
)
from tools.faults.verdict import Outcome, Verdict


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Let a run have little more memory than its process has, then resume it without a limit."""
    if rng.random() < 0.2:
        return _command(lab, folder, rng)
    state = (lab.encoded, lab.queued, lab.interrupted)[rng.integers(3)]
    db, more = copy(state, folder), int(2 ** rng.uniform(20, 28))
    process = (resume if state is lab.interrupted else train)(db, before=lambda: _limit(more))
    process.wait()
    check_at_rest(db, [process])
    row, code = run(db), process.wait()
    done = f"{more / 2**20:.0f} MiB more: {row.status}: {row.status_text or ''}"
    if row.status not in ("done", "interrupted"):
        raise Defect(done)
    finish(lab, db, process)
    if code == 1:  # Python's traceback; a library or the loader that ends the process has another status
        return Verdict(Outcome.RAW, f"{done}; exit status {code}: {tail(process.log)}")
    noticed = row.status == "interrupted" or bool(row.notices)
    return Verdict(Outcome.MENDED if noticed else Outcome.UNAFFECTED, done)


def _limit(more: int) -> None:
    job.RETRY_SECONDS = (0.0, 0.0, 0.0)
    most = psutil.Process().memory_info().vms + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _command(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """`fedlens run` in a new process, which may have too little memory even for torch."""
    db, file = copy(lab.encoded, folder), folder / "experiment.toml"
    file.write_text(dumps(parse(EXPERIMENT)))
    most = int(2 ** rng.uniform(27, 32))

    def start() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        os.execv(sys.executable, [sys.executable, "-m", "fedcore", "run", str(file), "--db", str(db)])

    process = Forked(start, folder / "command.log")
    code, text = process.wait(300), ""
    text = process.log.read_text(errors="replace")
    done = f"fedlens run with {most / 2**20:.0f} MiB: {code}: {tail(process.log)}"
    said = any(line.startswith("error: ") for line in text.splitlines())  # a library may crash at the exit
    if "Traceback" in text or "MemoryError:" in text or (code and not said):
        return Verdict(Outcome.RAW, done)
    return Verdict(Outcome.UNAFFECTED if code == 0 else Outcome.REFUSED, done)


def _linux() -> str | None:
    return None if sys.platform == "linux" else "limits of memory are Linux' here"


FAMILIES = (
    Family("memory", "real limits of memory (RLIMIT_AS) while a run trains; resumed", 40, attempt, _linux),
)
