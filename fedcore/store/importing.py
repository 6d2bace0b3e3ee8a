"""Results from elsewhere: a CSV file of the user's own, or another ``runs.db``."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.config import MethodEntry
from fedcore.engine.events import GLOBAL, Cell, Entity
from fedcore.errors import FedLensError
from fedcore.store import attach as joining
from fedcore.store.database import DatabaseFile, reading, resolve
from fedcore.store.recorder import GLOBAL_NAME, SPLIT_CODES, STAGE_OF
from fedcore.store.schema import RUN_TABLES
from fedcore.store.writer import (
    Created,
    OwnRound,
    insert_entities,
    insert_experiment,
    insert_round,
    insert_runs,
    update_summary,
)

if TYPE_CHECKING:
    from sqlite_utils import Database

REQUIRED = ("method", "seed", "round", "model", "test_set", "correct", "total")
logger = logging.getLogger(__name__)
OPTIONAL = {"split": "test", "point": "broadcast", "domain": ""}


@dataclass(frozen=True)
class Row:
    """One line of an imported file."""

    line: int
    method: str
    seed: int
    round: int
    model: str
    test_set: str
    correct: int
    total: int
    split: str
    point: str
    domain: str

    def key(self) -> tuple[str | int, ...]:
        """What must be unique."""
        return (self.method, self.seed, self.split, self.point, self.round, self.model, self.test_set)


def import_csv(
    database_file: DatabaseFile, file: str | Path, experiment: str | int, dataset: str | None = None
) -> Created:
    """Record a CSV file: one run per method and seed, all in one transaction.

    The runs join the experiment of that name or id and take its setting, so that they compare with its other
    runs; a name that is not there makes a new experiment. Models and test sets that the experiment's own runs
    do not have are kept; a notice with the runs, and a warning, say so.

    Columns: method, seed, round, model, test_set, correct, total; optional split (train, validation, test),
    point (local, broadcast), domain (of the test set). ``global`` in column model names the global model. A
    test set whose name is its domain's is that domain's; others are clients'.

    Raises:
        FedLensError: naming file and line of the first mistake (nothing is written then); when the same
            content was imported before; for a data set that is not the joined experiment's.
    """
    database_file.prepare_for_writing()
    rows = list(read_rows(Path(file)))
    token = hashlib.sha256(
        "\n".join(map(repr, [experiment, *(r.key() + (r.correct, r.total) for r in rows)])).encode()
    ).hexdigest()[:32]
    by_run: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_run.setdefault((row.method, row.seed), []).append(row)
    with database_file.writing() as database:
        _not_there(database, token, file)
        joined = joining.find(database, experiment)
        runs = [
            # the label as in the file: an own "fedot" must not pass for a repeat of FedLens' FedOT
            joining.run_config(
                joined,
                MethodEntry(name=method, label=method),
                seed,
                max(r.round for r in found),
                dataset=dataset,
            )
            for (method, seed), found in by_run.items()
        ]
        experiment_id = (
            joined.id
            if joined
            else insert_experiment(database, joining.new_experiment(str(experiment), runs), token)
        )
        remark = _strangers(database, joined, rows, Path(file).name) if joined else None
        ids = insert_runs(database, experiment_id, runs, device="auto", origin="import")
        for run_id, found in zip(ids, by_run.values(), strict=True):
            _write_run(database, run_id, found, remark)
        _remember(database, token, ids[0])
    if remark is not None:
        logger.warning("%s", remark)
    return Created(experiment_id, ids)


def _strangers(database: Database, joined: joining.Joined, rows: list[Row], file: str) -> str | None:
    """One line about the names that the joined experiment's runs do not have; None where all are known."""
    known = {
        row["name"]
        for row in database.execute(
            "SELECT DISTINCT n.name FROM entities n JOIN runs r ON r.id = n.run_id WHERE r.experiment_id=?",
            [joined.id],
        )
    }
    new = [n for n in dict.fromkeys(n for row in rows for n in (row.model, row.test_set)) if n not in known]
    if not known or not new or new == [GLOBAL_NAME]:
        return None
    shown = ", ".join(f"'{name}'" for name in new[:5]) + (f" and {len(new) - 5} more" if len(new) > 5 else "")
    return (
        f"{file} names {shown}, which the runs of experiment '{joined.name}' do not have; means were taken "
        "over the file's own clients"
    )


def _remember(database: Database, token: str, run_id: int) -> None:
    """So that a file which joined an experiment, whose token is its own, is imported once too."""
    database.execute(
        "INSERT INTO tasks(kind, key, run_id, args, status) VALUES ('import', ?, ?, '{}', 'done')",
        [token, run_id],
    )


def read_rows(file: Path) -> Iterator[Row]:
    """The checked rows of a CSV file.

    Raises:
        FedLensError: naming file and line.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedLensError(
            f"cannot read {file}: {error}; give the path of a UTF-8 CSV file", "file"
        ) from error
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        raise FedLensError(
            f"{file}, line 1: no column {', '.join(missing)}; needed: {', '.join(REQUIRED)}", "file"
        )
    seen: dict[tuple, int] = {}
    for values in reader:
        line = reader.line_num
        try:
            row = _row(line, values)
            if row.key() in seen:
                raise ValueError(f"repeats line {seen[row.key()]}; give each cell of a round once")
        except ValueError as error:
            raise FedLensError(f"{file}, line {line}: {error}", "file") from error
        seen[row.key()] = line
        yield row
    if not seen:
        raise FedLensError(f"{file} has no rows below its header; give one per cell", "file")


def _row(line: int, values: dict[str, str | None]) -> Row:
    given = {key: (values.get(key) or "").strip() for key in (*REQUIRED, *OPTIONAL)}
    empty = [name for name in REQUIRED if not given[name]]
    if empty:
        raise ValueError(f"column {empty[0]} is empty")
    given = {key: value or OPTIONAL.get(key, "") for key, value in given.items()}
    numbers = {name: _whole(name, given[name]) for name in ("seed", "round", "correct", "total")}
    if numbers["total"] < 1 or numbers["correct"] > numbers["total"]:
        raise ValueError(f"{numbers['correct']} correct of {numbers['total']}; correct may be 0 to total")
    if given["split"] not in SPLIT_CODES:
        raise ValueError(f"no split '{given['split']}'; there are: {', '.join(SPLIT_CODES)}")
    if given["point"] not in STAGE_OF:
        raise ValueError(f"no point '{given['point']}'; there are: local, broadcast")
    texts = {name: given[name] for name in ("method", "model", "test_set", "split", "point", "domain")}
    return Row(line=line, **texts, **numbers)


def _whole(name: str, text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (number.is_integer() and 0 <= number < 2**53):  # beyond, a float no longer counts by one
        raise ValueError(f"column {name} is '{text}'; give a whole number from 0")
    return int(number)


def _not_there(database: Database, token: str, file: str | Path) -> None:
    found = database.execute(
        "SELECT id FROM experiments WHERE token=:token UNION ALL SELECT r.experiment_id FROM tasks t "
        "JOIN runs r ON r.id = t.run_id WHERE t.kind='import' AND t.key=:token",
        {"token": token},
    ).fetchone()
    if found is not None:
        raise FedLensError(f"{file} was imported already, as experiment {found['id']}; nothing to do", "file")


def _write_run(database: Database, run_id: int, rows: list[Row], remark: str | None) -> None:
    entities = _entities(rows)
    codes = {entity.name: entity.code for entity in entities}
    domains = {entity.name for entity in entities if entity.kind == "domain"}
    insert_entities(database, run_id, entities)
    only_global = all(row.model == GLOBAL_NAME for row in rows)
    by_round: dict[int, list[Cell]] = {}
    for row in rows:
        models = {row.model} | ({row.test_set} if only_global and row.test_set not in domains else set())
        by_round.setdefault(row.round, []).extend(
            Cell(
                split=SPLIT_CODES[row.split],
                stage=STAGE_OF[row.point],
                model=codes[m],
                test_set=codes[row.test_set],
                correct=row.correct,
                total=row.total,
                loss=None,
            )
            for m in models
        )
    for number, cells in sorted(by_round.items()):
        insert_round(database, run_id, OwnRound(number, tuple(cells)))
    now = time.time()
    notices = [] if remark is None else [{"message": remark, "repeats_exactly": True}]
    database.execute(
        "UPDATE runs SET status='done', rounds_done=?, started_at=?, finished_at=?, notices=? WHERE id=?",
        [max(by_round), now, now, json.dumps(notices), run_id],
    )
    update_summary(database, run_id)


def _entities(rows: list[Row]) -> tuple[Entity, ...]:
    """Global 0, then clients, then domains, each in order of appearance."""
    models = dict.fromkeys(row.model for row in rows if row.model != GLOBAL_NAME)
    domain_of = {row.test_set: row.domain or None for row in rows}
    domain_sets = [name for name, domain in domain_of.items() if name == domain and name not in models]
    clients = [n for n in dict.fromkeys([*models, *domain_of]) if n not in domain_sets and n != GLOBAL_NAME]
    found = [Entity(GLOBAL, "global", GLOBAL_NAME)]
    found += [
        Entity(code, "client", name, domain=domain_of.get(name)) for code, name in enumerate(clients, 1)
    ]
    start = len(found)
    return (*found, *(Entity(start + i, "domain", name, domain=name) for i, name in enumerate(domain_sets)))


@dataclass(frozen=True)
class Merged:
    """What ``merge`` did: names of experiments that came over, and of those that were here already."""

    added: tuple[str, ...]
    present: tuple[str, ...]


def merge(database_file: DatabaseFile, other: str | Path) -> Merged:
    """Copy the experiments of another database into this one, in one transaction.

    Idempotent: an experiment (known by its token) that is here already is left as it is, newer rounds
    included. Runs that were queued or running there become ``stopped`` here: they have no checkpoints on this
    machine, so that a resume trains them from the beginning.

    Raises:
        FedLensError: when one of the databases cannot be used.
    """
    database_file.prepare_for_writing()
    source = resolve(other)
    if source == database_file.path:
        raise FedLensError(f"{source} is the database itself; name another one", "other")
    with reading(source) as theirs:
        tables = {row[0] for row in theirs.execute("SELECT name FROM sqlite_master")}
        if not {"experiments", "runs", "accuracy"} <= tables:
            raise FedLensError(f"{source} is not a database of FedLens; name a runs.db", "other")
        experiments = [dict(row) for row in theirs.execute("SELECT * FROM experiments ORDER BY id")]
        with database_file.writing() as database:
            here = {row["token"] for row in database.execute("SELECT token FROM experiments")}
            for row in experiments:
                if row["token"] not in here:
                    _copy(database, theirs, row)
    return Merged(
        tuple(row["name"] for row in experiments if row["token"] not in here),
        tuple(row["name"] for row in experiments if row["token"] in here),
    )


def _copy(database: Database, theirs: object, experiment: dict) -> None:
    old_id = experiment.pop("id")
    new_id = _insert(database, "experiments", experiment)
    for found in theirs.execute("SELECT * FROM runs WHERE experiment_id=? ORDER BY id", [old_id]).fetchall():
        run = dict(found)
        old_run = run.pop("id")
        run |= {"experiment_id": new_id, "owner": None, "pid": None, "pid_started": None}
        if run["status"] in ("queued", "running", "stopping"):
            run |= {"status": "stopped", "reason": "merged from another database before it had ended"}
        new_run = _insert(database, "runs", run)
        for table in RUN_TABLES:
            for row in theirs.execute(f"SELECT * FROM {table} WHERE run_id=?", [old_run]):
                _insert(database, table, dict(row) | {"run_id": new_run})


def _insert(database: Database, table: str, values: dict) -> int:
    columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    return int(database.execute(f"INSERT INTO {table}({columns}) VALUES ({places})", values).lastrowid or 0)
