"""Partitions: seeded assignments of samples to clients, each sample to at most one client and split.

A client's share of a class is the same in train, validation and test, so that its test set resembles its
training set. Draws are keyed by sample key, class name and client name; the order of files does not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.base.progress import counted
from fedcore.base.seeds import draw_names
from fedcore.data.assigners import MARKS, ClientGroup, PartitionSettings, assign
from fedcore.data.images import ImageSet
from fedcore.data.splits import few_shot, keyed_order


@dataclass(frozen=True)
class Assignment:
    """The samples of every client; all rows index the ``ImageSet`` and are ascending.

    Attributes:
        clients: names: the domain's for one client per domain, ``sketch-1``... for several; the names in
            the data set for a natural partition; else ``client-01``...
        client_domain: index into ``domains``, -1 if a client mixes domains. Shape: (clients,).
        train, validation, test: rows of every client.
        domains: all domains in use, including the held-out one.
        domain_test: the full test split of every domain; of the held-out one all rows if so set.
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

    def of_clients(self, chosen: Sequence[int]) -> Self:
        """Return the assignment of some clients; what the others hold is held by nobody."""
        places = list(chosen)
        return replace(
            self,
            clients=tuple(self.clients[k] for k in places),
            client_domain=self.client_domain[places],
            train=[self.train[k] for k in places],
            validation=[self.validation[k] for k in places],
            test=[self.test[k] for k in places],
            counts=self.counts[places],
        )

    def among(self, rows: np.ndarray) -> Self:
        """Return the same assignment where the images are these rows of a larger set."""
        return replace(
            self,
            train=[rows[part] for part in self.train],
            validation=[rows[part] for part in self.validation],
            test=[rows[part] for part in self.test],
            domain_test=[rows[part] for part in self.domain_test],
            unassigned=rows[self.unassigned],
        )


def partition(images: ImageSet, split: np.ndarray, settings: PartitionSettings | None = None) -> Assignment:
    """Assign the samples of a data set to clients; by default, each domain is one client.

    If a client's share has no test sample, it gets one of a class that it trains on, from the client with
    most test samples of that class. The same holds for validation if the split has validation samples.

    Args:
        split: (samples,) as ``splits.split`` returns it.
    """
    settings = settings or PartitionSettings()
    used = _used_rows(images, split, settings.held_out)
    groups = _groups(images, split, used, settings)
    parts = [part for group in groups for part in _parts(images, split, group, settings)]
    names = tuple(name for group in groups for name in group.names)
    train = [
        few_shot(part[TRAIN], images.labels, images.keys, settings.shots, settings.seed, name)
        for name, part in zip(names, parts, strict=True)
    ]
    sizes = [len(rows) for rows in train]
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < settings.min_samples:
        raise FedLensError(
            f"client '{names[smallest]}' has {sizes[smallest]} training samples of {sum(sizes)}, "
            f"fewer than {settings.min_samples}; lower min_samples, or set fewer clients or a larger alpha",
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
        domain_test=_domain_tests(images, split, settings),
        held_out=settings.held_out,
        counts=np.array([np.bincount(images.labels[rows], minlength=len(images.classes)) for rows in train]),
        unassigned=np.setdiff1d(used, held),
    )


def unseen_count(clients: int, share: float) -> int:
    """Return the number of clients that never take part, if a share of them does not: at least one."""
    return max(1, int(share * clients + 0.5)) if share else 0


def withhold(assignment: Assignment, share: float, seed: int) -> tuple[Assignment, Assignment]:
    """Draw clients by name that never take part; return the assignments of the others and of these."""
    names = assignment.clients
    count = unseen_count(len(names), share)
    if count >= len(names):
        raise FedLensError(
            f"{100 * share:.0f} % of {counted(len(names), 'client')} leaves none to train; set more clients, "
            "or unseen = 0",
            "partition.unseen",
        )
    drawn = draw_names(names, count, seed, "unseen clients")
    others = [k for k in range(len(names)) if k not in set(drawn)]
    return assignment.of_clients(others), assignment.of_clients(drawn)


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


def _domain_tests(images: ImageSet, split: np.ndarray, settings: PartitionSettings) -> list[np.ndarray]:
    whole = settings.held_out if settings.held_out_share == "all" else None
    tests = [
        np.flatnonzero((images.domain == d) & ((split == TEST) | (name == whole)))
        for d, name in enumerate(images.domains)
    ]
    for name, rows in zip(images.domains, tests, strict=True):
        if not len(rows):
            raise FedLensError(
                f"domain '{name}' of {images.name} has no test samples; "
                "add images to it (two of a class at least) or leave it out of data.domains",
                "data.domains",
            )
    return tests


def _groups(
    images: ImageSet, split: np.ndarray, used: np.ndarray, settings: PartitionSettings
) -> list[ClientGroup]:
    """Return the clients in groups, among each of which its own rows are divided."""
    if settings.kind == "natural":
        return _natural_groups(images, split, used, settings)
    clients = settings.clients
    if settings.kind == "domain":
        each = settings.clients_per_domain
        present = np.unique(images.domain[used]).tolist()
        total = len(present) * each
        if clients is not None and clients != total:
            raise FedLensError(
                f"{counted(clients, 'client')}, but {counted(len(present), 'domain')} x "
                f"{counted(each, 'client')} each make {total}; leave clients empty and set "
                "clients_per_domain",
                "partition.clients",
            )
        groups = []
        for d in present:
            name = images.domains[d]
            names = (name,) if each == 1 else tuple(f"{name}-{i + 1}" for i in range(each))
            groups.append(ClientGroup(names, d, used[images.domain[used] == d]))
    else:
        assert clients is not None, "the config asks for it"
        width = max(2, len(str(clients)))
        names = tuple(f"client-{i + 1:0{width}d}" for i in range(clients))
        groups = [ClientGroup(names, _only_domain(images, used), used)]
    for group in groups:
        _refuse_too_many_clients(images, split, group, settings)
    return groups


def _only_domain(images: ImageSet, rows: np.ndarray) -> int:
    """Return the index of the domain that all rows are of; -1 if they are of several."""
    domains = np.unique(images.domain[rows])
    return int(domains[0]) if len(domains) == 1 else -1


def _natural_groups(
    images: ImageSet, split: np.ndarray, used: np.ndarray, settings: PartitionSettings
) -> list[ClientGroup]:
    """Return the clients that the data set names, each as a group: all, or ``clients`` drawn by the seed.

    Clients with fewer than ``min_samples`` training samples, without a test sample, or without a validation
    sample although the split has some, are left out; their samples are not assigned.
    """
    clients, min_samples = settings.clients, settings.min_samples
    names, owner = images.owners()
    if not names:
        raise FedLensError(
            f"{images.name} does not name clients; a 'natural' partition needs writers (femnist) or a "
            "client column in a manifest or Hugging Face data set",
            "partition.kind",
        )
    rows = used[np.argsort(owner[used], kind="stable")]
    parts = np.split(rows, np.searchsorted(owner[rows], np.arange(len(names) + 1)))[1 : len(names) + 1]
    validated = bool(np.any(split == VALIDATION))
    large = []
    for name, part in zip(names, parts, strict=True):
        train, validation, test = (part[split[part] == s] for s in MARKS)
        usable = int(np.minimum(np.bincount(images.labels[train]), settings.shots or len(images)).sum())
        if usable >= min_samples and len(test) and (len(validation) or not validated):
            large.append(ClientGroup((name,), _only_domain(images, part), part))
    if len(large) < (clients or 1):
        each = f"{counted(min_samples, 'training sample')} and one test sample"
        raise FedLensError(
            f"{len(large)} of the {len(names)} clients that {images.name} names have {each}"
            + (f", fewer than clients = {clients}; set fewer" if large else "; they need more samples")
            + (" or lower min_samples" if min_samples > 1 else ""),
            "partition.clients" if large else "partition.min_samples",
        )
    if clients is None:
        return large
    chosen = keyed_order([g.names[0] for g in large], settings.seed, "natural")[:clients]
    return [large[i] for i in np.sort(chosen)]


def _refuse_too_many_clients(
    images: ImageSet, split: np.ndarray, group: ClientGroup, settings: PartitionSettings
) -> None:
    """Refuse more clients than the samples suffice for, and say how many are possible."""
    n, field, where = len(group.names), "partition.clients", images.name
    if settings.kind == "domain":
        field, where = "partition.clients_per_domain", f"domain '{images.domains[group.domain]}'"
    min_samples = settings.min_samples
    train, validation, test = (int((split[group.rows] == s).sum()) for s in MARKS)
    most = max(1, min(train // min_samples, test, validation or test))
    remedy = f"set at most {counted(most, 'client')}"
    if train < n * min_samples:
        remedies = [f"lower min_samples to {train // n}"] if train >= n else []
        remedies += [remedy] if most < n else []
        raise FedLensError(
            f"{where} has {counted(train, 'training sample')}, too few for {counted(n, 'client')} "
            f"with {min_samples} or more each; {' or '.join(remedies) or 'add training images'}",
            field if train < n else "partition.min_samples",
        )
    for name, count in (("test", test), ("validation", validation)):
        if count < n and (count or name == "test"):
            raise FedLensError(
                f"{where} has {counted(count, f'{name} sample')} for {n} clients, but each needs at "
                f"least one; {remedy}",
                field,
            )


def _parts(
    images: ImageSet, split: np.ndarray, group: ClientGroup, settings: PartitionSettings
) -> list[list[np.ndarray]]:
    """Return the rows of every client of a group by split, with a test (and validation) sample at least."""
    owner = assign(images, split, group, settings)
    splits, labels = split[group.rows], images.labels[group.rows]
    for s in (VALIDATION, TEST):
        if np.any(splits == s):
            _ensure_one_each(owner, splits, labels, s, group.names, [images.keys[i] for i in group.rows])
    clients = range(len(group.names))
    return [[group.rows[(owner == k) & (splits == s)] for s in MARKS] for k in clients]


def _ensure_one_each(
    owner: np.ndarray,
    splits: np.ndarray,
    labels: np.ndarray,
    s: int,
    names: tuple[str, ...],
    keys: Sequence[str],
) -> None:
    """Give every client without a sample of split ``s`` one of a class that it trains on (in place)."""
    n, classes = len(names), int(labels.max()) + 1
    held = np.zeros((n, classes), dtype=np.int64)
    np.add.at(held, (owner[(splits == s) & (owner >= 0)], labels[(splits == s) & (owner >= 0)]), 1)
    for k in np.flatnonzero(held.sum(1) == 0):
        trained = np.bincount(labels[(owner == k) & (splits == TRAIN)], minlength=classes)
        # A client without a test sample would have no accuracy, and one that is tested on a class which it
        # never saw would have a meaningless one. So it gets a sample of a class that it trains on, most of
        # all first, from the client with most of them; a donor keeps one sample. The sample is chosen by its
        # key, as the order of the files must not decide who holds it.
        spare = np.where(held.sum(1, keepdims=True) > 1, held, 0)
        for c in np.argsort(-trained, kind="stable"):
            if trained[c] and spare[:, c].any():
                donor = int(np.argmax(spare[:, c]))
                given = np.flatnonzero((owner == donor) & (splits == s) & (labels == c))
                owner[max(given.tolist(), key=keys.__getitem__)] = k
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
