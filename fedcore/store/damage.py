"""Tells damage from what was recorded, before numbers leave a database.

SQLite has no checksums of its own: a bit that flips on the disk would change an accuracy, a label or a seed
without a word. What a round recorded has a digest, written in its transaction, and so has what identifies a
run: its config, its names and those of its models. The summary of a run follows from its rounds. A backup
repairs what is damaged.
"""

import hashlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from pydantic_core import to_json

from fedcore.base.errors import FedLensError, SystemFault, explain, first_line
from fedcore.base.events import MEASURES
from fedcore.store.database import Queries
from fedcore.store.schema import changed, version_of

MOST = 20
"""Maximum number of findings of one kind that are listed."""


def findings(
    connection: sqlite3.Connection,
    experiment_ids: Iterable[int] | None = None,
    tables: Sequence[str] = (),
) -> list[str]:
    """Return one line for each damage in an open database; an empty list if nothing has changed.

    Args:
        experiment_ids: experiments whose runs are compared with their digests; default: all.
        tables: those whose structure is checked; default: that of the whole file.

    Raises:
        sqlite3.Error: if the machine failed, so that nothing is known about the content.
    """
    found: list[str] = []
    try:
        found += structure(connection, tables)
        found = found or [f"the definition of {name} has changed" for name in changed(connection)]
        if not found:  # otherwise reading rows may fail
            rows = connection.execute("SELECT id, experiment_id FROM runs ORDER BY id").fetchall()
            chosen = {number for _, number in rows} if experiment_ids is None else set(experiment_ids)
            runs = [run for run, number in rows if number in chosen]
            # a summary that differs together with its rounds is a consequence
            found += list(round_differences(connection, runs)) or summary_differences(connection, runs)
    except sqlite3.Error as error:
        if isinstance(explain(error, "the database"), SystemFault):
            raise
        found.append(first_line(error))
    return found


def structure(connection: sqlite3.Connection, tables: Sequence[str] = ()) -> list[str]:
    """Return one line for each damage of the file's structure, or of some tables with their indexes."""
    places = [f"({name})" for name in tables] or [""]
    checks = [f"PRAGMA integrity_check{place or f'({MOST})'}" for place in places]
    lines = [row[0] for check in checks for row in connection.execute(check) if row[0] != "ok"]
    if lines:
        return [" ".join(str(line).split()) for line in lines]
    checks = [f"PRAGMA foreign_key_check{place}" for place in places]
    broken = [row for check in checks for row in connection.execute(check).fetchmany(MOST)]
    return [f"{row[0]}: row {row[1]} refers to a row of {row[2]} that does not exist" for row in broken]


DIAGNOSTIC_NAMES = """
WITH RECURSIVE names(name) AS (
  SELECT min(name) FROM diagnostics WHERE run_id=:run
  UNION ALL
  SELECT (SELECT min(d.name) FROM diagnostics d WHERE d.run_id=:run AND d.name>names.name)
  FROM names WHERE names.name IS NOT NULL)
"""
"""The diagnostics of a run, each found by a step in the primary key instead of a scan of all rows."""
# conditions on all columns before the round in a primary key, so that no query reads other rounds
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
    f"{DIAGNOSTIC_NAMES} SELECT name, round, client_a, client_b, value FROM diagnostics WHERE run_id=:run "
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
        _write_digest(database, run_id, number, round_digest(database, run_id, number))


IDENTITY_COLUMNS = (
    "method, label, seed, held_out, config, group_hash, origin, created_at, environment, notices"
)
ITSELF = -1
"""The round of a run's own digest, see ``write_identity``."""
_SUMMARY = """
SELECT last.personal_mean AS last_test, last.personal_worst AS worst_client, best.round AS best_round,
  best.test AS best_test
FROM (SELECT 1) LEFT JOIN
  (SELECT personal_mean, personal_worst FROM scores WHERE run_id = :run AND split = 2 AND stage = 1
   ORDER BY round DESC LIMIT 1) AS last LEFT JOIN
  (SELECT v.round, t.personal_mean AS test FROM scores v
   LEFT JOIN scores t ON t.run_id = v.run_id AND t.split = 2 AND t.stage = 1 AND t.round = v.round
   WHERE v.run_id = :run AND v.split = 1 AND v.stage = 1 AND v.personal_mean IS NOT NULL {among}
   ORDER BY v.round = 0, round(v.personal_mean, 9) DESC, v.round LIMIT 1) AS best
"""
SUMMARY = _SUMMARY.format(among="")
"""Summary columns of a run, all for the models after aggregation.

last_test, worst_client: mean and minimum personal test accuracy at the last evaluated round. best_round: the
round of the highest unweighted mean validation accuracy, the earliest of equals, and never round 0, which is
before training, unless it is the only one; best_test: the mean personal test accuracy at that round. Nothing
is selected on test samples. The last bits of a mean depend on the order of its shares, and decide nothing.
"""
SUMMARY_AFTER = _SUMMARY.format(among="AND v.round IN (:round, :best)")
"""The same after another round, if the best one before it is unchanged: no other round is read."""


def _identity(connection: sqlite3.Connection, run_id: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for statement in (
        f"SELECT {IDENTITY_COLUMNS} FROM runs WHERE id=?",
        "SELECT entity, kind, name, domain, samples, class_counts FROM entities WHERE run_id=? "
        "ORDER BY entity",
    ):
        digest.update(repr([tuple(row) for row in connection.execute(statement, [run_id])]).encode())
    return digest.hexdigest()


def write_identity(database: sqlite3.Connection, run_id: int) -> None:
    """Write the digest of what identifies a run, in the transaction that wrote its row or its models."""
    _write_digest(database, run_id, ITSELF, _identity(database, run_id))


def _write_digest(database: sqlite3.Connection, run_id: int, number: int, digest: str) -> None:
    row = [run_id, number, digest]
    database.execute("INSERT OR REPLACE INTO digests(run_id, round, digest) VALUES (?,?,?)", row)


def summary_differences(connection: sqlite3.Connection, run_ids: Iterable[int]) -> Iterator[str]:
    """Yield one line for each run whose summary, which lists show, is not that of its scores."""
    stored = "SELECT last_test, worst_client, best_round, best_test FROM runs WHERE id=:run"
    for run_id in run_ids:
        found, expected = (
            tuple(connection.execute(text, {"run": run_id}).fetchone()) for text in (stored, SUMMARY)
        )
        if found != expected:
            yield f"run {run_id}: its summary is not that of its rounds"


def round_differences(
    connection: sqlite3.Connection, run_ids: Iterable[int], only: Collection[int] | None = None
) -> Iterator[str]:
    """Yield one line for each run and round that differs from its digest, lacks a digest, or is missing.

    Args:
        only: rounds that are compared with their digests; default: all.
    """
    for run_id in run_ids:
        rows = connection.execute("SELECT round, digest FROM digests WHERE run_id=? ORDER BY round", [run_id])
        digests: dict[int, str] = dict(rows.fetchall())
        itself = digests.pop(ITSELF, None)
        # a database of 1.0 that cannot be written has no such digest
        if version_of(connection) > 1 and itself != _identity(connection, run_id):
            yield f"run {run_id}: its config, names or models differ from what was recorded"
        for number, digest in digests.items():
            if (only is None or number in only) and round_digest(connection, run_id, number) != digest:
                yield f"run {run_id}, round {number} differs from what was recorded"
        for number in rounds_without(connection, run_id):
            yield f"run {run_id}, round {number} has no digest, so its results cannot be trusted"
        lost = connection.execute(
            "SELECT rounds_done FROM runs WHERE id=:run AND "
            "rounds_done > (SELECT max(0, max(round)) FROM digests WHERE run_id=:run)",
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


class Integrity(Queries):
    """Checks that a store still holds what was recorded (``Store.integrity``)."""

    def findings(self, experiment_ids: Iterable[int] | None = None, tables: Sequence[str] = ()) -> list[str]:
        """Return one line for each damage (see ``damage.findings``)."""
        with self._file.reading() as connection:
            if not connection.in_transaction:
                connection.execute("BEGIN")  # a run may be recording, or deleting rounds to resume
            return findings(connection, experiment_ids, tables)

    def require(self, experiment_ids: Iterable[int], consequence: str = "nothing is exported") -> None:
        """Refuse damaged experiments; those checked in this snapshot are not checked again."""
        unchecked = set(experiment_ids) - self._file.checked
        if unchecked and (said := self._sentence(self.findings(unchecked), consequence)):
            raise FedLensError(said, "db")

    def require_rounds(self, run_id: int, consequence: str, only: Collection[int] | None = None) -> None:
        """Refuse a run whose rounds are not those that were recorded, before they decide what happens to it.

        Args:
            only: the rounds that decide; default: all.
        """
        with self._file.reading() as connection:
            connection.execute("BEGIN")
            found = list(round_differences(connection, [run_id], only))
        if said := self._sentence(found, consequence):
            raise FedLensError(said, "db")

    def warning(self, experiment_ids: Iterable[int] | None = None) -> str:
        """Check the database, or what a list of some experiments shows; returns a warning to print beside it.

        Returns an empty text if nothing is damaged. A list need not read the whole file: the digests show
        whether other tables have lost something of these experiments.
        """
        tables = () if experiment_ids is None else ("experiments", "runs", "digests")
        return self._sentence(self.findings(experiment_ids, tables))

    def watched(self) -> str:
        """Return the warning of the last check, and start another in the background if one is due.

        It waits briefly for the first check of this process, and otherwise returns at once.
        """
        path = self._file.path
        return self._sentence(_watches.setdefault(path, Watch(path, self.findings)).found())

    def _sentence(self, found: list[str], consequence: str = "numbers that are shown may be wrong") -> str:
        if not found:
            return ""
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return (
            f"{self._file.path} is damaged ({found[0]}{more}), so {consequence}; `fedlens doctor` shows all "
            "of it, `fedlens restore` puts a backup in its place"
        )


SHARE = 0.05
"""Maximum share of one core that repeated checks use, as of a file that changes all the time."""
PAUSE_SECONDS = 2.0
"""Minimum time between two checks."""
REPEAT_SECONDS = 3600.0
"""Time after which an unchanged file is checked again, since a failing disk leaves its date alone."""
FIRST_SECONDS = 0.3
"""Time for which a page waits for the first check; most databases need less."""
logger = logging.getLogger(__name__)
_Version = list[tuple[int, int, int]]


class Watch:
    """The checks of one database."""

    def __init__(self, db: Path, check: Callable[[], list[str]]) -> None:
        self._db, self._check = db, check
        self._found: list[str] = []
        self._version: _Version | None = None
        self._started = self._ended = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def found(self) -> list[str]:
        """Return what the last check has found, and start another one if it is due."""
        with self._lock:
            first = self._thread is None
            if self._is_due():
                self._thread = threading.Thread(target=self._run, name=f"check {self._db}", daemon=True)
                self._thread.start()
            thread = self._thread
        if first and thread is not None:
            thread.join(FIRST_SECONDS)
        return self._found

    def _is_due(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        since, cost = time.monotonic() - self._ended, self._ended - self._started
        if self._thread is not None and since < max(PAUSE_SECONDS, cost / SHARE):
            return False
        return version(self._db) != self._version or since > REPEAT_SECONDS

    def _run(self) -> None:
        self._started, self._version = time.monotonic(), version(self._db)
        try:
            self._found = self._check()
        except (FedLensError, sqlite3.Error) as error:  # e.g. locked; pages report that themselves
            logger.warning("%s was not checked: %s", self._db, error)
            self._version = None
        finally:
            self._ended = time.monotonic()


def version(db: Path) -> _Version:
    """Return values of the file and its log that change with every write."""
    seen = []
    for path in (db, db.with_name(f"{db.name}-wal")):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        if stat.st_size:  # readers create an empty log, and delete it again
            seen.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return seen


_watches: dict[Path, Watch] = {}
"""The watch of each database, which all pages of the process share."""
