"""Verify a bundle: every count from predictions and splits, every number of the report from the counts.

Neither weights nor torch are needed. What is compared with what is written down in docs/checkable.md.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedcore.base import consent
from fedcore.base.errors import DAMAGE, FedLensError, SystemFault, first_line
from fedcore.base.events import COUNTS_ONLY, SPLITS, TEST, TRAIN
from fedcore.base.presentation import built_in
from fedcore.base.progress import Work, counted
from fedcore.config import RunConfig
from fedcore.methods import registry
from fedcore.results import exports
from fedcore.results.comparison import compare
from fedcore.results.summary import PrintedValues
from fedcore.share.archive import (
    BREAKDOWNS,
    CLASS_SETS,
    EVIDENCE,
    RUNS,
    SUMMARY,
    Archive,
    BundleFault,
    Evidence,
    PredictionFile,
    RunEvidence,
    Sample,
    first_difference,
    prediction_file,
    read_samples,
)
from fedcore.share.checked import CheckedComparison, ComparisonChoices
from fedcore.share.recipe import METHODS, MethodFile, Recipe, RunRecipe, numbered, recipe_of
from fedcore.share.samples import image_differences, read_folders
from fedcore.store import Store, schema
from fedcore.store.damage import structure, write_identity
from fedcore.store.database import writing
from fedcore.store.imports import Merged
from fedcore.store.rounds import EntityRow

_IDENTITY = (
    "experiment", "data", "split", "backbone", "partition", "clients", "held_out", "method", "label",
)  # fmt: skip
SUMMARY_COLUMNS = (
    *_IDENTITY, "metric", "rule", "rounds", "mean", "std", "n", "seeds", "runs", "baseline", "difference",
    "test", "pairs", "p", "p_holm",
)  # fmt: skip
BREAKDOWN_COLUMNS = (*_IDENTITY, "rule", "breakdown", "name", "mean", "std", "n")
KINDS = ("domain", "client", "held_out")
"""Columns and breakdowns of this format; later ones, and later metrics, make no older bundle differ."""
_P_DIGITS = 6
"""Significant digits of p, so that another version of SciPy gives the same text."""
Count = tuple[int, int]
"""Correct predictions of a model on a test set, and its samples."""
Counts = Mapping[tuple[int, int], Count]
"""Codes of model and test set -> count."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        checked: what was recomputed or compared, in one line each.
        unchecked: what the bundle does not allow to be checked, and why.
        differences: what does not follow from the evidence; empty for a bundle that is true to it.
    """

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences and not self.unchecked


@dataclass(frozen=True)
class RecordedRun:
    """A run of a bundle.

    Attributes:
        entities: its models and test sets by code.
        class_counts: training samples of a client by class, by its code.
        counts: those recorded in its reported rounds, by round.
        predictions: by round; a round without them has counts only.
    """

    number: int
    config: RunConfig
    evidence: RunEvidence
    entities: Mapping[int, EntityRow]
    class_counts: Mapping[int, tuple[int, ...]]
    counts: Mapping[int, Counts]
    predictions: Mapping[int, PredictionFile]

    def name(self, pair: tuple[int, int]) -> str:
        model, test_set = (self.entities[code].name if code in self.entities else str(code) for code in pair)
        return f"{model} on {test_set}"


@dataclass(frozen=True)
class Content:
    """What a bundle says: its runs, the samples by file, and the numbers that follow from its counts."""

    archive: Archive
    recipe: Recipe
    runs: tuple[RecordedRun, ...]
    samples: Mapping[str, list[Sample]]
    numbers: Mapping[str, str]

    @property
    def counts(self) -> dict[tuple[int, int, int, int], Count]:
        """All recorded counts of reported rounds, by run, round, model and test set."""
        return {
            (run.number, round_, *pair): count
            for run in self.runs
            for round_, counts in run.counts.items()
            for pair, count in counts.items()
        }


@contextmanager
def recorded(database: bytes) -> Iterator[Store]:
    """Merge the database of a bundle into an empty one for a while; run N has the id N there.

    A stranger made it. It may define nothing but our tables, so that nothing else is executed; then pages
    that refer to each other in circles are ruled out, and the merge checks every value and digest.
    """
    with TemporaryDirectory(prefix="fedlens-bundle-") as folder:
        theirs, ours = Path(folder) / RUNS, Store(Path(folder) / "merged.db")
        theirs.write_bytes(database)
        try:
            with closing(sqlite3.connect(f"{theirs.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
                connection.execute("PRAGMA trusted_schema=OFF")
                if (version := schema.version_of(connection)) > schema.VERSION:
                    raise BundleFault("a newer FedLens made this bundle; update FedLens", "bundle")
                with closing(sqlite3.connect(":memory:")) as empty:
                    make_tables(empty, max(version, 1))
                    if _definitions(connection) != _definitions(empty):
                        raise FedLensError(f"the tables of {RUNS} are not those that FedLens makes")
                for line in structure(connection):
                    raise FedLensError(f"{RUNS}: {line}")
            ours.imports.database(theirs)
        except sqlite3.DatabaseError as error:
            raise FedLensError(f"{RUNS}: {first_line(error)}") from error
        except FedLensError as error:
            raise type(error)(str(error).replace(str(theirs), RUNS), error.field) from error
        yield ours


def make_tables(database: sqlite3.Connection, version: int = schema.VERSION) -> None:
    """Make the tables of a bundle's database, and nothing else."""
    for step in schema.STEPS[:version]:
        step(database)
    database.execute(f"PRAGMA user_version={version}")


def _definitions(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall())


def compared(store: Store, choice: ComparisonChoices) -> CheckedComparison:
    """Compare all runs of a bundle's database."""
    ids = sorted(e.id for e in store.experiments.all(include_archived=True))
    comparison = compare(store, ids, choice.rule)
    if choice.baseline not in (None, *(row.label for row in comparison.rows)):
        raise FedLensError(f"no row is the baseline {choice.baseline!r}", "bundle")
    return CheckedComparison(store, comparison, choice, PrintedValues())


def number_files(checked: CheckedComparison, metrics: Sequence[str]) -> dict[str, str]:
    """Return the files with the report's numbers by name."""
    rows = (
        row
        for row in exports.summary_rows(checked.summary)
        if row["metric"] in metrics and row["mean"] is not None
    )
    parts = (row for row in exports.breakdown_rows(checked.comparison) if row["breakdown"] in KINDS)
    return {
        SUMMARY: exports.rows_csv([_portable(r, SUMMARY_COLUMNS) for r in rows], SUMMARY_COLUMNS),
        BREAKDOWNS: exports.rows_csv([_portable(r, BREAKDOWN_COLUMNS) for r in parts], BREAKDOWN_COLUMNS),
    }


def _portable(row: exports.TidyRow, columns: Sequence[str]) -> exports.TidyRow:
    portable = {name: row.get(name) for name in columns}
    tests = (name for name in ("p", "p_holm") if portable.get(name) is not None)
    return portable | {name: float(f"{portable[name]:.{_P_DIGITS}g}") for name in tests}


def _read_content(archive: Archive) -> Content:
    """Parse a bundle; raises FedLensError, field ``bundle``, for one that contradicts itself."""
    evidence = archive.read(EVIDENCE, Evidence)
    methods = {
        name: MethodFile(sha256=consent.digest(archive.files[name]), text=archive.text(name))
        for name in archive.files
        if name.startswith(f"{METHODS}/")
    }
    with recorded(archive.content(RUNS)) as store:
        checked = compared(store, evidence.choices)
        recipe = recipe_of(checked, archive.manifest.title, methods)
        for run in recipe.runs:
            if text := _contradiction(run):
                raise archive.fault(f"{run.name}: {text}")
        rounds = {r.run.id: r.rounds for row in checked.comparison.rows for r in row.runs}
        count = len(evidence.runs)
        stored = sum(len(experiment.runs) for experiment in checked.comparison.experiments)
        if not 0 < count == stored or numbered(checked.comparison) != list(range(1, count + 1)):
            raise archive.fault(f"the runs of {RUNS} and {EVIDENCE} are not the same")
        runs = tuple(
            _recorded_run(archive, store, number, of_run, rounds[number])
            for number, of_run in enumerate(evidence.runs, 1)
        )
        numbers = number_files(checked, evidence.metrics)
    samples: dict[str, list[Sample]] = {}
    for name in {space.samples for run in runs for space in run.evidence.spaces}:
        try:
            samples[name] = read_samples(archive.text(name))
        except ValueError as error:
            raise archive.fault(f"{name}: {error}") from error
    return Content(archive, recipe, runs, samples, numbers)


def _recorded_run(
    archive: Archive, store: Store, number: int, evidence: RunEvidence, rounds: Sequence[int]
) -> RecordedRun:
    config = store.runs.config(number)
    entities = {e.entity: e for e in store.cells.entities(number)}
    if not evidence.space_of.keys() <= entities.keys() or not all(
        0 <= space < len(evidence.spaces) for space in evidence.space_of.values()
    ):
        raise archive.fault(f"the test sets of run {number} contradict each other")
    files = [space.samples for space in evidence.spaces]
    if sum(file != files[0] for file in files) > len(config.transfer):
        raise archive.fault(f"run {number} has samples of more data sets than its config names")
    cells = {r: store.cells.coded({number: [r]}).tolist() for r in rounds}
    if not {code for of in cells.values() for cell in of for code in cell[1:3]} <= entities.keys():
        raise archive.fault(f"run {number} has counts of models or test sets that it does not name")
    return RecordedRun(
        number,
        config,
        evidence,
        entities,
        store.cells.class_counts(number),
        {r: {(model, test): (right, total) for _, model, test, right, total in cells[r]} for r in rounds},
        {
            r: archive.read(prediction_file(number, r), PredictionFile)
            for r in rounds
            if prediction_file(number, r) in archive.files
        },
    )


def _contradiction(run: RunRecipe) -> str:
    """Return how a run's label or rounds contradict its config; empty if they do not."""
    method, titles = run.config.method, {about.title: name for name, about in built_in().items()}
    named = titles.get(run.label, titles.get(run.label.partition(" (")[0], method.name))
    if method.file is None and named != method.name:
        return f"it is labelled {run.label!r}, and its method is {method.name}"
    found = None if method.file else registry.find(method.name)
    last, planned = max(run.rounds, default=0), run.config.rounds
    complete = run.origin == "engine" and (last or (found is not None and found.trains))
    if last > planned or (complete and last < planned):
        return f"it has finished, but its last recorded round is {last} of {planned}"
    return ""


def import_bundle(archive: Archive, store: Store) -> Merged:
    """Merge the runs of a bundle into a database; an earlier import of it is left as it is.

    A bundle may have only some runs of an experiment, so the import gets a new identity. A run without
    predictions is marked in every table, since nothing shows that its counts were measured.
    """
    content = sound_content(archive)
    digest = archive.manifest.digest
    text = f"imported from the bundle {digest}, in which predictions are behind the reported round only"
    bare = f"{COUNTS_ONLY}: the bundle {digest} has no predictions behind its accuracies"
    with recorded(archive.content(RUNS)) as bundled:
        with writing(bundled.path) as database:
            for (number,) in database.execute("SELECT id FROM experiments").fetchall():
                identity = hashlib.sha256(f"{digest} {number}".encode()).hexdigest()[:32]
                database.execute("UPDATE experiments SET uuid=? WHERE id=?", [identity, number])
            for run in content.runs:
                said = text if run.counts.keys() <= run.predictions.keys() else bare
                notice = json.dumps({"message": said, "repeats_exactly": True})
                query = "UPDATE runs SET notices=json_insert(notices, '$[#]', json(?)) WHERE id=?"
                database.execute(query, [notice, run.number])
            for (number,) in database.execute("SELECT id FROM runs").fetchall():
                write_identity(database, number)
        return store.imports.database(bundled.path)


def verify(archive: Archive, data: Sequence[str] = ()) -> Work[Verification]:
    """Check the numbers of a bundle, and its images against these folders, see ``read_folders``."""
    with _faults(archive):
        content = _read_content(archive)
    folders = read_folders((run.config for run in content.runs), data)  # first, as the rest may take minutes
    with _faults(archive):
        verdict = _verdict(content)
    with_spaces = [(run.config, run.evidence.spaces) for run in content.runs]
    said, differences = yield from image_differences(with_spaces, content.samples, folders)
    return Verification((*verdict.checked, *said), verdict.unchecked, (*verdict.differences, *differences))


def verify_numbers(archive: Archive) -> tuple[Content, Verification]:
    """Read a bundle and check its numbers; raises FedLensError, field ``bundle``, as ``verify`` does."""
    with _faults(archive):
        content = _read_content(archive)
        return content, _verdict(content)


@contextmanager
def _faults(archive: Archive) -> Iterator[None]:
    try:
        yield
    except (BundleFault, SystemFault):
        raise
    except FedLensError as error:
        raise archive.fault(str(error)) from error
    except (*DAMAGE, OverflowError) as error:
        raise archive.fault(first_line(error)) from error


def sound_content(archive: Archive) -> Content:
    """Return the content of a bundle whose numbers follow; raises FedLensError, field ``bundle``."""
    content, verdict = verify_numbers(archive)
    if verdict.differences:
        raise archive.fault(verdict.differences[0])
    return content


def _verdict(content: Content) -> Verification:
    archive = content.archive
    differences: list[str] = []
    unchecked: list[str] = []
    counts = predicted = 0
    for run in content.runs:
        members = _Members(run, content.samples)
        differences += [f"run {run.number}: {text}" for text in _entity_differences(run, members)]
        for round_, stated in run.counts.items():
            at, found = f"run {run.number}, round {round_}", dict[tuple[int, int], Count]()
            if file := run.predictions.get(round_):
                found = recounted(run, file, members)
                predicted += sum(len(row.predicted) for row in file.rows)
            adapted = {pair for pair in stated if run.entities[pair[0]].kind == "adapted"}
            counts_only = adapted if found else stated.keys()
            if found and adapted:
                why = "they are trained at the end of the run and not stored"
                unchecked.append(f"{at}: adapted models have counts only, since {why}")
            elif not found and (reason := run.evidence.counts_only.get(round_)):
                unchecked.append(f"{at}: it has counts only, since {reason}")
            elif not found and stated:
                differences.append(f"{at}: its predictions are missing")
            checkable = {pair: count for pair, count in stated.items() if pair not in counts_only}
            counts += len(found)
            for pair in sorted(checkable.keys() | found.keys()):
                if checkable.get(pair) != found.get(pair):
                    pairs = (count_text(of.get(pair)) for of in (checkable, found))
                    differences.append(f"{at}: {run.name(pair)} has {next(pairs)}, and {next(pairs)} follows")
                    break  # the others of the round are seldom news
    checked = [
        f"{counted(len(archive.files), 'file')}: unchanged, digest {archive.manifest.digest}",
        f"{counted(counts, 'count')} recomputed from {counted(predicted, 'prediction')}",
    ]
    of_rounds = {prediction_file(run.number, round_) for run in content.runs for round_ in run.counts}
    for name in archive.files:
        if name.startswith("predictions/") and name not in of_rounds:
            differences.append(f"{name}: predictions of a round that is not reported")
    lines = 0
    for name, made in content.numbers.items():
        lines += made.count("\n") - 1
        if text := first_difference(archive.text(name), made):
            differences.append(f"{name}: {text}")
    checked.append(f"{counted(lines, 'row')} of the report recomputed from the counts")
    return Verification(tuple(checked), tuple(unchecked), tuple(differences))


def count_text(count: Count | None) -> str:
    """Return a count in words, also of an accuracy that there is not."""
    return "no accuracy" if count is None else f"{count[0]} correct of {count[1]}"


def recounted(run: RecordedRun, file: PredictionFile, members: "_Members") -> dict[tuple[int, int], Count]:
    """Count the correct predictions of each model on each test set.

    Raises:
        ValueError: for predictions that are not those of the test sets' samples.
    """
    found: dict[tuple[int, int], Count] = {}
    for row in file.rows:
        spaces = {run.evidence.space_of.get(t) for t in row.test_sets}
        if len(spaces) != 1 or None in spaces or not set(row.models) <= run.entities.keys():
            raise ValueError(f"run {run.number}: predictions for unknown models or test sets")
        (space,) = (s for s in spaces if s is not None)
        sets = {t: members.of(run.entities[t]) for t in row.test_sets}
        place = np.unique(np.concatenate(list(sets.values())))
        predicted = np.array(row.predicted, dtype=np.int64)
        classes = len(run.evidence.spaces[space].classes)
        if len(predicted) != len(place):
            raise ValueError(f"run {run.number}: {len(predicted)} predictions for {len(place)} samples")
        if len(predicted) and not 0 <= predicted.min() <= predicted.max() < classes:
            raise ValueError(f"run {run.number}: a predicted class is none of the {classes}")
        right = predicted == members.labels[space][place]
        for test_set, rows in sets.items():
            if not len(rows):
                name = run.entities[test_set].name
                raise ValueError(f"run {run.number}: no sample is in the test set {name!r:.60}")
            correct = int(right[np.searchsorted(place, rows)].sum())
            for model in row.models:
                if (model, test_set) in found:
                    raise ValueError(f"run {run.number}: two predictions for model {model}")
                found[model, test_set] = correct, len(rows)
    return found


class _Members:
    """The samples of each test set, as places in the file of its label space.

    Attributes:
        labels: by label space, the class of each sample, -1 for a class of another. Shape: (samples,).
    """

    def __init__(self, run: RecordedRun, samples: Mapping[str, Sequence[Sample]]) -> None:
        self._run = run
        self.samples = [samples[space.samples] for space in run.evidence.spaces]
        self.labels: list[np.ndarray] = []
        self._marked: list[dict[str, list[int]]] = []
        for space, listed in zip(run.evidence.spaces, self.samples, strict=True):
            code, marks = {name: i for i, name in enumerate(space.classes)}, dict[str, list[int]]()
            self.labels.append(np.array([code.get(s.label, -1) for s in listed], dtype=np.int64))
            for place, sample in enumerate(listed):
                for mark in sample.test_sets.split():
                    marks.setdefault(mark, []).append(place)
            self._marked.append(marks)

    def of(self, test_set: EntityRow) -> np.ndarray:
        """Return the places of a test set's samples, ascending. Shape: -> (samples,)."""
        space = self._run.evidence.space_of.get(test_set.entity, 0)
        if test_set.kind != "classes":
            return np.array(self._marked[space].get(str(test_set.entity), []), dtype=np.int64)
        rows = np.array(self._marked[space].get(CLASS_SETS, []), dtype=np.int64)
        return self._of_classes(test_set, space, rows)

    def expected(self, test_set: EntityRow) -> np.ndarray:
        """Return the test samples of a domain, or of the classes of a space or client, as ``of`` does."""
        space = self._run.evidence.space_of.get(test_set.entity, 0)
        domain = test_set.name if test_set.kind == "domain" else None
        samples = enumerate(self.samples[space])
        rows = [i for i, s in samples if s.part == SPLITS[TEST] and domain in (None, s.domain)]
        tested = np.array(rows, dtype=np.int64)
        if test_set.kind == "classes":
            return self._of_classes(test_set, space, tested)
        return tested[self.labels[space][tested] >= 0]

    def _of_classes(self, test_set: EntityRow, space: int, rows: np.ndarray) -> np.ndarray:
        (held,) = [
            self._run.class_counts.get(e.entity, ())
            for e in self._run.entities.values()
            if e.kind == "client" and test_set.name == f"classes of {e.name}"
        ] or [()]
        return rows[np.isin(self.labels[space][rows], [i for i, n in enumerate(held) if n])]


def _entity_differences(run: RecordedRun, members: _Members) -> Iterable[str]:
    """Yield where the recorded clients and test sets of a run contradict its samples."""
    if not members.samples:
        return
    trained_on = members.samples[0]
    classes = len(run.evidence.spaces[0].classes)
    trained: dict[str, list[int]] = {}
    held: dict[str, set[int]] = {}
    for place, (sample, label) in enumerate(zip(trained_on, members.labels[0].tolist(), strict=True)):
        if sample.part == SPLITS[TRAIN] and label >= 0:
            trained.setdefault(sample.client, [0] * classes)[label] += 1
        elif sample.client and sample.part == "test":
            held.setdefault(sample.client, set()).add(place)
    counted_sets = {test for of in run.counts.values() for _, test in of}
    for e in run.entities.values():
        name = e.name.removesuffix(", adapted") if e.kind == "adapted" else e.name
        if e.kind in ("client", "adapted"):
            counts = tuple(trained.get(name, [0] * classes))
            if (stated := run.class_counts.get(e.entity, counts)) != counts:
                yield f"{e.name} has {list(counts)} training samples by class, not {list(stated)}"
            if e.samples is not None and e.samples != sum(counts):
                yield f"{e.name} has {sum(counts)} training samples, not {e.samples}"
        if not any(s.test_sets for s in trained_on) or e.kind == "global" or e.entity not in counted_sets:
            continue
        found = set(members.of(e).tolist())
        if e.kind not in ("client", "adapted") and e.samples is not None and len(found) != e.samples:
            yield f"{e.name} has {len(found)} test samples, not {e.samples}"
        if e.kind in ("client", "unseen"):
            owned = held.get(e.name.removeprefix("unseen ") if e.kind == "unseen" else e.name, set())
        else:
            owned = set(members.expected(e).tolist())
        if found != owned:
            yield f"the test set of {e.name} is not that of its test samples"
        elif e.domain is not None and any(trained_on[i].domain != e.domain for i in found):
            yield f"{e.name} is of the domain {e.domain}, and its test samples are not"
