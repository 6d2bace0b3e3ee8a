"""The files of a bundle: the samples of each client and test set, predictions, counts and numbers.

Everything is JSON or CSV, so that a bundle can be read and checked without FedLens; ``README`` explains it.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from fedcore.base.events import Entity
from fedcore.base.files import unguarded
from fedcore.results import exports

RECIPE, EVIDENCE, COUNTS = "recipe.json", "evidence.json", "counts.csv"
SUMMARY, BREAKDOWNS, README_NAME = "summary.csv", "breakdowns.csv", "README.md"
CLASS_SETS = "classes"
"""Mark of the samples that belong to the class sets of all clients which train on their class."""
EntityKind = Literal["global", "client", "domain", "classes", "base", "new", "transfer", "unseen", "adapted"]


class BundlePart(BaseModel):
    """A part of a JSON file in a bundle."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EntityRecord(BundlePart):
    """A model or test set (``records.events.Entity``); a test set is scored in a label space."""

    code: int = Field(ge=0)
    kind: EntityKind
    name: str
    domain: str | None
    samples: int | None
    class_counts: tuple[int, ...] | None
    space: int | None = None  # index of ``RunEvidence.spaces``

    def entity(self) -> Entity:
        return Entity(**self.model_dump(exclude={"space"}))


class LabelSpaceRecord(BundlePart):
    """A label space: its class names, which predictions index, and the file of its samples."""

    classes: tuple[str, ...]
    samples: str


class RoundEvidence(BundlePart):
    """A reported round; without a file of predictions it has counts only, for a reason."""

    round: int = Field(ge=0)
    predictions: str | None
    reason: str = ""


class RunEvidence(BundlePart):
    """The evidence of one run.

    Attributes:
        number: that of the run in the recipe.
        spaces: that of training first; empty if the samples of the run are not known.
    """

    number: int
    entities: tuple[EntityRecord, ...]
    spaces: tuple[LabelSpaceRecord, ...]
    rounds: tuple[RoundEvidence, ...]

    def by_code(self) -> dict[int, EntityRecord]:
        return {e.code: e for e in self.entities}


class Evidence(BundlePart):
    """The evidence of all runs of a bundle."""

    runs: tuple[RunEvidence, ...]


class PredictionRow(BundlePart):
    """The classes that some models predict on the samples of some test sets.

    Attributes:
        predicted: a class index per sample of these test sets together, in the order of the samples' file.
    """

    models: tuple[int, ...] = Field(min_length=1)
    test_sets: tuple[int, ...] = Field(min_length=1)
    predicted: tuple[int, ...]


class PredictionFile(BundlePart):
    """All predictions of one round of a run."""

    rows: tuple[PredictionRow, ...]


class Sample(NamedTuple):
    """An image of a data set.

    Attributes:
        sha256: of its pixels, see ``samples.pixel_hash``.
        client, part: who holds it, and in which set; empty and ``test`` for a test image of no client.
        test_sets: codes of the test sets that it belongs to, and ``classes``, separated by spaces.
    """

    sample: str
    sha256: str
    domain: str
    label: str
    client: str
    part: str
    test_sets: str


SAMPLE_COLUMNS = ("sample", "sha256", "domain", "class", "client", "set", "test_sets")


def samples_csv(samples: Iterable[Sample]) -> str:
    """Return the samples of a run as CSV."""
    return exports.csv_text(SAMPLE_COLUMNS, samples)


def read_samples(text: str) -> list[Sample]:
    """Read the samples of a run.

    Raises:
        ValueError: naming the line.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        if tuple(next(reader, ())) != SAMPLE_COLUMNS:
            raise ValueError(f"line 1: the columns are not {', '.join(SAMPLE_COLUMNS)}")
        found = []
        for values in reader:
            if len(values) != len(SAMPLE_COLUMNS):
                raise ValueError(f"line {reader.line_num}: {len(values)} values, not {len(SAMPLE_COLUMNS)}")
            found.append(Sample(*map(unguarded, values)))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    if len({s.sample for s in found}) < len(found):
        raise ValueError("a sample is named twice")
    return found


CellKey = tuple[int, int, int, int]
"""Run, round, model and test set."""


class Count(NamedTuple):
    """Correct predictions of a model on a test set, and whether they were recomputed from predictions."""

    correct: int
    total: int
    predicted: bool


COUNT_COLUMNS = (
    "run", "round", "model", "model_kind", "model_name", "test_set", "test_set_kind", "test_set_name",
    "correct", "total", "accuracy", "from",
)  # fmt: skip


def counts_csv(evidence: Evidence, counts: Mapping[CellKey, Count]) -> str:
    """Return the counts of all reported rounds as CSV, in ascending order."""
    names = {run.number: run.by_code() for run in evidence.runs}

    def row(key: CellKey, count: Count) -> list[object]:
        run, round_, model, test_set = key
        one, other = names[run][model], names[run][test_set]
        return [
            run,
            round_,
            model,
            one.kind,
            one.name,
            test_set,
            other.kind,
            other.name,
            count.correct,
            count.total,
            f"{100 * count.correct / count.total:.4f}",
            "predictions" if count.predicted else "counts",
        ]

    return exports.csv_text(COUNT_COLUMNS, (row(key, count) for key, count in sorted(counts.items())))


def read_counts(text: str) -> dict[CellKey, Count]:
    """Read the counts of a bundle; the caller compares the text with ``counts_csv``.

    Raises:
        ValueError: naming the line.
    """
    lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: dict[CellKey, Count] = {}
    try:
        if tuple(lines.fieldnames or ()) != COUNT_COLUMNS:
            raise ValueError(f"line 1: the columns are not {', '.join(COUNT_COLUMNS)}")
        for line in lines:
            number = lines.line_num
            values = [line[name] or "" for name in ("run", "round", "model", "test_set", "correct", "total")]
            if not all(v.isascii() and v.isdigit() and len(v) < 16 for v in values):
                raise ValueError(f"line {number}: {', '.join(map(repr, values))[:100]} are not whole numbers")
            run, round_, model, test_set, correct, total = map(int, values)
            if not 0 <= correct <= total or total == 0:
                raise ValueError(f"line {number}: {correct} correct of {total}")
            found[run, round_, model, test_set] = Count(correct, total, line["from"] == "predictions")
    except csv.Error as error:
        raise ValueError(f"line {lines.line_num}: {error}") from error
    return found


def first_difference(stated: str, recomputed: str) -> str:
    """Return the first line in which a file differs from what follows from the evidence; empty if none."""
    lines: Sequence[str] = stated.split("\n")
    expected: Sequence[str] = recomputed.split("\n")
    for number, (one, other) in enumerate(zip(lines, expected, strict=False), 1):
        if one != other:
            pair = [next(csv.reader([line]), []) for line in (one, other)]
            for mine, follows in zip(*pair, strict=False):
                if mine != follows:
                    return f"line {number} says {mine[:80]!r}, and {follows[:80]!r} follows ({other[:120]})"
            return f"line {number} says {one[:120]!r}, and {other[:120]!r} follows"
    if len(lines) != len(expected):
        return f"it has {len(lines) - 1} lines, and {len(expected) - 1} follow"
    return ""
