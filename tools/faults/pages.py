"""Pages of a database that a disk lost, misplaced, swapped or wrote half; rounds without their digest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from fedcore.base.errors import FedLensError
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import Defect, Difference, Lab, copy, export, listed, tail
from tools.faults.verdict import Outcome, Verdict

KINDS = ("lost", "misdirected", "swapped", "half-old", "without digest")
SECTOR = 512  # bytes that a disk writes whole


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Spoil a page or a digest of a database that has been written twice, then export and list it."""
    db = copy(lab.later, folder)
    kind = str(rng.choice(KINDS))
    done = _without_digest(db, rng) if kind == KINDS[-1] else spoil(db, lab.done / "runs.db", kind, rng)
    exported = judge_export(db, done, lab.later_exported)
    return max(exported, judge_list(db, done, lab.later_listed), key=lambda v: list(Outcome).index(v.outcome))


def spoil(db: Path, before: Path, kind: str, rng: np.random.Generator) -> str:
    """Damage a page as a failing disk does; ``before`` is the earlier file. Returns a description."""
    new, old = bytearray(db.read_bytes()), before.read_bytes()
    size = int.from_bytes(new[16:18], "big")
    old = old.ljust(len(new), b"\0")  # a place that was never written
    pages = [new[at : at + size] for at in range(0, len(new), size)]
    former = [old[at : at + size] for at in range(0, len(new), size)]
    changed = [number for number, page in enumerate(pages) if page != former[number]]
    one, other = int(rng.choice(changed)), int(rng.integers(len(pages)))
    if kind == "misdirected":  # its own place keeps what was there, another one loses its content
        pages[other], pages[one] = pages[one], bytearray(former[one])
    elif kind == "swapped":
        pages[one], pages[other] = pages[other], pages[one]
    else:
        cut = 0 if kind == "lost" else SECTOR * int(rng.integers(1, size // SECTOR))
        pages[one][cut:] = former[one][cut:]
    db.write_bytes(b"".join(pages))
    both = f" and {other}" if kind in ("misdirected", "swapped") else ""
    return f"{kind}: page {one} of {len(pages)}{both}"


def _without_digest(db: Path, rng: np.random.Generator) -> str:
    """Delete the digest of a round, with another number in that round or not."""
    number, change = int(rng.integers(4)), bool(rng.random() < 0.5)
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("DELETE FROM digests WHERE run_id=1 AND round=?", [number])
        if change:
            statement = "UPDATE accuracy SET correct=abs(correct-1) WHERE run_id=1 AND round=?"
            connection.execute(statement, [number])
    return f"round {number} without digest" + (", its numbers changed" if change else "")


def judge_export(db: Path, done: str, expected: str) -> Verdict:
    """Export a database in a separate process, and judge what it says or writes.

    Raises:
        Difference: when it differs from ``expected``.
    """
    result, log = db.with_name("export.csv"), db.with_name("export.log")

    def write() -> int:
        try:
            result.write_text(export(db))
        except FedLensError as error:
            result.write_text(str(error))
            return 3
        return 0

    code = Forked(write, log).wait()
    text = result.read_text() if result.exists() else ""
    if code == 3:
        return Verdict(Outcome.REFUSED, f"{done}: {text}")
    if code:
        return Verdict(Outcome.RAW, f"{done}: {tail(log) or f'exit status {code}'}")
    if text != expected:
        pairs = zip(text.splitlines(), expected.splitlines(), strict=False)
        first = next((f"{a} instead of {b}" for a, b in pairs if a != b), "rows are missing")
        raise Difference(f"{done}: {first}")
    return Verdict(Outcome.UNAFFECTED, done)


def judge_list(db: Path, done: str, expected: str) -> Verdict:
    """List a database, and judge whether numbers other than the ``expected`` ones come with a warning.

    Raises:
        Defect: when an error is not one line.
        Difference: when there are other numbers and nothing is said.
    """
    code, text = listed(db)
    said = next((line for line in text.splitlines() if line.startswith(("error: ", "warning: "))), "")
    if "--debug shows where" in text or "Traceback" in text:
        return Verdict(Outcome.RAW, f"{done}: list: {said or tail(db.with_name('list.log'))}")
    if code and not said:
        raise Defect(f"{done}: list ended with {code} and said nothing: {text[-200:]}")
    if said:
        return Verdict(Outcome.REFUSED if code else Outcome.MENDED, f"{done}: list: {said}")
    if text != expected:
        raise Difference(f"{done}: list shows {text!r} and says nothing")
    return Verdict(Outcome.UNAFFECTED, done)


FAMILIES = (
    Family(
        "pages",
        "lost, misdirected, swapped and half-old pages of databases, rounds without digest; exported, listed",
        100,
        attempt,
    ),
)
