"""Bundles with one thing changed: as an accident would, and as a forger would who mends the digests."""

import csv
import io
import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedcore.share.archive import RUNS, packed, read_bundle
from fedcore.store.damage import write_digests, write_identity
from fedcore.store.schema import RUN_TABLES, columns
from fedcore.store.writer import SCORES, update_summary

Files = dict[str, bytes]


def repacked(content: bytes, change: Callable[[Files], None]) -> bytes:
    """A bundle with changed files, and the digests of these."""
    archive = read_bundle(content)
    files = dict(archive.files)
    change(files)
    return packed(archive.manifest.title, archive.manifest.commit, files)


@contextmanager
def changed_database(files: Files) -> Iterator[sqlite3.Connection]:
    """Change the database of a bundle as a forger would who mends digests, means and summaries."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / RUNS
        path.write_bytes(files[RUNS])
        with closing(sqlite3.connect(path)) as database:
            yield database
            for (run_id,) in database.execute("SELECT id FROM runs").fetchall():
                with suppress(sqlite3.Error):
                    for row in database.execute(
                        "SELECT DISTINCT split, stage, round FROM accuracy WHERE run_id=?", [run_id]
                    ).fetchall():
                        database.execute(
                            SCORES, dict(zip(("run", "split", "stage", "round"), (run_id, *row), strict=True))
                        )
                    update_summary(database, run_id)
                    rounds = database.execute("SELECT round FROM rounds WHERE run_id=?", [run_id]).fetchall()
                    write_digests(database, run_id, [number for (number,) in rounds])
                    write_identity(database, run_id)
            database.commit()
        files[RUNS] = path.read_bytes()


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A bundle with one change, drawn from those that a forger might make."""
    ways = [None, _byte_of_a_file, _digit, _csv_value, _csv_row, _json_value, _json_value, _stored_value]
    if (how := draw.choice(ways)) is not None:
        return repacked(content, lambda files: how(files, draw))
    changed = bytearray(content)  # None: a bit of the archive itself
    place = draw.randrange(len(changed))
    changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _name(files: Files, draw: random.Random, suffix: str = "") -> str:
    return draw.choice([n for n in sorted(files) if n.endswith(suffix) and n != "README.md"])


def _byte_of_a_file(files: Files, draw: random.Random) -> None:
    name = _name(files, draw)
    changed = bytearray(files[name])
    changed[draw.randrange(len(changed))] = draw.randrange(32, 127)
    files[name] = bytes(changed)


def _stored_value(files: Files, draw: random.Random) -> None:
    """Another value in one row of the database."""
    with changed_database(files) as database:
        table = draw.choice(("experiments", "runs", *RUN_TABLES, "accuracy"))
        column = draw.choice(columns(table))
        found = database.execute(f"SELECT {column} FROM {table}").fetchall()
        if not found:
            return
        (value,) = draw.choice(found)
        if isinstance(value, (int, float)):
            other = value + draw.choice([-1, 1, 2, 10**6])
        else:
            other = draw.choice([None, "", f"{value}x", 7, "[]"])
        with suppress(sqlite3.Error):
            database.execute(f"UPDATE {table} SET {column}=? WHERE {column} IS ?", [other, value])


def _digit(files: Files, draw: random.Random) -> None:
    """Another digit somewhere in a file, so that its form stays right."""
    name = _name(files, draw, draw.choice([".csv", ".json"]))
    text = files[name].decode()
    place = draw.choice([m.start() for m in re.finditer(r"\d", text)])
    files[name] = f"{text[:place]}{draw.randrange(10)}{text[place + 1 :]}".encode()


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def _written(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _csv_value(files: Files, draw: random.Random) -> None:
    """A value of one row instead of another's: another client, set, class, model or number."""
    name = _name(files, draw, ".csv")
    rows = _rows(files[name].decode())
    column = draw.randrange(len(rows[0]))
    one, other = draw.sample(range(1, len(rows)), 2)
    rows[one][column] = rows[other][column]
    files[name] = _written(rows)


def _csv_row(files: Files, draw: random.Random) -> None:
    """A row less, or once more, or two exchanged."""
    name = _name(files, draw, ".csv")
    rows = _rows(files[name].decode())
    one, other = draw.sample(range(1, len(rows)), 2)
    kind = draw.randrange(3)
    if kind == 0:
        del rows[one]
    elif kind == 1:
        rows.insert(other, rows[one])
    else:
        rows[one], rows[other] = rows[other], rows[one]
    files[name] = _written(rows)


def _json_value(files: Files, draw: random.Random) -> None:
    """Another value at a place of a JSON file: a prediction, a code, a number, a name, or nothing."""
    name = _name(files, draw, ".json")
    parsed = json.loads(files[name])
    places: list[tuple[Any, Any]] = []
    _collect(parsed, places)
    holder, key = draw.choice(places)
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = draw.choice([None, True, 1, "x"])
    elif isinstance(value, (int, float)):
        holder[key] = value + draw.choice([-1, 1, 2, 10**6])
    elif isinstance(value, str):
        holder[key] = draw.choice([None, "", f"{value}x", 7, ["x"]])
    elif isinstance(value, list) and value:
        del value[draw.randrange(len(value))]
    elif isinstance(value, dict) and value:
        del value[draw.choice(sorted(value))]
    files[name] = json.dumps(parsed, ensure_ascii=False).encode()


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        places.append((value, key))
        _collect(inner, places)
