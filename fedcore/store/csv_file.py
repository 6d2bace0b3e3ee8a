"""Imports the user's own results from a CSV file."""

import csv
import difflib
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fedcore.base.errors import FedLensError, first_repeated
from fedcore.base.events import GLOBAL, SPLITS, STAGES, Cell, Entity, RoundFinished, StageName
from fedcore.base.files import read_text, unguarded
from fedcore.config import MethodEntry, RunConfig
from fedcore.methods.registry import first_error
from fedcore.store.damage import write_identity
from fedcore.store.database import DatabaseFile
from fedcore.store.preparing import prepare_for_writing
from fedcore.store.recorder import (
    GLOBAL_NAME,
    GLOBAL_TEST_SET,
    MAX_COUNT,
    MAX_NAME,
    MAX_ROUND,
    ExistingExperiment,
    checked_counts,
    doubts,
    find_experiment,
    insert_own_runs,
    own_config,
    unequal_totals,
    without_own_accuracy,
)
from fedcore.store.writer import Created, insert_entities, insert_round, insert_row, update_summary

BEYOND = "beyond the header"
"""Key of surplus values, for which the header has no column."""
LONGEST_FIELD = 2**17
MAX_SEED = 2**53
"""Highest seed; above it a float cannot represent every whole number."""
logger = logging.getLogger(__name__)


def _number(text: object) -> object:
    """Return the whole number that a text writes, also as ``5.0`` or ``1e3``; any other value as it is."""
    try:
        number = float(str(text))
    except ValueError:
        return text
    # Python reads 5_9 as 59
    return int(number) if number.is_integer() and "_" not in str(text) else text


Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
Whole = BeforeValidator(_number)


class CsvRow(BaseModel):
    """One line of an imported file."""

    model_config = ConfigDict(str_strip_whitespace=True)
    method: Name
    seed: Annotated[int, Whole, Field(strict=True, ge=0, le=MAX_SEED)]
    round: Annotated[int, Whole, Field(strict=True, ge=0, le=MAX_ROUND)]
    model: Name
    test_set: Name
    correct: Annotated[int, Whole, Field(strict=True, ge=0, le=MAX_COUNT)]
    total: Annotated[int, Whole, Field(strict=True, ge=0, le=MAX_COUNT)]
    split: Literal["train", "validation", "test"] = "test"
    stage: StageName = "after_aggregation"
    domain: Annotated[str, StringConstraints(max_length=MAX_NAME)] = ""

    @model_validator(mode="after")
    def _counts(self) -> Self:
        checked_counts(self.correct, self.total)
        if self.test_set == GLOBAL_NAME:
            raise ValueError(GLOBAL_TEST_SET)
        return self

    def key(self) -> tuple[str | int, ...]:
        """Return the values that no other line may repeat."""
        return (self.method, self.seed, self.split, self.stage, self.round, self.model, self.test_set)


def import_csv(
    database_file: DatabaseFile,
    file: str | Path,
    experiment: str | int,
    dataset: str | None = None,
    tag: str | None = None,
    setting: RunConfig | None = None,
) -> Created:
    """Record a CSV file: one run per method and seed, all in one transaction.

    The runs join the experiment with that name or id and take its setting, so that they compare with its
    other runs; an unknown name makes a new experiment. Models and test sets that the experiment's other runs
    lack are kept, and named by a warning and a notice of the runs.

    Columns: method, seed, round, model, test_set, correct, total; optional split (train, validation, test),
    stage (before_aggregation, after_aggregation), domain (of the test set). ``global`` in column
    model names the global model. A test set with its domain's name is that domain's; others are clients'.

    Args:
        tag, setting: tag of a new experiment, and a config whose data, partition and backbone it has.

    Raises:
        FedLensError: naming file and line of the first mistake (nothing is written then); when the same
            content was imported before; for a data set that is not the joined experiment's.
    """
    prepare_for_writing(database_file.path)
    rows = list(read_rows(Path(file)))
    content = "\n".join(map(repr, [experiment, *(r.key() + (r.correct, r.total) for r in rows)]))
    identity = hashlib.sha256(content.encode()).hexdigest()[:32]
    by_run: dict[tuple[str, int], list[CsvRow]] = {}
    for row in rows:
        by_run.setdefault((row.method, row.seed), []).append(row)
    with database_file.writing() as database:
        found = database.execute(
            "SELECT id FROM experiments WHERE uuid=:identity UNION ALL SELECT r.experiment_id "
            "FROM imported_files f JOIN runs r ON r.id = f.run_id WHERE f.content_hash=:identity",
            {"identity": identity},
        ).fetchone()
        if found is not None:
            raise FedLensError(
                f"{file} was imported already, as experiment {found['id']}; nothing to do", "file"
            )
        existing = find_experiment(database, experiment)
        if existing and tag:
            _refuse_namesakes(database, existing, by_run, file)
        notices = doubts(existing, dataset)
        if existing and (unknown := _unknown_names(database, existing, rows, Path(file).name)):
            notices.append(unknown)
        joined = existing
        if existing is None and setting is not None:
            joined = ExistingExperiment(0, str(experiment), setting)
        runs, doubted = [], list[str]()
        for (method, seed), its_rows in by_run.items():
            # the label as in the file: an own "fedot" must not pass for a repeat of FedLens' FedOT
            entry, last = MethodEntry(name=method, label=method), max(r.round for r in its_rows)
            runs.append(own_config(joined, dataset, method=entry, seed=seed, rounds=last, held_out=None))
        created = insert_own_runs(
            database, existing, runs, name=str(experiment), origin="import", identity=identity, tag=tag
        )
        for run_id, its_rows in zip(created.run_ids, by_run.values(), strict=True):
            of_run = _doubts_of_run(its_rows)
            _write_run(database, run_id, its_rows, notices + of_run)
            doubted += [f"{its_rows[0].method}, seed {its_rows[0].seed}: {doubt}" for doubt in of_run]
        first = {"content_hash": identity, "run_id": created.run_ids[0]}
        insert_row(database, "imported_files", first)
    for notice in notices + doubted:
        logger.warning("%s", notice)
    return created


def _doubts_of_run(rows: Sequence[CsvRow]) -> list[str]:
    """Return a sentence for each name or number of a run's rows that does not fit the others."""
    tested = [row for row in rows if row.split == "test"]
    found = [without_own_accuracy((r.model for r in tested), (r.test_set for r in tested))] if tested else []
    evaluations: dict[tuple[int, object, object], list[CsvRow]] = {}
    for row in rows:
        evaluations.setdefault((row.round, row.split, row.stage), []).append(row)
    for (round_, _, _), cells in evaluations.items():
        if doubt := unequal_totals((r.model, r.test_set, r.total) for r in cells):
            found.append(f"round {round_}: {doubt}")
            break
    return [doubt for doubt in found if doubt is not None]


def _refuse_namesakes(
    database: sqlite3.Connection,
    existing: ExistingExperiment,
    runs: Iterable[tuple[str, int]],
    file: str | Path,
) -> None:
    """Refuse a leaderboard with a run that another one brought: one of the two would hide the other."""
    recorded = {
        (row["label"], row["seed"])
        for row in database.execute("SELECT label, seed FROM runs WHERE experiment_id=?", [existing.id])
    }
    for method, seed in runs:
        if (method, seed) in recorded:
            raise FedLensError(
                f"{file}: experiment {existing.id} has '{method}' with seed {seed} from another leaderboard; "
                "rename the method in the file, so that both are shown",
                "file",
            )


def _unknown_names(
    database: sqlite3.Connection, existing: ExistingExperiment, rows: list[CsvRow], file: str
) -> str | None:
    """Return a sentence about names that the experiment's runs lack; None if they have all of them."""
    names = {
        row["name"]
        for row in database.execute(
            "SELECT DISTINCT n.name FROM entities n JOIN runs r ON r.id = n.run_id WHERE r.experiment_id=?",
            [existing.id],
        )
    }
    new = [n for n in dict.fromkeys(n for row in rows for n in (row.model, row.test_set)) if n not in names]
    if not names or not new or new == [GLOBAL_NAME]:
        return None
    shown = ", ".join(f"'{name}'" for name in new[:5]) + (f" and {len(new) - 5} more" if len(new) > 5 else "")
    return (
        f"{file} names {shown}, which the runs of experiment '{existing.name}' do not have; means were taken "
        "over the file's own clients"
    )


def read_rows(file: Path) -> Iterator[CsvRow]:
    """Yield the checked rows of a CSV file."""
    text = read_text(file, "a UTF-8 CSV file")
    csv.field_size_limit(LONGEST_FIELD)  # sqlite-utils lifts it for the whole process
    reader = csv.DictReader(text.splitlines(), restkey=BEYOND)
    seen: dict[tuple[str | int, ...], int] = {}
    domains: dict[str, tuple[str, int]] = {}
    for values in _lines(reader, file):
        line = reader.line_num
        try:
            row = _row(values)
            if row.key() in seen:
                raise ValueError(f"repeats line {seen[row.key()]}; give each cell of a round once")
            domain, first = domains.setdefault(row.test_set, (row.domain, line)) if row.domain else ("", 0)
            if domain != row.domain:
                raise ValueError(
                    f"test set '{row.test_set}' is of domain '{row.domain}', and in line {first} of domain "
                    f"'{domain}'; give each test set one domain"
                )
        except ValueError as error:
            raise FedLensError(f"{file}, line {line}: {error}", "file") from error
        seen[row.key()] = line
        yield row
    if not seen:
        raise FedLensError(f"{file} has no rows below its header; give one per cell", "file")


def _lines(reader: "csv.DictReader[str]", file: Path) -> Iterator[dict[str, Any]]:
    try:
        _check_columns(file, reader.fieldnames or ())
        yield from reader
    except csv.Error as error:
        raise FedLensError(f"{file}, line {reader.line_num + 1}: {error}; mend that line", "file") from error


def _check_columns(file: Path, names: Sequence[str]) -> None:
    """Refuse a header that lacks a column, names one twice, or seems to misspell an optional one.

    Columns that are not needed are ignored, so a column "Split" would turn training accuracies into those of
    tests.
    """
    needed = [name for name, field in CsvRow.model_fields.items() if field.is_required()]
    missing = [name for name in needed if name not in names]
    if missing:
        raise FedLensError(
            f"{file}, line 1: no column {', '.join(missing)}; needed: {', '.join(needed)}", "file"
        )
    twice = first_repeated(names)
    if twice is not None:
        raise FedLensError(f"{file}, line 1: two columns are called '{twice}'; rename or delete one", "file")
    absent = [name for name in CsvRow.model_fields if name not in names]
    for name in names:
        meant = difflib.get_close_matches(name.strip().lower(), absent, 1, 0.8)
        if name not in needed and meant:
            raise FedLensError(
                f"{file}, line 1: unknown column '{name}'; did you mean '{meant[0]}'? Rename or delete it",
                "file",
            )


def _row(values: dict[str, Any]) -> CsvRow:
    if BEYOND in values:
        raise ValueError(
            "more values than columns in line 1; quote values that hold a comma, and write 1000 instead "
            "of 1,000"
        )
    # an empty cell is a missing value, which an optional column replaces by its default
    given = {name: unguarded(text) for name, text in values.items() if text is not None and text.strip()}
    try:
        return CsvRow.model_validate(given)
    except ValidationError as error:
        found = first_error(error)
        raise ValueError(f"column {found.field} {found}" if found.field else str(found)) from error


def _write_run(database: sqlite3.Connection, run_id: int, rows: list[CsvRow], notices: list[str]) -> None:
    entities = _entities(rows)
    codes = {entity.name: entity.code for entity in entities}
    domains = {entity.name for entity in entities if entity.kind == "domain"}
    insert_entities(database, run_id, entities)
    only_global = all(row.model == GLOBAL_NAME for row in rows)
    by_round: dict[int, list[Cell]] = {}
    for row in rows:
        models = {row.model} | ({row.test_set} if only_global and row.test_set not in domains else set())
        place = SPLITS.index(row.split), STAGES.index(row.stage)
        by_round.setdefault(row.round, []).extend(
            Cell(*place, codes[m], codes[row.test_set], row.correct, row.total, None) for m in models
        )
    for number, cells in sorted(by_round.items()):
        insert_round(database, run_id, RoundFinished(round=number, cells=tuple(cells)))
    now, recorded = time.time(), [{"message": text, "repeats_exactly": True} for text in notices]
    database.execute(
        "UPDATE runs SET status='done', rounds_done=?, started_at=?, finished_at=?, notices=? WHERE id=?",
        [max(by_round), now, now, json.dumps(recorded), run_id],
    )
    write_identity(database, run_id)
    update_summary(database, run_id)


def _entities(rows: list[CsvRow]) -> tuple[Entity, ...]:
    """Return the global model (0), then clients, then domains, each in order of appearance."""
    models = dict.fromkeys(row.model for row in rows if row.model != GLOBAL_NAME)
    domain_of: dict[str, str | None] = dict.fromkeys(row.test_set for row in rows)
    domain_of |= {row.test_set: row.domain for row in rows if row.domain}
    domain_sets = [name for name, domain in domain_of.items() if name == domain and name not in models]
    clients = [n for n in dict.fromkeys([*models, *domain_of]) if n not in domain_sets and n != GLOBAL_NAME]
    found = [Entity(GLOBAL, "global", GLOBAL_NAME)]
    found += [
        Entity(code, "client", name, domain=domain_of.get(name)) for code, name in enumerate(clients, 1)
    ]
    start = len(found)
    return (*found, *(Entity(start + i, "domain", name, domain=name) for i, name in enumerate(domain_sets)))
