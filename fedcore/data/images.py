"""A data set: its entry in the catalog, and ``ImageSet``, the form in which the rest sees it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import ASSETS

CLASSES = ASSETS / "classes.json"
"""Class names as in the data sets' folders or label files, in the order of their labels."""
EMBEDDINGS = "embeddings"
"""Name of the data set that is a file of embeddings."""
GIVEN = "given"
"""Backbone of that data set: its encoder is not here."""
MINI_MODELS = ("mini-vit", "mini-rn")
"""Backbones that come with FedLens; they were trained on its drawings and on digits alone."""
ONE_DOMAIN = "all"
"""Name of the only domain of a data set without domains."""


class FolderError(FedLensError):
    """A folder or file of a data set that cannot be used; shown beside the field ``data.root``."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "data.root")


def squash(name: str) -> str:
    """Reduce the spellings of a name (``Real World``, ``real_world``, ``RealWorld``) to one."""
    return "".join(character for character in name.lower() if character.isalnum())


@dataclass(frozen=True)
class Hub:
    """A repository of the Hugging Face Hub that holds a data set's images.

    Attributes:
        revision: the commit whose content was described; empty if none was found, so that the commit of the
            first download is kept.
        archive: the authors' archive in it, which the entry's loader reads; empty if it is a table of images.
    """

    repo: str
    revision: str = ""
    archive: str = ""


@dataclass(frozen=True)
class Entry:
    """One data set of the catalog.

    Attributes:
        name: key in an experiment, e.g. ``pacs``.
        title: as shown.
        domains: in the data set's order (folder names for data sets on disk); empty if any are accepted.
        classes: as the data set spells them, in the order of its labels (sorted for domain sets); empty if
            they are read from the folder.
        template: prompt with one ``{}`` for the class name.
        source: its content and origin.
        citation: the reference to give, and ``bibtex`` the same for LaTeX.
        licence: a note on its terms, not legal advice.
        how_to_get: instructions, for the error message and the page; those for ``data get`` come first.
        embedded: it comes with FedLens and needs no folder.
        descriptions: file with the written descriptions of an embedded set's classes; empty: ``name``.
        loader: name of its reader: in ``loaders.BY_DOMAIN`` or ``LOADERS``, or hf, femnist or manifest.
        counts: images of each domain if the literature agrees on them, else empty.
        releases: name of an earlier release that papers used -> its images of each domain.
        class_count: number of classes, if ``classes`` are read from the folder.
        official_split: a description of its split; empty if it has none.
        split_coop: file of CoOp's few-shot split, in which ``*`` matches any text; empty if CoOp has none.
        classes_coop: class as it enters a prompt -> its name in CoOp's code, "" if that leaves it out;
            classes that are not listed have the same name.
        template_coop: CoOp's prompt; empty if CoOp does not have the data set.
        aliases: other spelling of a domain or class -> the name in ``domains`` or ``classes``.
        subset: its folder may hold more classes than the data set uses.
        hub: the repository that ``data get`` downloads; None if none is known to hold the same images.
        torchvision: class of ``torchvision.datasets`` that downloads it; empty if there is none.
        megabytes: approximate size of that download.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    template: str
    source: str
    licence: str
    how_to_get: str
    citation: str = ""
    bibtex: str = ""
    embedded: bool = False
    descriptions: str = ""
    loader: str = "domains"
    counts: Mapping[str, int] = field(default_factory=dict)
    releases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    class_count: int | None = None
    official_split: str = ""
    split_coop: str = ""
    classes_coop: Mapping[str, str] = field(default_factory=dict)
    template_coop: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    subset: bool = False
    hub: Hub | None = None
    torchvision: str = ""
    megabytes: int | None = None

    @property
    def is_own(self) -> bool:
        """Whether it stands for the user's own data, whose classes the catalog does not know."""
        return not (self.embedded or self.domains or self.classes or self.class_count)


def select_domains(
    where: str | Path, domains: Sequence[str], wanted: Iterable[str] | None, kind: str = "domain"
) -> tuple[str, ...]:
    """Return the wanted domains in the given order, all for None; the error names ``where`` and ``kind``."""
    if wanted is None:
        return tuple(domains)
    chosen = set(wanted)
    unknown = sorted(chosen - set(domains))
    if unknown or not chosen:
        listed = ", ".join(domains[:12]) + (", ..." if len(domains) > 12 else "")
        problem = f"no {kind} '{unknown[0]}'" if unknown else "no domain chosen"
        hint = did_you_mean(unknown[0] if unknown else "", domains, f"choose from {listed}")
        raise FedLensError(f"{where}: {problem}; {hint}", "data.domains")
    return tuple(name for name in domains if name in chosen)


@dataclass(frozen=True)
class Given:
    """Embeddings that came without their images.

    Attributes:
        width: d.
        rows: reads them once. Shape: -> (samples, d) float32.
        class_vectors: by class name, from the same encoder; empty if there are none. Shape: (d,) each.
    """

    width: int
    rows: Callable[[], np.ndarray]
    class_vectors: Mapping[str, np.ndarray]


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
        parts: the data sets that it joins (``training_classes.joined``), in order; empty if it is one.
        given: its embeddings, if these came in place of the images; ``read`` refuses then.
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
    parts: tuple["ImageSet", ...] = ()
    given: Given | None = None

    def __post_init__(self) -> None:
        n = len(self.labels)
        for what, values in (
            ("domains", self.domain),
            ("keys", self.keys),
            ("split marks", self.split),
            ("owners", self.owner),
        ):
            if values is not None and len(values) != n:
                raise ValueError(f"{self.name}: {len(values)} {what} for {n} samples")
        for what, codes, names in (
            ("label", self.labels, self.classes),
            ("domain", self.domain, self.domains),
        ):
            if n and (codes.min() < 0 or codes.max() >= len(names)):
                raise ValueError(f"{self.name}: a {what} lies outside 0..{len(names) - 1}")

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

    def restrict(self, domains: tuple[str, ...]) -> Self:
        """Return the images of some domains, given in the data set's own order; all classes stay.

        The fingerprint changes with the choice, since the rows do.
        """
        if domains == self.domains:
            return self
        place = {name: i for i, name in enumerate(domains)}
        domain = np.array([place.get(name, -1) for name in self.domains])[self.domain]
        rows = np.flatnonzero(domain >= 0)
        return self.changed(rows, domains, domains=domains, domain=domain[rows])

    def changed(self, rows: np.ndarray, key: Iterable[str], **changes: Any) -> Self:
        """Return some of the images with other attributes; the fingerprint changes with ``key``."""
        content = "\0".join([self.fingerprint, *key])
        fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
        return replace(self.subset(rows), fingerprint=fingerprint, **changes)

    def labels_among(self, names: Sequence[str]) -> np.ndarray:
        """Return each sample's label as an index into ``names``, -1 if its class has another name."""
        place = {name: i for i, name in enumerate(names)}
        labels: np.ndarray = np.array([place.get(name, -1) for name in self.classes])[self.labels]
        return labels

    def subset(self, rows: np.ndarray) -> Self:
        """Return some of the images. The fingerprint stays the same, so it does not identify them."""
        draft, given = self.draft, self.given
        return replace(
            self,
            labels=self.labels[rows],
            domain=self.domain[rows],
            keys=tuple(self.keys[r] for r in rows),
            read=lambda index: self.read(int(rows[index])),
            draft=draft and (lambda index, side: draft(int(rows[index]), side)),
            split=None if self.split is None else self.split[rows],
            owner=None if self.owner is None else tuple(self.owner[r] for r in rows),
            given=given and replace(given, rows=cache(lambda: given.rows()[rows])),
        )


def with_draft_decoding(images: ImageSet, side: int) -> ImageSet:
    """Return a data set that is decoded in draft for ``side`` pixels; its fingerprint differs."""
    draft = images.draft
    if draft is None:
        return images
    key = hashlib.sha256(f"{images.fingerprint}\0draft\0{side}".encode()).hexdigest()[:16]
    return replace(images, read=lambda index: draft(index, side), fingerprint=key, decode=f"draft {side} px")
