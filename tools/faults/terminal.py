"""Names with control characters in every column and file name: none of them reaches a terminal."""

from __future__ import annotations

import csv
import errno
import io
import os
import pty
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from fedcore.cli.main import main as fedlens
from fedcore.config import dumps, parse
from fedcore.store import Store
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import EXPERIMENT, Defect, Lab, copy
from tools.faults.verdict import Outcome, Verdict

PAYLOADS = (
    "\x1b]52;c;cm0gLXJm\x07", "\x1b]0;title\x1b\\", "\x1b[6n", "\x9b6n", "\x9d52;c;eA==\x9c", "a\x07b",
    "a\x08\x08b", "\x7f", "\u202egnp.exe", "\u2066abc\u2069", "one\rtwo", "\x0e\x0f", "\x90q\x9c",
)  # fmt: skip
"""Clipboard and title of the terminal, questions that it answers by typing, bells, overrides of direction."""
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\x1b\\]|\x1b\\[6n"
)
ESCAPE = re.compile("\x1b|\r(?!\r*\n)")  # bars are drawn with both
COLUMNS = {
    "experiments": ("name", "notes", "tags", "config"),
    "runs": ("label", "method", "message", "reason", "error", "notices", "held_out", "config", "environment"),
    "entities": ("name", "domain"),
    "tasks": ("key", "message", "error", "status_text", "args"),
    "diagnostics": ("name",),
    "views": ("name", "content"),
    "slots": ("device",),
}
JSON = {
    "tags": "json_array(:text)",
    "notices": "json_array(json_object('message', :text, 'round', 1))",
    "config": "json_set(config, '$.name', :text)",
    "environment": "json_set(coalesce(environment, '{}'), '$.torch', :text)",
    "args": "json_object('root', :text)",
}
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list",), ("queue",), ("tasks",), ("task", "1"), ("doctor",), ("doctor", "--mend"), ("checkpoints",),
    ("show", "1"), ("show", "1", "--json"), ("log", "1"), ("rank",), ("list", "--json"),
    ("export", "1"), ("export", "1", "--table", "rounds"), ("export", "1", "--table", "clients"),
    ("export", "1", "--table", "configs"), ("export", "1", "--format", "latex"),
    ("export", "1", "--table", "experiment"), ("export", "1", "-o", "{odd}/"), ("delete", "1"),
    ("report", "1", "-o", "{odd}.html"), ("report", "1", "-o", "{odd}"),
    ("delete", "1", "2", "--experiment", "--yes"), ("stop", "1"), ("resume", "1"),
    ("resume", "2", "--restart"),
    ("backup", "{odd}.db"), ("restore", "{odd}-there.db"), ("vacuum",), ("merge", "{odd}-there.db"),
    ("import", "{odd}.csv", "--experiment", "{text}"), ("import", "{odd}.csv"), ("run", "{odd}.toml"),
    ("run", "{odd}-none.toml"), ("data", "check", "folder", "--root", "{folder}/data"), ("data", "list"),
    ("methods", "{text}"), ("presets", "{text}"), ("published", "{text}"), ("{text}",), ("list", "--{text}"),
    ("list", "--where", "method = {text}"), ("methods", "--methods", "{odd}.toml"),
)  # fmt: skip


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Put one payload into every text, or into one, and print it with one command."""
    text = PAYLOADS[rng.integers(len(PAYLOADS))]
    folder = folder / text if rng.random() < 0.3 else folder
    db, odd = copy(lab.later, folder), folder / f"odd {text}"
    Store(db).tasks.submit("check", "a key", {})
    where = _fill(db, text, rng)
    other = odd.with_name(f"{odd.name}-there.db")
    other.write_bytes((lab.pair / "runs.db").read_bytes())
    _fill(other, text, rng)
    toml = dumps(parse({**EXPERIMENT, "rounds": 1}))
    odd.with_name(f"{odd.name}.toml").write_text(toml.replace('"Faults"', _toml(f"Faults {text}")))
    odd.with_name(f"{odd.name}.csv").write_bytes(_table(lab.table, text, rng))
    for name in ("cat", f"dog {text}"):
        (folder / "data" / "photo" / name).mkdir(parents=True)
        (folder / "data" / "photo" / name / f"{text}.png").write_bytes(b"no image")
    command = COMMANDS[rng.integers(len(COMMANDS))]
    arguments = [part.format(odd=odd, text=text, folder=folder) for part in command]
    if command[0] not in ("methods", "presets", "data", "{text}"):
        arguments += ["--db", str(db)]
    seen = shown_in_a_terminal(arguments, db.parent / "terminal.log")
    done = f"{' '.join(command)} with {text!r} in {where}"
    found = FORBIDDEN.search(seen) or (ESCAPE.search(seen) if command[0] not in ("run", "data") else None)
    if found:
        raise Defect(f"{done}: {seen[max(0, found.start() - 60) : found.end() + 30]!r}")
    written_out = text.encode("unicode_escape").decode()[:4] in seen
    return Verdict(Outcome.MENDED if written_out else Outcome.UNAFFECTED, f"{done}: {len(seen)} characters")


def _toml(text: str) -> str:
    return (
        '"'
        + "".join(c if c.isascii() and c.isprintable() and c != "\\" else f"\\u{ord(c):04x}" for c in text)
        + '"'
    )


def _table(table: bytes, text: str, rng: np.random.Generator) -> bytes:
    """Put a text into one column of a table."""
    rows, column = list(csv.reader(io.StringIO(table.decode()))), int(rng.integers(10))
    for row in rows[int(rng.integers(2)) :]:
        row[column] += text
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


def _fill(db: Path, text: str, rng: np.random.Generator) -> str:
    """Write a text into every column of a database that holds texts of others, or into one; says which."""
    places = [(table, column) for table, columns in COLUMNS.items() for column in columns]
    chosen = places if rng.random() < 0.5 else [places[rng.integers(len(places))]]
    with closing(sqlite3.connect(db)) as connection, connection:
        for table, column in chosen:
            if column in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]:
                value = JSON.get(column, ":text")
                connection.execute(f"UPDATE OR IGNORE {table} SET {column}={value}", {"text": text})
    return "every column" if len(chosen) > 1 else ".".join(chosen[0])


def shown_in_a_terminal(arguments: Sequence[str], log: Path) -> str:
    """Return what a command writes to a terminal."""
    content = log.with_suffix(".bytes")

    def act() -> None:
        child, terminal = pty.fork()
        if child == 0:
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            sys.stdin = open(os.devnull)  # noqa: SIM115 - it lives as long as the process
            code = fedlens(list(arguments))
            sys.stdout.flush()
            os._exit(code)
        with content.open("wb") as file:
            try:
                while block := os.read(terminal, 1 << 16):
                    file.write(block)
            except OSError as error:
                if error.errno != errno.EIO:  # EIO is how Linux says that the command has ended
                    raise
        os.waitpid(child, 0)

    Forked(act, log).wait(300)
    return content.read_bytes().decode("utf-8", errors="replace")


FAMILIES = (
    Family(
        "terminal", "control characters in every name, shown in a terminal by every command", 200, attempt
    ),
)
