"""Reads what FedLens 0.1 recorded; nothing else in the code knows of that version.

Its tables and columns are those of version 1. What differs is the list of migrations in place of a version,
rounds that were recorded before there were digests, and configs: some defaults have changed since, and some
hyper-parameters have other names.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcore.cache.integrity import new_digest
from fedcore.config import Experiment, MethodEntry, RunConfig
from fedcore.config.identity import group_hash, stable_config
from fedcore.files import publish
from fedcore.store.damage import rounds_without, write_digests

LAST_STEP = "0009_marks_and_views"
DIGESTS_COMPLETED = "0010_complete_digests"
"""A step of development versions between 0.1 and 1.0, which have the defaults of 1.0."""
DEFAULTS: dict[str, dict[str, object]] = {
    "facmic": {"optimiser_state": "fresh", "weighting": "uniform", "target_features": "adapted"},
    "fedapt": {"keys": "trained", "weight_decay": 5e-4},
    "fedgh": {"local_epochs": 1, "momentum": 0.0, "weight_decay": 0.0},
    "fedotp": {"local_start": "own"},
}
"""Hyper-parameters of 0.1 whose defaults are different now, or which had no field."""
FEDAPT_NOTICE = {
    "message": "recorded by FedLens 0.1, whose FedAPT had a bias in its query and divided scores by their "
    "biased standard deviation; FedAPT of 1.0 gives other numbers",
    "repeats_exactly": False,
}
RENAMED_METHODS = ("fedalign", "zero-shot")
CLASS_TEXTS = {"gt": "description", "st": "template"}
"""Values of ``style``, which is ``class_text`` now."""
_NO_DIGEST = b'"digest":"' + b"0" * 32
_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})')


def steps(connection: sqlite3.Connection) -> set[str]:
    """Return the migrations that a database of 0.1 had; an empty set for any other database."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name='_sqlite_migrations'").fetchone():
        return set()
    rows = connection.execute("SELECT name FROM _sqlite_migrations WHERE migration_set='fedlens'")
    return {str(row[0]) for row in rows}


def refusal(path: Path) -> str:
    """Return the sentence that refuses to open a database of 0.1 directly."""
    return (
        f"{path} was recorded by FedLens 0.1; copy it into a new database in another folder with "
        f"`fedlens merge {path} --db FOLDER/runs.db`"
    )


def too_early(path: Path) -> str:
    """Return the sentence that refuses a database of an early 0.1, which lacks tables."""
    return f"{path} is of an early FedLens 0.1; open it once with the last 0.1, then merge it"


def convert(connection: sqlite3.Connection, done: set[str]) -> None:
    """Convert the rows of 0.1, which lie in tables of version 1 already.

    Args:
        done: the migrations that the database had, see ``steps``.
    """
    defaults = {} if DIGESTS_COMPLETED in done else DEFAULTS
    trained = {row[0] for row in connection.execute("SELECT experiment_id FROM runs WHERE origin='engine'")}
    for row in connection.execute("SELECT id, config FROM experiments").fetchall():
        experiment = Experiment.model_validate_json(row["config"])
        if row["id"] in trained:
            changed = {
                "methods": tuple(_method(entry, defaults) for entry in experiment.methods),
                "sweep": dict(_sweep(path, values) for path, values in experiment.sweep.items()),
            }
            text = experiment.model_copy(update=changed).model_dump_json()
            connection.execute("UPDATE experiments SET config=? WHERE id=?", [text, row["id"]])
    for row in connection.execute("SELECT id, origin, label, config, notices FROM runs").fetchall():
        run, notices = RunConfig.model_validate_json(row["config"]), row["notices"]
        if row["origin"] == "engine":
            run = run.model_copy(update={"method": _method(run.method, defaults)})
            if run.method.name == "fedapt" and defaults:
                notices = json.dumps([*json.loads(notices), FEDAPT_NOTICE])
        text = run.model_dump_json()
        connection.execute(
            "UPDATE runs SET config=?, group_hash=?, label=?, notices=? WHERE id=?",
            [text, group_hash(run), _label(run.method.name, row["label"]), notices, row["id"]],
        )
        write_digests(connection, row["id"], rounds_without(connection, row["id"]))


def _method(entry: MethodEntry, defaults: Mapping[str, dict[str, object]]) -> MethodEntry:
    config = dict(entry.config)
    if entry.name in RENAMED_METHODS and "style" in config:
        config["class_text"] = CLASS_TEXTS.get(str(config.pop("style")))
    if entry.file is None:
        config = {**defaults.get(entry.name, {}), **config}
    label = entry.label and _label(entry.name, entry.label)
    return entry.model_copy(update={"config": config, "label": label})


def _sweep(path: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    method, _, field = path.removeprefix("methods.").rpartition(".")
    if field != "style" or method not in (*RENAMED_METHODS, "*"):
        return path, values
    return f"methods.{method}.class_text", tuple(CLASS_TEXTS.get(value, value) for value in values)


def _label(method: str, label: str) -> str:
    """Return a label with the present names of swept values: ``FedAlign (style st)``."""
    before, bracket, values = label.rpartition("(")
    if method in RENAMED_METHODS and bracket:
        for former, current in CLASS_TEXTS.items():
            values = re.sub(rf"\bstyle {former}(?=[,)])", f"class_text {current}", values)
    return before + bracket + values


def copy_files(folder: Path, target: Path, run: RunConfig) -> None:
    """Copy the folder of a run; its checkpoints get the identity that 1.0 gives to the run's config."""
    # the folders of tasks stay behind, since their rows do
    shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("tasks"))
    for path in target.glob("*.safetensors"):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        stored = _DIGEST.search(content, 8, start)
        if not stored or new_digest(_DIGEST.sub(_NO_DIGEST, content, 1)).hexdigest() != stored[1].decode():
            continue  # a damaged file stays as it is, so that it is refused when it is used
        header = json.loads(content[8:start])
        identity = [stable_config(run), json.loads(header["__metadata__"]["run"])[1]]
        header["__metadata__"] |= {"run": json.dumps(identity, sort_keys=True), "digest": "0" * 32}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # safetensors aligns its tensors
        content = len(text).to_bytes(8, "little") + text + content[start:]
        digest = b'"digest":"' + new_digest(content).hexdigest().encode()
        part = path.with_suffix(".part")
        part.write_bytes(content.replace(_NO_DIGEST, digest, 1))
        publish(part, path)
