"""Partitions: which client holds which samples. Seeded, and every sample is in exactly one client and split.

A client's share of a class is the same in train, validation and test, so that its own test set mirrors what
it trains on. Draws are keyed by sample key, class name and client name; the order of files changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.data.images import TEST, TRAIN, VALIDATION, ImageSet
from fedcore.data.splits import apportion, few_shot, keyed_order
from fedcore.errors import FedLensError
from fedcore.seeds import numpy_generator

Kind = Literal["domain", "iid", "dirichlet", "pathological"]

DRAWS = 200
"""Dirichlet draws tried before a partition is refused because a client falls below ``min_samples``."""


@dataclass(frozen=True)
class Assignment:
    """Who holds what. All rows index the ``ImageSet`` and are ascending.

    Attributes:
        clients: names: the domain for one client a domain, ``sketch-1``... for several, else ``client-01``...
        client_domain: index into ``domains``, -1 where a client mixes domains. Shape: (clients,).
        train, validation, test: rows of every client.
        domains: all domains in use, the held-out one included.
        domain_test: the whole test split of every domain, the held-out one included.
        held_out: the domain that no client holds, or None.
        counts: training samples. Shape: (clients, classes).
        unassigned: rows that no client holds, the held-out domain aside: classes left over by a pathological
            partition, and training rows beyond ``shots``. Test rows among them stay in ``domain_test``.
    """

    clients: tuple[str, ...]
    client_domain: np.ndarray
    train: list[np.ndarray]
    validation: list[np.ndarray]
    test: list[np.ndarray]
    domains: tuple[str, ...]
    domain_test: list[np.ndarray]
    held_out: str | None
    counts: np.ndarray
    unassigned: np.ndarray


@dataclass(frozen=True)
class _Group:
    """Some clients that share out some rows: a domain's, or everybody and everything."""

    names: tuple[str, ...]
    domain: int
    rows: np.ndarray


def partition(
    images: ImageSet,
    split: np.ndarray,
    *,
    kind: Kind = "domain",
    clients: int | None = None,
    clients_per_domain: int = 1,
    alpha: float | None = None,
    classes_per_client: int | None = None,
    min_samples: int = 1,
    shots: int | None = None,
    held_out: str | None = None,
    seed: int = 0,
) -> Assignment:
    """Give the samples of a data set to clients.

    - ``domain``: ``clients_per_domain`` clients each; within a domain IID, or Dirichlet given ``alpha``.
    - ``iid``: every class is dealt out in turn; clients differ by one sample per class and split at most.
    - ``dirichlet``: the per-class form (FedAlign's, and SDFed's): for each class, the clients' shares of it
      are one draw of Dirichlet(alpha, ..., alpha).
    - ``pathological``: ``classes_per_client`` classes each, no class twice. Classes that remain go to nobody
      (FedAlign's Food101 leaves 1, Pets 2, Flowers 2); they stay in the domains' test sets.

    A client whose share leaves it without a test sample gets one of a class that it trains on, from the
    client that holds most test samples of that class; likewise for validation where the split has one.

    Args:
        split: (samples,) as ``splits.split`` gives it.
        min_samples: training samples that each client has at least; Dirichlet shares are drawn anew (seeded,
            at most ``DRAWS`` times) until it holds.
        shots: at most so many training samples per class and client, validation and test stay whole.
        held_out: a domain that no client holds; its samples appear in ``domain_test`` only.

    Raises:
        FedLensError: with the field of the experiment at fault, when there are fewer samples or classes than
            the partition needs.
    """
    used = _used_rows(images, split, held_out)
    groups = _groups(images, used, kind, clients, clients_per_domain)
    _refuse_crowds(images, split, groups, min_samples, kind)
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for group in groups:
        if kind == "pathological":
            owner = _pathological(images, group, classes_per_client or 1, seed)
        elif alpha is not None and kind in ("domain", "dirichlet"):
            owner = _dirichlet(images, split, group, alpha, min_samples, shots, seed)
        else:
            owner = _dealt(images, split, group, seed)
        parts += _parts(images, split, group, owner)
    names = tuple(name for group in groups for name in group.names)
    train = [
        few_shot(part[TRAIN], images.labels, images.keys, shots, seed, name)
        for name, part in zip(names, parts, strict=True)
    ]
    _refuse_small(names, train, min_samples)
    return _assignment(images, split, groups, train, parts, held_out, used)


def _assignment(
    images: ImageSet,
    split: np.ndarray,
    groups: list[_Group],
    train: list[np.ndarray],
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    held_out: str | None,
    used: np.ndarray,
) -> Assignment:
    validation, test = [p[VALIDATION] for p in parts], [p[TEST] for p in parts]
    held = np.concatenate([*train, *validation, *test])
    assert len(np.unique(held)) == len(held), "a sample has two owners"
    classes = len(images.classes)
    return Assignment(
        clients=tuple(name for group in groups for name in group.names),
        client_domain=np.array([group.domain for group in groups for _ in group.names], dtype=np.int64),
        train=train,
        validation=validation,
        test=test,
        domains=images.domains,
        domain_test=_domain_tests(images, split),
        held_out=held_out,
        counts=np.array([np.bincount(images.labels[rows], minlength=classes) for rows in train]),
        unassigned=np.setdiff1d(used, held),
    )


def _used_rows(images: ImageSet, split: np.ndarray, held_out: str | None) -> np.ndarray:
    """Rows that clients may hold: all but those of the held-out domain."""
    if len(split) != len(images):
        raise ValueError(f"{images.name}: {len(split)} split marks for {len(images)} samples")
    if held_out is None:
        return np.arange(len(images))
    if held_out not in images.domains:
        raise FedLensError(
            f"{images.name} has no domain '{held_out}' to hold out; there are: {', '.join(images.domains)}",
            "held_out",
        )
    if len(images.domains) == 1:
        raise FedLensError(
            f"'{held_out}' is the only domain of {images.name}; hold one out of several, or none", "held_out"
        )
    return np.flatnonzero(images.domain != images.domains.index(held_out))


def _domain_tests(images: ImageSet, split: np.ndarray) -> list[np.ndarray]:
    tests = [np.flatnonzero((images.domain == d) & (split == TEST)) for d in range(len(images.domains))]
    for name, rows in zip(images.domains, tests, strict=True):
        if not len(rows):
            raise FedLensError(
                f"domain '{name}' of {images.name} has no test samples; "
                "add images to it (two of a class at least) or leave it out of data.domains",
                "data.domains",
            )
    return tests


def _groups(
    images: ImageSet, used: np.ndarray, kind: Kind, clients: int | None, clients_per_domain: int
) -> list[_Group]:
    present = [d for d in range(len(images.domains)) if np.any(images.domain[used] == d)]
    if kind != "domain":
        if clients is None:
            raise FedLensError(f"a '{kind}' partition needs clients = a number", "partition.clients")
        width = max(2, len(str(clients)))
        names = tuple(f"client-{i + 1:0{width}d}" for i in range(clients))
        return [_Group(names, present[0] if len(present) == 1 else -1, used)]
    total = len(present) * clients_per_domain
    if clients is not None and clients != total:
        raise FedLensError(
            f"{clients} clients, but {len(present)} domains x {clients_per_domain} clients each "
            f"make {total}; leave clients empty and set clients_per_domain",
            "partition.clients",
        )
    groups = []
    for d in present:
        name = images.domains[d]
        numbered = tuple(f"{name}-{i + 1}" for i in range(clients_per_domain))
        groups.append(
            _Group((name,) if clients_per_domain == 1 else numbered, d, used[images.domain[used] == d])
        )
    return groups


def _refuse_crowds(
    images: ImageSet, split: np.ndarray, groups: list[_Group], min_samples: int, kind: Kind
) -> None:
    """Say early, and with numbers, that there are fewer samples than the clients need."""
    for group in groups:
        n, field = len(group.names), "partition.clients"
        where = images.name
        if kind == "domain":
            field, where = "partition.clients_per_domain", f"domain '{images.domains[group.domain]}'"
        train, validation, test = (int((split[group.rows] == s).sum()) for s in (TRAIN, VALIDATION, TEST))
        most = max(1, min(train // min_samples, test, validation or test))
        remedy = f"ask for {most} client{'s' if most > 1 else ''} at most"
        if train < n * min_samples:
            raise FedLensError(
                f"{where} has {train} training samples, too few for {n} clients "
                f"with {min_samples} or more each; "
                + (remedy if min_samples == 1 else f"lower min_samples or {remedy}"),
                field if train < n else "partition.min_samples",
            )
        for name, count in (("test", test), ("validation", validation)):
            if count < n and (count or name == "test"):
                raise FedLensError(
                    f"{where} has {count} {name} samples for {n} clients, "
                    f"each is measured on one at least; {remedy}",
                    field,
                )


def _refuse_small(names: tuple[str, ...], train: list[np.ndarray], min_samples: int) -> None:
    sizes = [len(rows) for rows in train]
    least = int(np.argmin(sizes))
    if sizes[least] < min_samples:
        raise FedLensError(
            f"client '{names[least]}' has {sizes[least]} training samples of {sum(sizes)}, "
            f"fewer than {min_samples}; lower min_samples, ask for fewer clients or a larger alpha",
            "partition.min_samples",
        )


def _dealt(images: ImageSet, split: np.ndarray, group: _Group, seed: int) -> np.ndarray:
    """IID: class after class, shuffled, dealt to the clients in turn. Shape: -> (rows,) client index."""
    rows = group.rows
    owner = np.empty(len(rows), dtype=np.int64)
    order = keyed_order([images.keys[r] for r in rows], seed, "deal")
    turn = numpy_generator(seed, "deal", *group.names).permutation(len(group.names))
    for s in (TRAIN, VALIDATION, TEST):
        members = order[split[rows[order]] == s]
        members = members[np.argsort(images.labels[rows[members]], kind="stable")]
        owner[members] = turn[np.arange(len(members)) % len(turn)]
    return owner


def _pathological(images: ImageSet, group: _Group, classes_per_client: int, seed: int) -> np.ndarray:
    """Disjoint classes. Shape: -> (rows,) client index, -1 for classes that go to nobody."""
    n, classes = len(group.names), len(images.classes)
    if n * classes_per_client > classes:
        raise FedLensError(
            f"{n} clients with {classes_per_client} classes of their own need {n * classes_per_client} "
            f"classes, {images.name} has {classes}; ask for {classes // n or 1} a client or for "
            f"{classes // classes_per_client} clients at most",
            "partition.classes_per_client",
        )
    order = keyed_order(images.classes, seed, "pathological")[: n * classes_per_client]
    owner_of_class = np.full(classes, -1, dtype=np.int64)
    owner_of_class[order] = np.arange(len(order)) // classes_per_client
    return owner_of_class[images.labels[group.rows]]


def _dirichlet(
    images: ImageSet,
    split: np.ndarray,
    group: _Group,
    alpha: float,
    min_samples: int,
    shots: int | None,
    seed: int,
) -> np.ndarray:
    """Per-class Dirichlet shares over the clients. Shape: -> (rows,) client index."""
    rows, n = group.rows, len(group.names)
    if n == 1:
        return np.zeros(len(rows), dtype=np.int64)
    order = keyed_order([images.keys[r] for r in rows], seed, "dirichlet")
    labels, marks = images.labels[rows[order]], split[rows[order]]
    classes = np.unique(labels).tolist()
    cells = {(c, s): order[(labels == c) & (marks == s)] for c in classes for s in (TRAIN, VALIDATION, TEST)}
    least = 0
    for draw in range(DRAWS):
        counts = {}
        for c in classes:
            rng = numpy_generator(seed, "dirichlet", draw, *group.names, images.classes[c])
            shares, tie = rng.dirichlet(np.full(n, alpha)), rng.permutation(n)
            counts.update(
                {(c, s): apportion(len(cells[c, s]), shares, tie) for s in (TRAIN, VALIDATION, TEST)}
            )
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


def _parts(
    images: ImageSet, split: np.ndarray, group: _Group, owner: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(train, validation, test) rows of every client of a group, nobody left unmeasured."""
    owner = owner.copy()
    marks, labels = split[group.rows], images.labels[group.rows]
    for s in (VALIDATION, TEST):
        if np.any(marks == s):
            _give_one(owner, marks, labels, s, group.names)
    return [
        tuple(np.sort(group.rows[(owner == k) & (marks == s)]) for s in (TRAIN, VALIDATION, TEST))
        for k in range(len(group.names))
    ]


def _give_one(
    owner: np.ndarray, marks: np.ndarray, labels: np.ndarray, s: int, names: tuple[str, ...]
) -> None:
    """Move (in ``owner``) one sample of split ``s``, of a class it trains on, to every client without any."""
    n, classes = len(names), int(labels.max()) + 1
    held = np.zeros((n, classes), dtype=np.int64)
    np.add.at(held, (owner[(marks == s) & (owner >= 0)], labels[(marks == s) & (owner >= 0)]), 1)
    for k in np.flatnonzero(held.sum(1) == 0):
        own = np.bincount(labels[(owner == k) & (marks == TRAIN)], minlength=classes)
        spare = np.where(held.sum(1, keepdims=True) > 1, held, 0)  # a donor keeps one
        for c in np.argsort(-own, kind="stable"):
            if own[c] and spare[:, c].any():
                donor = int(np.argmax(spare[:, c]))
                owner[np.flatnonzero((owner == donor) & (marks == s) & (labels == c))[-1]] = k
                held[donor, c], held[k, c] = held[donor, c] - 1, 1
                break
        else:
            raise FedLensError(
                f"client '{names[k]}' gets no {'test' if s == TEST else 'validation'} sample of a class that "
                "it trains on; ask for fewer clients, a larger alpha or a higher min_samples",
                "partition.min_samples",
            )


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy of each client's training labels, bits: 0 for one class, log2(classes) for all equally.

    Shape: counts (clients, classes) -> (clients,).
    """
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(1) + 0.0  # + 0.0: no -0.0 in a table


def label_distance(counts: np.ndarray) -> float:
    """Mean pairwise Jensen-Shannon distance of the clients' label distributions, 0 (equal) to 1 (disjoint).

    Shape: counts (clients, classes). The distance is the root of the base-2 divergence; 0 for one client.
    """
    n = len(counts)
    if n < 2:
        return 0.0
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = label_entropy(counts)
    total = 0.0
    for i in range(n - 1):  # a row of pairs at a time: memory stays (clients, classes)
        mixed = (p[i] + p[i + 1 :]) / 2
        divergence = label_entropy(mixed) - (entropy[i] + entropy[i + 1 :]) / 2
        total += float(np.sqrt(np.clip(divergence, 0, 1)).sum())
    return total / (n * (n - 1) / 2)
