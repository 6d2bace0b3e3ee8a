"""Results that FedLens did not compute: what a user's script and a CSV file have in common, and CSV files.

Their runs join an experiment, or make a new one; the names of models and test sets become entities.
"""

import csv
import difflib
import hashlib
import json
import logging
import operator
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
from fedcore.base.progress import first_few
from fedcore.config import MethodEntry, RunConfig
from fedcore.methods.registry import first_error
from fedcore.store.damage import write_identity
from fedcore.store.database import DatabaseFile
from fedcore.store.preparing import prepare_for_writing
from fedcore.store.writer import (
    GLOBAL_NAME,
    Created,
    ExistingExperiment,
    doubts,
    find_experiment,
    insert_entities,
    insert_own_runs,
    insert_round,
    insert_row,
    own_config,
    update_summary,
)

logger = logging.getLogger(__name__)
MAX_ROUND = 100_000
GLOBAL_TEST_SET = (
    f"a test set cannot be called '{GLOBAL_NAME}', which is the global model's name: the pair would count as "
    "a client's own model and test set; rename it"
)
Counts = Mapping[tuple[str, str], tuple[int, int]]
"""(model, test set) -> (correct, total) of an evaluation."""
NAMED = 5
"""Names that a sentence repeats."""
MAX_COUNT = 10**12
"""Highest count of samples: sums over all cells of a database stay within 64 bits."""
MAX_NAME = 1000
"""Maximum length of the name of a method, a model or a test set, in characters."""


def whole_number(name: str, value: Any, most: int) -> int:
    """Convert a whole number from 0 to ``most`` to a Python integer; it may be of numpy or a tensor.

    Raises:
        ValueError: for any other value, also for a float such as 93.0, which may be a percentage.
    """
    number = -1
    if str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.") != "bool":
        with suppress(TypeError, ValueError):
            number = operator.index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} is '{value}'; give a whole number from 0 to {most:,}")
    return number


def checked_counts(correct: Any, total: Any) -> tuple[int, int]:
    """Return counts of correct samples and all samples as whole numbers.

    Raises:
        ValueError: unless 0 <= correct <= total and 1 <= total.
    """
    right = whole_number("correct", correct, MAX_COUNT)
    of = whole_number("total", total, MAX_COUNT)
    if of < 1 or right > of:
        raise ValueError(f"{right} correct of {of}; total is at least 1, and correct from 0 to total")
    return right, of


def without_own_accuracy(models: Iterable[str], test_sets: Iterable[str]) -> str | None:
    """Return a sentence if no model can have an accuracy on its own test set; None if one can."""
    of_models, of_sets = (sorted(set(names)) for names in (models, test_sets))
    if {GLOBAL_NAME, *of_sets} & set(of_models):
        return None
    return (
        "no model has the name of a test set, so there is no personal accuracy: the models were "
        f"{first_few(of_models, NAMED)}, the test sets {first_few(of_sets, NAMED)}; '{GLOBAL_NAME}' is the "
        "name of the global model"
    )


class OwnNames:
    """The models and test sets of a run that was trained elsewhere, and its cells, whose names they code.

    Args:
        domain_sets: names of test sets that belong to a domain and not to a client.
        domains: domain of each client.
    """

    def __init__(self, domain_sets: Iterable[str], domains: Mapping[str, str]) -> None:
        self.domain_sets, self.domains = frozenset(domain_sets), domains
        self.codes = {GLOBAL_NAME: GLOBAL}
        self.models, self.test_sets = set[str](), set[str]()
        self._doubted = False

    def add(self, names: Iterable[str]) -> list[Entity]:
        """Give new names the next entity codes, in order of appearance."""
        entities = []
        for name in names:
            if name in self.codes:
                continue
            code = self.codes[name] = len(self.codes)
            is_domain = name in self.domain_sets
            domain = name if is_domain else self.domains.get(name)
            entities.append(Entity(code, "domain" if is_domain else "client", name, domain=domain))
        return entities

    def cells(self, split: str, stage: str, counts: Counts) -> list[Cell]:
        """Return the cells of an evaluation.

        If there is no other model, every client uses the global one, as in FedLens' own methods.
        """
        found = dict(counts)
        self.models.update(model for model, _ in counts)
        self.test_sets.update(test_set for _, test_set in counts)
        if self.models <= {GLOBAL_NAME}:
            found |= {(t, t): n for (_, t), n in counts.items() if t not in self.domain_sets}
        place, codes = (SPLITS.index(split), STAGES.index(stage)), self.codes
        return [Cell(*place, codes[m], codes[t], *numbers, None) for (m, t), numbers in found.items()]

    def unequal_totals(self, round_: int, counts: Counts) -> str | None:
        """Return a sentence, once, if two models were tested on different numbers of samples."""
        seen: dict[str, tuple[str, int]] = {}
        for (model, test_set), (_, total) in counts.items():
            first, samples = seen.setdefault(test_set, (model, total))
            if samples != total and not self._doubted:
                self._doubted = True
                return (
                    f"round {round_}: test set '{test_set}' has {samples} samples for model '{first}' and "
                    f"{total} for '{model}', so their accuracies are of different samples"
                )
        return None


BEYOND = "beyond the header"
"""Key of surplus values, for which the header has no column."""
LONGEST_FIELD = 2**17
MAX_SEED = 2**53
"""Highest seed; above it a float cannot represent every whole number."""


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
    rows = read_rows(Path(file))
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
            of_run = _write_run(database, run_id, its_rows, notices)
            doubted += [f"{its_rows[0].method}, seed {its_rows[0].seed}: {doubt}" for doubt in of_run]
        insert_row(database, "imported_files", {"content_hash": identity, "run_id": created.run_ids[0]})
    for notice in notices + doubted:
        logger.warning("%s", notice)
    return created


def _refuse_namesakes(
    database: sqlite3.Connection,
    existing: ExistingExperiment,
    runs: Iterable[tuple[str, int]],
    file: str | Path,
) -> None:
    """Refuse a leaderboard with a run that another one brought: one of the two would hide the other."""
    same = "SELECT 1 FROM runs WHERE experiment_id=? AND label=? AND seed=?"
    for method, seed in runs:
        if database.execute(same, [existing.id, method, seed]).fetchone():
            raise FedLensError(
                f"{file}: experiment {existing.id} has '{method}' with seed {seed} from another leaderboard; "
                "rename the method in the file, so that both are shown",
                "file",
            )


def _unknown_names(
    database: sqlite3.Connection, existing: ExistingExperiment, rows: list[CsvRow], file: str
) -> str | None:
    """Return a sentence about names that the experiment's runs lack; None if they have all of them."""
    recorded = database.execute(
        "SELECT DISTINCT n.name FROM entities n JOIN runs r ON r.id = n.run_id WHERE r.experiment_id=?",
        [existing.id],
    )
    names = {row["name"] for row in recorded}
    new = [n for n in dict.fromkeys(n for row in rows for n in (row.model, row.test_set)) if n not in names]
    if not names or not new or new == [GLOBAL_NAME]:
        return None
    shown = ", ".join(f"'{name}'" for name in new[:5]) + (f" and {len(new) - 5} more" if len(new) > 5 else "")
    return (
        f"{file} names {shown}, which the runs of experiment '{existing.name}' do not have; means were taken "
        "over the file's own clients"
    )


def read_rows(file: Path) -> list[CsvRow]:
    """Return the checked rows of a CSV file."""
    text = read_text(file, "a UTF-8 CSV file")
    csv.field_size_limit(LONGEST_FIELD)  # sqlite-utils lifts it for the whole process
    reader = csv.DictReader(text.splitlines(), restkey=BEYOND)
    rows: dict[tuple[str | int, ...], tuple[CsvRow, int]] = {}
    domains: dict[str, tuple[str, int]] = {}
    try:
        _check_columns(file, reader.fieldnames or ())
        for values in reader:
            row, line = _row(values), reader.line_num
            if row.key() in rows:
                raise ValueError(f"repeats line {rows[row.key()][1]}; give each cell of a round once")
            domain, first = domains.setdefault(row.test_set, (row.domain, line)) if row.domain else ("", 0)
            if domain != row.domain:
                raise ValueError(
                    f"test set '{row.test_set}' is of domain '{row.domain}', and in line {first} of domain "
                    f"'{domain}'; give each test set one domain"
                )
            rows[row.key()] = row, line
    except csv.Error as error:
        raise FedLensError(f"{file}, line {reader.line_num + 1}: {error}; mend that line", "file") from error
    except FedLensError:
        raise
    except ValueError as error:
        raise FedLensError(f"{file}, line {reader.line_num}: {error}", "file") from error
    if not rows:
        raise FedLensError(f"{file} has no rows below its header; give one per cell", "file")
    return [row for row, _ in rows.values()]


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


def _write_run(
    database: sqlite3.Connection, run_id: int, rows: list[CsvRow], notices: list[str]
) -> list[str]:
    """Write the rows of one run; return a sentence for each name or number that does not fit the others."""
    models, test_sets = dict.fromkeys(r.model for r in rows), dict.fromkeys(r.test_set for r in rows)
    domains = {row.test_set: row.domain for row in rows if row.domain}
    of_domains = [name for name in test_sets if domains.get(name) == name and name not in models]
    names = OwnNames(of_domains, domains)
    names.models.update(models)
    clients = [name for name in (*models, *test_sets) if name not in names.domain_sets]
    insert_entities(database, run_id, names.add([*clients, *of_domains]))
    tested = [row for row in rows if row.split == "test"]
    found = [
        without_own_accuracy((r.model for r in tested), (r.test_set for r in tested)) if tested else None
    ]
    rounds: dict[int, dict[tuple[str, str], dict[tuple[str, str], tuple[int, int]]]] = {}
    for row in rows:
        evaluation = rounds.setdefault(row.round, {}).setdefault((row.split, row.stage), {})
        evaluation[row.model, row.test_set] = row.correct, row.total
    for number, evaluations in sorted(rounds.items()):
        cells = [c for place, counts in evaluations.items() for c in names.cells(*place, counts)]
        insert_round(database, run_id, RoundFinished(round=number, cells=tuple(cells)))
        found += [names.unequal_totals(number, counts) for counts in evaluations.values()]
    doubted = [doubt for doubt in found if doubt is not None]
    now = time.time()
    recorded = [{"message": text, "repeats_exactly": True} for text in (*notices, *doubted)]
    database.execute(
        "UPDATE runs SET status='done', rounds_done=?, started_at=?, finished_at=?, notices=? WHERE id=?",
        [max(rounds), now, now, json.dumps(recorded), run_id],
    )
    write_identity(database, run_id)
    update_summary(database, run_id)
    return doubted
