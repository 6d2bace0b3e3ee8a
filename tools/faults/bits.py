"""Flipped bits, zeroed blocks and truncation at random places of checkpoints, encodings and databases."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.store import Store
from tools.faults.family import Family
from tools.faults.lab import RUN, TRACEBACK, Difference, Lab, check_at_rest, copy, resume, run, tail
from tools.faults.pages import judge_export
from tools.faults.verdict import Outcome, Verdict

BLOCK = 512
USED = 0.8  # share of the places that are taken among the bytes other than zero


def damage(path: Path, rng: np.random.Generator) -> str:
    """Change a file as a failing disk does; returns what was done."""
    content = bytearray(path.read_bytes())
    kind, place = str(rng.choice(["bit", "block", "cut"], p=[0.7, 0.2, 0.1])), int(rng.integers(len(content)))
    if rng.random() < USED and any(content):  # a database has empty pages, where a change means nothing
        place = int(rng.choice(np.flatnonzero(np.frombuffer(content, np.uint8))))
    if kind == "bit":
        content[place] ^= 1 << int(rng.integers(8))
    elif kind == "block":
        place -= place % BLOCK
        content[place : place + BLOCK] = bytes(len(content[place : place + BLOCK]))
    else:
        del content[place:]
    if content == path.read_bytes():
        return f"{path.name}: nothing changed at {place}"
    path.write_bytes(content)
    return f"{path.name}: {kind} at {place:,} of {path.stat().st_size:,}"


def one_of(folder: Path, pattern: str, rng: np.random.Generator) -> Path:
    """Choose one of the files below a folder, each byte of them with equal probability."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file() and path.stat().st_size)
    sizes = np.array([path.stat().st_size for path in files], dtype=float)
    if rng.random() < 0.3:  # small files hold descriptions, which deserve more than their share
        sizes[:] = 1
    return files[rng.choice(len(files), p=sizes / sizes.sum())]


def attempt_checkpoint(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Damage a checkpoint of an interrupted run, and resume it."""
    db = copy(lab.interrupted, folder)
    newest_first = sorted((folder / "artifacts").glob("run-*/round-*"), reverse=True)
    which = rng.choice(["newest", "before", "all"], p=[0.7, 0.1, 0.2])
    files = {"newest": newest_first[:1], "before": newest_first[1:], "all": newest_first}[which]
    return resumed(lab, db, ", ".join(damage(file, rng) for file in files))


def attempt_encoding(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Damage an encoding, and train on it."""
    db = copy(lab.interrupted if rng.random() < 0.5 else lab.encoded, folder)
    done = damage(one_of(folder / "artifacts" / "encodings", "*", rng), rng)
    return resumed(lab, db, done)


def resumed(lab: Lab, db: Path, done: str) -> Verdict:
    """Resume a damaged run, and judge it by what it says and by its rows."""
    process = resume(db)
    process.wait()
    check_at_rest(db, [process])
    row = run(db)
    notices = "; ".join(note.message for note in row.notices)
    if row.status != "done":
        if TRACEBACK in (Store(db).runs.error(RUN) or "") + (db.parent / "process.log").read_text():
            return Verdict(Outcome.RAW, f"{done}: {row.status}: {row.status_text}; {tail(process.log)}")
        return Verdict(Outcome.REFUSED, f"{done}: {row.status_text}")
    try:
        lab.check_rows(db)
    except Difference as difference:
        raise Difference(f"{done}: {difference}; notices: {notices or 'none'}") from None
    said = {note.message for note in row.notices} - lab.notices
    return Verdict(Outcome.MENDED if said else Outcome.UNAFFECTED, f"{done}; {'; '.join(said)}")


def attempt_database(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Damage the database of a finished run, and export it."""
    db = copy(lab.done, folder)
    for suffix in ("-wal", "-shm"):
        db.with_name(db.name + suffix).unlink(missing_ok=True)
    done = damage(db, rng)
    return judge_export(db, done, lab.exported)


FAMILIES = (
    Family(
        "checkpoints",
        "bit flips, zeroed blocks and truncation of checkpoints, resumed",
        200,
        attempt_checkpoint,
    ),
    Family(
        "encodings", "bit flips, zeroed blocks and truncation of encodings, trained on", 200, attempt_encoding
    ),
    Family(
        "databases", "bit flips, zeroed blocks and truncation of databases, exported", 200, attempt_database
    ),
)
