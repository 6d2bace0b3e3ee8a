"""Train, validation and test: seeded, stratified within (domain, class), whatever order the files come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedcore.data.images import TEST, TRAIN, VALIDATION, ImageSet
from fedcore.errors import FedLensError
from fedcore.seeds import derive, numpy_generator

Scheme = Literal["60/20/20", "80/20", "official", "swapped"]

SHARES: dict[str, tuple[float, float, float]] = {"60/20/20": (0.6, 0.2, 0.2), "80/20": (0.8, 0.0, 0.2)}
"""Scheme -> (train, validation, test). 80/20 has no validation: no round is chosen, the last is reported."""

SWAPPED = np.array([TEST, TRAIN, TRAIN], dtype=np.int8)
"""Official mark -> the mark under "swapped": Flowers-102 is mostly test images, which FedAlign trains on."""


def split(images: ImageSet, scheme: Scheme, seed: int) -> np.ndarray:
    """Which split every sample belongs to. Shape: -> (samples,) int8, values as in ``images.SPLITS``.

    Within a domain the validation and test sets have ``floor(share * samples)`` samples (FedOT's printed
    accuracies on PACS are multiples of 1/785 and 1/409, the floors for Sketch and Art), given out over the
    classes by largest remainder. Tiny classes bend this, so that none goes unmeasured: a class of two samples
    or more in a domain has one at least in test, one of three or more
    one at least in validation, and a single sample trains.

    Where the data set names clients of its own (``ImageSet.owner``), each of them is split by itself, evenly
    over its classes: two samples give one test sample, three one validation sample.

    Who goes where is drawn by (seed, sample key), so that the order of the samples changes nothing.

    Raises:
        FedLensError: ``data.split``, for "official" and "swapped" where the data set brings no split.
    """
    if scheme == "official":
        return _official(images)
    if scheme == "swapped":
        return SWAPPED[_official(images)]
    shares = SHARES[scheme]
    order = keyed_order(images.keys, seed, "split")
    result = np.full(len(images), TRAIN, dtype=np.int8)
    names, owner = images.owners()
    for name, members in zip(names, _of_each(order, owner, len(names)), strict=True):
        _split_owner(result, members, images, shares, seed, name)
    for domain in range(len(images.domains)):
        members = order[(images.domain[order] == domain) & (owner[order] < 0)]
        cells = [members[images.labels[members] == c] for c in range(len(images.classes))]
        sizes = np.array([len(cell) for cell in cells])
        test = _cell_counts(sizes, shares[TEST], smallest=2)
        validation = _cell_counts(sizes, shares[VALIDATION], smallest=3)
        for cell, n_test, n_validation in zip(cells, test, validation, strict=True):
            result[cell[:n_test]] = TEST
            result[cell[n_test : n_test + n_validation]] = VALIDATION
    return result


def _of_each(order: np.ndarray, owner: np.ndarray, owners: int) -> list[np.ndarray]:
    """The rows of every owner, each in the given order (one sort, for there may be thousands)."""
    by_owner = order[np.argsort(owner[order], kind="stable")]
    return np.split(by_owner, np.searchsorted(owner[by_owner], np.arange(owners + 1)))[1 : owners + 1]


def _split_owner(
    result: np.ndarray,
    members: np.ndarray,
    images: ImageSet,
    shares: tuple[float, float, float],
    seed: int,
    name: str,
) -> None:
    """Mark one owner's test and validation rows in ``result``: taken evenly from its rows sorted by class."""
    rank = numpy_generator(seed, "split", name).permutation(len(images.classes))
    left = members[np.argsort(rank[images.labels[members]], kind="stable")]
    for mark, smallest in ((TEST, 2), (VALIDATION, 3)):
        if shares[mark] and len(members) >= smallest:
            count = max(1, int(shares[mark] * len(members) + 1e-9))
            taken = ((np.arange(count) + 0.5) * len(left) / count).astype(np.int64)
            result[left[taken]] = mark
            left = np.delete(left, taken)


def _official(images: ImageSet) -> np.ndarray:
    if images.split is None:
        raise FedLensError(f"{images.name} brings no official split; choose 60/20/20 or 80/20", "data.split")
    return images.split.astype(np.int8)


def _cell_counts(sizes: np.ndarray, share: float, smallest: int) -> np.ndarray:
    """Samples of each class that go to one split. Shape: sizes (classes,) -> (classes,).

    A class of ``smallest`` samples or more gives one at least.
    """
    if share == 0 or sizes.sum() == 0:
        return np.zeros_like(sizes)
    total = int(
        share * sizes.sum() + 1e-9
    )  # the tolerance: a product of floats may fall just short of a whole number
    counts = apportion(total, sizes / sizes.sum(), np.arange(len(sizes)))
    return np.where(sizes >= smallest, np.maximum(counts, 1), 0)


def apportion(total: int, shares: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to ``total`` and follow the shares: largest remainder, ties by lowest ``tie``.

    Shape: shares and tie (n,) -> (n,) int64. Shares sum to one.
    """
    quota = shares * total
    counts = np.floor(quota + 1e-9).astype(np.int64)
    remainder = np.round(quota - counts, 9)  # equal shares are exact ties, not the last bit of a product
    extra = np.lexsort((tie, -remainder))[: max(0, total - int(counts.sum()))]
    counts[extra] += 1
    return counts


def keyed_order(keys: Sequence[str], seed: int, *purpose: str | int) -> np.ndarray:
    """A seeded shuffle that depends on keys, not on their order. Shape: -> (samples,) int64 rows."""
    draws = np.array([derive(seed, *purpose, key) for key in keys], dtype=np.int64)
    return np.argsort(draws, kind="stable")


def few_shot(
    rows: np.ndarray, labels: np.ndarray, keys: Sequence[str], shots: int | None, seed: int, client: str
) -> np.ndarray:
    """Few-shot training rows of one client: at most ``shots`` of each class, drawn by (seed, client, key).

    Shape: rows (n,) of the data set, labels (samples,) -> (at most n,), ascending.

    A class with fewer samples gives all it has. ``shots = None`` keeps everything.
    """
    if shots is None:
        return np.sort(rows)
    shuffled = rows[keyed_order([keys[r] for r in rows], seed, "shots", client)]
    kept = [shuffled[labels[shuffled] == c][:shots] for c in np.unique(labels[rows])]
    return np.sort(np.concatenate(kept)) if kept else rows
