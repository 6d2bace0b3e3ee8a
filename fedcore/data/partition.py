"""Partitions: seeded assignments of samples to clients, each sample to at most one client and split.

A client's share of a class is the same in train, validation and test, so that its test set resembles its
training set. Draws are keyed by sample key, class name and client name; the order of files does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.data.assigners import (
    ClientGroup,
    Form,
    Leftover,
    assign_dirichlet,
    assign_iid,
    assign_pathological,
    natural_groups,
)
from fedcore.data.images import ImageSet
from fedcore.data.splits import few_shot
from fedcore.errors import FedLensError
from fedcore.records.codes import TEST, TRAIN, VALIDATION

Kind = Literal["domain", "iid", "dirichlet", "pathological", "natural"]
SplitRows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Rows of one client: train, validation, test."""


@dataclass(frozen=True)
class Assignment:
    """The samples of every client; all rows index the ``ImageSet`` and are ascending.

    Attributes:
        clients: names: the domain's for one client per domain, ``sketch-1``... for several; the names in
            the data set for a natural partition; else ``client-01``...
        client_domain: index into ``domains``, -1 if a client mixes domains. Shape: (clients,).
        train, validation, test: rows of every client.
        domains: all domains in use, including the held-out one.
        domain_test: the full test split of every domain, including the held-out one.
        held_out: the domain that no client holds, or None.
        counts: training samples. Shape: (clients, classes).
        unassigned: rows outside the held-out domain that no client holds: remaining classes of a
            pathological partition, clients that a natural one leaves out, and training rows beyond ``shots``.
            Test rows among them stay in ``domain_test``.
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
    dirichlet_form: Form = "per_class",
    leftover: Leftover = "drop",
    shots: int | None = None,
    held_out: str | None = None,
    seed: int = 0,
) -> Assignment:
    """Assign the samples of a data set to clients.

    - ``domain``: ``clients_per_domain`` clients each; within a domain IID, or Dirichlet given ``alpha``.
    - ``iid``: every class is assigned in turn; clients differ by at most one sample per class and split.
    - ``dirichlet``: in the per-class form (of FedAlign and SDFed) the clients' shares of each class are one
      draw of Dirichlet(alpha, ..., alpha), and clients differ in size; in the per-client form each client's
      shares of the classes are one draw, and clients are of equal size.
    - ``pathological``: ``classes_per_client`` classes each, without overlap. The remaining classes (1 for
      FedAlign's Food101, 2 for Pets and for Flowers) are not assigned, are shared by all clients
      (``leftover="spread"``), dealt out in turn ("even"), or go to the last client ("last"); they stay in the
      domains' test sets.
    - ``natural``: the clients that the data set names (writers, a manifest's column), or ``clients`` of them.

    If a client's share has no test sample, it gets one of a class that it trains on, from the client with
    most test samples of that class. The same holds for validation if the split has validation samples.

    Args:
        split: (samples,) as ``splits.split`` returns it.
        min_samples: minimum of training samples of each client; Dirichlet shares are redrawn (seeded, at most
            ``assigners.MAX_DRAWS`` times) until it is reached, and a natural client below it is left out.
        shots: maximum of training samples per class and client; validation and test are not reduced.
        held_out: a domain that no client holds; its samples are in ``domain_test`` only.
    """
    used = _used_rows(images, split, held_out)
    if kind == "natural":
        groups = natural_groups(images, split, used, clients, min_samples, shots, seed)
    else:
        groups = _groups(images, used, kind, clients, clients_per_domain)
        _refuse_too_many_clients(images, split, groups, min_samples, kind)
    parts: list[SplitRows] = []
    for group in groups:
        if kind == "pathological":
            owner = assign_pathological(images, split, group, classes_per_client or 1, leftover, seed)
        elif alpha is not None and kind in ("domain", "dirichlet"):
            owner = assign_dirichlet(images, split, group, alpha, dirichlet_form, min_samples, shots, seed)
        else:
            owner = assign_iid(images, split, group, seed)
        parts += _parts(images, split, group, owner)
    names = tuple(name for group in groups for name in group.names)
    train = [
        few_shot(part[TRAIN], images.labels, images.keys, shots, seed, name)
        for name, part in zip(names, parts, strict=True)
    ]
    sizes = [len(rows) for rows in train]
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < min_samples:
        raise FedLensError(
            f"client '{names[smallest]}' has {sizes[smallest]} training samples of {sum(sizes)}, "
            f"fewer than {min_samples}; lower min_samples, or set fewer clients or a larger alpha",
            "partition.min_samples",
        )
    validation, test = [part[VALIDATION] for part in parts], [part[TEST] for part in parts]
    held = np.concatenate([*train, *validation, *test])
    assert len(np.unique(held)) == len(held), "a sample has two owners"
    return Assignment(
        clients=names,
        client_domain=np.array([group.domain for group in groups for _ in group.names], dtype=np.int64),
        train=train,
        validation=validation,
        test=test,
        domains=images.domains,
        domain_test=_domain_tests(images, split),
        held_out=held_out,
        counts=np.array([np.bincount(images.labels[rows], minlength=len(images.classes)) for rows in train]),
        unassigned=np.setdiff1d(used, held),
    )


def _used_rows(images: ImageSet, split: np.ndarray, held_out: str | None) -> np.ndarray:
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
) -> list[ClientGroup]:
    present = [d for d in range(len(images.domains)) if np.any(images.domain[used] == d)]
    if kind != "domain":
        if clients is None:
            raise FedLensError(f"a '{kind}' partition needs clients = a number", "partition.clients")
        width = max(2, len(str(clients)))
        names = tuple(f"client-{i + 1:0{width}d}" for i in range(clients))
        return [ClientGroup(names, present[0] if len(present) == 1 else -1, used)]
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
            ClientGroup((name,) if clients_per_domain == 1 else numbered, d, used[images.domain[used] == d])
        )
    return groups


def _refuse_too_many_clients(
    images: ImageSet, split: np.ndarray, groups: list[ClientGroup], min_samples: int, kind: Kind
) -> None:
    """Refuse more clients than the samples suffice for, and say how many are possible."""
    for group in groups:
        n, field = len(group.names), "partition.clients"
        where = images.name
        if kind == "domain":
            field, where = "partition.clients_per_domain", f"domain '{images.domains[group.domain]}'"
        train, validation, test = (int((split[group.rows] == s).sum()) for s in (TRAIN, VALIDATION, TEST))
        most = max(1, min(train // min_samples, test, validation or test))
        remedy = f"set at most {most} client{'s' if most > 1 else ''}"
        if train < n * min_samples:
            remedies = [f"lower min_samples to {train // n}"] if train >= n else []
            remedies += [remedy] if most < n else []
            raise FedLensError(
                f"{where} has {train} training samples, too few for {n} client{'s' if n > 1 else ''} "
                f"with {min_samples} or more each; {' or '.join(remedies) or 'add training images'}",
                field if train < n else "partition.min_samples",
            )
        for name, count in (("test", test), ("validation", validation)):
            if count < n and (count or name == "test"):
                raise FedLensError(
                    f"{where} has {count} {name} samples for {n} clients, but each needs at least one; "
                    f"{remedy}",
                    field,
                )


def _parts(images: ImageSet, split: np.ndarray, group: ClientGroup, owner: np.ndarray) -> list[SplitRows]:
    """Return the rows of every client of a group, each with at least one test (and validation) sample."""
    owner = owner.copy()
    splits, labels = split[group.rows], images.labels[group.rows]
    for s in (VALIDATION, TEST):
        if np.any(splits == s):
            _ensure_one_each(owner, splits, labels, s, group.names)

    def rows(client: int, s: int) -> np.ndarray:
        return np.sort(group.rows[(owner == client) & (splits == s)])

    return [(rows(k, TRAIN), rows(k, VALIDATION), rows(k, TEST)) for k in range(len(group.names))]


def _ensure_one_each(
    owner: np.ndarray, splits: np.ndarray, labels: np.ndarray, s: int, names: tuple[str, ...]
) -> None:
    """Give every client without a sample of split ``s`` one of a class that it trains on (in place)."""
    n, classes = len(names), int(labels.max()) + 1
    held = np.zeros((n, classes), dtype=np.int64)
    np.add.at(held, (owner[(splits == s) & (owner >= 0)], labels[(splits == s) & (owner >= 0)]), 1)
    for k in np.flatnonzero(held.sum(1) == 0):
        trained = np.bincount(labels[(owner == k) & (splits == TRAIN)], minlength=classes)
        # A client without a test sample would have no accuracy, and one that is tested on a class which it
        # never saw would have a meaningless one. So it gets a sample of a class that it trains on, most of
        # all first, from the client with most of them; a donor keeps one sample.
        spare = np.where(held.sum(1, keepdims=True) > 1, held, 0)
        for c in np.argsort(-trained, kind="stable"):
            if trained[c] and spare[:, c].any():
                donor = int(np.argmax(spare[:, c]))
                owner[np.flatnonzero((owner == donor) & (splits == s) & (labels == c))[-1]] = k
                held[donor, c], held[k, c] = held[donor, c] - 1, 1
                break
        else:
            raise FedLensError(
                f"client '{names[k]}' gets no {'test' if s == TEST else 'validation'} sample of a class that "
                "it trains on; set fewer clients, a larger alpha or a higher min_samples",
                "partition.min_samples",
            )


MAX_COMPARED = 400
"""Maximum of clients in the pairwise distance, evenly spaced, because the number of pairs is quadratic."""


def label_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of each client's labels in bits: 0 for one class, log2(classes) if balanced.

    Shape: counts (clients, classes) -> (clients,).
    """
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy: np.ndarray = -(p * np.log2(np.where(p > 0, p, 1))).sum(1)
    return entropy + 0.0  # turns -0.0 into 0.0


def label_distance(counts: np.ndarray) -> float:
    """Return the mean pairwise Jensen-Shannon distance of the clients' labels, 0 (equal) to 1 (disjoint).

    Shape: counts (clients, classes). The distance is the root of the base-2 divergence; 0 for one client.
    """
    counts = counts[np.unique(np.linspace(0, len(counts) - 1, MAX_COMPARED).astype(int))]
    n = len(counts)
    if n < 2:
        return 0.0
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = label_entropy(counts)
    total = 0.0
    for i in range(n - 1):  # one client's pairs at a time, so that memory stays (clients, classes)
        mixed = (p[i] + p[i + 1 :]) / 2
        divergence = label_entropy(mixed) - (entropy[i] + entropy[i + 1 :]) / 2
        total += float(np.sqrt(np.clip(divergence, 0, 1)).sum())
    return total / (n * (n - 1) / 2)
