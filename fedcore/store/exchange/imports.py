"""Import CSV files, JSON files and other databases.

Another database is read through a copy with our own schema: nothing in it but values is trusted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedcore.config import RunConfig
from fedcore.errors import DAMAGE, FedLensError, first_line
from fedcore.progress import counted
from fedcore.store import schema
from fedcore.store.damage import round_differences
from fedcore.store.database import Queries, reading_as_it_is, resolve, writing
from fedcore.store.exchange.records import check, read_attached, read_records
from fedcore.store.own_results.csv_file import import_csv
from fedcore.store.writer import ATTACHED, AttachedRun, Created, ExperimentRecord, Tables, insert_record

AnyRecord = ExperimentRecord[Tables | AttachedRun]


@dataclass(frozen=True)
class Merged:
    """Names of the experiments that an import added, and of those that already existed."""

    added: tuple[str, ...]
    present: tuple[str, ...]


class Imports(Queries):
    """Imports CSV files, experiments as JSON and other databases (``Store.imports``)."""

    def csv(
        self,
        file: str | Path,
        experiment: str | int,
        dataset: str | None = None,
        tag: str | None = None,
        setting: RunConfig | None = None,
    ) -> Created:
        """Record a CSV file (see ``own_results.csv_file.import_csv``)."""
        return import_csv(self._file, file, experiment, dataset, tag, setting)

    def json(self, file: str | Path) -> Merged:
        """Record the experiments of a file that ``experiments_json`` wrote, in one transaction.

        It can be repeated: an experiment that exists, by its uuid, stays as it is. Unfinished runs become
        ``stopped``.
        """
        self._file.prepare_for_writing()
        with _damage_named(str(file), "file"):
            return self._insert_missing(read_records(Path(file)), "imported from a file before it had ended")

    def database(self, other: str | Path) -> Merged:
        """Copy the experiments of another database into this one, in one transaction.

        It can be repeated: an experiment that exists, by its uuid, stays as it is, without newer rounds. Runs
        that were queued or running become ``stopped``. Checkpoints are not copied, so such a run can be
        resumed in the other database only, or be restarted here.
        """
        self._file.prepare_for_writing()
        source = resolve(other)
        if source == self._file.path:
            raise FedLensError(f"{source} is the database itself; name another one", "other")
        with _damage_named(str(source), "other"), copy_of(source) as copy:
            ids = [row["id"] for row in copy.rows.execute("SELECT id FROM experiments ORDER BY id")]
            records = (read_attached(copy.rows, i) for i in ids)
            return self._insert_missing(
                records, "merged from another database before it had ended", copy.path
            )

    def file(self, file: Path, experiment: str = "", dataset: str = "", name: str | None = None) -> str:
        """Record a JSON or CSV file, by its suffix, and return a sentence that says what was recorded.

        Args:
            experiment, dataset: for a CSV file, which does not name them.
            name: the file's name for the user, for errors.
        """
        try:
            if file.suffix.lower() == ".csv":
                count = len(self.csv(file, experiment, dataset or None).run_ids)
                return f"{counted(count, 'run')} recorded."
            merged = self.json(file)
            added, present = len(merged.added), len(merged.present)
            return f"{counted(added, 'experiment')} added, {present} already here."
        except FedLensError as error:
            raise FedLensError(str(error).replace(str(file), name or str(file)), error.field) from error

    def _insert_missing(
        self, records: Iterable[AnyRecord], text: str, attached: Path | None = None
    ) -> Merged:
        added, present = [], []
        # without a query of ``runs`` for each row: every row gets the id of a run that was just inserted
        with writing(self._file.path, references=False) as database:
            if attached is not None:
                database.execute(f"ATTACH ? AS {ATTACHED}", [str(attached)])
            existing = {row["uuid"] for row in database.execute("SELECT uuid FROM main.experiments")}
            for record in records:
                if record.row["uuid"] in existing:
                    present.append(record.row["name"])
                    continue
                check(record)
                insert_record(database, record, text)
                added.append(record.row["name"])
        return Merged(tuple(added), tuple(present))


@contextmanager
def _damage_named(source: str, field: str) -> Iterator[None]:
    """Turn the errors of a damaged or hostile file into one line that names the file."""
    try:
        yield
    except FedLensError:
        raise
    except (sqlite3.Error, *DAMAGE) as error:
        raise FedLensError(
            f"{source} is damaged, or was written by another version of FedLens ({first_line(error)}); "
            "nothing was recorded",
            field,
        ) from error


LARGEST_VALUE = 50_000_000  # bytes of one text; those of FedLens have a few thousand
LARGE_PAGES = 65_536  # bytes; with 4,096, the default, a merge takes a tenth longer
SLOW_CHECK = "CHECK(split IN (0,1,2))"
QUICK_CHECK = 'CONSTRAINT "split IN (0,1,2)" CHECK(split BETWEEN 0 AND 2)'
"""The same constraint, with the same message: SQLite makes the list of IN anew for every row it inserts."""


@dataclass(frozen=True)
class Copy:
    """The rows of another database, in tables of ours.

    Attributes:
        path: of the temporary file that holds them.
    """

    path: Path
    rows: sqlite3.Connection


@contextmanager
def copy_of(path: Path) -> Iterator[Copy]:
    """Copy the rows of another database into an empty one with our schema, a temporary file, and open that.

    Tables and columns are named by our schema, and the schema of the copy checks types, ranges and references
    of all values. Views, triggers, virtual tables and further columns of the other database are never run.

    Raises:
        FedLensError: field ``other``, for a file that is not a database of FedLens, or of a newer version.
        sqlite3.Error, ValueError: for a damaged database.
    """
    with reading_as_it_is(path) as source, TemporaryDirectory(prefix="fedlens-merge-") as folder:
        source.execute("PRAGMA trusted_schema=OFF")
        source.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        schema.require_version(path, source, "other")
        file = Path(folder) / "copy.db"
        with closing(sqlite3.connect(file)) as copy:
            copy.row_factory = sqlite3.Row
            copy.execute(f"PRAGMA page_size={LARGE_PAGES}")
            with copy:
                for definition in schema.definitions().values():
                    copy.execute(definition.replace(SLOW_CHECK, QUICK_CHECK))
                copy.execute(f"PRAGMA user_version={schema.version_of(source)}")
            _copy_rows(source, file, schema.tables(copy) - {"sqlite_sequence"})
            if copy.execute("PRAGMA foreign_key_check").fetchone():
                raise ValueError("rows refer to runs or experiments that do not exist")
            copy.execute("BEGIN")  # otherwise each of thousands of queries locks the file
            runs = [row["id"] for row in copy.execute("SELECT id FROM runs ORDER BY id")]
            for finding in round_differences(copy, runs):
                raise ValueError(finding)
            if schema.version_of(source) == 1:
                from fedcore.store.migrations import record_attention_init

                record_attention_init(copy)
            _clear_infinity(copy)
            copy.commit()
            copy.execute("BEGIN")
            yield Copy(file, copy)


def _copy_rows(source: sqlite3.Connection, file: Path, tables: Iterable[str]) -> None:
    """Copy tables into those of a file within SQLite, and decode their texts, which SQLite does not check."""
    for table in sorted(tables):
        kind = source.execute("SELECT type, sql FROM main.sqlite_master WHERE name=?", [table]).fetchone()
        if kind is None or kind["type"] != "table" or str(kind["sql"]).upper().startswith("CREATE VIRTUAL"):
            raise ValueError(f"{table} is not a table")
    # our own CHECK constraints need it; from here on, only stored columns of ordinary tables are read
    source.execute("PRAGMA trusted_schema=ON")
    source.execute("ATTACH ? AS copy", [f"{file.as_uri()}?mode=rw"])
    source.execute("BEGIN")  # one snapshot of all tables, for a run may be recording there
    for table in sorted(tables):
        columns = {row["name"]: row["type"] for row in source.execute(f"PRAGMA copy.table_info({table})")}
        described = source.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
        stored = {row["name"] for row in described if row["hidden"] == 0}
        if lost := [name for name in columns if name not in stored]:
            raise ValueError(f"table {table} has no column {lost[0]!r}")
        names = ", ".join(columns)
        # NOT INDEXED: an index may hold other values than its table
        source.execute(f"INSERT INTO copy.{table}({names}) SELECT {names} FROM main.{table} NOT INDEXED")
        texts = ", ".join(name for name, kind in columns.items() if kind == "TEXT")
        for _ in source.execute(f"SELECT DISTINCT {texts} FROM copy.{table}") if texts else ():
            pass
    source.commit()
    source.execute("DETACH copy")


def _clear_infinity(copy: sqlite3.Connection) -> None:
    """Replace infinity by NULL, as in a recorded round, and forget the digests of those rounds."""
    for table in schema.RUN_TABLES:
        real = [row["name"] for row in copy.execute(f"PRAGMA table_info({table})") if row["type"] == "REAL"]
        for name in real:
            changed = copy.execute(
                f"UPDATE {table} SET {name}=NULL WHERE abs({name})=9e999 RETURNING run_id, round"
            ).fetchall()
            copy.executemany("DELETE FROM digests WHERE run_id=? AND round=?", changed)
