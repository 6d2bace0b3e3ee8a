"""Divide the samples of a group of clients among them: one function per kind of partition."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.base.seeds import numpy_generator
from fedcore.data.images import ImageSet
from fedcore.data.splits import apportion, keyed_order

PartitionKind = Literal["domain", "iid", "dirichlet", "pathological", "dealt", "natural"]
DirichletForm = Literal["per_class", "per_client"]
Leftover = Literal["drop", "spread", "even", "last"]
MAX_DRAWS = 200
"""Dirichlet draws before a partition is refused because a client has fewer than ``min_samples``."""
DEAL_SEED = 2023
"""Seed of the order in which classes are dealt in every run (FedPGP, pFedMMA, FedMGP)."""
MARKS = (TRAIN, VALIDATION, TEST)
Purpose = tuple[int, str, int]
"""Seed, name and number of a draw."""


@dataclass(frozen=True)
class PartitionSettings:
    """Settings of the assignment of samples to clients.

    Attributes:
        kind: ``domain``: ``clients_per_domain`` clients each; within a domain IID, or Dirichlet given
            ``alpha``. ``iid``, ``dirichlet`` and ``pathological`` (a few classes each, without overlap):
            ``clients`` clients. ``dealt``: all classes in blocks of round(classes / clients), of which the
            last client takes the rest, in an order that no seed changes. ``natural``: the clients that the
            data set names (writers, a manifest's column), or ``clients`` of them.
        min_samples: minimum of training samples of each client; Dirichlet shares are redrawn (seeded, at most
            ``MAX_DRAWS`` times) until it is reached, and a natural client below it is left out.
        dirichlet_form: ``per_class`` (of FedAlign and SDFed): the clients' shares of each class are one draw
            of Dirichlet(alpha, ..., alpha), and clients differ in size. ``per_client``: each client's shares
            of the classes are one draw, and clients are of equal size.
        leftover: the classes that remain when each client has its ``classes_per_client`` (1 for FedAlign's
            Food101, 2 for Pets and for Flowers) are not assigned ("drop"), shared by all clients ("spread"),
            dealt out in turn ("even"), or go to the last client ("last"). They stay in the domains' test
            sets.
        shots: maximum of training samples per class and client; validation and test are not reduced.
        held_out: a domain that no client holds; its samples are in ``Assignment.domain_test`` only.
        held_out_share: its samples there: those of the test split, or all.
    """

    kind: PartitionKind = "domain"
    clients: int | None = None
    clients_per_domain: int = 1
    alpha: float | None = None
    classes_per_client: int | None = None
    min_samples: int = 1
    dirichlet_form: DirichletForm = "per_class"
    leftover: Leftover = "drop"
    shots: int | None = None
    held_out: str | None = None
    held_out_share: Literal["test", "all"] = "test"
    seed: int = 0


@dataclass(frozen=True)
class ClientGroup:
    """Clients among which rows are divided; ``domain`` is the index of theirs, -1 if they mix domains."""

    names: tuple[str, ...]
    domain: int
    rows: np.ndarray


def assign(
    images: ImageSet, split: np.ndarray, group: ClientGroup, settings: PartitionSettings
) -> np.ndarray:
    """Assign a group's rows to its clients. Shape: -> (rows,) client index, -1 for nobody."""
    if settings.kind == "pathological":
        order = keyed_order(images.classes, settings.seed, "pathological")
        return _pathological(images, split, group, settings, order)
    if settings.kind == "dealt":
        block = max(1, round(len(images.classes) / len(group.names)))
        blocks = replace(settings, classes_per_client=block, leftover="last")
        return _pathological(images, split, group, blocks, keyed_order(images.classes, DEAL_SEED, "dealt"))
    if len(group.names) == 1:
        return np.zeros(len(group.rows), dtype=np.int64)
    if settings.kind == "dirichlet" or (settings.kind == "domain" and settings.alpha is not None):
        return _dirichlet(images, split, group, settings)
    return _iid(images, split, group, settings.seed)


def _iid(images: ImageSet, split: np.ndarray, group: ClientGroup, seed: int) -> np.ndarray:
    """Assign each class's shuffled samples to the clients in turn, who differ by at most one per split."""
    rows = group.rows
    owner = np.empty(len(rows), dtype=np.int64)
    order = keyed_order([images.keys[r] for r in rows], seed, "deal")
    turn = numpy_generator(seed, "deal", *group.names).permutation(len(group.names))
    for s in MARKS:
        members = order[split[rows[order]] == s]
        members = members[np.argsort(images.labels[rows[members]], kind="stable")]
        owner[members] = turn[np.arange(len(members)) % len(turn)]
    return owner


def _pathological(
    images: ImageSet, split: np.ndarray, group: ClientGroup, settings: PartitionSettings, order: np.ndarray
) -> np.ndarray:
    """Assign disjoint classes to the clients, in an order of the classes. Shape: order (classes,).

    With ``leftover = "last"`` the last client has the remaining classes, which may be more or fewer: the code
    that SDFed builds on covers K classes with round(K / n) for each client.
    """
    classes_per_client, leftover = settings.classes_per_client or 1, settings.leftover
    n, classes = len(group.names), len(images.classes)
    needed = (n - 1) * classes_per_client + 1 if leftover == "last" else n * classes_per_client
    if needed > classes and settings.kind == "dealt":
        raise FedLensError(
            f"{classes} classes of {images.name} in blocks of {classes_per_client} leave client {n} without "
            "one; set fewer clients",
            "partition.clients",
        )
    if needed > classes:
        remedies = [f"at most {classes // n} per client"] if n <= classes else []
        if classes_per_client <= classes:
            remedies.append(f"at most {classes // classes_per_client} clients")
        raise FedLensError(
            f"{n} clients with {classes_per_client} different classes each need {needed} "
            f"classes, but {images.name} has {classes}; set {' or '.join(remedies) or 'fewer of both'}",
            "partition.classes_per_client",
        )
    place = np.arange(classes)
    client = place // classes_per_client
    owner_of_class = np.empty(classes, dtype=np.int64)
    owner_of_class[order] = {
        "drop": np.where(client < n, client, -1),
        "spread": np.where(client < n, client, -1),
        "even": np.where(client < n, client, (place - n * classes_per_client) % n),
        "last": np.minimum(client, n - 1),
    }[leftover]
    owner: np.ndarray = owner_of_class[images.labels[group.rows]]
    left = np.flatnonzero(owner < 0)
    if leftover == "spread" and len(left):
        remaining = ClientGroup(group.names, group.domain, group.rows[left])
        owner[left] = _iid(images, split, remaining, settings.seed)
    return owner


def _dirichlet(
    images: ImageSet, split: np.ndarray, group: ClientGroup, settings: PartitionSettings
) -> np.ndarray:
    """Assign samples by shares drawn from Dirichlet(alpha, ..., alpha), drawn again for small clients."""
    assert settings.alpha is not None, "the config asks for it"
    n, seed = len(group.names), settings.seed
    order = keyed_order([images.keys[r] for r in group.rows], seed, "dirichlet")
    rows = group.rows[order]
    present, labels = np.unique(images.labels[rows], return_inverse=True)
    cell = labels * len(MARKS) + split[rows]
    used = np.isin(split[rows], MARKS)  # nobody may have the others
    order, cell = order[used], cell[used]
    sizes = np.bincount(cell, minlength=len(present) * len(MARKS)).reshape(-1, len(MARKS))
    names = [images.classes[c] for c in present]
    draw_counts = _per_class if settings.dirichlet_form == "per_class" else _per_client
    best = 0
    for draw in range(MAX_DRAWS):
        counts = draw_counts(names, sizes, group.names, settings.alpha, (seed, "dirichlet", draw))
        smallest = int(np.minimum(counts[:, TRAIN], settings.shots or len(rows)).sum(0).min())
        best = max(best, smallest)
        if smallest >= settings.min_samples:
            owner = np.full(len(group.rows), -1, dtype=np.int64)
            # of each class and split, the first samples are the first client's, the next ones the second's
            clients = np.tile(np.arange(n), sizes.size)
            owner[order[np.argsort(cell, kind="stable")]] = np.repeat(clients, counts.ravel())
            return owner
    raise FedLensError(
        f"{MAX_DRAWS} draws of Dirichlet({settings.alpha:g}) over {n} clients and {sizes[:, TRAIN].sum()} "
        f"training samples left some client with fewer than {settings.min_samples} (at best {best}); lower "
        "min_samples, or set fewer clients or a larger alpha",
        "partition.min_samples",
    )


def _per_class(
    classes: list[str], sizes: np.ndarray, clients: tuple[str, ...], alpha: float, purpose: Purpose
) -> np.ndarray:
    """Draw the clients' shares of each class. Shape: sizes (classes, splits) -> (classes, splits, clients).

    Source: FedAlign and SDFed, as most code reads Hsu et al.; clients differ in size.
    """
    counts = np.empty((*sizes.shape, len(clients)), dtype=np.int64)
    for c, name in enumerate(classes):
        rng = numpy_generator(*purpose, *clients, name)
        shares, tie = rng.dirichlet(np.full(len(clients), alpha)), rng.permutation(len(clients))
        counts[c] = [apportion(size, shares, tie) for size in sizes[c].tolist()]
    return counts


def _per_client(
    classes: list[str], sizes: np.ndarray, clients: tuple[str, ...], alpha: float, purpose: Purpose
) -> np.ndarray:
    """Draw each client's shares of the classes; clients are of equal size, up to one sample.

    In a seeded order every client draws the classes of its training samples from its shares, without
    replacement: later clients cannot draw a class that is used up. Test and validation samples follow the
    training counts.

    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019, Section 3.

    Shape: as of ``_per_class``.
    """
    left, counts = sizes[:, TRAIN].copy(), np.empty((*sizes.shape, len(clients)), dtype=np.int64)
    turn = numpy_generator(*purpose, *clients).permutation(len(clients))
    quota = np.full(len(clients), left.sum() // len(clients))
    quota[turn[: left.sum() % len(clients)]] += 1
    for k in turn:
        rng = numpy_generator(*purpose, clients[k])
        taken = _take(rng, rng.dirichlet(np.full(len(left), alpha)), left, int(quota[k]))
        counts[:, TRAIN, k] = taken
        left -= taken
    for c, name in enumerate(classes):
        tie = numpy_generator(*purpose, name).permutation(len(clients))
        held = counts[c, TRAIN]
        shares = held / held.sum() if held.any() else np.full(len(clients), 1 / len(clients))
        for s in (VALIDATION, TEST):
            counts[c, s] = apportion(int(sizes[c, s]), shares, tie)
    return counts


def _take(rng: np.random.Generator, shares: np.ndarray, left: np.ndarray, quota: int) -> np.ndarray:
    """Draw ``quota`` samples by class shares from those that are left. Shape: (classes,) -> (classes,)."""
    taken = np.zeros_like(left)
    while quota:
        open_shares = np.where(left > taken, shares, 0)
        if open_shares.sum() <= 0:  # the client's classes are used up: draw from the rest
            open_shares = (left - taken).astype(np.float64)
        drawn = rng.multinomial(quota, open_shares / open_shares.sum())
        drawn = np.minimum(drawn, left - taken)
        taken += drawn
        quota -= int(drawn.sum())
    return taken
