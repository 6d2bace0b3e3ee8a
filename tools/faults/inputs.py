"""Mutated CSV, JSON and TOML, other databases and paths: accepted as written, or refused in one line."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.config import dumps, expand, load, parse
from fedcore.engine.plan import plan
from fedcore.store import Store
from tools.faults.bits import damage
from tools.faults.family import Family
from tools.faults.lab import EXPERIMENT, RUN, Defect, Lab, copy, export
from tools.faults.mutate import TOKENS, mutate_bytes, mutate_json, mutate_lines
from tools.faults.verdict import Outcome, Verdict

PATIENCE_SECONDS = 60
PATHS = (
    "", ".", "..", "/", "/proc", "/proc/self", "/dev/zero", "/dev/null", "/etc/passwd", "~", "~nobody",
    "a\x00b", "x" * 5000, "/" + "a/" * 2000, "\ud800", "C:\\Windows", "file:///etc/passwd", "http://localhost/x",
)  # fmt: skip


def timed(attempt: Callable[..., Verdict], lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Make an attempt in this process, silently, and end it when it hangs."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {PATIENCE_SECONDS} s")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE_SECONDS)
    logging.disable(logging.CRITICAL)
    try:
        return attempt(lab, folder, rng)
    finally:
        signal.alarm(0)
        logging.disable(logging.NOTSET)


def _imported(lab: Lab, folder: Path, name: str, content: bytes) -> Verdict:
    """Import a file; if it is accepted, what was recorded must be exported and imported again as it is."""
    file, db = folder / name, copy(lab.empty, folder)
    file.write_bytes(content)
    store = Store(db)
    store.imports.file(file, "Imported", "rotated-digits")
    try:
        text = store.experiments.to_json([e.id for e in store.experiments.all(include_archived=True)])
        export(db)
    except Exception as error:
        raise Defect(f"accepted, but cannot be exported: {type(error).__name__}: {error}") from error
    again, other = folder / "again.json", copy(lab.empty, folder / "again")
    again.write_text(text, encoding="utf-8")
    Store(other).imports.file(again)
    if Store(other).experiments.to_json([1]) != text and name.endswith(".json"):
        raise Defect("accepted, but reads back differently")
    return Verdict(Outcome.UNAFFECTED, "accepted")


def attempt_csv(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Import a mutated table of results."""
    content = lab.table
    if rng.random() < 0.6:
        content = mutate_lines(content, b",", rng)
    else:
        content = mutate_bytes(content, rng)
    return _imported(lab, folder, "results.csv", content)


def attempt_json(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Import a mutated experiment."""
    content = (mutate_json if rng.random() < 0.7 else mutate_bytes)(lab.json, rng)
    return _imported(lab, folder, "experiment.json", content)


def attempt_toml(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Read a mutated experiment file; if it is accepted, it must be written and read back equal."""
    file, text = folder / "experiment.toml", lab.tomls[rng.integers(len(lab.tomls))]
    file.write_bytes(mutate_lines(text, b" = ", rng) if rng.random() < 0.5 else mutate_bytes(text, rng))
    experiment = load(file)
    written = folder / "written.toml"
    written.write_text(dumps(experiment), encoding="utf-8")
    try:
        again = load(written)
    except FedLensError as error:
        raise Defect(f"our own file is refused: {error}") from error
    if again != experiment:
        raise Defect("it reads back differently")
    with suppress(FedLensError):
        expand(experiment)
    return Verdict(Outcome.UNAFFECTED, "accepted")


def attempt_merge(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Merge a damaged database."""
    other, db = folder / "other.db", copy(lab.empty, folder)
    other.write_bytes((lab.done / "runs.db").read_bytes())
    done = ", ".join(damage(other, rng) for _ in range(rng.integers(1, 4)))
    Store(db).imports.database(other)
    try:
        export(db)
    except Exception as error:
        raise Defect(f"{done}: merged, but cannot be exported: {type(error).__name__}: {error}") from error
    return Verdict(Outcome.UNAFFECTED, f"{done}: merged")


def attempt_path(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Name an odd path where one is expected."""
    path = str(rng.choice(PATHS)) + (str(rng.choice(TOKENS)) if rng.random() < 0.4 else "")
    where: dict[str, Callable[[], object]] = {
        "data.root": lambda: plan(parse({**EXPERIMENT, "data": {"name": "folder", "root": path}})),
        "methods.file": lambda: plan(parse({**EXPERIMENT, "methods": [{"name": "own", "file": path}]})),
        "backbone.pretrained": lambda: plan(
            parse({**EXPERIMENT, "backbone": {"name": "ViT-B-32", "pretrained": path}})
        ),
        "db": lambda: Store(path).runs.get([RUN]),
        "csv": lambda: Store(copy(lab.empty, folder)).imports.csv(path, "Imported"),
        "toml": lambda: load(path),
    }
    name = str(rng.choice(list(where)))
    try:
        where[name]()
    except FedLensError:
        raise
    except Exception as error:
        error.add_note(f"{name} = {path[:60]!r}")
        raise
    return Verdict(Outcome.UNAFFECTED, f"{name} = {path[:60]!r} accepted")


SHARES = {attempt_csv: 0.3, attempt_json: 0.3, attempt_toml: 0.3, attempt_merge: 0.06, attempt_path: 0.04}


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Give one mutated input to one reader."""
    kinds = list(SHARES)
    return timed(kinds[rng.choice(len(kinds), p=list(SHARES.values()))], lab, folder, rng)


FAMILIES = (Family("inputs", "mutated CSV, JSON, TOML, databases and paths", 10_000, attempt),)
