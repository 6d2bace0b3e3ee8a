"""Import CSV files, JSON files and other databases.

Another database is read through a copy with our own schema: nothing in it but values is trusted.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from fedcore.base.errors import DAMAGE, FedLensError, first_line
from fedcore.base.files import read_text
from fedcore.base.progress import counted
from fedcore.config import Experiment, RunConfig
from fedcore.config.identity import group_hash
from fedcore.store import schema
from fedcore.store.csv_file import import_csv
from fedcore.store.damage import round_differences
from fedcore.store.database import DatabaseFile, Queries, reading_as_it_is, resolve, writing
from fedcore.store.preparing import prepare_for_writing
from fedcore.store.schema import RUN_TABLES, columns
from fedcore.store.writer import (
    ATTACHED,
    AttachedRun,
    Created,
    ExperimentRecord,
    Table,
    Tables,
    insert_record,
)

LOCAL_COLUMNS = ("id", "experiment_id", "run_id", "owner", "pid", "pid_started", "heartbeat_at")
"""Columns that mean something in one database only."""
LATEST = 1e11
"""Seconds since 1970, in the year 5138; of much later ones the system cannot tell the date."""
Name = Annotated[str, Field(min_length=1, max_length=1000)]
LongText = Annotated[str, Field(max_length=1_000_000)]


class _NoticeChecks(BaseModel):
    message: LongText
    repeats_exactly: bool


class _ExperimentChecks(BaseModel):
    """The values of an experiment's row; the schema checks types and ranges of its other columns."""

    # the start of a uuid names folders, which are deleted with the experiment
    uuid: Annotated[str, StringConstraints(pattern=r"^[0-9a-zA-Z]{8,64}$")]
    name: str
    config: Json[Experiment]
    tags: Json[list[str]]

    @model_validator(mode="after")
    def _readable_by_its_name(self) -> _ExperimentChecks:
        """Check the config under the row's name, which an experiment that was renamed is read with."""
        Experiment.model_validate({**self.config.model_dump(), "name": self.name})
        return self


class _RunChecks(BaseModel):
    """The values of a run's row; the schema checks types and ranges of its other columns."""

    config: Json[RunConfig]
    method: Name
    label: Name
    seed: int
    held_out: str | None
    group_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    origin: Literal["engine", "recorder", "import"]
    status: str
    notices: Json[list[_NoticeChecks]]
    environment: Json[dict[str, JsonValue]] | None
    rounds_total: int = Field(ge=0)
    rounds_done: int = Field(ge=0)
    status_text: LongText | None
    error: LongText | None
    tags: Json[list[LongText]]
    notes: LongText

    @model_validator(mode="after")
    def _as_configured(self) -> _RunChecks:
        run = self.config
        if (run.method.name, run.seed, run.held_out) != (self.method, self.seed, self.held_out):
            raise ValueError("the method, seed or held-out domain of a run is not that of its config")
        return self


_ROUNDS = TypeAdapter(list[int])
_CLASS_COUNTS = TypeAdapter(list[Json[list[Annotated[int, Field(ge=0)]]] | None])


def read_record(connection: sqlite3.Connection, experiment_id: int) -> ExperimentRecord[Tables]:
    """Read an experiment with its runs and all of their rows."""
    row, runs = _rows_of(connection, experiment_id)
    tables = ({name: _table(connection, name, run["id"]) for name in RUN_TABLES} for run in runs)
    return ExperimentRecord(row, list(zip(map(_portable, runs), tables, strict=True)))


def read_attached(connection: sqlite3.Connection, experiment_id: int) -> ExperimentRecord[AttachedRun]:
    """Read an experiment with its runs, whose rows stay in a database that will be attached."""
    row, runs = _rows_of(connection, experiment_id)

    def column(table: str, name: str, run_id: int) -> list[Any]:
        return [row[0] for row in connection.execute(f"SELECT {name} FROM {table} WHERE run_id=?", [run_id])]

    rows = (
        AttachedRun(i, column("rounds", "round", i), column("entities", "class_counts", i))
        for i in (run["id"] for run in runs)
    )
    return ExperimentRecord(row, list(zip(map(_portable, runs), rows, strict=True)))


def _rows_of(connection: sqlite3.Connection, experiment_id: int) -> tuple[dict[str, Any], list[sqlite3.Row]]:
    names = ", ".join(columns("experiments"))
    row = connection.execute(f"SELECT {names} FROM experiments WHERE id=?", [experiment_id]).fetchone()
    if row is None:
        raise FedLensError(f"no experiment {experiment_id}; `fedlens list` shows them", "id")
    names = ", ".join(columns("runs"))
    runs = connection.execute(f"SELECT {names} FROM runs WHERE experiment_id=? ORDER BY id", [experiment_id])
    return _portable(row), runs.fetchall()


def _portable(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in row.keys() if name not in LOCAL_COLUMNS}  # noqa: SIM118


def _table(connection: sqlite3.Connection, name: str, run_id: int) -> Table:
    names = tuple(column for column in columns(name) if column != "run_id")
    cursor = connection.execute(f"SELECT {', '.join(names)} FROM {name} WHERE run_id=?", [run_id])
    rows = [list(row) for row in cursor]
    for row in rows:
        if math.inf in row or -math.inf in row:  # NULL, as when a round is recorded: JSON has no infinity
            row[:] = [None if value in (math.inf, -math.inf) else value for value in row]
    return Table(names, rows)


def check(record: ExperimentRecord[Tables | AttachedRun]) -> None:
    """Refuse a record that no FedLens can have written.

    Raises:
        ValueError: (also pydantic's ``ValidationError``) saying which value is wrong; types and ranges of
            columns are left to the schema of the database that it is written to.
    """
    _ExperimentChecks.model_validate(record.row)
    _check_row(record.row)
    groups: dict[str, str] = {}
    for row, recorded in record.runs:
        checked = _RunChecks.model_validate(row)
        # The hash itself may differ here, if the method's file is not on this machine; equal ones may not.
        computed = group_hash(checked.config)
        if groups.setdefault(checked.group_hash, computed) != computed:
            raise ValueError("runs of one group, which tables average, have different configs")
        _check_row(row)
        if isinstance(recorded, AttachedRun):  # SQLite has no other numbers
            rounds, class_counts = recorded.rounds, recorded.class_counts
        else:
            rounds = _ROUNDS.validate_python(recorded["rounds"].column("round"))
            class_counts = recorded["entities"].column("class_counts")
            for name, table in recorded.items():
                for column, values in zip(table.columns, zip(*table.rows, strict=True), strict=False):
                    _check_column(f"{name}.{column}", values)
        if checked.rounds_done > max(rounds, default=0):
            raise ValueError(f"rounds_done is {checked.rounds_done}, but later rounds are missing")
        _CLASS_COUNTS.validate_python(class_counts)


def _check_row(row: dict[str, Any]) -> None:
    for name, value in row.items():
        _check_column(name, [value])


def _check_column(name: str, values: Sequence[object]) -> None:
    """Refuse a column of one database, such as an id: the largest would leave none for any later row.

    Refuse numbers that no column holds; a column has millions, so each kind is looked at as a whole.
    """
    if name.rpartition(".")[2] in LOCAL_COLUMNS:
        raise ValueError(f"{name} belongs to one database and is in no file")
    floats: list[Any] = [value for value in values if type(value) is float]
    integers: list[Any] = [value for value in values if type(value) is int]
    if not all(map(math.isfinite, floats)):
        raise ValueError(f"{name} is {next(v for v in floats if not math.isfinite(v))}, not a number")
    if name.endswith("_at") and not all(0 <= value < LATEST for value in floats + integers):
        raise ValueError(f"{name} is not a time in seconds since 1970")
    if integers and not -(2**63) <= min(integers) <= max(integers) < 2**63:
        raise ValueError(f"{name} has more than 64 bits")


FORMAT = "fedlens-experiment-1"
JSON_COLUMNS = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment", "tags")}
"""Columns that hold JSON; an exported file contains their values, not JSON within a string."""


class _RunContent(BaseModel):
    """A run; its other fields are the columns of ``runs``."""

    model_config = ConfigDict(extra="allow")
    tables: dict[str, Table]

    @model_validator(mode="after")
    def _complete(self) -> _RunContent:
        if missing := [name for name in RUN_TABLES if name not in self.tables]:
            raise ValueError(f"the table '{missing[0]}' is missing")
        return self


class _ExperimentContent(BaseModel):
    """An experiment; its other fields are the columns of ``experiments``."""

    model_config = ConfigDict(extra="allow")
    uuid: str
    name: str
    runs: list[_RunContent]


class _FileContent(BaseModel):
    experiments: list[_ExperimentContent]


def experiments_json(database_file: DatabaseFile, experiment_ids: Iterable[int]) -> str:
    """Return everything recorded of some experiments: configs, environments, entities, metrics, diagnostics.

    Tables of a run are ``{"columns": [...], "rows": [[...]]}``. Checkpoints and logs are not included.
    """
    with database_file.reading() as connection:
        records = [read_record(connection, int(i)) for i in experiment_ids]
    experiments = []
    for record in records:
        runs = [
            _parsed("runs", row) | {"tables": {name: vars(table) for name, table in tables.items()}}
            for row, tables in record.runs
        ]
        experiments.append(_parsed("experiments", record.row) | {"runs": runs})
    content = {"format": FORMAT, "experiments": experiments}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def read_records(file: Path) -> list[ExperimentRecord[Tables]]:
    """Read the experiments of a file that ``experiments_json`` wrote; ``records.check`` checks their values.

    Raises:
        FedLensError: field ``file``, when the file cannot be read or is not such a file.
        ValidationError: when something is missing or of a wrong type.
    """
    text = read_text(file, "a JSON file")
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise FedLensError(f"cannot read {file}: {error}; give the path of a JSON file", "file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FedLensError(
            f"{file} is not an experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    records = []
    for experiment in _FileContent.model_validate(content).experiments:
        runs = [
            (_dumped("runs", run.model_extra), {name: run.tables[name] for name in RUN_TABLES})
            for run in experiment.runs
        ]
        row = {"uuid": experiment.uuid, "name": experiment.name, **(experiment.model_extra or {})}
        records.append(ExperimentRecord(_dumped("experiments", row), runs))
    return records


def parse_json(text: str) -> Any:
    """Parse JSON; raises ValueError for NaN and Infinity too, which Python would accept."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number in JSON")

    return json.loads(text, parse_constant=refuse)


def _parsed(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: json.loads(row[name]) for name in JSON_COLUMNS[table] if row[name] is not None}


def _dumped(table: str, row: dict[str, Any] | None) -> dict[str, Any]:
    row = row or {}
    return row | {
        name: json.dumps(row[name], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        for name in JSON_COLUMNS[table]
        if row.get(name) is not None
    }


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
        """Record a CSV file (see ``csv_file.import_csv``)."""
        return import_csv(self._file, file, experiment, dataset, tag, setting)

    def json(self, file: str | Path) -> Merged:
        """Record the experiments of a file that ``experiments_json`` wrote, in one transaction.

        It can be repeated: an experiment that exists, by its uuid, stays as it is. Unfinished runs become
        ``stopped``.
        """
        prepare_for_writing(self._file.path)
        with _damage_named(str(file), "file"):
            return self._insert_missing(read_records(Path(file)), "imported from a file before it had ended")

    def database(self, other: str | Path) -> Merged:
        """Copy the experiments of another database into this one, in one transaction.

        It can be repeated: an experiment that exists, by its uuid, stays as it is, without newer rounds. Runs
        that were queued or running become ``stopped``. Checkpoints are not copied, so such a run can be
        resumed in the other database only, or be restarted here.
        """
        prepare_for_writing(self._file.path)
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
"""The same constraint, with the same message: SQLite makes the list of IN again for every row it inserts."""


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
