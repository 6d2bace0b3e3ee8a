"""The test samples on which two models disagree, counted, and McNemar's test of their difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.config import RunConfig


@dataclass(frozen=True)
class Disagreement:
    """How two models did on the same test samples.

    Attributes:
        both_right, only_first, only_second, both_wrong: numbers of samples; they add up to all.
    """

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int

    @property
    def total(self) -> int:
        """The number of test samples."""
        return self.both_right + self.only_first + self.only_second + self.both_wrong

    @property
    def difference(self) -> float:
        """The first model's accuracy minus the second's, in points."""
        return 100 * (self.only_first - self.only_second) / max(self.total, 1)

    @property
    def p(self) -> float:
        """Two-sided p of McNemar's exact test."""
        return mcnemar(self.only_first, self.only_second)


def count_disagreement(arrays: Mapping[str, np.ndarray]) -> Disagreement:
    """Count the samples by who is right. Shape: label, first and second (samples,), classes."""
    first, second = (arrays[name] == arrays["label"] for name in ("first", "second"))
    return Disagreement(
        int((first & second).sum()),
        int((first & ~second).sum()),
        int((~first & second).sum()),
        int((~first & ~second).sum()),
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of McNemar's test (1947), exact: of a fair coin that decides who is right.

    Samples on which both are right, or both wrong, say nothing about the difference. Exact numbers need no
    approximation for large counts, nor a rule for small ones.
    """
    from scipy.stats import binomtest  # here: the import takes longer than a page may

    decided = only_first + only_second
    return float(binomtest(only_first, decided).pvalue) if decided else 1.0


Kind = Literal["only_first", "only_second"]


def shown_of(arrays: Mapping[str, np.ndarray], kind: Kind) -> list[int]:
    """Return the places among the explained images of those on which only one of the models is right."""
    right = {"only_first": "first", "only_second": "second"}[kind]
    shown = arrays["shown"]
    return [k for k, i in enumerate(shown) if arrays[right][i] == arrays["label"][i]]


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
        rows = arrays["model"] != 0 if model is None else arrays["model"] == model
        chosen.append({name: values[rows] for name, values in arrays.items()})
    ours, theirs = chosen
    same = all(np.array_equal(ours[n], theirs[n]) for n in ("sample", "label", "model", "test_set"))
    if not same or not ours["label"].size:
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
