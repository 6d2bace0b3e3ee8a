"""How the samples of a group of clients are dealt out: one function per kind of partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.data.images import TEST, TRAIN, VALIDATION, ImageSet
from fedcore.data.splits import apportion, keyed_order
from fedcore.errors import FedLensError
from fedcore.seeds import numpy_generator

Form = Literal["per_class", "per_client"]
Leftover = Literal["drop", "spread"]

DRAWS = 200
"""Dirichlet draws tried before a partition is refused because a client falls below ``min_samples``."""

_MARKS = (TRAIN, VALIDATION, TEST)


@dataclass(frozen=True)
class Group:
    """Some clients that share out some rows: a domain's, or everybody and everything."""

    names: tuple[str, ...]
    domain: int
    rows: np.ndarray


def dealt(images: ImageSet, split: np.ndarray, group: Group, seed: int) -> np.ndarray:
    """IID: class after class, shuffled, dealt to the clients in turn. Shape: -> (rows,) client index."""
    rows = group.rows
    if len(group.names) == 1:
        return np.zeros(len(rows), dtype=np.int64)
    owner = np.empty(len(rows), dtype=np.int64)
    order = keyed_order([images.keys[r] for r in rows], seed, "deal")
    turn = numpy_generator(seed, "deal", *group.names).permutation(len(group.names))
    for s in _MARKS:
        members = order[split[rows[order]] == s]
        members = members[np.argsort(images.labels[rows[members]], kind="stable")]
        owner[members] = turn[np.arange(len(members)) % len(turn)]
    return owner


def pathological(
    images: ImageSet,
    split: np.ndarray,
    group: Group,
    classes_per_client: int,
    leftover: Leftover,
    seed: int,
) -> np.ndarray:
    """Disjoint classes. Shape: -> (rows,) client index, -1 for classes that go to nobody."""
    n, classes = len(group.names), len(images.classes)
    if n * classes_per_client > classes:
        remedies = [f"{classes // n} a client"] if n <= classes else []
        remedies += [f"{classes // classes_per_client} clients"] if classes_per_client <= classes else []
        raise FedLensError(
            f"{n} clients with {classes_per_client} classes of their own need {n * classes_per_client} "
            f"classes, {images.name} has {classes}; ask for {' or for '.join(remedies) or 'fewer'} at most",
            "partition.classes_per_client",
        )
    order = keyed_order(images.classes, seed, "pathological")[: n * classes_per_client]
    owner_of_class = np.full(classes, -1, dtype=np.int64)
    owner_of_class[order] = np.arange(len(order)) // classes_per_client
    owner = owner_of_class[images.labels[group.rows]]
    left = np.flatnonzero(owner < 0)
    if leftover == "spread" and len(left):
        owner[left] = dealt(images, split, Group(group.names, group.domain, group.rows[left]), seed)
    return owner


def dirichlet(
    images: ImageSet,
    split: np.ndarray,
    group: Group,
    alpha: float,
    form: Form,
    min_samples: int,
    shots: int | None,
    seed: int,
) -> np.ndarray:
    """Shares drawn from Dirichlet(alpha, ..., alpha). Shape: -> (rows,) client index.

    Drawn anew until every client has ``min_samples`` training samples, ``DRAWS`` times at most.
    """
    rows, n = group.rows, len(group.names)
    if n == 1:
        return np.zeros(len(rows), dtype=np.int64)
    order = keyed_order([images.keys[r] for r in rows], seed, "dirichlet")
    labels, marks = images.labels[rows[order]], split[rows[order]]
    classes = np.unique(labels).tolist()
    cells = {(c, s): order[(labels == c) & (marks == s)] for c in classes for s in _MARKS}
    sizes = {cell: len(members) for cell, members in cells.items()}
    names = {c: images.classes[c] for c in classes}
    draw_counts: Callable[..., dict[tuple[int, int], np.ndarray]]
    draw_counts = _per_class if form == "per_class" else _per_client
    least = 0
    for draw in range(DRAWS):
        counts = draw_counts(names, sizes, group.names, alpha, seed, draw)
        smallest = int(sum(np.minimum(counts[c, TRAIN], shots or len(rows)) for c in classes).min())
        least = max(least, smallest)
        if smallest >= min_samples:
            owner = np.empty(len(rows), dtype=np.int64)
            for cell, members in cells.items():
                owner[members] = np.repeat(np.arange(n), counts[cell])
            return owner
    raise FedLensError(
        f"{DRAWS} draws of Dirichlet({alpha:g}) over {n} clients and {int((marks == TRAIN).sum())} training "
        f"samples left some client with fewer than {min_samples} (at best {least}); lower min_samples, "
        "ask for fewer clients or a larger alpha",
        "partition.min_samples",
    )


def _per_class(
    classes: dict[int, str],
    sizes: dict[tuple[int, int], int],
    clients: tuple[str, ...],
    alpha: float,
    seed: int,
    draw: int,
) -> dict[tuple[int, int], np.ndarray]:
    """For each class, the clients' shares of it. Shape: -> (class, split): samples of each client (clients,).

    Source: FedAlign and SDFed, as Hsu et al. are read by most code; clients differ in size.
    """
    n, counts = len(clients), {}
    for c, name in classes.items():
        rng = numpy_generator(seed, "dirichlet", draw, *clients, name)
        shares, tie = rng.dirichlet(np.full(n, alpha)), rng.permutation(n)
        counts.update({(c, s): apportion(sizes[c, s], shares, tie) for s in _MARKS})
    return counts


def _per_client(
    classes: dict[int, str],
    sizes: dict[tuple[int, int], int],
    clients: tuple[str, ...],
    alpha: float,
    seed: int,
    draw: int,
) -> dict[tuple[int, int], np.ndarray]:
    """For each client, its shares of the classes; clients are of one size, up to one sample.

    In a seeded order every client draws its training samples' classes from its own shares, without
    replacement: a class that is used up leaves the shares of those who come later. Its test and validation
    samples follow the same counts.

    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019, Section 3.
    """
    left = np.array([sizes[c, TRAIN] for c in classes], dtype=np.int64)
    held = np.zeros((len(clients), len(left)), dtype=np.int64)
    turn = numpy_generator(seed, "dirichlet", draw, *clients).permutation(len(clients))
    quota = np.full(len(clients), left.sum() // len(clients))
    quota[turn[: left.sum() % len(clients)]] += 1
    for k in turn:
        rng = numpy_generator(seed, "dirichlet", draw, clients[k])
        held[k] = _take(rng, rng.dirichlet(np.full(len(left), alpha)), left, int(quota[k]))
        left -= held[k]
    counts = {}
    for i, (c, name) in enumerate(classes.items()):
        tie = numpy_generator(seed, "dirichlet", draw, name).permutation(len(clients))
        whole = held[:, i].sum()
        shares = held[:, i] / whole if whole else np.full(len(clients), 1 / len(clients))
        counts[c, TRAIN] = held[:, i]
        counts.update({(c, s): apportion(sizes[c, s], shares, tie) for s in (VALIDATION, TEST)})
    return counts


def _take(rng: np.random.Generator, shares: np.ndarray, left: np.ndarray, quota: int) -> np.ndarray:
    """Samples of each class, ``quota`` in all, none beyond what is left. Shape: (classes,) -> (classes,)."""
    taken = np.zeros_like(left)
    while quota:
        open_shares = np.where(left > taken, shares, 0)
        if open_shares.sum() <= 0:  # its own classes are used up: what remains, as it remains
            open_shares = (left - taken).astype(np.float64)
        drawn = rng.multinomial(quota, open_shares / open_shares.sum())
        drawn = np.minimum(drawn, left - taken)
        taken += drawn
        quota -= int(drawn.sum())
    return taken


def natural(
    images: ImageSet,
    split: np.ndarray,
    used: np.ndarray,
    clients: int | None,
    min_samples: int,
    shots: int | None,
    seed: int,
) -> list[Group]:
    """The clients that the data set names, each a group of its own; all of them, or ``clients`` by seed.

    Those with fewer than ``min_samples`` training samples, without a test sample, or without a validation
    sample where the split has them, are no clients: their samples go to nobody.

    Raises:
        FedLensError: where the data set names no clients, or fewer than asked for are large enough.
    """
    names, owner = images.owners()
    if not names:
        raise FedLensError(
            f"{images.name} names no clients of its own; a 'natural' partition needs writers (femnist) or a "
            "manifest with a client column",
            "partition.kind",
        )
    rows = used[np.argsort(owner[used], kind="stable")]
    parts = np.split(rows, np.searchsorted(owner[rows], np.arange(len(names) + 1)))[1 : len(names) + 1]
    validated = bool(np.any(split == VALIDATION))
    large = []
    for name, part in zip(names, parts, strict=True):
        train, validation, test = (part[split[part] == s] for s in _MARKS)
        kept = int(np.minimum(np.bincount(images.labels[train]), shots or len(images)).sum())
        if kept >= min_samples and len(test) and (len(validation) or not validated):
            domains = np.unique(images.domain[part])
            large.append(Group((name,), int(domains[0]) if len(domains) == 1 else -1, part))
    if len(large) < (clients or 1):
        each = f"{min_samples} training sample{'s' * (min_samples > 1)} and one to be measured on"
        raise FedLensError(
            f"{len(large)} of the {len(names)} clients that {images.name} names have {each}"
            + (f", {clients} are asked for; ask for fewer" if large else "; they need more samples")
            + (" or lower min_samples" if min_samples > 1 else ""),
            "partition.clients" if large else "partition.min_samples",
        )
    if clients is None:
        return large
    chosen = keyed_order([g.names[0] for g in large], seed, "natural")[:clients]
    return [large[i] for i in np.sort(chosen)]
