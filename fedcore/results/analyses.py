"""Analyses of predictions: confusion, t-SNE, accuracy over a config field, disagreement of two models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.base.events import GLOBAL
from fedcore.base.presentation import FieldChart
from fedcore.config import RunConfig
from fedcore.results.comparison import Comparison
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import is_compared
from fedcore.results.statistics import Stat, paired_test, rounded
from fedcore.store import RunRow, Store

EVERYONE = "all clients, each on its own test samples"
"""Name of the predictions of all clients' own models together."""


@dataclass(frozen=True)
class Confusion:
    """Counts of predictions of some models on some test sets.

    Shape: counts (classes, classes), true class by predicted class.
    """

    classes: tuple[str, ...]
    counts: np.ndarray

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions, per cent; None without predictions."""
        total = int(self.counts.sum())
        return 100 * float(np.trace(self.counts)) / total if total else None

    @property
    def recall(self) -> np.ndarray:
        """Accuracy on each true class, per cent, NaN for absent classes. Shape: (classes,)."""
        return percent(np.diag(self.counts), self.counts.sum(1))

    @property
    def precision(self) -> np.ndarray:
        """Correct share of each class's predictions, per cent, NaN without any. Shape: (classes,)."""
        return percent(np.diag(self.counts), self.counts.sum(0))

    @property
    def worst(self) -> tuple[str, str, int] | None:
        """The most frequent mistake: true class, predicted class and count; None without mistakes."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        if not wrong.any():
            return None
        i, j = np.unravel_index(int(wrong.argmax()), wrong.shape)
        return self.classes[i], self.classes[j], int(wrong[i, j])

    def matrix_table(self) -> dict[str, list[object]]:
        """Return the counts: a row per true class, a column per predicted one."""
        columns = {name: self.counts[:, i].tolist() for i, name in enumerate(self.classes)}
        return {"true class ↓ predicted →": list(self.classes), **columns}

    def table(self) -> dict[str, list[object]]:
        """Return counts, accuracy and precision: a row per class."""
        return {
            "class": list(self.classes),
            "test samples": self.counts.sum(1).tolist(),
            "correct": np.diag(self.counts).tolist(),
            "accuracy, %": [rounded(v, 1) for v in self.recall.tolist()],
            "precision, %": [rounded(v, 1) for v in self.precision.tolist()],
        }


def confusion(arrays: Mapping[str, np.ndarray], classes: Sequence[str], model: int | None) -> Confusion:
    """Count the predictions of one model (an entity code), or of all clients' own models (None)."""
    chosen = _places_of(arrays, model)
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts, (arrays["label"][chosen], arrays["predicted"][chosen]), 1)
    return Confusion(tuple(classes), counts)


def _places_of(arrays: Mapping[str, np.ndarray], model: int | None) -> np.ndarray:
    """Return the places of one model's predictions, each image once, or of all clients' own models (None).

    The global model predicts an image once for each of its test sets: that of its domain, and those of the
    base classes and of unseen clients too.
    """
    if model is None:
        return np.flatnonzero(arrays["model"] != GLOBAL)
    places = np.flatnonzero(arrays["model"] == model)
    _, first = np.unique(arrays["sample"][places], return_index=True)
    return places[np.sort(first)]


def percent(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part of whole in per cent, NaN where whole is 0. Shape: any -> the same."""
    return np.where(whole > 0, 100.0 * part / np.maximum(whole, 1), np.nan)


def space_table(
    arrays: Mapping[str, np.ndarray], classes: Sequence[str], title: str = "class"
) -> dict[str, list[object]]:
    """Return the t-SNE picture as a table: a row per image, class feature and centroid."""
    kinds = ("image", "class feature", "centroid")
    return {
        "point": [kinds[k] for k in arrays["kind"]],
        title: [classes[c] for c in arrays["label"]],
        "predicted": [classes[g] if g >= 0 else None for g in arrays["predicted"]],
        "x": np.round(arrays["xy"][:, 0], 2).tolist(),
        "y": np.round(arrays["xy"][:, 1], 2).tolist(),
    }


@dataclass(frozen=True)
class FieldRow:
    """A method at one value of a config field: the value it recorded last, and its personal accuracy.

    Attributes:
        recorded: mean over its runs; an int where it is whole.
        by_seed: accuracy of each seed.
    """

    setting: float
    recorded: float
    accuracy: Stat
    by_seed: dict[int, float]


def rows_by_field(store: Store, comparison: Comparison, run: RunRow, chart: FieldChart) -> list[FieldRow]:
    """Return the rows that differ from a run's row in the field of a chart alone, its lowest value first.

    If the run is not part of the comparison, they differ in this field from the first row of its method.
    """
    of_method = [row for row in comparison.rows if row.method == run.method]
    rows_of_run = [row for row in of_method if run.id in {result.run.id for result in row.runs}]
    over = f"method.config.{chart.over}"
    alike = [row for row in of_method if _all_but(row, over) == _all_but((rows_of_run or of_method)[0], over)]
    rows = []
    for row in alike:
        recorded = [d.value for r in row.runs for d in store.diagnostics.of_run(r.run.id, chart.value)[-1:]]
        filled = [value for value in recorded if value is not None]
        fixed = {f"method.config.{name}": value for name, value in chart.only.items()}
        if filled and "personal" in row.stats and fixed.items() <= row.fields.items():
            value = float(np.mean(filled))
            shown = int(value) if value.is_integer() else round(value, 4)
            measured = row.stats["personal"], row.by_seed["personal"]
            rows.append(FieldRow(row.fields[over], shown, *measured))
    return sorted(rows, key=lambda row: row.setting)


def _all_but(row: ComparisonRow, over: str) -> tuple[str, dict[str, object]]:
    return row.setting, {n: v for n, v in row.fields.items() if n != over and is_compared(n)}


def field_table(rows: Sequence[FieldRow], chart: FieldChart) -> dict[str, list[object]]:
    """Return recorded values and accuracies as a table: a row per value of the chart's field.

    The change is paired by seed, as the differences of all tables are; empty without a seed in common.
    """
    changes = [paired_test(f.by_seed, rows[0].by_seed).difference for f in rows]
    return {
        f"{chart.over} {chart.symbol}": [f.setting for f in rows],
        chart.title.lower(): [f.recorded for f in rows],
        "personal accuracy, %": [round(f.accuracy.mean, 2) for f in rows],
        "std": [rounded(f.accuracy.std, 2) for f in rows],
        "n": [f.accuracy.n for f in rows],
        "change against the first, points": [rounded(c, 2) for c in changes],
    }


@dataclass(frozen=True)
class Disagreement:
    """The outcomes of two models on the same test samples, in numbers of samples that add up to all."""

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int

    @property
    def total(self) -> int:
        return self.both_right + self.only_first + self.only_second + self.both_wrong

    @property
    def difference(self) -> float:
        return 100 * (self.only_first - self.only_second) / max(self.total, 1)

    @property
    def p(self) -> float:
        """Two-sided p of McNemar's test (1947), exact: of a fair coin that decides who is right.

        Samples on which both are right, or both wrong, say nothing about the difference. Exact numbers need
        no approximation for large counts, nor a rule for small ones.
        """
        from scipy.special import bdtr  # here: the import takes longer than a page may

        fewer, total = min(self.only_first, self.only_second), self.only_first + self.only_second
        return min(1.0, 2 * float(bdtr(fewer, total, 0.5)))


def count_disagreement(arrays: Mapping[str, np.ndarray]) -> Disagreement:
    """Count the samples by who is right. Shape: label, first and second (samples,), classes."""
    first, second = (arrays[name] == arrays["label"] for name in ("first", "second"))
    return Disagreement(
        int((first & second).sum()),
        int((first & ~second).sum()),
        int((~first & second).sum()),
        int((~first & ~second).sum()),
    )


def shown_of(arrays: Mapping[str, np.ndarray], *right: bool) -> list[int]:
    """Return the places, among the explained images, of those that the first and second model get right."""
    first, second = (arrays[name] == arrays["label"] for name in ("first", "second"))
    return [k for k, i in enumerate(arrays["shown"]) if (first[i], second[i]) == right]


def paired_predictions(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], model: int | None
) -> dict[str, np.ndarray] | None:
    """Set the predictions of two runs beside each other; None where their test samples are not the same.

    Equal pool rows are the same images only in runs of one data set, partition and seed: see
    ``same_test_samples``.

    Args:
        first, second: arrays of the analysis ``predictions``, of one run each.
        model: entity code; None for all clients' own models.

    Returns: label, first and second (predictions). Shape: (samples,) each.
    """
    chosen = []
    for arrays in (first, second):
        places = _places_of(arrays, model)
        chosen.append({name: values[places] for name, values in arrays.items()})
    ours, theirs = chosen
    agree = all(np.array_equal(ours[n], theirs[n]) for n in ("sample", "label", "model", "test_set"))
    if not agree or not ours["label"].size:
        return None
    return {"label": ours["label"], "first": ours["predicted"], "second": theirs["predicted"]}


def same_test_samples(first: RunConfig, second: RunConfig) -> bool:
    """Return whether two runs test on the same images: their data, partition, held-out domain and seed."""
    ours, theirs = (
        (c.data.model_copy(update={"template": None}), c.partition, c.held_out, c.seed)
        for c in (first, second)
    )
    return ours == theirs


def class_table(arrays: Mapping[str, np.ndarray], classes: Sequence[str]) -> dict[str, list[object]]:
    """Return the counts of ``count_disagreement`` by true class, without classes that have no sample."""
    present = np.unique(arrays["label"]).tolist()
    counts = [
        count_disagreement(
            {name: arrays[name][arrays["label"] == c] for name in ("label", "first", "second")}
        )
        for c in present
    ]
    return {
        "class": [classes[c] for c in present],
        "both right": [c.both_right for c in counts],
        "only first": [c.only_first for c in counts],
        "only second": [c.only_second for c in counts],
        "both wrong": [c.both_wrong for c in counts],
    }
