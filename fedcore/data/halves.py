"""Base and new classes: a run may train on half of the classes and be tested on the other half too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.data.assigners import PartitionSettings
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment, partition
from fedcore.errors import FedLensError
from fedcore.records.codes import TEST

ClassOrder = Literal["label", "name"]


@dataclass(frozen=True)
class Halves:
    """The base classes, on which clients train, and the new ones, on which nobody does.

    Attributes:
        base, new: class names in the data set's order.
        base_test, new_test: rows of the test split, whether a client holds them or not.
    """

    base: tuple[str, ...]
    new: tuple[str, ...]
    base_test: np.ndarray
    new_test: np.ndarray


def halves(images: ImageSet, split: np.ndarray, order: ClassOrder) -> Halves:
    """Divide the classes of a data set; of an odd number, the base classes are the larger half.

    Args:
        order: ``label``, the data set's own (CoCoOp), or ``name``, the alphabet's.
    """
    ordered = sorted(images.classes) if order == "name" else list(images.classes)
    if len(ordered) < 2:
        raise FedLensError(
            f"{images.name} has one class, so none is left to be new; train on all classes",
            "data.training_classes",
        )
    first = set(ordered[: (len(ordered) + 1) // 2])
    base = tuple(name for name in images.classes if name in first)
    new = tuple(name for name in images.classes if name not in first)
    base_test, new_test = (
        np.flatnonzero((labels_among(images, names) >= 0) & (split == TEST)) for names in (base, new)
    )
    return Halves(base, new, base_test, new_test)


def labels_among(images: ImageSet, names: Sequence[str]) -> np.ndarray:
    """Return each sample's label as an index into ``names``, -1 if its class has another name."""
    place = {name: i for i, name in enumerate(names)}
    labels: np.ndarray = np.array([place.get(name, -1) for name in images.classes])[images.labels]
    return labels


def partition_base(
    images: ImageSet, split: np.ndarray, base: Sequence[str], settings: PartitionSettings
) -> Assignment:
    """Assign the samples of the base classes to clients; rows index the whole data set, counts ``base``."""
    rows = np.flatnonzero(labels_among(images, base) >= 0)
    part = replace(
        images.subset(rows),
        name=f"{images.name} (base classes)",
        classes=tuple(base),
        labels=labels_among(images, base)[rows],
    )
    return partition(part, split[rows], settings).among(rows)
