"""Databases and archives made to harm: inert, or refused in one line, and nothing is written elsewhere."""

from __future__ import annotations

import io
import sqlite3
import stat
import tarfile
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedcore.data import catalog
from fedcore.results.progress import summaries_of
from fedcore.store import Store
from tools.faults.bits import damage
from tools.faults.family import Family
from tools.faults.inputs import timed
from tools.faults.lab import Defect, Lab, copy, export
from tools.faults.mutate import TOKENS, VALUES
from tools.faults.verdict import Outcome, Verdict

SCHEMA = (
    "CREATE TRIGGER evil AFTER INSERT ON runs BEGIN DELETE FROM experiments; END",
    "CREATE TRIGGER evil INSTEAD OF INSERT ON odd BEGIN SELECT load_extension('/tmp/x'); END",
    "CREATE VIEW odd AS SELECT no_such_function(1) AS a",
    "CREATE TABLE more(a)",
    "DROP TABLE {table}",
    "ALTER TABLE {table} DROP COLUMN {column}",
    "ALTER TABLE {table} RENAME COLUMN {column} TO renamed",
    'ALTER TABLE {table} ADD COLUMN "x) VALUES (1); DELETE FROM experiments; --" TEXT DEFAULT 1',
    "ALTER TABLE {table} ADD COLUMN made REAL GENERATED ALWAYS AS (0.5) VIRTUAL",
    "DELETE FROM {table}",
    "PRAGMA user_version=0",
    "INSERT INTO {table} SELECT * FROM {table}",
    "CREATE INDEX odd ON {table}({column})",
    "PRAGMA user_version=99",
    "PRAGMA application_id=7",
)


def _statement(connection: sqlite3.Connection, rng: np.random.Generator) -> tuple[str, tuple[Any, ...]]:
    """Return a random change of the schema, or of the values in one column."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    table = str(rng.choice(tables))
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = str(rng.choice(columns))
    if rng.random() < 0.3:
        return str(rng.choice(SCHEMA)).format(table=table, column=column), ()
    value = VALUES[rng.integers(len(VALUES))]
    if isinstance(value, list | dict) or (isinstance(value, int) and abs(value) >= 2**63):
        value = str(value)[:5000]
    if isinstance(value, str) and rng.random() < 0.5:
        value = str(rng.choice(TOKENS))
    return f'UPDATE {table} SET "{column}"=? WHERE random() % 2', (value,)


def spoil(db: Path, rng: np.random.Generator) -> str:
    """Apply one to three hostile statements to a database; returns them."""
    done = []
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        for _ in range(rng.integers(1, 4)):
            statement, values = _statement(connection, rng)
            with suppress(sqlite3.Error, UnicodeEncodeError):  # it contradicts an earlier one
                connection.execute(statement, values)
                done.append(f"{statement} {values!r:.40}")
    return "; ".join(done)


def attempt_database(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Merge a hostile database into ours, or open it as our own."""
    other = copy(lab.done, folder / "other")
    done = spoil(other, rng)
    try:
        if rng.random() < 0.5:
            ours = copy(lab.done, folder / "ours")
            _rename(ours)
            before = Store(ours).experiments.to_json([1])
            try:
                Store(ours).imports.database(other)
            finally:
                if Store(ours).experiments.to_json([1]) != before:
                    raise Defect(f"{done}: an experiment of ours has changed")
            export(ours)
        else:
            Store(other).prepare()
            summaries_of(Store(other), Store(other).experiments.all())
            export(other)
    except Exception as error:
        error.add_note(done)
        raise
    return Verdict(Outcome.UNAFFECTED, done)


def _rename(db: Path) -> None:
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(
            "UPDATE experiments SET uuid=replace(uuid, substr(uuid, 1, 4), '0000'), name='Ours'"
        )


NAMES = (
    "../outside.jpg", "a/../../outside.jpg", "/tmp/fedlens-outside.jpg", "C:\\outside.jpg", "..\\outside.jpg",
    "a\x00b.jpg", "x" * 300 + ".jpg", "a/" * 200 + "b.jpg", "photo/dog/\ud800.jpg", "photo/dog/CON.jpg",
    "photo/dog", "photo/dog/0.jpg/inside.jpg", ".hidden/a.jpg", "photo/../photo/dog/9.jpg",
    "photo//dog///8.jpg",
)  # fmt: skip


def _picture(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (30 * shade, 0, 0)).save(file, "JPEG")
    return file.getvalue()


def _members(rng: np.random.Generator) -> dict[str, bytes]:
    """Return a small data set, and one to three members with odd names."""
    classes = [f"{domain}/{name}" for domain in ("photo", "art") for name in ("cat", "dog")]
    members = {f"{folder}/{i}.jpg": _picture(i) for folder in classes for i in range(3)}
    for _ in range(rng.integers(1, 4)):
        members[str(rng.choice(NAMES))] = _picture(7)
    return members


def _zip(path: Path, rng: np.random.Generator) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _members(rng).items():
            info = zipfile.ZipInfo("x")
            info.filename = name.encode("utf-8", "replace").decode()
            if rng.random() < 0.05:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                content = b"/etc/passwd"
            archive.writestr(info, content)
        if rng.random() < 0.2:
            archive.writestr("bomb.bin", bytes(50 << 20))


def _tar(path: Path, rng: np.random.Generator) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in _members(rng).items():
            info = tarfile.TarInfo(name.encode("utf-8", "replace").decode())
            info.size = len(content)
            if rng.random() < 0.1:
                info.type, info.linkname, info.size = kinds[rng.integers(len(kinds))], "/etc/passwd", 0
            archive.addfile(info, io.BytesIO(content))


def attempt_archive(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Load a data set from a hostile archive; nothing may be written beside its folder."""
    inside = folder / "a" / "b"
    inside.mkdir(parents=True)
    archive = inside / ("set.zip" if rng.random() < 0.5 else "set.tar.gz")
    (_zip if archive.suffix == ".zip" else _tar)(archive, rng)
    if rng.random() < 0.3:
        damage(archive, rng)
    try:
        images = catalog.load("folder", str(archive))[0]
        for i in range(len(images)):
            images.read(i)
    finally:
        written = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(inside)]
        links = [path for path in inside.rglob("*") if path.is_symlink() or path.is_fifo()]
        if written or links or Path("/tmp/fedlens-outside.jpg").exists():
            raise Defect(f"written outside of its folder, or a link: {[str(p) for p in written + links]}")
    return Verdict(Outcome.UNAFFECTED, f"{len(images)} images read")


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Give FedLens one hostile file."""
    return timed(attempt_database if rng.random() < 0.7 else attempt_archive, lab, folder, rng)


FAMILIES = (Family("hostile", "hostile databases (merged or opened) and archives", 600, attempt),)
