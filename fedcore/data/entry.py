"""What the catalog knows of one data set, and how its names are compared. Nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from fedcore.paths import ASSETS

CLASSES = ASSETS / "classes.json"
"""Class names as the data sets write them in their folders or label files, in the order of their labels."""

PICTURE = "a picture of a {}."
PHOTO = "a photo of a {}."

ONE_DOMAIN = "all"
"""Name of the only domain of a data set that has no domains."""


def squash(name: str) -> str:
    """Equal for spellings of one name: ``Real World``, ``real_world``, ``RealWorld``."""
    return "".join(character for character in name.lower() if character.isalnum())


@dataclass(frozen=True)
class Entry:
    """One data set of the catalog.

    Attributes:
        name: key in an experiment, e.g. ``pacs``.
        title: as shown.
        domains: in the data set's order (folder names for data sets on disk); empty where any will do.
        classes: the data set's own names, in the order of its labels (sorted for domain sets); empty where
            they are read from the folder.
        template: prompt with one ``{}`` for the class name.
        source: who made it, and what it is.
        citation: the reference to give.
        licence: what is known of its terms; a note, not advice.
        how: how to get it, for the error message and the page.
        embedded: comes with FedLens, needs no folder.
        loader: which reader of ``loaders`` knows its layout.
        counts: images of each domain where the literature agrees on them; empty where it does not.
        class_count: how many classes there are, where ``classes`` are read from the folder.
        official: what its own split is; empty where it has none.
        aliases: other spelling of a domain or class -> the data set's own name.
        subset: its folder may hold more classes than the data set uses.
        torchvision: class of ``torchvision.datasets`` that downloads it; empty where none does.
        megabytes: size of that download, about.
    """

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    template: str
    source: str
    licence: str
    how: str
    citation: str = ""
    embedded: bool = False
    loader: str = "domains"
    counts: Mapping[str, int] = field(default_factory=dict)
    class_count: int | None = None
    official: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    subset: bool = False
    torchvision: str = ""
    megabytes: int | None = None


@cache
def known_classes(name: str) -> tuple[str, ...]:
    """The class names of a data set in the order of its labels, from ``CLASSES``."""
    return tuple(json.loads(CLASSES.read_text(encoding="utf-8"))[name])
