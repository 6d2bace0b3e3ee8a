"""The classes that clients train on: half of them (base and new classes), or some of them for each client.

Cross-class: the base classes of several data sets are dealt to clients in blocks. Source: Qiu et al.,
Federated Text-driven Prompt Generation for Vision-Language Models, ICLR 2024, Section 4.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.events import TEST, TRAIN, VALIDATION
from fedcore.base.progress import counted
from fedcore.data.assigners import PartitionSettings
from fedcore.data.images import ImageSet
from fedcore.data.partition import Assignment, partition
from fedcore.data.splits import few_shot

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
        np.flatnonzero((images.labels_among(names) >= 0) & (split == TEST)) for names in (base, new)
    )
    return Halves(base, new, base_test, new_test)


def partition_base(
    images: ImageSet, split: np.ndarray, base: Sequence[str], settings: PartitionSettings
) -> Assignment:
    """Assign the samples of the base classes to clients; rows index the whole data set, counts ``base``."""
    rows = np.flatnonzero(images.labels_among(base) >= 0)
    part = replace(
        images.subset(rows),
        name=f"{images.name} (base classes)",
        classes=tuple(base),
        labels=images.labels_among(base)[rows],
    )
    return partition(part, split[rows], settings).among(rows)


def joined(parts: Sequence[ImageSet]) -> ImageSet:
    """Join data sets into one, whose domains are these data sets; ``parts`` has the data sets themselves.

    Its classes have names such as ``shapes: circle``, since two data sets may share a class name. These names
    appear on pages and are never encoded.
    """
    names = _distinct_names(parts)
    first = np.cumsum([0, *map(len, parts)])
    classes = np.cumsum([0, *(len(part.classes) for part in parts)])

    def read(index: int) -> Image.Image:
        place = int(np.searchsorted(first, index, side="right")) - 1
        return parts[place].read(index - int(first[place]))

    content = "\0".join(["several", *(text for part in parts for text in (part.name, part.fingerprint))])
    return ImageSet(
        name="+".join(names),
        classes=tuple(f"{name}: {c}" for name, part in zip(names, parts, strict=True) for c in part.classes),
        domains=names,
        template=parts[0].template,
        labels=np.concatenate([p.labels + start for p, start in zip(parts, classes[:-1], strict=True)]),
        domain=np.repeat(np.arange(len(parts)), list(map(len, parts))),
        keys=tuple(f"{name}/{key}" for name, part in zip(names, parts, strict=True) for key in part.keys),
        fingerprint=hashlib.sha256(content.encode()).hexdigest()[:16],
        read=read,
        decode="; ".join(dict.fromkeys(part.decode for part in parts)),
        parts=tuple(replace(part, name=name) for name, part in zip(names, parts, strict=True)),
        given=parts[0].given,  # which are not joined with other data
    )


def _distinct_names(parts: Sequence[ImageSet]) -> tuple[str, ...]:
    """Return a name for each data set, which includes its folder's name if two have the same."""
    given = [part.name for part in parts]
    names = [
        f"{part.name} {Path(part.root).name}" if given.count(part.name) > 1 else part.name for part in parts
    ]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise FedLensError(f"'{name}' is named twice; name each data set once", f"further_data.{i - 1}")
    return tuple(names)


@dataclass(frozen=True)
class CrossClass:
    """Clients that each have some classes of one data set, and predict among these only.

    Attributes:
        assignment: rows of the joined images; its counts are over the base classes of all data sets.
        halves: of each data set; rows of the joined images.
        blocks: the classes of each client, in its data set's order.
        classes: the base classes of all data sets, as the joined images name them.
    """

    assignment: Assignment
    halves: tuple[Halves, ...]
    blocks: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]


def blocks(classes: Sequence[str], per_client: int) -> list[tuple[str, ...]]:
    """Divide classes, in their order, into round(classes / per_client) blocks; the last has the rest."""
    count = max(1, round(len(classes) / per_client))
    ends = [*range(per_client, count * per_client, per_client), len(classes)]
    return [tuple(classes[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def deal(
    images: ImageSet,
    marks: Sequence[np.ndarray],
    order: ClassOrder,
    per_client: int,
    shots: int | None,
    min_samples: int,
    seed: int,
) -> CrossClass:
    """Deal the base classes of each data set to clients; each class belongs to one client.

    Args:
        images: as ``joined`` returns them.
        marks: the split of each data set. Shape: (samples of the data set,) each.
    """
    found, dealt, names, rows = [], [], [], []
    first = np.cumsum([0, *map(len, images.parts)])
    domain_test = []
    for part, start, split in zip(images.parts, first[:-1], marks, strict=True):
        of_part = halves(part, split, order)
        of_clients = blocks(of_part.base, per_client)
        for number, block in enumerate(of_clients, start=1):
            name = part.name if len(of_clients) == 1 else f"{part.name}-{number}"
            held = np.flatnonzero(part.labels_among(block) >= 0)
            train, validation, test = (held[split[held] == s] for s in (TRAIN, VALIDATION, TEST))
            train = few_shot(train, part.labels, part.keys, shots, seed, name)
            if len(train) < min_samples:
                raise FedLensError(
                    f"client '{name}' has {counted(len(train), 'training sample')}, fewer than "
                    f"{min_samples}; lower min_samples, or set more classes_per_client",
                    "partition.min_samples",
                )
            if not len(test):
                raise FedLensError(
                    f"client '{name}' has no test sample of its classes; set more classes_per_client, or "
                    "another split",
                    "partition.classes_per_client",
                )
            names.append(name)
            rows.append([part_rows + start for part_rows in (train, validation, test)])
        dealt.append(of_clients)
        base_test, new_test = of_part.base_test + start, of_part.new_test + start
        found.append(replace(of_part, base_test=base_test, new_test=new_test))
        domain_test.append(base_test)
    classes = tuple(
        f"{part.name}: {c}" for part, of in zip(images.parts, found, strict=True) for c in of.base
    )
    labels = images.labels_among(classes)
    train_rows = [train for train, _, _ in rows]
    assignment = Assignment(
        clients=tuple(names),
        client_domain=np.repeat(np.arange(len(dealt)), list(map(len, dealt))),
        train=train_rows,
        validation=[validation for _, validation, _ in rows],
        test=[test for _, _, test in rows],
        domains=images.domains,
        domain_test=domain_test,
        held_out=None,
        counts=np.array([np.bincount(labels[held], minlength=len(classes)) for held in train_rows]),
        unassigned=np.array([], dtype=np.int64),
    )
    return CrossClass(assignment, tuple(found), tuple(b for of_part in dealt for b in of_part), classes)
