"""``ImageSet``, the form in which every data set reaches the rest of FedLens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class ImageSet:
    """Labelled images of several domains; pixels are drawn or decoded only when they are read.

    Shape: labels, domain and split (samples,).

    Attributes:
        name: catalog name, e.g. ``rotated-digits``.
        classes: class names as they enter a prompt; a label is an index into it.
        domains: domain names; ``domain`` holds indices into it.
        template: prompt with one ``{}`` for the class name, e.g. ``a picture of the number: {}.``
        keys: one stable name per sample (a relative path, or a drawing's seed); draws are keyed by it.
        split: 0 train, 1 validation, 2 test if the data set has an official split, else None.
        fingerprint: changes with any pixel or label; part of the key of encodings.
        read: index -> RGB image; may be called by several threads at once.
        owner: for each sample the client that the data set names (FEMNIST's writer, a manifest's client),
            "" for none; None if it does not name clients.
        draft: (index, side) -> the same image, decoded at a smaller scale if that is faster, with no side
            shorter than ``side``; None if the images are not files.
        decode: a description of how ``read`` decodes.
        root: the folder or file that it was read from, as the user gave it; empty for embedded data.
        parts: the data sets that it joins (``several.joined``), in order; empty if it is one.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    template: str
    labels: np.ndarray
    domain: np.ndarray
    keys: tuple[str, ...]
    fingerprint: str
    read: Callable[[int], Image.Image]
    split: np.ndarray | None = None
    owner: tuple[str, ...] | None = None
    draft: Callable[[int, int], Image.Image] | None = None
    decode: str = "full"
    root: str = ""
    parts: tuple[ImageSet, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.labels)
        if not (len(self.domain) == len(self.keys) == n):
            raise ValueError(
                f"{self.name}: {n} labels, {len(self.domain)} domains and {len(self.keys)} keys; "
                "give one of each"
            )
        for what, codes, names in (
            ("label", self.labels, self.classes),
            ("domain", self.domain, self.domains),
        ):
            if n and (codes.min() < 0 or codes.max() >= len(names)):
                raise ValueError(f"{self.name}: a {what} lies outside 0..{len(names) - 1}")
        for what, marks in (("split marks", self.split), ("owners", self.owner)):
            if marks is not None and len(marks) != n:
                raise ValueError(f"{self.name}: {len(marks)} {what} for {n} samples")

    def __len__(self) -> int:
        return len(self.labels)

    def owners(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the clients that the data set names, sorted, and each sample's index into them (-1: none).

        Shape: -> names, (samples,) int64.
        """
        if self.owner is None:
            return (), np.full(len(self), -1, dtype=np.int64)
        names = tuple(sorted(set(self.owner) - {""}))
        code = {name: i for i, name in enumerate(names)}
        return names, np.array([code.get(name, -1) for name in self.owner], dtype=np.int64)

    def class_counts(self) -> np.ndarray:
        """Count the images of each class in each domain. Shape: -> (domains, classes) int64."""
        counts = np.zeros((len(self.domains), len(self.classes)), dtype=np.int64)
        np.add.at(counts, (self.domain, self.labels), 1)
        return counts

    def empty_cells(self) -> tuple[tuple[str, str], ...]:
        return tuple((self.domains[d], self.classes[c]) for d, c in np.argwhere(self.class_counts() == 0))

    def restrict(self, domains: tuple[str, ...]) -> ImageSet:
        """Return the images of some domains, given in the data set's own order; all classes stay.

        The fingerprint changes with the choice, since the rows do.
        """
        if domains == self.domains:
            return self
        chosen = [self.domains.index(d) for d in domains]
        rows = np.flatnonzero(np.isin(self.domain, chosen))
        renumbered = np.full(len(self.domains), -1, dtype=np.int64)
        renumbered[chosen] = np.arange(len(chosen))
        content = hashlib.sha256("\0".join([self.fingerprint, *domains]).encode())
        part = self.subset(rows)
        return replace(
            part,
            domains=domains,
            domain=renumbered[part.domain],
            fingerprint=content.hexdigest()[:16],
        )

    def subset(self, rows: np.ndarray) -> ImageSet:
        """Return some of the images. The fingerprint stays, so it says nothing of which they are."""
        draft = self.draft
        return replace(
            self,
            labels=self.labels[rows],
            domain=self.domain[rows],
            keys=tuple(self.keys[r] for r in rows),
            read=lambda index: self.read(int(rows[index])),
            draft=draft and (lambda index, side: draft(int(rows[index]), side)),
            split=None if self.split is None else self.split[rows],
            owner=None if self.owner is None else tuple(self.owner[r] for r in rows),
        )


def with_draft_decoding(images: ImageSet, side: int) -> ImageSet:
    """Return a data set that is decoded in draft for ``side`` pixels; its fingerprint differs."""
    draft = images.draft
    if draft is None:
        return images
    key = hashlib.sha256(f"{images.fingerprint}\0draft\0{side}".encode()).hexdigest()[:16]
    return replace(images, read=lambda index: draft(index, side), fingerprint=key, decode=f"draft {side} px")
