"""A data set as a list of files: what is known of every image before one is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.data.entry import ONE_DOMAIN
from fedcore.data.images import SPLITS
from fedcore.data.readers.layout import Layout
from fedcore.data.readers.walk import images_in
from fedcore.errors import FedLensError


@dataclass
class Listing:
    """Files of a data set with all that is known of them before one is opened.

    ``files``, ``keys``, ``labels``, ``domain``, ``split`` and ``owner`` run in parallel.

    Attributes:
        classes: as they enter a prompt.
        split: official marks (values as in ``images.SPLITS``), or None where there are none.
        owner: the clients that the data set names ("" for none), or None where it names none.
        left_out: (path, reason) of files that are known to be unusable.
        label_files: what the labels and the split were read from.
    """

    root: Path
    classes: tuple[str, ...]
    domains: tuple[str, ...] = (ONE_DOMAIN,)
    files: list[Path] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    domain: list[int] = field(default_factory=list)
    split: list[int] | None = None
    owner: list[str] | None = None
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    label_files: list[Path] = field(default_factory=list)

    def add(self, path: Path, key: str, label: int, domain: int = 0, part: int | None = None) -> None:
        """One more image; ``part`` where the data set has an official split.

        Raises:
            FedLensError: ``data.root``, for a path that a label file leads out of the folder.
        """
        if ".." in path.parts or not str(path).startswith(os.path.join(self.root, "")):
            raise FedLensError(
                f"{self.root}: '{path}' lies outside of it; get the label files again", "data.root"
            )
        self.files.append(path)
        self.keys.append(key)
        self.labels.append(label)
        self.domain.append(domain)
        if part is not None:
            self.split = self.split if self.split is not None else []
            self.split.append(part)


def listing(found: Layout, names: tuple[str, ...]) -> Listing:
    """The images of a layout, sorted within each class. Keys are ``[part/][domain/]class/file``.

    Keys are made of the data set's own names, so that the same images are drawn from every upstream form.

    Args:
        names: the classes as they enter a prompt.
    """
    result = Listing(found.root, names, found.domains)
    marked = all(s.part is not None for sources in found.sources.values() for s in sources)
    for d, domain in enumerate(found.domains):
        for c, name in enumerate(found.classes):
            sources = found.sources.get((domain, name), ())
            for source in sorted(sources, key=lambda s: -1 if s.part is None else s.part):
                parts = () if source.part is None else (SPLITS[source.part],)
                above = () if domain == ONE_DOMAIN else (domain,)
                for path in sorted(images_in(found.root, source.path), key=lambda p: p.name):
                    key = "/".join((*parts, *above, name, path.name))
                    result.add(path, key, c, d, source.part if marked else None)
    return result
