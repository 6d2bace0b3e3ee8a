"""Tells damage from what was recorded, before numbers leave a database.

SQLite has no checksums of its own: a bit that flips on the disk would change an accuracy, a label or a date
without a word. What a round recorded has a digest, written in its transaction. Triggers keep second copies of
the rows that describe experiments, runs and models, so that the copies follow every write, also one made with
another program.
"""

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product

from pydantic_core import to_json

from fedcore.errors import SystemFault, explain, first_line
from fedcore.records.events import MEASURES

MOST = 20
"""Maximum number of findings of one kind that are listed."""


def findings(connection: sqlite3.Connection, experiment_ids: Iterable[int] | None = None) -> list[str]:
    """Return one line for each damage in an open database; an empty list if nothing has changed.

    Args:
        experiment_ids: experiments whose rounds are compared with their digests; default: all. The structure
            of the file and the rows of experiments, runs and models are always checked completely.

    Raises:
        sqlite3.Error: if the machine failed, so that nothing is known about the content.
    """
    found: list[str] = []
    try:
        found += structure(connection) or schema_differences(connection)
        if not found:  # otherwise reading rows may fail
            found += row_differences(connection)
            rows = connection.execute("SELECT id, experiment_id FROM runs ORDER BY id").fetchall()
            chosen = {number for _, number in rows} if experiment_ids is None else set(experiment_ids)
            found += round_differences(connection, [run for run, number in rows if number in chosen])
    except sqlite3.Error as error:
        if isinstance(explain(error, "the database"), SystemFault):
            raise
        found.append(first_line(error))
    return found


def structure(connection: sqlite3.Connection) -> list[str]:
    """Return one line for each damage of the file's structure."""
    lines = [row[0] for row in connection.execute(f"PRAGMA integrity_check({MOST})")]
    if lines != ["ok"]:
        return [" ".join(str(line).split()) for line in lines]
    broken = connection.execute("PRAGMA foreign_key_check").fetchmany(MOST)
    return [f"{row[0]}: row {row[1]} refers to a row of {row[2]} that does not exist" for row in broken]


# conditions on all columns before the round in a primary key, so that no query reads other rounds
_NAMES = """
WITH RECURSIVE names(name) AS (
  SELECT min(name) FROM diagnostics WHERE run_id=:run
  UNION ALL
  SELECT (SELECT min(d.name) FROM diagnostics d WHERE d.run_id=:run AND d.name>names.name)
  FROM names WHERE names.name IS NOT NULL)
"""
_CELLS = (
    "SELECT model, test_set, correct, total, loss FROM accuracy "
    "WHERE run_id=? AND split=? AND stage=? AND round=? ORDER BY model, test_set"
)
CONTENT = (
    f"SELECT round, {', '.join(MEASURES)} FROM rounds WHERE run_id=:run AND round=:round",
    "SELECT round, client, steps, train_loss, bytes_up, bytes_down FROM client_rounds "
    "WHERE run_id=:run AND round=:round ORDER BY client",
    "SELECT split, stage, round, personal_mean, personal_weighted, personal_worst, global_mean, classes_mean "
    "FROM scores WHERE run_id=:run AND split IN (0,1,2) AND stage IN (0,1) AND round=:round "
    "ORDER BY split, stage",
    _CELLS,
    f"{_NAMES} SELECT name, round, client_a, client_b, value FROM diagnostics WHERE run_id=:run "
    "AND name IN (SELECT name FROM names) AND round=:round ORDER BY name, client_a, client_b",
)
"""Queries of all rows of one round: every column but the run's id, which differs between databases, and those
of a cell that all rows of a query share.
"""
_PARTS = tuple(product((0, 1, 2), (0, 1)))
"""Split and stage of cells, in the order of a digest."""
_NUMBERS = b"0123456789.,-[]nul"
_AS_PYTHON = to_json([(0.1, 2e15, 100.0, -0.0, None)]) == b"[[0.1,2000000000000000.0,100.0,-0.0,null]]"
"""True if the installed pydantic writes numbers as Python does."""


def round_digest(connection: sqlite3.Connection, run_id: int, round_: int) -> str:
    """Return the digest of all rows of one round as they are stored: of each table's ``repr`` as tuples."""
    digest = hashlib.blake2b(digest_size=16)

    def text(statement: str, values: Mapping[str, int] | Sequence[int], shared: Sequence[int] = ()) -> bytes:
        cursor = connection.execute(statement, values)
        cursor.row_factory = None  # tuples
        return _text(cursor.fetchall(), shared)

    for statement in CONTENT:
        if statement is _CELLS:
            texts = [text(_CELLS, (run_id, *part, round_), (*part, round_)) for part in _PARTS]
        else:
            texts = [text(statement, {"run": run_id, "round": round_})]
        digest.update(b"[%b]" % b", ".join(filter(None, texts)))
    return digest.hexdigest()


def _text(rows: list[tuple[object, ...]], shared: Sequence[int]) -> bytes:
    """Return ``repr`` of rows that begin with shared values, without the brackets around it.

    JSON has other texts than Python only for strings and for numbers with an exponent. What it writes of
    other numbers takes a quarter of the time.
    """
    if not rows:
        return b""
    text = to_json(rows, bytes_mode="hex")
    if not _AS_PYTHON or text.translate(None, _NUMBERS) or b"0.0000" in text:
        return repr([(*shared, *row) for row in rows])[1:-1].encode()
    start = b"(%b" % b"".join(b"%d, " % value for value in shared)
    inner = text[2:-2].replace(b",", b", ").replace(b"], [", b"), " + start).replace(b"null", b"None")
    return start + inner + b")"


def write_digests(database: sqlite3.Connection, run_id: int, rounds: Iterable[int]) -> None:
    """Write the digests of rounds, in the transaction that wrote the rounds."""
    for number in rounds:
        database.execute(
            "INSERT OR REPLACE INTO digests(run_id, round, digest) VALUES (?,?,?)",
            [run_id, number, round_digest(database, run_id, number)],
        )


def round_differences(
    connection: sqlite3.Connection, run_ids: Iterable[int], only: Collection[int] | None = None
) -> Iterator[str]:
    """Yield one line for each round that differs from its digest, lacks a digest, or is missing.

    Args:
        only: rounds that are compared with their digests; default: all.
    """
    for run_id in run_ids:
        rows = connection.execute("SELECT round, digest FROM digests WHERE run_id=? ORDER BY round", [run_id])
        for number, digest in rows.fetchall():
            if (only is None or number in only) and round_digest(connection, run_id, number) != digest:
                yield f"run {run_id}, round {number} differs from what was recorded"
        for number in rounds_without(connection, run_id):
            yield f"run {run_id}, round {number} has no digest, so its results cannot be trusted"
        lost = connection.execute(
            "SELECT rounds_done FROM runs WHERE id=:run AND "
            "rounds_done > (SELECT coalesce(max(round), 0) FROM digests WHERE run_id=:run)",
            {"run": run_id},
        ).fetchone()
        if lost:
            yield f"run {run_id} lost rounds: {lost[0]} were recorded"


def rounds_without(connection: sqlite3.Connection, run_id: int) -> list[int]:
    """Return the recorded rounds that have no digest."""
    rows = connection.execute(
        "SELECT round FROM rounds WHERE run_id=:run EXCEPT SELECT round FROM digests WHERE run_id=:run",
        {"run": run_id},
    )
    return [row[0] for row in rows]


KEYS = {"experiments": ("id",), "runs": ("id",), "entities": ("run_id", "entity"), "views": ("id",)}
"""Table with second copies of its rows -> its key."""
VOLATILE = ("owner", "pid", "pid_started", "heartbeat_at")
"""Columns that name the process of a run. They change every few seconds and are never exported."""


def create_triggers(database: sqlite3.Connection) -> None:
    """Make triggers that copy every change, and copy the definitions of tables, indices and triggers."""
    for table in KEYS:
        columns = _columns(database, table)
        key, content = _key(table, "NEW."), _content(columns, "NEW.")
        copy = f"INSERT OR REPLACE INTO copies VALUES ('{table}', {key}, {content})"
        actions = {
            "INSERT": copy,
            f"UPDATE OF {', '.join(columns)}": copy,
            "DELETE": f"DELETE FROM copies WHERE table_name='{table}' AND key={_key(table, 'OLD.')}",
        }
        for event, action in actions.items():
            name = f"copies_of_{table}_{event.partition(' ')[0].lower()}"
            database.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {action}; END")
    database.execute("INSERT INTO copies SELECT 'schema', name, sql FROM sqlite_master WHERE sql IS NOT NULL")


def schema_differences(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield one line for each table, index or trigger with a changed definition."""
    rows = connection.execute(
        "SELECT c.key FROM copies c LEFT JOIN sqlite_master m ON m.name=c.key "
        "WHERE c.table_name='schema' AND m.sql IS NOT c.content"
    )
    yield from (f"the definition of {row[0]} has changed" for row in rows)


def row_differences(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield one line for each row that differs from its copy, or is missing."""
    for table in KEYS:
        content = _content(_columns(connection, table), "r.")
        rows = connection.execute(
            f"SELECT {_key(table, 'r.')} FROM {table} r LEFT JOIN copies c ON c.table_name='{table}' "
            f"AND c.key={_key(table, 'r.')} WHERE c.content IS NOT {content}"
        )
        yield from (f"{table}: row {row[0]} differs from what was written" for row in rows.fetchall())
        lost = connection.execute(
            f"SELECT key FROM copies WHERE table_name='{table}' EXCEPT "
            f"SELECT {_key(table, 'r.')} FROM {table} r"
        )
        yield from (f"{table}: row {row[0]} is missing" for row in lost.fetchall())


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    return [name for name in names if name not in VOLATILE]


def _key(table: str, row: str) -> str:
    names = [f"{row}{name}" for name in KEYS[table]]
    return " || ' ' || ".join(names) if len(names) > 1 else f"{names[0]} || ''"


def _content(columns: list[str], row: str) -> str:
    """Return SQL for all values in one text; ``quote`` writes numbers so that they read back exactly."""
    return " || ',' || ".join(f"quote({row}{name})" for name in columns)
