"""Import CSV files, JSON files and other databases.

The experiments of a JSON file and of another database take one way: their rows are copied into an empty
temporary database with our schema, checked, and merged from there. Nothing in them but values is trusted.
"""

from __future__ import annotations

import json
import math
import reprlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
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

from fedcore.base.errors import DAMAGE, FedLensError, first_line, plain_errors
from fedcore.base.files import read_text
from fedcore.base.progress import counted
from fedcore.config import Experiment, RunConfig
from fedcore.config.identity import group_hash
from fedcore.store import schema
from fedcore.store.damage import round_differences, rounds_without, write_digests, write_identity
from fedcore.store.database import DatabaseFile, Queries, read_only, resolve
from fedcore.store.own_results import import_csv
from fedcore.store.preparing import prepare_for_writing
from fedcore.store.schema import RUN_TABLES, columns
from fedcore.store.writer import MEANS, Created, insert_row, update_summary

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


_CLASS_COUNTS = TypeAdapter(list[Json[list[Annotated[int, Field(ge=0)]]] | None])
THEIRS = "theirs"
"""Name under which the copy of what is imported is attached to the database that it is merged into."""


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
        """Record a CSV file (see ``own_results.import_csv``)."""
        return import_csv(self._file, file, experiment, dataset, tag, setting)

    def json(self, file: str | Path) -> Merged:
        """Record the experiments of a file that ``experiments_json`` wrote, in one transaction.

        It can be repeated: an experiment that exists, by its uuid, stays as it is. Unfinished runs become
        ``stopped``.
        """
        prepare_for_writing(self._file.path)
        with _damage_named(str(file), "file"), _empty_copy() as copy:
            _copy_file(Path(file), copy)
            return self._merge(copy, "imported from a file before it had ended")

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
        with _damage_named(str(source), "other"), _empty_copy() as copy:
            _copy_database(source, copy)
            return self._merge(copy, "merged from another database before it had ended")

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

    def _merge(self, copy: Path, text: str) -> Merged:
        added, present = [], []
        with self._file.writing() as database:
            database.execute(f"ATTACH ? AS {THEIRS}", [str(copy)])
            existing = {row["uuid"] for row in database.execute("SELECT uuid FROM main.experiments")}
            for row in database.execute(f"SELECT * FROM {THEIRS}.experiments ORDER BY id").fetchall():
                if row["uuid"] in existing:
                    present.append(row["name"])
                else:
                    merge_experiment(database, row, text)
                    added.append(row["name"])
        return Merged(tuple(added), tuple(present))


@contextmanager
def _damage_named(source: str, field: str) -> Iterator[None]:
    """Turn the errors of a damaged or hostile file into one line that names the file."""
    try:
        yield
    except FedLensError:
        raise
    except (sqlite3.Error, OverflowError, *DAMAGE) as error:
        raise FedLensError(
            f"{source} is damaged, or was written by another version of FedLens ({first_line(error)}); "
            "nothing was recorded",
            field,
        ) from error


def merge_experiment(database: sqlite3.Connection, row: sqlite3.Row, text: str) -> None:
    """Check an experiment of the attached copy, and insert it with its runs and all of their rows.

    Args:
        row: of the experiment, in the copy.
        text: status text of runs that had not ended; they become ``stopped``, since no process trains them.

    Raises:
        ValueError: (also pydantic's ``ValidationError``) for a value that no FedLens can have written. Types
            and ranges of columns were checked by the schema of the copy.
    """
    values = _portable(row)
    _ExperimentChecks.model_validate(values)
    experiment_id = insert_row(database, "experiments", values)
    groups: dict[str, str] = {}
    runs = database.execute(f"SELECT * FROM {THEIRS}.runs WHERE experiment_id=? ORDER BY id", [row["id"]])
    for run in runs.fetchall():
        values = _portable(run) | {"experiment_id": experiment_id}
        checked = _RunChecks.model_validate(values)
        # The hash itself may differ here, if the method's file is not on this machine; equal ones may not.
        computed = group_hash(checked.config)
        if groups.setdefault(checked.group_hash, computed) != computed:
            raise ValueError("runs of one group, which tables average, have different configs")
        if checked.status in ("queued", "running", "stopping"):
            values |= {"status": "stopped", "status_text": text}
            if values["started_at"] is not None and values["finished_at"] is None:
                values["finished_at"] = time.time()  # or its clock would go on
        run_id = insert_row(database, "runs", values)
        for table in RUN_TABLES:
            names = ", ".join(_portable_columns(table))
            database.execute(
                f"INSERT INTO main.{table}(run_id, {names}) "
                f"SELECT ?, {names} FROM {THEIRS}.{table} WHERE run_id=?",
                [run_id, run["id"]],
            )
        database.execute(  # the digests that were compared with these rows
            "INSERT INTO main.digests(run_id, round, digest) SELECT ?, d.round, d.digest "
            f"FROM {THEIRS}.digests d JOIN {THEIRS}.rounds r USING (run_id, round) WHERE d.run_id=?",
            [run_id, run["id"]],
        )
        _check_rows(database, run_id, checked.rounds_done)
        update_summary(database, run_id)
        write_digests(database, run_id, rounds_without(database, run_id))
        write_identity(database, run_id)


def _portable(row: sqlite3.Row) -> dict[str, Any]:
    """Return the values of a row that mean something in every database."""
    values = {name: row[name] for name in row.keys() if name not in LOCAL_COLUMNS}  # noqa: SIM118
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, not a number")
        if name.endswith("_at") and value is not None and not 0 <= value < LATEST:
            raise ValueError(f"{name} is not a time in seconds since 1970")
    return values


def _check_rows(database: sqlite3.Connection, run_id: int, rounds_done: int) -> None:
    """Refuse a run that lacks rounds, or whose mean accuracies are not those of its counts."""
    (last,) = database.execute("SELECT max(round) FROM rounds WHERE run_id=?", [run_id]).fetchone()
    if rounds_done > (last or 0):
        raise ValueError(f"rounds_done is {rounds_done}, but later rounds are missing")
    counts = database.execute("SELECT class_counts FROM entities WHERE run_id=?", [run_id])
    _CLASS_COUNTS.validate_python([row[0] for row in counts])
    stored, expected = (
        {tuple(row)[1:4]: tuple(row)[4:] for row in database.execute(statement, {"run": run_id})}
        for statement in (
            f"SELECT {', '.join(columns('scores'))} FROM scores WHERE run_id=:run",
            MEANS.format(which=""),
        )
    )
    wrong = stored.keys() ^ expected.keys()
    for key in stored.keys() & expected.keys():
        pairs = zip(stored[key], expected[key], strict=True)
        # other versions of SQLite may add in another order
        if any(one is not None and (other is None or abs(one - other) > 1e-9) for one, other in pairs):
            wrong.add(key)
    if wrong:
        raise ValueError(f"the mean accuracies of round {min(wrong)[2]} are not those of its counts")


LARGEST_VALUE = 50_000_000  # bytes of one text; those of FedLens have a few thousand


@contextmanager
def _empty_copy() -> Iterator[Path]:
    """Make a temporary database with our schema, which checks types and ranges of all that it takes."""
    with TemporaryDirectory(prefix="fedlens-merge-") as folder:
        file = Path(folder) / "copy.db"
        with closing(sqlite3.connect(file)) as copy, copy:
            for definition in schema.definitions().values():
                copy.execute(definition)
        yield file


def _copy_database(path: Path, file: Path) -> None:
    """Copy the rows of another database into an empty copy, ``file``.

    Tables and columns are named by our schema. Views, triggers, virtual tables and further columns of the
    other database are never run.

    Raises:
        FedLensError: field ``other``, for a file that is not a database of FedLens, or of a newer version.
        sqlite3.Error, ValueError: for a damaged database.
    """
    if not path.is_file():
        raise FedLensError(f"no database at {path}", "db")
    with plain_errors(path), closing(read_only(path)) as source:
        source.execute("PRAGMA trusted_schema=OFF")
        source.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        schema.require_version(path, source, "other")
        version = schema.version_of(source)
        _copy_tables(source, file)
    with closing(sqlite3.connect(file)) as copy, copy:
        copy.row_factory = sqlite3.Row
        if copy.execute("PRAGMA foreign_key_check").fetchone():
            raise ValueError("rows refer to runs or experiments that do not exist")
        copy.execute(f"PRAGMA user_version={version}")
        copy.execute("BEGIN")  # otherwise each of thousands of queries locks the file
        runs = [row["id"] for row in copy.execute("SELECT id FROM runs ORDER BY id")]
        for finding in round_differences(copy, runs):
            raise ValueError(finding)
        if version == 1:
            from fedcore.store.migrations import record_attention_init

            record_attention_init(copy)
        _clear_infinity(copy)


def _copy_tables(source: sqlite3.Connection, file: Path) -> None:
    """Copy tables into those of a file within SQLite, and decode their texts, which SQLite does not check."""
    tables = sorted(name for name, sql in schema.definitions().items() if sql.startswith("CREATE TABLE"))
    for table in tables:
        kind = source.execute("SELECT type, sql FROM main.sqlite_master WHERE name=?", [table]).fetchone()
        if kind is None or kind["type"] != "table" or str(kind["sql"]).upper().startswith("CREATE VIRTUAL"):
            raise ValueError(f"{table} is not a table")
    # our own CHECK constraints need it; from here on, only stored columns of ordinary tables are read
    source.execute("PRAGMA trusted_schema=ON")
    source.execute("ATTACH ? AS copy", [f"{file.as_uri()}?mode=rw"])
    source.execute("BEGIN")  # one snapshot of all tables, for a run may be recording there
    for table in tables:
        ours = {row["name"]: row["type"] for row in source.execute(f"PRAGMA copy.table_info({table})")}
        described = source.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
        stored = {row["name"] for row in described if row["hidden"] == 0}
        if lost := [name for name in ours if name not in stored]:
            raise ValueError(f"table {table} has no column {lost[0]!r}")
        names = ", ".join(ours)
        # NOT INDEXED: an index may hold other values than its table
        source.execute(f"INSERT INTO copy.{table}({names}) SELECT {names} FROM main.{table} NOT INDEXED")
        texts = ", ".join(name for name, kind in ours.items() if kind == "TEXT")
        for _ in source.execute(f"SELECT DISTINCT {texts} FROM copy.{table}") if texts else ():
            pass
    source.commit()
    source.execute("DETACH copy")


def _clear_infinity(copy: sqlite3.Connection) -> None:
    """Replace infinity by NULL, as in a recorded round, and forget the digests of those rounds."""
    for table in RUN_TABLES:
        real = [name for _, name, kind, *_ in copy.execute(f"PRAGMA table_info({table})") if kind == "REAL"]
        for name in real:
            changed = copy.execute(
                f"UPDATE {table} SET {name}=NULL WHERE abs({name})=9e999 RETURNING run_id, round"
            ).fetchall()
            copy.executemany("DELETE FROM digests WHERE run_id=? AND round=?", changed)


FORMAT = "fedlens-experiment-1"
JSON_COLUMNS = {"experiments": ("config", "tags"), "runs": ("config", "notices", "environment", "tags")}
"""Columns that hold JSON; an exported file contains their values, not JSON within a string."""


class _TableContent(BaseModel):
    columns: tuple[str, ...]
    rows: list[list[Any]]


class _RunContent(BaseModel):
    """A run; its other fields are the columns of ``runs``."""

    model_config = ConfigDict(extra="allow")
    tables: dict[str, _TableContent]


class _ExperimentContent(BaseModel):
    """An experiment; its other fields are the columns of ``experiments``."""

    model_config = ConfigDict(extra="allow")
    runs: list[_RunContent]


class _FileContent(BaseModel):
    experiments: list[_ExperimentContent]


def experiments_json(database_file: DatabaseFile, experiment_ids: Iterable[int]) -> str:
    """Return everything recorded of some experiments: configs, environments, entities, metrics, diagnostics.

    Tables of a run are ``{"columns": [...], "rows": [[...]]}``. Checkpoints and logs are not included.
    """
    with database_file.reading() as connection:
        experiments = [_experiment_content(connection, int(i)) for i in experiment_ids]
    content = {"format": FORMAT, "experiments": experiments}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _experiment_content(connection: sqlite3.Connection, experiment_id: int) -> dict[str, Any]:
    content, runs = _row_content(connection, "experiments", experiment_id), []
    for row in connection.execute("SELECT id FROM runs WHERE experiment_id=? ORDER BY id", [experiment_id]):
        tables = {}
        for table in RUN_TABLES:
            names = _portable_columns(table)
            statement = f"SELECT {', '.join(names)} FROM {table} WHERE run_id=?"
            rows = [list(values) for values in connection.execute(statement, [row["id"]])]
            for values in rows:
                if math.inf in values or -math.inf in values:  # NULL, as in a recorded round
                    values[:] = [None if value in (math.inf, -math.inf) else value for value in values]
            tables[table] = {"columns": names, "rows": rows}
        runs.append(_row_content(connection, "runs", row["id"]) | {"tables": tables})
    return content | {"runs": runs}


def _row_content(connection: sqlite3.Connection, table: str, number: int) -> dict[str, Any]:
    """Return a row of ``experiments`` or ``runs``, with the values of its columns that hold JSON."""
    statement = f"SELECT {', '.join(_portable_columns(table))} FROM {table} WHERE id=?"
    row = connection.execute(statement, [number]).fetchone()
    if row is None:
        raise FedLensError(f"no experiment {number}; `fedlens list` shows them", "id")
    parsed = {name: json.loads(row[name]) for name in JSON_COLUMNS[table] if row[name] is not None}
    return dict(row) | parsed


def _portable_columns(table: str) -> tuple[str, ...]:
    return tuple(name for name in columns(table) if name not in LOCAL_COLUMNS)


def _copy_file(path: Path, file: Path) -> None:
    """Copy the experiments of a file that ``experiments_json`` wrote into an empty copy, ``file``.

    Raises:
        FedLensError: field ``file``, when the file cannot be read or is not such a file.
        sqlite3.Error, ValueError: when something is missing, of a wrong type or out of range.
    """
    text = read_text(path, "a JSON file")
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise FedLensError(f"cannot read {path}: {error}; give the path of a JSON file", "file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FedLensError(
            f"{path} is not an experiment of FedLens: its format is not '{FORMAT}'; "
            "write it with `fedlens export ID --table experiment --format json`",
            "file",
        )
    with closing(sqlite3.connect(file)) as copy, copy:
        for experiment in _FileContent.model_validate(content).experiments:
            row = _stored_row("experiments", experiment.model_extra)
            _ExperimentChecks.model_validate(row)  # a column would turn another type into its own
            experiment_id = insert_row(copy, "experiments", row)
            for run in experiment.runs:
                row = _stored_row("runs", run.model_extra)
                _RunChecks.model_validate(row)
                run_id = insert_row(copy, "runs", row | {"experiment_id": experiment_id})
                for name in RUN_TABLES:
                    if name not in run.tables:
                        raise ValueError(f"the table '{name}' is missing")
                    table = run.tables[name]
                    _check_columns(name, table.columns)
                    places = ", ".join("?" * (len(table.columns) + 1))
                    copy.executemany(
                        f"INSERT INTO {name}({', '.join(('run_id', *table.columns))}) VALUES ({places})",
                        ([run_id, *values] for values in table.rows),
                    )
        if copy.execute("SELECT 1 FROM runs WHERE method='fedtpg'").fetchone():
            from fedcore.store.migrations import record_attention_init  # the file may be of 1.0

            record_attention_init(copy)
        _clear_infinity(copy)


def _stored_row(table: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the row of a table that an experiment or run of a file describes; JSON becomes its text."""
    row = dict(content or {})
    _check_columns(table, row)
    for name in JSON_COLUMNS[table]:
        if row.get(name) is not None:
            row[name] = json.dumps(row[name], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return row


def _check_columns(table: str, names: Iterable[str]) -> None:
    """Refuse names that the table does not have, since they become part of a statement, and local ones."""
    for name in names:
        if name not in columns(table):
            raise ValueError(f"table {table} has no column {reprlib.repr(name)}")
        if name in LOCAL_COLUMNS:
            raise ValueError(f"{table}.{name} belongs to one database and is in no file")


def parse_json(text: str) -> Any:
    """Parse JSON; raises ValueError for NaN and Infinity too, which Python would accept."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number in JSON")

    return json.loads(text, parse_constant=refuse)
