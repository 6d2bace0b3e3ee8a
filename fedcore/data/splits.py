"""Splits into train, validation and test: seeded and stratified by (domain, class).

Draws are keyed by the samples' keys, so that the order of files does not matter.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.base.seeds import derive, numpy_generator
from fedcore.data.images import ImageSet

Scheme = Literal["60/20/20", "80/20", "official", "swapped", "coop"]
SHARES: dict[str, tuple[float, float, float]] = {"60/20/20": (0.6, 0.2, 0.2), "80/20": (0.8, 0.0, 0.2)}
"""Scheme -> shares of (train, validation, test). Without validation (80/20) the last round is reported."""
SWAPPED = np.array([TEST, TRAIN, TRAIN], dtype=np.int8)
"""Official split -> split under "swapped": FedAlign trains on Flowers-102's large test part."""
Rounding = Literal["per_domain", "per_class"]


def split(images: ImageSet, scheme: Scheme, seed: int, rounding: Rounding = "per_domain") -> np.ndarray:
    """Assign every sample to a split. Shape: -> (samples,) int8, values as in ``fedcore.base.events``.

    Within a domain the validation and test sets have ``floor(share * samples)`` samples (FedOT's printed
    accuracies on PACS are multiples of 1/785 and 1/409, the floors for Sketch and Art), distributed over the
    classes by largest remainder. So that small classes are tested too, a class with two or more samples in a
    domain has at least one in test, and one with three or more has at least one in validation; a single
    sample is for training.

    With ``rounding = "per_class"`` a class of n samples has floor(share * n) in training and in validation,
    and its rest in test: n - floor(0.8 n) of "80/20" (FedDEAP's printed accuracies on PACS are multiples of
    1/788 and 1/411). The only sample of a class is then tested and never trained on.

    If the data set names clients (``ImageSet.owner``), each of them is split separately, evenly over its
    classes: two samples give one test sample, three one validation sample.
    """
    if scheme in ("official", "coop"):  # a set that was read with CoOp's split has that as its own
        return _official(images)
    if scheme == "swapped":
        swapped: np.ndarray = SWAPPED[_official(images)]
        return swapped
    shares = SHARES[scheme]
    order = keyed_order(images.keys, seed, "split")
    result = np.full(len(images), TRAIN, dtype=np.int8)
    names, owner = images.owners()
    by_owner = order[np.argsort(owner[order], kind="stable")]  # one sort, since there may be thousands
    parts = np.split(by_owner, np.searchsorted(owner[by_owner], np.arange(len(names) + 1)))
    for name, members in zip(names, parts[1 : len(names) + 1], strict=True):
        rank = numpy_generator(seed, "split", name).permutation(len(images.classes))
        left = members[np.argsort(rank[images.labels[members]], kind="stable")]
        for mark, smallest in ((TEST, 2), (VALIDATION, 3)):
            if shares[mark] and len(members) >= smallest:
                count = max(1, int(shares[mark] * len(members) + 1e-9))
                drawn = ((np.arange(count) + 0.5) * len(left) / count).astype(np.int64)  # evenly over classes
                result[left[drawn]] = mark
                left = np.delete(left, drawn)
    for domain in range(len(images.domains)):
        members = order[(images.domain[order] == domain) & (owner[order] < 0)]
        cells = [members[images.labels[members] == c] for c in range(len(images.classes))]
        sizes = np.array([len(cell) for cell in cells])
        if rounding == "per_class":
            validation = _floor(shares[VALIDATION] * sizes)
            test = sizes - _floor(shares[TRAIN] * sizes) - validation
        else:
            test = _cell_counts(sizes, shares[TEST], smallest=2)
            validation = _cell_counts(sizes, shares[VALIDATION], smallest=3)
        for cell, n_test, n_validation in zip(cells, test, validation, strict=True):
            result[cell[:n_test]] = TEST
            result[cell[n_test : n_test + n_validation]] = VALIDATION
    return result


def _official(images: ImageSet) -> np.ndarray:
    if images.split is None:
        raise FedLensError(f"{images.name} has no official split; choose 60/20/20 or 80/20", "data.split")
    return images.split.astype(np.int8)


def _cell_counts(sizes: np.ndarray, share: float, smallest: int) -> np.ndarray:
    """Return the number of samples of each class in one split. Shape: sizes (classes,) -> (classes,).

    A class with at least ``smallest`` samples has at least one.
    """
    if share == 0 or sizes.sum() == 0:
        return np.zeros_like(sizes)
    total = int(_floor(share * sizes.sum()))
    counts = apportion(total, sizes / sizes.sum(), np.arange(len(sizes)))
    return np.where(sizes >= smallest, np.maximum(counts, 1), 0)


def _floor(products: np.ndarray) -> np.ndarray:
    """Round down, with a tolerance for products of floats that are just below an integer."""
    floor: np.ndarray = np.floor(products + 1e-9).astype(np.int64)
    return floor


def apportion(total: int, shares: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Distribute ``total`` by shares, with the largest remainder method; the lowest ``tie`` breaks ties.

    Shape: shares and tie (n,) -> (n,) int64. Shares sum to one, the result to ``total``.
    """
    quota = shares * total
    counts = np.floor(quota + 1e-9).astype(np.int64)
    remainder = np.round(quota - counts, 9)  # so that equal shares are exact ties
    extra = np.lexsort((tie, -remainder))[: max(0, total - int(counts.sum()))]
    counts[extra] += 1
    return counts


def keyed_order(keys: Sequence[str], seed: int, *purpose: str | int) -> np.ndarray:
    """Shuffle by a seed and the keys, independent of their order. Shape: -> (samples,) int64 rows."""
    draws = np.array([derive(seed, *purpose, key) for key in keys], dtype=np.int64)
    return np.argsort(draws, kind="stable")


UNUSED = -1
"""Mark of a training sample that no client may have."""


def limit_shots(
    split: np.ndarray, labels: np.ndarray, keys: Sequence[str], shots: int, seed: int, among: np.ndarray
) -> np.ndarray:
    """Return the split with at most ``shots`` training samples of each class over all clients.

    Args:
        among: whether the clients may have a sample at all. Shape: (samples,) bool.
    """
    rows = np.flatnonzero((split == TRAIN) & among)
    limited = split.copy()
    limited[np.setdiff1d(rows, few_shot(rows, labels, keys, shots, seed, "federation"))] = UNUSED
    return limited


def few_shot(
    rows: np.ndarray, labels: np.ndarray, keys: Sequence[str], shots: int | None, seed: int, client: str
) -> np.ndarray:
    """Draw at most ``shots`` training rows of each class for one client, by (seed, client, key).

    Shape: rows (n,) of the data set, labels (samples,) -> (at most n,), ascending.
    """
    if shots is None:
        return np.sort(rows)
    shuffled = rows[keyed_order([keys[r] for r in rows], seed, "shots", client)]
    drawn = [shuffled[labels[shuffled] == c][:shots] for c in np.unique(labels[rows])]
    return np.sort(np.concatenate(drawn)) if drawn else rows
