"""Small image sets, and who holds what after a partition."""

import hashlib
from collections.abc import Iterable

import numpy as np
from PIL import Image

from fedcore.data import partition as partitions
from fedcore.data.assigners import PartitionSettings
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment


def drawn(labels: list[int], domain: list[int], split: np.ndarray | None = None) -> ImageSet:
    """A data set whose images are never looked at."""
    return ImageSet(
        name="drawn",
        classes=tuple(f"class{i}" for i in range(max(labels) + 1)),
        domains=tuple(f"domain{i}" for i in range(max(domain) + 1)),
        template="a {}.",
        labels=np.array(labels, dtype=np.int64),
        domain=np.array(domain, dtype=np.int64),
        keys=tuple(f"{d}/{c}/{i}" for i, (c, d) in enumerate(zip(labels, domain, strict=True))),
        fingerprint="0",
        read=lambda i: Image.new("RGB", (1, 1), (i, 0, 0)),
        split=split,
    )


def grid(per_cell: int = 10, classes: int = 3, domains: int = 2) -> ImageSet:
    return drawn(
        [c for _ in range(domains) for c in range(classes) for _ in range(per_cell)],
        [d for d in range(domains) for _ in range(classes * per_cell)],
    )


def partition(images: ImageSet, split: np.ndarray, **settings: object) -> Assignment:
    return partitions.partition(images, split, PartitionSettings(**settings))


KINDS = {
    "one client a domain": {"kind": "domain"},
    "three clients a domain": {"kind": "domain", "clients_per_domain": 3},
    "dirichlet in a domain": {"kind": "domain", "clients_per_domain": 3, "alpha": 0.1},
    "iid": {"kind": "iid", "clients": 7},
    "dirichlet": {"kind": "dirichlet", "clients": 7, "alpha": 0.3},
    "pathological": {"kind": "pathological", "clients": 3, "classes_per_client": 2},
}


def held(a: Assignment) -> np.ndarray:
    return np.concatenate([*a.train, *a.validation, *a.test])


def digest(a: Assignment) -> str:
    content = hashlib.sha256(repr(a.clients).encode())
    for rows in (*a.train, *a.validation, *a.test, *a.domain_test, a.unassigned):
        content.update(rows.astype(np.int64).tobytes() + b"|")
    return content.hexdigest()


def held_by(a: Assignment, k: int) -> np.ndarray:
    return np.concatenate([a.train[k], a.validation[k], a.test[k]])


def pixel_digest(arrays: Iterable[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16]
